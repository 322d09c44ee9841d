# SPDX-License-Identifier: Apache-2.0
"""The operating system's limit of open files for one process."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_WANTED: Final = 65_536
_LOG_FILES_MAX: Final = 4096
_OTHERS_MIN: Final = 64
_CONNECTIONS_MIN: Final = 16
_CONNECTIONS_MAX: Final = 10_000
"""Largest number of connections by default; an idle connection takes some 15 kB of memory."""


def raise_open_files() -> int:
    """Raise the soft limit of open files, often 1,024, towards the hard limit; returns the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # if not allowed, the present limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def log_files_max() -> int:
    """Number of log files that may be open at the same time."""
    return min(_LOG_FILES_MAX, raise_open_files() // 2)


def connections_max() -> int:
    """Number of connections that a server accepts, so that connections never take the files that logs need."""
    limit = raise_open_files()
    room = limit - log_files_max() - max(_OTHERS_MIN, limit // 8)
    return min(_CONNECTIONS_MAX, max(_CONNECTIONS_MIN, room))
