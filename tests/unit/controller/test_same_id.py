# SPDX-License-Identifier: Apache-2.0
"""Two controllers with one id: only one is active, and the other one says why it stands by."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark.controller.loop import ControllerLoop
from tidemark.model import BrokerId
from tidemark.runtime.scheduler import AsyncioScheduler

from tests.fakes.metadata_store import FakeZooKeeper, ManualClock
from tests.turns import turns

WARNING = "another controller has this controller.id: give each its own"


async def warnings_of(zookeeper: FakeZooKeeper, controller: int, address: str, caplog: pytest.LogCaptureFixture) -> int:
    """The warnings of a loop that stands by for two rounds."""
    store = zookeeper.store()
    await store.start()
    unused: Any = None
    loop = ControllerLoop(
        BrokerId(controller),
        address,
        store=store,
        clock=ManualClock(),
        scheduler=AsyncioScheduler(),
        observer=unused,
        new_term=unused,
    )
    caplog.clear()
    for _ in range(2):
        task = asyncio.create_task(loop._one_round())
        await turns(20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return caplog.messages.count(WARNING)


@pytest.mark.parametrize(
    ("controller", "address", "expected"),
    [(100, "host:2", 1), (100, "host:1", 0), (101, "host:2", 0)],
    ids=["the id of another process", "its own id before a restart", "another id"],
)
async def test_a_standby_warns_once_that_another_process_has_its_id(
    caplog: pytest.LogCaptureFixture, controller: int, address: str, expected: int
) -> None:
    zookeeper = FakeZooKeeper()
    active = zookeeper.store()
    await active.start()
    assert await active.elect_controller(BrokerId(100), "host:1") is not None
    assert await warnings_of(zookeeper, controller, address, caplog) == expected
