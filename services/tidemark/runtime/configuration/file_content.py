# SPDX-License-Identifier: Apache-2.0
"""Reads whole files that an operator names: settings, certificates, tokens. A device without an end is refused."""

from __future__ import annotations

import errno
import os
import stat
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
        raise _too_large(file.name)
    return content


def check_file(path: str) -> None:
    """Check a file that a library will read; raises OSError, also unless the file is regular and has at most 16 MiB."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if status.st_size > _BYTES_MAX:
        raise _too_large(path)


def _too_large(path: str) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {_BYTES_MAX >> 20} MiB", path)
