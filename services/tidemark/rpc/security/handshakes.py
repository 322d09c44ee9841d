# SPDX-License-Identifier: Apache-2.0
"""Counts failed TLS handshakes, and writes the lines of gRPC's C library into this process's log.

gRPC for Python has no hook for handshakes. Its C library writes their errors to file descriptor 2, in another format,
between the lines of a JSON log. A thread of this module reads that descriptor. Python's own errors bypass it. Some
lines have text of a peer, also with line ends. So the pipe keeps the boundaries of writes: gRPC writes a line in one
call.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import logging
import os
import re
import select
import sys
import threading
from typing import Final, TextIO

from tidemark.rpc.security.audit import LineLimit
from tidemark.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_STDERR: Final = 2
_LINE: Final = re.compile(r"(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ (?P<source>[\w./-]+:\d+)\] (?P<text>.*)", re.DOTALL)
_LEVELS: Final = {"I": logging.INFO, "W": logging.WARNING, "E": logging.WARNING, "F": logging.CRITICAL}
_FAILED: Final = "Handshake failed with error "
_JOIN_S: Final = 2.0
_PACKET_BYTES: Final = 4096
"""Linux splits longer writes to a pipe that keeps the boundaries of writes."""
_READ_BYTES: Final = 1 << 16
_PIPE_BYTES: Final = 1 << 20
"""Room for 256 lines: each takes a page."""

_PIPE: Final = "pipe"
OTHER: Final = "other"
_REASONS: Final = (
    ("certificate has expired", "expired"),
    ("certificate is not yet valid", "not_yet_valid"),
    ("unsupported certificate purpose", "purpose"),
    ("Hostname Verification", "host"),
    ("CERTIFICATE_VERIFY_FAILED", "authority"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no_certificate"),
    ("WRONG_VERSION_NUMBER", "no_tls"),
    ("HTTP_REQUEST", "no_tls"),
    ("UNSUPPORTED_PROTOCOL", "protocol"),
    ("NO_SHARED_CIPHER", "protocol"),
    ("_ALERT_", "refused_by_peer"),
)
"""Parts of OpenSSL's sentences, and the reason that the metric has for each."""


def reason_of(text: str) -> str:
    """The reason of a failed handshake, from gRPC's sentence."""
    return next((reason for part, reason in _REASONS if part in text), OTHER)


class NativeLines:
    """Between `start` and `stop`, complete lines that C code writes to stderr are written to this process's log.

    Args:
        metrics: gets the counter.
    """

    def __init__(self, metrics: Metrics) -> None:
        doc = "TLS handshakes that failed, as server or as client, by reason"
        self._failures = metrics.counter("tls_handshake_failures", doc, ["reason"])
        doc = "Times at which the pipe for lines of C code was full: lines, and failed handshakes, may be missing"
        self._full = metrics.counter("native_lines_full", doc)
        self._limit = LineLimit()
        self._python: TextIO | None = None
        self._real = sys.stderr
        self._reader: threading.Thread | None = None

    def __enter__(self) -> NativeLines:
        self._real = os.fdopen(os.dup(_STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        self._python, sys.stderr = sys.stderr, self._real
        _redirect_handlers(self._python, self._real)
        faulthandler.enable(self._real)
        reading, writing = _pipe()
        os.set_blocking(writing, False)  # a full pipe loses lines: with the GIL held, a writer would wait without end
        os.dup2(writing, _STDERR)
        os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), name="native lines", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._python is not None
        assert self._reader is not None
        os.dup2(self._real.fileno(), _STDERR)  # closes the pipe, unless a child process still has it
        self._reader.join(_JOIN_S)
        faulthandler.disable()
        sys.stderr = self._python
        _redirect_handlers(self._real, self._python)

    def _read(self, descriptor: int) -> None:
        written = b""
        while True:
            select.select([descriptor], [], [])
            # called after the wait, since a burst may have filled the pipe before this thread ran
            self._report_if_full()
            part = os.read(descriptor, _READ_BYTES)
            if not part:
                break
            written += part
            if len(part) != _PACKET_BYTES or len(written) > _READ_BYTES:  # otherwise the rest of a long write follows
                self._take(written.decode("utf-8", "backslashreplace").removesuffix("\n"))
                written = b""
        os.close(descriptor)

    def _report_if_full(self) -> None:
        if not select.select([], [_STDERR], [], 0)[1]:
            self._full.inc()
            if self._limit.has_room(_PIPE):
                _log.warning("lines of C code may be missing: they arrived faster than this process logs them")

    def _take(self, written: str) -> None:
        found = _LINE.fullmatch(written)
        if found is None:
            for line in written.split("\n"):
                self._real.write(line + "\n")
            return
        text = found["text"].replace("\n", "\\n")
        if not text.startswith(_FAILED):
            if self._limit.has_room(found["source"]):
                _log.log(_LEVELS[found["level"]], "%s", text, extra={"source": found["source"]})
            return
        reason = reason_of(text)
        self._failures.labels(reason).inc()
        if self._limit.has_room(reason):
            _log.warning("a TLS handshake failed", extra={"reason": reason, "detail": text.removeprefix(_FAILED)})


def _pipe() -> tuple[int, int]:
    try:
        reading, writing = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    except (AttributeError, OSError):  # not Linux, or a replaced stderr
        return os.pipe()
    with contextlib.suppress(OSError):  # a user may have few large pipes
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing


def _redirect_handlers(before: TextIO, after: TextIO) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)
