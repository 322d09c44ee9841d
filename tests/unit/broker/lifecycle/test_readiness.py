# SPDX-License-Identifier: Apache-2.0
"""Readiness after a restart: the replicas that a broker waits for, and those that it must ignore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tidemark.broker.lifecycle.readiness import LEADERLESS_GRACE_S, Readiness, pause_s
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.replication.replica import ReplicaRole
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
    """One broker with one replica on its disk; the test brings the replica back step by step."""

    def __init__(self) -> None:
        self.ready = False
        self.on_disk = {WHERE: IDENTITY}
        self.replica: ReplicaRole | None = None
        self.looks = 0
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
            self._role,
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

    def _role(self, partition: TopicPartition) -> ReplicaRole | None:
        self.looks += 1
        return self.replica

    async def _show(self, ready: bool) -> None:
        self.ready = ready
        if ready:
            self._settled.set()

    async def _pause(self, took_s: float) -> None:
        self._settled.set()
        await self._go.acquire()

    async def register(self, epoch: BrokerEpoch = EPOCH) -> bool:
        """Whether the broker is ready after the first check."""
        self._settled.clear()
        self.readiness.on_epoch(epoch)
        async with asyncio.timeout(5):
            await self._settled.wait()
        return self.ready

    async def checks_again(self) -> bool:
        """Whether the broker is ready after one more check."""
        self._settled.clear()
        self._go.release()
        async with asyncio.timeout(5):
            await self._settled.wait()
        return self.ready

    def controller_sends(
        self,
        *,
        leader: BrokerId = LEADER,
        isr: tuple[BrokerId, ...] = (LEADER,),
        assigned: tuple[BrokerId, ...] = (ME, LEADER),
        epoch: BrokerEpoch = EPOCH,
        partition_epoch: int = 0,
        count: int = 1,
    ) -> None:
        partitions = {
            number: PartitionView(
                number, leader, LeaderEpoch(3), assigned, isr, incarnation="i" * 32, partition_epoch=partition_epoch
            )
            for number in range(count)
        }
        brokers = {one: BrokerRegistration(one, "h", 1, broker_epoch=epoch) for one in (ME, LEADER)}
        topics = {"flights": TopicView("flights", "t" * 32, partitions=partitions)}
        self.cache.update(
            ClusterView(controller_epoch=ControllerEpoch(1), brokers=brokers, topics=topics, complete=True)
        )

    def takes_role(self, role: str) -> None:
        self.replica = ReplicaRole(role, adding=False)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.readiness.start()
    yield made
    await made.readiness.stop()
    assert not made.ready
    assert made.failures == []


async def test_a_broker_without_replicas_is_ready_when_the_controller_assigns_none(world: World) -> None:
    world.on_disk = {}
    assert not await world.register()
    world.controller_sends(assigned=(LEADER,))
    assert await world.checks_again()


async def test_a_check_looks_at_few_of_the_replicas_while_many_are_behind(world: World) -> None:
    world.on_disk = {TopicPartition("flights", number): IDENTITY for number in range(3_000)}
    world.takes_role("follower")
    world.controller_sends(count=3_000)
    assert not await world.register()
    assert not await world.checks_again()
    assert 0 < world.looks <= 200
    world.controller_sends(count=3_000, isr=(LEADER, ME), partition_epoch=1)
    assert not await world.checks_again(), "ZooKeeper has not confirmed the ISR"
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.checks_again()


async def test_a_broker_without_replicas_waits_for_a_controller_only_a_limited_time(world: World) -> None:
    world.on_disk = {}
    assert not await world.register()
    world.now_s += LEADERLESS_GRACE_S
    assert await world.checks_again()


async def test_a_broker_with_a_replaced_disk_is_ready_when_its_replicas_are_in_sync_again(world: World) -> None:
    world.on_disk = {}
    world.controller_sends()
    assert not await world.register(), "LeaderAndIsr has not arrived"
    world.takes_role("follower")
    assert not await world.checks_again()
    world.now_s += 10 * LEADERLESS_GRACE_S
    assert not await world.checks_again()
    world.controller_sends(isr=(LEADER, ME), partition_epoch=1)
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.checks_again()


async def test_a_restarted_broker_is_ready_when_zookeeper_has_its_replica_in_the_isr(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends()
    assert not await world.register()
    world.controller_sends(isr=(LEADER, ME), partition_epoch=1)
    assert not await world.checks_again(), "the node does not have it yet"
    world.node_isr = (IsrEntry(LEADER, BEFORE), IsrEntry(ME, EPOCH))
    assert await world.checks_again()


async def test_an_isr_entry_of_the_previous_broker_epoch_does_not_count(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(LEADER, BEFORE), IsrEntry(ME, BEFORE))
    assert not await world.register()


async def test_the_broker_is_not_ready_before_a_controller_sends_its_registration(world: World) -> None:
    world.takes_role("follower")
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert not await world.register()
    world.controller_sends(isr=(LEADER, ME), epoch=BEFORE)
    assert not await world.checks_again()
    world.controller_sends(isr=(LEADER, ME))
    assert await world.checks_again()


async def test_a_leaderless_partition_is_waited_for_only_a_limited_time(world: World) -> None:
    world.takes_role("none")
    world.controller_sends(leader=NO_LEADER, isr=())
    assert not await world.register()
    world.now_s += LEADERLESS_GRACE_S
    assert await world.checks_again()


async def test_the_grace_for_a_leader_begins_with_the_metadata_of_the_controller(world: World) -> None:
    world.takes_role("none")
    assert not await world.register()
    world.now_s += 10 * LEADERLESS_GRACE_S
    world.controller_sends(leader=NO_LEADER, isr=())
    assert not await world.checks_again()


async def test_a_partition_that_loses_its_leader_later_gets_its_own_grace(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends()
    assert not await world.register()
    world.now_s += 10 * LEADERLESS_GRACE_S
    assert not await world.checks_again()
    world.controller_sends(leader=NO_LEADER, isr=(), partition_epoch=1)
    assert not await world.checks_again()
    world.now_s += LEADERLESS_GRACE_S / 2
    world.controller_sends(isr=(LEADER,), partition_epoch=2)
    assert not await world.checks_again()
    world.now_s += LEADERLESS_GRACE_S
    world.controller_sends(leader=NO_LEADER, isr=(), partition_epoch=3)
    assert not await world.checks_again(), "its grace begins again"
    world.now_s += LEADERLESS_GRACE_S
    assert await world.checks_again()


async def test_a_leader_whose_log_is_being_recovered_is_waited_for(world: World) -> None:
    world.takes_role("opening")
    world.controller_sends(leader=ME, isr=(ME,))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert not await world.register()
    world.takes_role("leader")
    assert await world.checks_again()


async def test_a_replica_with_a_failed_log_is_ignored(world: World) -> None:
    world.takes_role("offline")
    world.controller_sends()
    assert await world.register()


async def test_a_replica_that_a_reassignment_is_only_adding_is_ignored(world: World) -> None:
    world.takes_role("follower")
    assert world.replica is not None
    world.replica = world.replica._replace(adding=True)
    world.controller_sends()
    assert await world.register()


async def test_a_replica_not_assigned_to_this_broker_any_more_is_ignored(world: World) -> None:
    world.controller_sends(assigned=(LEADER,))
    assert await world.register()


async def test_a_replica_of_a_recreated_topic_is_ignored(world: World) -> None:
    world.on_disk = {WHERE: IDENTITY._replace(topic_id="u" * 32)}
    world.controller_sends()
    assert await world.register()


async def test_a_ready_broker_stays_ready_when_its_replica_leaves_the_isr(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.register()
    world.node_isr = ()
    world.controller_sends(isr=(LEADER,), partition_epoch=1)
    await asyncio.sleep(0)
    assert world.ready


async def test_an_expired_session_makes_a_broker_unready_until_its_replicas_are_in_sync_again(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    assert await world.register()
    again = BrokerEpoch(8)
    world.readiness.on_epoch(BrokerEpoch(-1))
    assert not await world.register(again)
    world.controller_sends(isr=(LEADER, ME), epoch=again)
    world.node_isr = (IsrEntry(ME, again),)
    assert await world.checks_again()


async def test_unavailable_zookeeper_is_waited_for(world: World) -> None:
    world.takes_role("follower")
    world.controller_sends(isr=(LEADER, ME))
    world.node_isr = (IsrEntry(ME, EPOCH),)
    world.node_error = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no server answered")
    assert not await world.register()
    world.node_error = None
    assert await world.checks_again()


def test_checks_take_a_bounded_part_of_a_slow_machine() -> None:
    assert [pause_s(took_s) for took_s in (0.0, 0.05, 0.1, 10.0)] == [0.25, 0.25, 0.4, 1.0]
