# SPDX-License-Identifier: Apache-2.0
"""Writes the cause of a process's end into a file, which Kubernetes shows as the termination message."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final, NoReturn

from tidemark.model import TidemarkError

MESSAGE_BYTES_MAX: Final = 4096
"""Limit of the message: bytes that a kubelet keeps."""

_log = logging.getLogger(__name__)


def refuse_settings(owner: str, path: str, error: TidemarkError, advice: str = "") -> NoReturn:
    """End a service whose settings are wrong: one line on stderr, the termination message, status 2."""
    sys.stderr.write(f"tidemark {owner}: {error}{advice}\n")
    write_termination_message(path, f"the settings are wrong: {error.code}: {error.message}")
    raise SystemExit(2)


def write_termination_message(path: str, message: str) -> None:
    """Write `message` into the file at `path`, as one line; no effect if `path` is "".

    The file is written in place, because a kubelet mounts it. A failed write leaves the message in the log only.
    """
    if not path:
        return
    line = " ".join(message.split()).encode()
    whole = line if len(line) < MESSAGE_BYTES_MAX else line[: MESSAGE_BYTES_MAX - 1].decode(errors="ignore").encode()
    try:
        Path(path).write_bytes(whole + b"\n")
    except OSError as error:
        _log.warning("cannot write termination.message.path", extra={"path": path, "why": error.strerror})
