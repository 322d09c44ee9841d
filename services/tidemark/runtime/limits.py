# SPDX-License-Identifier: Apache-2.0
"""What the operating system lets one process have: as many open files as it may ask for."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_WANTED: Final = 65_536
_LOG_FILES_MAX: Final = 4096
_OTHERS_MIN: Final = 64
_CONNECTIONS_MIN: Final = 16


def raise_open_files() -> int:
    """Raise the soft limit of open files, which is often 1,024, towards the hard one; gives what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # not allowed: it goes on with what it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def log_files_max() -> int:
    """How many files of logs are kept open."""
    return min(_LOG_FILES_MAX, raise_open_files() // 2)


def connections_max() -> int:
    """How many connections a server takes in: whoever opens more must not take the files that logs need."""
    limit = raise_open_files()
    return max(_CONNECTIONS_MIN, limit - log_files_max() - max(_OTHERS_MIN, limit // 8))
