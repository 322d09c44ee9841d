# SPDX-License-Identifier: Apache-2.0
"""Nodes damaged or deleted manually: written again where brokers prove the content, else an operator decides (Z4)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tidemark.controller import lost_states
from tidemark.controller.lost_states import LostStates
from tidemark.controller.term import policy_of
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.state_rebuild import EPOCHS_ABOVE, Known, Memory
from tidemark.core.messages import HeldState, PartitionCommand
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    StateWrite,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.ports import ControllerTerm

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.unit.controller.quiet_channels import QuietChannels

P = TopicPartition("hurt", 0)
NODE = "/brokers/topics/hurt/0/leaderAndISR"
ASSIGNED = (BrokerId(0), BrokerId(1), BrokerId(2))
TOPIC = TopicDescription("hurt", "id", {0: ASSIGNED}, {0: "i0"}, configs={"min.insync.replicas": "2"})
LAST = LeaderAndIsr(BrokerId(0), LeaderEpoch(4), tuple(IsrEntry(one, BrokerEpoch(0)) for one in ASSIGNED), min_isr=2)


class Core:
    """The state of the term's core."""

    def __init__(self) -> None:
        self.known: Known | None = None
        self.proven = self.older = NO_EPOCH
        self.requested = False

    def memory(self, partition: TopicPartition, identity: ReplicaIdentity) -> Memory:
        return Memory(self.known, self.proven, self.older)

    def rebuilds(self, partition: TopicPartition) -> bool:
        return self.requested


class Scene:
    """A topic of three live brokers, whose partition is at version 0 of its node."""

    store: FakeMetadataStore
    term: ControllerTerm

    def __init__(self) -> None:
        self.zookeeper = FakeZooKeeper()
        self.channels = QuietChannels()
        self.core = Core()

    async def start(self) -> None:
        self.store = self.zookeeper.store()
        await self.store.start()
        await self.store.create_topic(TOPIC)
        for broker in ASSIGNED:
            registration = BrokerRegistration(broker, "h", 1, directory_ids=(f"d{broker}",), boot_id="b")
            await self.store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
        term = await self.store.elect_controller(BrokerId(100), "h:1")
        assert term is not None
        self.term = term
        await self.store.write_states(term, [StateWrite(P, ReplicaIdentity("id", "i0"), LAST, -1)])
        self.lost = LostStates(term, self.store, self.channels.describe_replicas, policy_of, self.core)

    def says(self, broker: int, state: LeaderAndIsr, *, led: bool = False, version: int = 0) -> None:
        command = PartitionCommand(P, ReplicaIdentity("id", "i0"), ASSIGNED, state, version)
        self.channels.held[broker] = {P: HeldState(command, led, None)}

    def knows_nothing(self, broker: int) -> None:
        """A broker that has a replica, and has restarted since."""
        self.channels.held[broker] = {}

    def garbage(self, times: int = 1) -> None:
        for _ in range(times):
            self.zookeeper.commit([lambda tree: tree.set(NODE, b"\xff\xfe", -1)])

    async def state(self) -> VersionedState:
        return (await self.store.states([P]))[P]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.start()
    yield scene
    await scene.store.stop()


async def test_the_controller_that_knows_the_content_restores_it_without_asking_anyone(scene: Scene) -> None:
    scene.core.known = VersionedState(LAST, 0), LeaderEpoch(4)
    scene.garbage()
    assert await scene.lost.make([P])
    assert await scene.state() == (LAST, 2)
    assert not scene.channels.asked


async def test_a_new_controller_takes_the_isr_of_the_newest_leader(scene: Scene) -> None:
    shrunk = replace(LAST, isr=LAST.isr[:2])
    scene.says(0, shrunk, led=True, version=3)
    scene.says(1, LAST)
    scene.says(2, LAST)
    del scene.zookeeper.nodes[NODE]
    assert await scene.lost.make([P])
    state, version = await scene.state()
    assert (state.leader, state.isr, state.leader_epoch) == (NO_LEADER, shrunk.isr, 4 + EPOCHS_ABOVE)
    assert version == 4, "above the version at which a leader of before would write"


async def test_an_older_content_is_replaced_by_the_isr_of_the_leader_that_refused_it(scene: Scene) -> None:
    later = replace(LAST, leader=BrokerId(1), leader_epoch=LeaderEpoch(5), isr=LAST.isr[1:])
    scene.core.proven, scene.core.older = LeaderEpoch(5), LeaderEpoch(4)
    scene.says(0, LAST)
    scene.says(1, later, led=True, version=3)
    scene.says(2, later)
    assert await scene.lost.make([P])
    state, version = await scene.state()
    assert (state.leader, state.isr, state.leader_epoch) == (NO_LEADER, later.isr, 5 + EPOCHS_ABOVE)
    assert version == 4
    assert not await scene.lost.make([P]), "the node is as good as any"


async def test_a_readable_node_that_is_not_older_is_never_replaced(scene: Scene) -> None:
    scene.says(0, LAST, led=True)
    scene.says(1, LAST)
    scene.says(2, LAST)
    assert not await scene.lost.make([P])
    assert await scene.state() == (LAST, 0)


async def test_two_damaging_writes_may_hide_an_isr_change_so_the_leader_is_asked(scene: Scene) -> None:
    scene.core.known = VersionedState(LAST, 0), LeaderEpoch(4)
    scene.says(0, replace(LAST, isr=LAST.isr[:1]), led=True, version=1)
    scene.says(1, LAST)
    scene.says(2, LAST)
    scene.garbage(times=2)
    assert await scene.lost.make([P])
    assert (await scene.state()).state.isr_ids == (0,)


async def test_without_the_leader_the_log_names_the_command_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.says(1, LAST)
    scene.says(2, LAST)
    scene.knows_nothing(0)
    scene.garbage()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert not await scene.lost.make([P])
    (line,) = [one for one in caplog.records if one.name == "tidemark.controller.lost_states"]
    assert "run `tidemark elect --rebuild-state hurt:0`" in line.getMessage()
    assert vars(line)["why"] == "the newest leader, broker 0 of leader epoch 4, is down or has restarted since"


async def test_an_operator_accepts_the_replicas_that_answer_and_no_replica_is_trusted(scene: Scene) -> None:
    scene.says(1, LAST)
    scene.knows_nothing(0)
    scene.core.requested = True
    scene.garbage()
    assert await scene.lost.make([P])
    state, _ = await scene.state()
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), ())
    assert state.leader_epoch == 4 + EPOCHS_ABOVE


async def test_a_single_replica_needs_no_operator(scene: Scene) -> None:
    alone = replace(TOPIC, topic="alone", topic_id="alone", partitions={0: (BrokerId(0),)})
    await scene.store.create_topic(alone)
    partition = TopicPartition("alone", 0)
    await scene.store.write_states(scene.term, [StateWrite(partition, ReplicaIdentity("alone", "i0"), LAST, -1)])
    scene.zookeeper.commit([lambda tree: tree.set("/brokers/topics/alone/0/leaderAndISR", b"", -1)])
    scene.knows_nothing(0)
    assert await scene.lost.make([partition])
    assert (await scene.store.states([partition]))[partition].state.isr == ()


async def test_a_partition_that_no_broker_has_is_new(scene: Scene) -> None:
    scene.zookeeper.nodes.pop(NODE)
    assert await scene.lost.make([P])
    state, _ = await scene.state()
    assert (state.leader, state.leader_epoch, state.isr_ids) == (NO_LEADER, 0, ASSIGNED)


async def test_brokers_are_asked_about_a_part_of_many_partitions_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses a request of too many items, and describes the replicas of one request in one go."""
    monkeypatch.setattr(lost_states, "PART_PARTITIONS_MAX", 2)
    partitions = {index: (BrokerId(0),) for index in range(5)}
    incarnations = {index: f"w{index}" for index in partitions}
    await scene.store.create_topic(TopicDescription("wide", "wide-id", partitions, incarnations))
    wide = [TopicPartition("wide", index) for index in partitions]
    assert await scene.lost.make(wide)
    assert scene.channels.asked == [BrokerId(0)] * 3
    assert {found.state.leader_epoch for found in (await scene.store.states(wide)).values()} == {0}
    assert len(await scene.store.states(wide)) == 5


async def test_a_silent_broker_is_asked_once_about_many_partitions(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time limit would delay new topics once for each part."""
    monkeypatch.setattr(lost_states, "PART_PARTITIONS_MAX", 2)
    asked: list[BrokerId] = []

    async def ask(effect: fx.DescribeReplicas) -> ev.ReplicasDescribed:
        asked.append(effect.broker)
        if effect.broker != ASSIGNED[0]:
            return await scene.channels.describe_replicas(effect)
        silent = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        return ev.ReplicasDescribed(effect.broker, effect.request_id, silent, {}, {}, {})

    partitions = dict.fromkeys(range(3), ASSIGNED) | dict.fromkeys(range(3, 6), ASSIGNED[1:])
    incarnations = {index: f"w{index}" for index in partitions}
    await scene.store.create_topic(TopicDescription("wide", "wide-id", partitions, incarnations))
    wide = [TopicPartition("wide", index) for index in partitions]
    assert await LostStates(scene.term, scene.store, ask, policy_of, scene.core).make(wide)
    assert Counter(asked) == {ASSIGNED[0]: 1, ASSIGNED[1]: 3, ASSIGNED[2]: 3}
    assert set(await scene.store.states(wide)) == set(wide[3:]), "no state without the answer of each replica's broker"


async def test_a_topic_that_is_being_deleted_is_left_alone(scene: Scene) -> None:
    scene.core.known = VersionedState(LAST, 0), LeaderEpoch(4)
    scene.garbage()
    await scene.store.request_topic_deletion("hurt")
    assert not await scene.lost.make([P])
