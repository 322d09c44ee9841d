# SPDX-License-Identifier: Apache-2.0
"""The next fetch of a range is in flight while the rows of the last one are processed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tidemark.rpc.codecs.fetch import Fetched


class FetchAhead:
    """The next fetch of a range in a thread, which starts at the first `submit`.

    The end of a range does not wait for a fetch in flight, which may last as long as a leader election.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._coming: Future[Fetched] | None = None

    def __enter__(self) -> FetchAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def submit(self, fetch: Callable[[int, int], Fetched], offset: int, epoch: int) -> None:
        """Start the next fetch in another thread."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "fetch-ahead")
        self._coming = self._thread.submit(fetch, offset, epoch)

    def result(self) -> Fetched | None:
        """Wait for the fetch in flight, if any."""
        coming, self._coming = self._coming, None
        return None if coming is None else coming.result()
