# SPDX-License-Identifier: Apache-2.0
"""Why a process ended, for whoever runs it: one line in a file, which Kubernetes shows as the termination message."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

MESSAGE_BYTES_MAX: Final = 4096
"""What a kubelet keeps of it."""

_log = logging.getLogger(__name__)


def write_termination_message(path: str, message: str) -> None:
    """Put `message` into the file at `path`, as one line; nothing where `path` is "".

    The file is written in place: a kubelet mounts it. Where that fails there is still the log.
    """
    if not path:
        return
    line = " ".join(message.split()).encode()
    whole = line if len(line) < MESSAGE_BYTES_MAX else line[: MESSAGE_BYTES_MAX - 1].decode(errors="ignore").encode()
    try:
        Path(path).write_bytes(whole + b"\n")
    except OSError as error:
        _log.warning("cannot write termination.message.path", extra={"path": path, "why": error.strerror})
