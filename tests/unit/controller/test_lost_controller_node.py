# SPDX-License-Identifier: Apache-2.0
"""The node of the active controller is deleted or overwritten manually: a controller is elected again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark.controller.loop import ControllerLoop
from tidemark.controller.term import ActiveTerm, policy_of
from tidemark.core.config import ControllerConfig
from tidemark.core.controller.controller import ControllerCore
from tidemark.model import BrokerId
from tidemark.ports import ControllerTerm
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper import paths

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.unit.controller.quiet_channels import QuietChannels, QuietHeartbeats
from tests.unit.controller.test_office import ImpatientScheduler, until


def loop_of(store: FakeMetadataStore) -> ControllerLoop:
    """The loop of controller 100, whose terms wait a hundredth of the usual times."""
    anything: Any = None

    class Observer:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: anything

    def new_term(won: ControllerTerm, cluster_id: str) -> ActiveTerm:
        return ActiveTerm(
            won,
            ControllerCore(ControllerConfig(won.controller_id, won.epoch, cluster_id), policy_of),
            store=store,
            channels=QuietChannels(),
            heartbeats=QuietHeartbeats,
            clock=SystemClock(),
            scheduler=ImpatientScheduler(),
            observer=Observer(),
        )

    return ControllerLoop(
        BrokerId(100),
        "127.0.0.1:1",
        store=store,
        clock=SystemClock(),
        scheduler=ImpatientScheduler(),
        observer=Observer(),
        new_term=new_term,
    )


@pytest.mark.parametrize("content", [None, b"", b"\xff", b'{"id":7,"address":"h:1"}'])
async def test_the_only_controller_is_elected_again_after_its_node_was_deleted_or_overwritten(
    content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: admin services found no controller until the process was restarted."""
    zookeeper = FakeZooKeeper()
    store = zookeeper.store()
    await store.start()
    loop = loop_of(store)
    running = asyncio.create_task(loop.run())
    await until(lambda: loop.term is not None and loop.term.has_begun)
    before = await store.controller()
    assert before is not None
    if content is None:
        del zookeeper.nodes[paths.CONTROLLER]
    else:
        zookeeper.corrupt(paths.CONTROLLER, content)
    await until(lambda: loop.term is not None and loop.term.term.epoch == 2)
    assert await store.controller() == before
    assert any(paths.CONTROLLER in one.getMessage() for one in caplog.records)
    running.cancel()
    await asyncio.wait({running})
    await store.stop()
