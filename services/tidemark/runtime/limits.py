"""What the operating system lets one process have: as many open files as it may ask for."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_WANTED: Final = 65_536


def raise_open_files() -> int:
    """Raise the soft limit of open files, which is often 1,024, towards the hard one; gives what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # not allowed: it goes on with what it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft
