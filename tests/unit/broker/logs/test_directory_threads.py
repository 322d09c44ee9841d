# SPDX-License-Identifier: Apache-2.0
"""The threads of background work: one for each log directory, with its own throttle."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tidemark.broker.logs.directory_threads import DirectoryThreads, Stopped


class Clock:
    """A clock that advances only in waits."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout_s: float) -> bool:
        self.now_s += timeout_s
        return False


def test_the_throttle_limits_the_bytes_after_the_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    threads = DirectoryThreads("work", 2, 1000, now_s=clock.monotonic)
    monkeypatch.setattr(threads.stopping, "wait", clock.wait)
    for _ in range(100):
        threads.pace(0, 100)
    assert clock.now_s == pytest.approx(100 + 10 - 1)
    threads.pace(1, 1000)
    assert clock.now_s == pytest.approx(109), "the directories share no limit"
    threads.stopping.set()
    with pytest.raises(Stopped):
        threads.pace(1, 0)


def test_work_without_a_limit_stops_too() -> None:
    threads = DirectoryThreads("work", 1, -1)
    threads.pace(0, 1 << 40)
    threads.stopping.set()
    with pytest.raises(Stopped):
        threads.pace(0, 1)


def test_each_directory_has_a_task_and_a_thread_until_the_stop() -> None:
    found: list[tuple[int, str]] = []

    async def run(directory: int) -> None:
        name = await threads.run(directory, lambda: threading.current_thread().name)
        found.append((directory, name))
        if len(found) == 2:
            both.set()
        await asyncio.Event().wait()

    async def work() -> None:
        tasks = threads.start(run)
        await both.wait()
        await threads.stop()
        assert all(task.cancelled() for task in tasks)

    threads, both = DirectoryThreads("work", 2, -1), asyncio.Event()
    asyncio.run(work())
    assert sorted(found) == [(0, "work-0_0"), (1, "work-1_0")]
