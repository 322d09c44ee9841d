# SPDX-License-Identifier: Apache-2.0
"""A broker whose node an operator deleted or corrupted while its session lives: the broker registers again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidemark.core.replication.events import BrokerRegistered, SessionExpired
from tidemark.model import BrokerEpoch

from tests.turns import turns
from tests.unit.broker.lifecycle.test_registration import ID, Machine, Process

NODE = f"/brokers/ids/{ID}"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    await machine.prepare()
    yield machine
    await machine.end()


async def registered_again(process: Process) -> None:
    async with asyncio.timeout(10):
        await process.core.registered.wait()


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff"])
async def test_the_broker_ends_its_leaderships_and_registers_under_a_new_epoch(
    machine: Machine, data: bytes | None
) -> None:
    process = await machine.start(check_ms=0)
    process.core.registered.clear()
    if data is None:
        del machine.zookeeper.nodes[NODE]
    else:
        machine.zookeeper.corrupt(NODE, data)
    await registered_again(process)
    assert process.core.seen == [
        BrokerRegistered(BrokerEpoch(0), {}),
        SessionExpired(),
        BrokerRegistered(BrokerEpoch(1), {}),
    ]
    assert process.epochs == [0, -1, 1]
    assert (await process.store.live_brokers())[ID].broker_epoch == 1


async def test_a_corrupted_node_is_waited_for_until_its_session_ends(machine: Machine) -> None:
    first = await machine.start()
    machine.zookeeper.corrupt(NODE, b"\xff")
    first.logs.close()
    starting = asyncio.create_task(machine.start())
    await turns(20)
    assert not starting.done()
    await first.kill()
    second = await starting
    assert second.core.seen[-1] == BrokerRegistered(BrokerEpoch(1), {})


async def test_a_registered_broker_does_not_register_again(machine: Machine) -> None:
    process = await machine.start(check_ms=0)
    await process.would_have_registered_again()
    assert process.epochs == [0]
