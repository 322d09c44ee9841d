# SPDX-License-Identifier: Apache-2.0
"""The scrubber's times (rule T6)."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import AsyncMock

import pytest
from tidemark.broker.logs.log_scrubber import LogScrubber
from tidemark.runtime.configuration.settings import BrokerSettings, read_settings
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.scrub_position import ScrubPosition, write_scrub_position

from tests.unit.storage.batches import memory_directory, open_one

_YEAR_MS = 365 * 24 * 3600 * 1000


async def test_the_scrubber_begins_a_pass_after_the_clock_was_in_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_directory() as path:
        logs = open_one(path)
        write_scrub_position(path, ScrubPosition(time.time_ns() // 1_000_000 + _YEAR_MS, ended=True))
        flags = ["--broker.id", "1", "--log.dirs", str(path), "--zookeeper.connect", "zk:2181", "--listeners", "h:9092"]
        settings = read_settings(BrokerSettings, [*flags, "--log.scrub.interval.ms", "10"], {})
        failures: list[BaseException] = []
        scrubber = LogScrubber(logs, dict, AsyncMock(), settings, Metrics(), failures.append)
        begun = asyncio.Event()

        async def begin(directory: int, position: ScrubPosition) -> None:
            begun.set()

        monkeypatch.setattr(scrubber, "_pass", begin)
        scrubber.start()
        async with asyncio.timeout(20):
            await begun.wait()
        await scrubber.stop()
        logs.close()
        assert failures == []
