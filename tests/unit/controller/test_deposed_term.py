# SPDX-License-Identifier: Apache-2.0
"""A deposed controller decides elections until ZooKeeper refuses its writes: its log reports none of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tidemark.controller.metrics import ControllerMetrics
from tidemark.controller.term import ActiveTerm, policy_of
from tidemark.core.config import ControllerConfig
from tidemark.core.controller.controller import ControllerCore
from tidemark.model import BrokerId, BrokerRegistration, TopicDescription, TopicPartition
from tidemark.ports import ControllerTerm
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.zookeeper import paths

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper, ManualClock
from tests.unit.broker.scraped import scraped
from tests.unit.controller.quiet_channels import QuietChannels, QuietHeartbeats

TOPIC = TopicDescription("t", "id", {0: (BrokerId(1),)}, {0: "i0"})
P = TopicPartition("t", 0)


async def a_cluster() -> FakeZooKeeper:
    zookeeper = FakeZooKeeper()
    store = zookeeper.store()
    await store.start()
    await store.create_topic(TOPIC)
    registration = BrokerRegistration(BrokerId(1), "host", 1, directory_ids=("d",), boot_id="b")
    await store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
    return zookeeper


def term_of(
    won: ControllerTerm, store: FakeMetadataStore, metrics: Metrics, clock: ManualClock | None = None
) -> ActiveTerm:
    return ActiveTerm(
        won,
        ControllerCore(ControllerConfig(won.controller_id, won.epoch, "cluster"), policy_of),
        store=store,
        channels=QuietChannels(),
        heartbeats=QuietHeartbeats,
        clock=clock or ManualClock(),
        scheduler=AsyncioScheduler(),
        observer=ControllerMetrics(metrics),
    )


async def elected(store: FakeMetadataStore, controller: int) -> ControllerTerm:
    await store.start()
    won = await store.elect_controller(BrokerId(controller), f"h:{controller}")
    assert won is not None
    return won


def lines(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [vars(one) for one in caplog.records if one.getMessage().startswith(message)]


async def test_a_fenced_election_is_logged_as_not_written_and_never_as_elected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    zookeeper = await a_cluster()
    deposed, successor = zookeeper.store(), zookeeper.store()
    won = await elected(deposed, 100)
    await deposed.resign(won)  # as if its session expired without a notification
    await elected(successor, 101)
    metrics = Metrics()
    term = term_of(won, deposed, metrics)
    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(10):
            await term.start()
            await term.ended.wait()
    assert not await successor.states([P])
    (line,) = lines(caplog, "fenced, not written")
    assert (line["not_written"], line["first"], line["controller_epoch"]) == (1, "t-0", won.epoch)
    assert not lines(caplog, "leader_elected")
    assert scraped(metrics.render())["tidemark_controller_leader_elections_total", "clean=true"] == 0
    await term.stop()


async def test_an_election_is_logged_once_it_is_written(caplog: pytest.LogCaptureFixture) -> None:
    zookeeper = await a_cluster()
    store = zookeeper.store()
    term = term_of(await elected(store, 100), store, Metrics())
    found_at_the_write: list[int] = []

    async def about_to_be_written() -> None:
        found_at_the_write.append(len(lines(caplog, "leader_elected")))

    with caplog.at_level(logging.INFO):
        store.session.before_commit(about_to_be_written)
        await term.start()
        async with asyncio.timeout(10):
            while not lines(caplog, "leader_elected"):  # noqa: ASYNC110 - only the log shows the end
                await asyncio.sleep(0)
    assert found_at_the_write == [0]
    (line,) = lines(caplog, "leader_elected")
    assert (line["leader"], line["partition"]) == (1, "t-0")
    await term.stop()


async def test_a_deletion_that_zookeeper_refuses_is_logged_once_with_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the deletion was repeated twice a second without a log line, or with one each time."""
    zookeeper = await a_cluster()
    store, clock = zookeeper.store(), ManualClock()
    term = term_of(await elected(store, 100), store, Metrics(), clock)
    store.listen(term.on_store_event)
    await term.start()
    async with asyncio.timeout(10):
        while not await store.states([P]):  # noqa: ASYNC110 - the term runs beside the test
            await asyncio.sleep(0.01)
    by_hand = f"{paths.partition(P)}/by-hand"
    await store.session.ensure(f"{by_hand}/child")
    delete, attempts = store.delete_topic, 0

    async def counted(of: ControllerTerm, topic: TopicDescription) -> None:
        nonlocal attempts
        attempts += 1
        await delete(of, topic)

    monkeypatch.setattr(store, "delete_topic", counted)
    await store.request_topic_deletion("t")
    async with asyncio.timeout(10):
        while attempts < 3:
            clock.advance(100)
            await asyncio.sleep(0.01)
    (line,) = lines(caplog, "topic not deleted")
    assert (line["topic"], by_hand in line["why"]) == ("t", True)
    await term.stop()
