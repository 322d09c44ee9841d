# SPDX-License-Identifier: Apache-2.0
"""A broker of a version without typed topics gets no replica of one, even if no admin service checked it (S1)."""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.controller import effects as fx
from tidemark.model import FEATURES, NO_LEADER, BrokerId, ErrorCode, SchemaText, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World

OLDER = {"protocol": 1}
FLIGHTS, BYTES = TopicPartition("flights", 0), TopicPartition("bytes", 0)


def cluster(*older: int) -> World:
    world = World()
    for broker in range(3):
        world.register(broker, features=OLDER if broker in older else FEATURES)
    world.elected()
    return world


def typed(world: World, *replicas: int) -> None:
    """The topic `flights` is created manually: no admin service checks the brokers."""
    world.topics["flights"] = replace(world.make_topic("flights", replicas, m="1"), schemas={1: SchemaText("{}")})
    world.topics_seen()
    world.settle()


def told(world: World) -> list[dict[str, str | int]]:
    return [dict(one.fields) for one in world.observed if one.kind == "broker_too_old"]


def leads(world: World, partition: TopicPartition) -> int:
    return world.state(partition.topic, partition.partition).leader


def test_an_older_broker_neither_leads_nor_follows_a_typed_topic() -> None:
    world = cluster(0)
    world.topic("bytes", (0, 1, 2))
    typed(world, 0, 1, 2)
    assert leads(world, BYTES) == 0
    assert world.state("bytes").isr_ids == (0, 1, 2)
    assert leads(world, FLIGHTS) == 1
    assert world.state("flights").isr_ids == (1, 2)
    assert FLIGHTS not in world.brokers[BrokerId(0)].commands
    assert FLIGHTS in world.brokers[BrokerId(2)].commands
    (report,) = told(world)
    assert (report["topic"], report["broker"]) == ("flights", 0)
    assert "upgrade" in str(report["why"])


def test_a_typed_topic_without_any_able_broker_waits_for_an_upgrade() -> None:
    world = cluster(0, 1, 2)
    typed(world, 0, 1)
    assert FLIGHTS not in world.states
    assert [report["broker"] for report in told(world)] == [0, 1]
    world.up(1)
    world.settle()
    assert leads(world, FLIGHTS) == 1
    assert FLIGHTS in world.brokers[BrokerId(1)].commands


def test_a_leader_that_comes_back_in_an_older_version_is_replaced_and_keeps_its_log() -> None:
    """A complete LeaderAndIsr deletes the logs that it does not name."""
    world = cluster()
    typed(world, 0, 1, 2)
    world.register(0, features=OLDER)
    world.brokers_seen()
    world.settle()
    assert leads(world, FLIGHTS) == 1
    knows = world.brokers[BrokerId(0)]
    assert FLIGHTS not in knows.commands
    assert not knows.complete
    world.up(0)
    world.settle(catching_up=True)
    assert world.brokers[BrokerId(0)].complete
    assert set(world.state("flights").isr_ids) == {0, 1, 2}
    assert len(told(world)) == 1


def test_an_older_broker_without_a_typed_replica_gets_complete_commands() -> None:
    world = cluster(0)
    world.topic("bytes", (0, 1, 2))
    typed(world, 1, 2)
    assert world.brokers[BrokerId(0)].complete
    assert told(world) == []


def test_a_new_version_reaches_able_replicas_while_another_one_is_too_old() -> None:
    world = cluster(2)
    typed(world, 0, 1, 2)
    sent: list[BrokerId] = []
    known = world.topics["flights"]
    world.topics["flights"] = replace(known, schemas={**known.schemas, 2: SchemaText("{ }")})
    world.topics_seen()
    for _ in range(20):
        sent += [one.broker for one in world.waiting(fx.SendLeaderAndIsr) if any(part.schemas for part in one.commands)]
        if not world.pending:
            break
        world.answer(world.pending.pop(0))
    assert set(sent) == {0, 1}


def test_a_move_of_a_typed_partition_to_an_older_broker_is_refused() -> None:
    world = cluster(2)
    typed(world, 0, 1)
    world.topic("bytes", (0, 1))
    world.settle()
    world.move(FLIGHTS, 0, 2)
    world.move(BYTES, 0, 2)
    world.settle(catching_up=True)
    (refusal,) = world.asked.refusals
    assert (refusal.partition, refusal.error.code) == (FLIGHTS, ErrorCode.INVALID_REQUEST)
    assert "upgrade" in refusal.error.message
    assert world.topics["flights"].partitions[0] == (0, 1)
    assert world.topics["bytes"].partitions[0] == (0, 2)


def test_a_new_partition_of_a_typed_topic_on_an_older_broker_is_refused() -> None:
    world = cluster(2)
    typed(world, 0, 1)
    world.add({TopicPartition("flights", 1): (2, 0)})
    world.settle()
    (refusal,) = world.asked.refusals
    assert refusal.error.code is ErrorCode.INVALID_REQUEST
    assert "upgrade" in refusal.error.message
    assert list(world.topics["flights"].partitions) == [0]


def test_a_move_waits_for_a_target_that_came_back_in_an_older_version() -> None:
    world = cluster()
    typed(world, 0, 1)
    world.move(FLIGHTS, 0, 2)
    world.register(2, features=OLDER)
    world.brokers_seen()
    world.settle(catching_up=True)
    assert FLIGHTS not in world.brokers[BrokerId(2)].commands
    assert leads(world, FLIGHTS) != NO_LEADER
    world.up(2)
    world.settle(catching_up=True)
    assert world.topics["flights"].partitions[0] == (0, 2)
    assert set(world.state("flights").isr_ids) == {0, 2}
