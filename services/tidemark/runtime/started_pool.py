# SPDX-License-Identifier: Apache-2.0
"""A thread pool whose threads run from the start: later, the machine may refuse a new thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of this many threads, which all run already; `name` begins their names.

    Raises:
        RuntimeError: the machine refuses a thread. None is left.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    all_run = threading.Barrier(threads + 1)  # a thread that waits takes no second call, so each call has its thread
    try:
        for _ in range(threads):
            pool.submit(all_run.wait)
        all_run.wait()
    except RuntimeError:
        all_run.abort()
        pool.shutdown()
        raise
    return pool
