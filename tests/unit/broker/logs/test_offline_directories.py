# SPDX-License-Identifier: Apache-2.0
"""Rule R6: the replicas of an offline log directory fail, and the broker with its last directory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.offline_directories import OfflineDirectories
from tidemark.model import BrokerId, TidemarkError
from tidemark.storage.directories.log_manager import LogManager, open_logs


class FailedLogs:
    """The part of `LogThreads` that fails the logs of a directory."""

    def __init__(self) -> None:
        self.directories: list[int] = []
        self.failed = asyncio.Event()

    def fail_directory(self, directory: int, error: TidemarkError) -> int:
        self.directories.append(directory)
        self.failed.set()
        return 0


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = open_logs([tmp_path / "a", tmp_path / "b"], cluster_id="c", broker_id=BrokerId(0))
    yield manager
    manager.close()


async def test_a_directory_that_a_thread_takes_offline_fails_its_replicas_without_a_poll(logs: LogManager) -> None:
    threads, shown, ends = FailedLogs(), list[int](), list[BaseException]()
    offline = OfflineDirectories(logs, cast("LogThreads", threads), shown.append, ends.append)
    first, second = logs._directories
    first.fail("broke before the start")
    offline.start()
    async with asyncio.timeout(10):
        await threads.failed.wait()
    assert (threads.directories, shown, ends) == ([0], [1], [])

    threads.failed.clear()
    await asyncio.to_thread(second.fail, "broke later")
    async with asyncio.timeout(10):
        await threads.failed.wait()
    assert (threads.directories, shown) == ([0, 1], [1, 2])
    assert "broke later" in str(ends)
    offline.stop()


async def test_a_directory_that_fails_after_the_stop_is_left_alone(logs: LogManager) -> None:
    threads = FailedLogs()
    offline = OfflineDirectories(logs, cast("LogThreads", threads), lambda count: None, lambda error: None)
    offline.start()
    await asyncio.sleep(0)
    offline.stop()
    logs._directories[0].fail("broke after the stop")
    await asyncio.sleep(0)
    assert threads.directories == []
