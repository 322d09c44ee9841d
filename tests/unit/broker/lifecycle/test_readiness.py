# SPDX-License-Identifier: Apache-2.0
"""Readiness after a restart: what a broker waits for, and what it must never wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tidemark.broker.lifecycle.readiness import LEADERLESS_GRACE_S, Readiness
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

ME, LEADER = BrokerId(1), BrokerId(2)
EPOCH, BEFORE = BrokerEpoch(7), BrokerEpoch(6)
WHERE = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("t" * 32, "i" * 32)


class World:
    """One broker with one replica on its disk, which is brought back step by step."""

    def __init__(self) -> None:
        self.ready = False
        self.on_disk = {WHERE: IDENTITY}
        self.replica: ReplicaView | None = None
        self.node_isr: tuple[IsrEntry, ...] = ()
        self.node_error: TidemarkError | None = None
        self.now_s = 0.0
        self.failures: list[BaseException] = []
        self.cache = MetadataCache("")
        self._go = asyncio.Semaphore(0)
        self._settled = asyncio.Event()
        store: Any = self
        self.readiness = Readiness(
            ME,
            store,
            self.cache,
            lambda: self.on_disk,
            lambda _: self.replica,
            self._show,
            self.failures.append,
            now_s=lambda: self.now_s,
            pause=self._pause,
        )

    async def states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, VersionedState]:
        if self.node_error is not None:
            raise self.node_error
        state = LeaderAndIsr(LEADER, LeaderEpoch(3), self.node_isr)
        return {partition: VersionedState(state, 5) for partition in partitions}

    async def _show(self, ready: bool) -> None:
        self.ready = ready
        if ready:
            self._settled.set()

    async def _pause(self) -> None:
        self._settled.set()
        await self._go.acquire()

    async def register(self, epoch: BrokerEpoch = EPOCH) -> bool:
        """Whether it is ready after the first look."""
        self._settled.clear()
        self.readiness.on_epoch(epoch)
        await asyncio.wait_for(self._settled.wait(), 5)
        return self.ready

    async def looks_again(self) -> bool:
        """Whether it is ready then."""
        self._settled.clear()
        self._go.release()
        await asyncio.wait_for(self._settled.wait(), 5)
        return self.ready

    def controller_tells(
        self,
        *,
        leader: BrokerId = LEADER,
        isr: tuple[BrokerId, ...] = (LEADER,),
        assigned: tuple[BrokerId, ...] = (ME, LEADER),
        epoch: BrokerEpoch = EPOCH,
        partition_epoch: int = 0,
    ) -> None:
        told = PartitionView(
            0, leader, LeaderEpoch(3), assigned, isr, incarnation="i" * 32, partition_epoch=partition_epoch
        )
        brokers = {one: BrokerRegistration(one, "h", 1, broker_epoch=epoch) for one in (ME, LEADER)}
        topics = {"flights": TopicView("flights", "t" * 32, partitions={0: told})}
        self.cache.update(
            ClusterView(controller_epoch=ControllerEpoch(1), brokers=brokers, topics=topics, complete=True)
        )

    def takes_role(self, role: str) -> None:
        self.replica = ReplicaView(
            WHERE,
            IDENTITY,
            role,
            LEADER,
            LeaderEpoch(3),
            *(Offset(0), Offset(0), Offset(0)),
            isr=(),
            assigned=(ME, LEADER),
            min_isr=1,
            under_replicated=False,
            directory=0,
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.readiness.start()
    yield made
    await made.readiness.stop()
    assert not made.ready
    assert made.failures == []


async def test_a_broker_without_replicas_is_ready_when_the_controller_gives_it_none(world: World) -> None:
    world.on_disk = {}
    assert not await world.register()
    world.controller_tells(assigned=(LEADER,))
    assert await world.looks_again()


async def test_a_broker_without_replicas_waits_for_a_controller_for_a_while_and_no_longer(world: World) -> None:
    world.on_disk = {}
    assert not await world.register()
    world.now_s += LEADERLESS_GRACE_S
    assert await world.looks_again()


async def test_a_broker_whose_disk_was_replaced_is_ready_when_it_has_everything_again(world: World) -> None:
    world.on_disk = {}
    world.controller_tells()
    assert not await world.register(), "it has not been told its role"
    world.takes_role("follower")
    assert not await world.looks_again()
    world.now_s += 10 * LEADERLESS_GRACE_S
    assert not await world.looks_again()
    world.controller_tells(isr=(LEADER, ME), partition_epoch=1)
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.looks_again()


async def test_a_restarted_broker_is_ready_when_its_replica_is_in_the_isr_of_its_node(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells()
    assert not await world.register()
    world.controller_tells(isr=(LEADER, ME), partition_epoch=1)
    assert not await world.looks_again(), "the node does not say so yet"
    world.node_isr = (IsrEntry(LEADER, BEFORE), IsrEntry(ME, EPOCH))
    assert await world.looks_again()


async def test_an_isr_that_names_the_broker_as_it_was_before_its_restart_does_not_count(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(LEADER, BEFORE), IsrEntry(ME, BEFORE))
    assert not await world.register()


async def test_nothing_is_ready_before_a_controller_knows_of_this_registration(world: World) -> None:
    world.takes_role("follower")
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert not await world.register()
    world.controller_tells(isr=(LEADER, ME), epoch=BEFORE)
    assert not await world.looks_again()
    world.controller_tells(isr=(LEADER, ME))
    assert await world.looks_again()


async def test_a_partition_that_nobody_can_lead_is_waited_for_a_while_and_no_longer(world: World) -> None:
    world.takes_role("none")
    world.controller_tells(leader=NO_LEADER, isr=())
    assert not await world.register()
    world.now_s += LEADERLESS_GRACE_S
    assert await world.looks_again()


async def test_the_controller_gets_its_time_to_find_a_leader_from_when_it_has_spoken(world: World) -> None:
    world.takes_role("none")
    assert not await world.register()
    world.now_s += 10 * LEADERLESS_GRACE_S
    world.controller_tells(leader=NO_LEADER, isr=())
    assert not await world.looks_again()


async def test_a_partition_that_loses_its_leader_late_is_given_its_time_too(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells()
    assert not await world.register()
    world.now_s += 10 * LEADERLESS_GRACE_S
    assert not await world.looks_again()
    world.controller_tells(leader=NO_LEADER, isr=(), partition_epoch=1)
    assert not await world.looks_again()
    world.now_s += LEADERLESS_GRACE_S / 2
    world.controller_tells(isr=(LEADER,), partition_epoch=2)
    assert not await world.looks_again()
    world.now_s += LEADERLESS_GRACE_S
    world.controller_tells(leader=NO_LEADER, isr=(), partition_epoch=3)
    assert not await world.looks_again(), "its time begins anew"
    world.now_s += LEADERLESS_GRACE_S
    assert await world.looks_again()


async def test_a_log_that_is_being_recovered_is_waited_for_though_it_leads(world: World) -> None:
    world.takes_role("opening")
    world.controller_tells(leader=ME, isr=(ME,))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert not await world.register()
    world.takes_role("leader")
    assert await world.looks_again()


async def test_a_replica_whose_log_has_failed_is_not_waited_for(world: World) -> None:
    world.takes_role("offline")
    world.controller_tells()
    assert await world.register()


async def test_a_replica_that_a_move_is_only_adding_is_not_waited_for(world: World) -> None:
    world.takes_role("follower")
    assert world.replica is not None
    world.replica = world.replica._replace(adding=True)
    world.controller_tells()
    assert await world.register()


async def test_what_is_not_this_brokers_any_more_is_not_waited_for(world: World) -> None:
    world.controller_tells(assigned=(LEADER,))
    assert await world.register()


async def test_a_topic_that_was_made_anew_under_its_name_is_not_waited_for(world: World) -> None:
    world.on_disk = {WHERE: IDENTITY._replace(topic_id="u" * 32)}
    world.controller_tells()
    assert await world.register()


async def test_a_ready_broker_stays_ready_when_it_falls_behind(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.register()
    world.node_isr = ()
    world.controller_tells(isr=(LEADER,), partition_epoch=1)
    await asyncio.sleep(0)
    assert world.ready


async def test_an_expired_session_makes_a_broker_unready_until_it_is_back_in_its_new_epoch(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.register()
    again = BrokerEpoch(8)
    world.readiness.on_epoch(BrokerEpoch(-1))
    assert not await world.register(again)
    world.controller_tells(isr=(LEADER, ME), epoch=again)
    world.node_isr = (IsrEntry(ME, again),)
    assert await world.looks_again()


async def test_a_silent_zookeeper_is_waited_for(world: World) -> None:
    world.takes_role("follower")
    world.controller_tells(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    world.node_error = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no server answered")
    assert not await world.register()
    world.node_error = None
    assert await world.looks_again()
