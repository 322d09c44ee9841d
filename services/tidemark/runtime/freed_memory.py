# SPDX-License-Identifier: Apache-2.0
"""Memory that messages and batches had is kept for the next ones, instead of going back to the kernel each time.

glibc gives every allocation of more than 128 kB pages of its own at first, and the free end of the heap back to the
kernel; the next message finds its pages gone, and each page it touches is a fault. Without that a produced batch costs
a tenth less.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Final

_log = logging.getLogger(__name__)

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_OWN_PAGES_FROM_BYTES: Final = 32 << 20
"""glibc takes no more."""
_KEEP_BYTES: Final = 64 << 20
_GROW_BYTES: Final = 4 << 20


def keep_freed_memory() -> bool:
    """Whether this process's C library could be told; one that is not glibc does as it does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _log.debug("this C library has no mallopt")
        return False
    wishes = ((_M_MMAP_THRESHOLD, _OWN_PAGES_FROM_BYTES), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_TOP_PAD, _GROW_BYTES))
    taken = [mallopt(name, size_bytes) for name, size_bytes in wishes]
    return all(answer == 1 for answer in taken)
