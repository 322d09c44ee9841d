# SPDX-License-Identifier: Apache-2.0
"""A pool of threads that run from the start."""

from __future__ import annotations

import threading

import pytest
from tidemark.runtime.started_pool import started_pool


def refusing(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the machine refuse threads after so many more."""
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) >= after:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_a_started_pool_needs_no_thread_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_pool(3, "read") as pool:
        refusing(monkeypatch, after=0)
        meeting = threading.Barrier(3)
        for call in [pool.submit(meeting.wait, 20) for _ in range(3)]:
            call.result(20)
        assert [pool.submit(int, number).result(20) for number in range(10)] == list(range(10))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_pool_that_cannot_start_leaves_no_thread(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    before = threading.active_count()
    refusing(monkeypatch, after=after)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started_pool(3, "read")
    assert threading.active_count() == before
