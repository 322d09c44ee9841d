# SPDX-License-Identifier: Apache-2.0
"""Reads whole files that an operator names: settings, certificates, tokens. A device without an end is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Final

_BYTES_MAX: Final = 16 << 20


def read_content(path: str | Path) -> bytes:
    """The content of a file; raises OSError, also for a file of more than 16 MiB."""
    with Path(path).open("rb") as file:
        return rest_of(file)


def rest_of(file: IO[bytes]) -> bytes:
    """The bytes of an open file from its position on; raises OSError as `read_content`."""
    content = file.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {_BYTES_MAX >> 20} MiB", file.name)
    return content
