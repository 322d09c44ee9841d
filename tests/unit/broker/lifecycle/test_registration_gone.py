# SPDX-License-Identifier: Apache-2.0
"""A broker whose node an operator deleted or corrupted while its session lives: the broker registers again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tidemark.core.replication.events import BrokerRegistered, SessionExpired
from tidemark.model import BrokerEpoch
from tidemark.zookeeper import codecs

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


@pytest.mark.parametrize(("edited", "then"), [(0, 2), (7, 2)])
async def test_a_broker_whose_epoch_was_edited_registers_again_under_no_used_epoch(
    machine: Machine, caplog: pytest.LogCaptureFixture, edited: int, then: int
) -> None:
    """Regression: the broker refused all commands of the controller from then on, and no log line said why."""
    await (await machine.start()).stop()
    process = await machine.start(check_ms=0)
    process.core.registered.clear()
    known = (await process.store.live_brokers())[ID]
    machine.zookeeper.corrupt(NODE, codecs.encode_registration(replace(known, broker_epoch=BrokerEpoch(edited))))
    await registered_again(process)
    assert process.epochs == [1, -1, then]
    assert process.core.seen[1:] == [SessionExpired(), BrokerRegistered(BrokerEpoch(then), {})]
    assert (await process.store.live_brokers())[ID].broker_epoch == then
    assert [vars(record)["why"] for record in caplog.records if "was edited" in record.message] == [
        f"broker epoch {edited} instead of 1"
    ]


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
