# SPDX-License-Identifier: Apache-2.0
"""kazoo's handler with a cheaper `select`, and sockets that read ahead.

kazoo selects three times for each answer and each watch event, makes and closes an epoll object each time, and receives
the length and the content separately. Here one system call receives all that has arrived, and `poll` needs one more.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from kazoo.handlers.threading import SequentialThreadingHandler

_READ_BYTES: Final = 1 << 16
"""Larger than a TLS record."""


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class ReadAheadSocket(socket.socket):
    """A connection that takes all bytes that have arrived in one call. Used on kazoo's thread."""

    _held = b""
    _at = 0
    _error: OSError | None = None
    _ended = False

    @classmethod
    def of(cls, plain: socket.socket) -> ReadAheadSocket:
        """The same connection; `plain` is closed."""
        timeout_s = plain.gettimeout()
        made = cls(plain.family, plain.type, plain.proto, plain.detach())
        made.settimeout(timeout_s)
        return made

    def holds(self) -> bool:
        """Whether `recv` returns without a wait: bytes, the end, or an error."""
        return bool(self.pending() or self._ended or self._error)

    def fill(self) -> bool:
        """Take the bytes that have arrived; returns `holds`. A part of a TLS record, or a record without data, yields
        no bytes.
        """
        if not self.holds():
            try:
                self._held, self._at = super().recv(_READ_BYTES), 0
                self._ended = not self._held
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as error:
                self._error = error
        return True

    def pending(self) -> int:
        """Number of bytes that `recv` returns without a system call."""
        return len(self._held) - self._at

    def ahead(self) -> tuple[bytes, int]:
        """The bytes of the last system call, and the position of the first byte that `recv` has not returned."""
        return self._held, self._at

    def skip(self, position: int) -> None:
        """Let `recv` continue at a position of `ahead`."""
        self._at = position

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """At most `buflen` bytes; without any, raises SSLWantReadError."""
        if not self.fill():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "no bytes have arrived")
        if self._error is not None:
            raise self._error
        taken = self._held[self._at : self._at + buflen]
        self._at += len(taken)
        return taken


def poll_select(
    rlist: Sequence[_HasFileno], wlist: Sequence[_HasFileno], timeout_s: float | None
) -> tuple[list[_HasFileno], list[_HasFileno]]:
    """The readable sockets of `rlist` and the writable sockets of `wlist`; a failed socket counts as both.

    Args:
        timeout_s: time limit in seconds; None: no limit.

    Raises:
        ValueError: a socket is closed.
    """
    poll = select.poll()
    wanted: dict[int, int] = {}
    for sockets, mask in ((rlist, select.POLLIN), (wlist, select.POLLOUT)):
        for one in sockets:
            wanted[one.fileno()] = wanted.get(one.fileno(), 0) | mask
    for descriptor, mask in wanted.items():
        poll.register(descriptor, mask)
    ready = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
    if any(events & select.POLLNVAL for events in ready.values()):
        raise ValueError("a socket is closed")
    readable = [one for one in rlist if ready.get(one.fileno(), 0) & ~select.POLLOUT]
    return readable, [one for one in wlist if ready.get(one.fileno(), 0) & ~select.POLLIN]


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Runs callbacks in order, one thread for watches and one for answers."""

    def create_connection(self, *arguments: Any, **options: Any) -> ReadAheadSocket:
        """A connection in plain text; raises OSError."""
        return ReadAheadSocket.of(super().create_connection(*arguments, **options))

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """Like `select.select`; a socket that reads ahead is readable once it has bytes, the end or an error.

        `xlist` has no effect; kazoo does not use it.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            held = [one for one in rlist if isinstance(one, ReadAheadSocket) and one.holds()]
            left_s = 0.0 if held else None if end_s is None else max(0.0, end_s - time.monotonic())
            readable, writable = poll_select(rlist, wlist, left_s)
            ready = [one for one in rlist if one in held or (one in readable and _is_readable(one))]
            if ready or writable or (end_s is not None and time.monotonic() >= end_s):
                return ready, writable, []


def _is_readable(one: Any) -> bool:
    return not isinstance(one, ReadAheadSocket) or one.fill()
