# SPDX-License-Identifier: Apache-2.0
"""Scenarios with late events, failed disks, or only replicas live that were not in sync."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import NO_LEADER, BrokerId, ErrorCode, LeaderAndIsr, TidemarkError, TopicDescription, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World


def three_brokers() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.elected()
    world.settle()
    return world


def until_nodes_go(world: World) -> fx.DeleteTopic:
    """Answer everything up to the deletion of the nodes."""
    while not world.waiting(fx.DeleteTopic):
        world.answer(world.pending.pop(0))
    return world.take(fx.DeleteTopic)


def is_whole(world: World, topic: TopicDescription) -> bool:
    return world.topics.get(topic.topic) is topic and not any(
        knows.stopped for knows in world.brokers.values() if topic.topic in {one.topic for one in knows.stopped}
    )


def test_a_deletion_with_a_lost_answer_spares_the_new_topic_of_that_name() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.delete("t")
    world.answer(until_nodes_go(world), lost=True)
    for knows in world.brokers.values():
        knows.stopped.clear()
    world.topic("t", (1, 2, 0))
    recreated = world.topics["t"]
    world.settle()
    assert is_whole(world, recreated)
    assert world.state("t").leader == 1
    world.happens(ev.DeletionsRequested(frozenset(world.deletions)))
    world.settle()
    assert is_whole(world, recreated)


def test_a_new_topic_of_that_name_is_deleted_on_request() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.delete("t")
    world.answer(until_nodes_go(world), lost=True)
    world.topic("t", (1, 2, 0))
    world.delete("t")
    world.settle()
    assert world.topics == {}
    assert world.states == {}


def test_a_late_answer_about_a_deleted_topic_does_not_concern_its_successor() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.delete("t")
    first = until_nodes_go(world)
    world.topics.pop("t")  # ZooKeeper has deleted the topic; the answer is in flight
    world.states.clear()
    world.deletions.clear()
    world.topic("t", (1, 2, 0))
    recreated = world.topics["t"]
    world.settle()
    world.delete("t")
    world.happens(ev.TopicDeleted("t", first.topic.topic_id))
    assert world.topics["t"] is recreated
    world.settle()
    assert world.topics == {}
    assert not world.deletions


def test_a_read_from_before_a_deletion_does_not_create_the_topic_again() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    read_before = dict(world.topics)
    world.delete("t")
    world.answer(until_nodes_go(world))
    effects = world.happens(ev.TopicsChanged(read_before))
    assert not [one for one in effects if isinstance(one, fx.WriteStates)]
    world.topics_seen()
    world.topic("t", (2, 0, 1))
    world.settle()
    assert world.state("t").leader == 2


T = TopicPartition("t", 0)


def refuse(world: World, broker: int, code: ErrorCode) -> None:
    """The next LeaderAndIsr to that broker arrives, and it refuses to lead T."""
    send = next(
        one
        for one in world.waiting(fx.SendLeaderAndIsr)
        if one.broker == broker and any(told.partition == T for part in one.commands for told in part.partitions)
    )
    world.pending.remove(send)
    refusal = (T, TidemarkError(code, "no"))
    world.happens(ev.ControlAnswered(send.broker, send.request_id, None, (refusal,)))


def until_told(world: World, broker: int) -> None:
    """Answer everything but commands to that broker until one waits that makes it T's leader."""
    for _ in range(1000):
        ready = [one for one in world.pending if not (isinstance(one, fx.SendLeaderAndIsr) and one.broker == broker)]
        if not ready:
            return
        world.pending.remove(ready[0])
        world.answer(ready[0])


def test_a_leader_with_a_failed_disk_is_replaced_by_an_in_sync_replica() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    until_told(world, 0)
    refuse(world, 0, ErrorCode.STORAGE_ERROR)
    world.settle()
    assert (world.state("t").leader, world.state("t").isr_ids) == (1, (1, 2))


def test_failed_log_directories_are_found_by_sending_every_leader_and_isr_again() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.happens(ev.DirectoriesFailed(BrokerId(0), world.epochs[BrokerId(0)].broker_epoch))
    (send,) = world.waiting(fx.SendLeaderAndIsr)
    assert send.commands[-1].complete
    refuse(world, 0, ErrorCode.STORAGE_ERROR)
    world.settle()
    assert world.state("t").leader == 1


def test_a_single_replica_with_a_failed_disk_is_elected_when_its_broker_registers_again() -> None:
    world = three_brokers()
    world.topic("t", (0,))
    until_told(world, 0)
    refuse(world, 0, ErrorCode.STORAGE_ERROR)
    world.settle()
    assert world.state("t").leader == NO_LEADER
    epoch = world.state("t").leader_epoch
    world.up(1, 2)
    world.settle()
    assert (world.state("t").leader, world.state("t").leader_epoch) == (NO_LEADER, epoch)
    world.up(0)
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 0)


def test_a_replica_back_in_the_isr_has_its_log_open() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    until_told(world, 0)
    refuse(world, 0, ErrorCode.STORAGE_ERROR)
    world.settle()
    world.leader_writes(T, 1, 2, 0)
    world.happens(ev.IsrChangesReported((T,)))
    world.settle()
    world.up(2)
    world.settle()
    assert set(world.state("t").isr_ids) == {0, 1}


def test_where_allowed_a_live_replica_is_elected_uncleanly_and_begins_a_lineage() -> None:
    world = three_brokers()
    world.topic("t", (0, 1), m="1", unclean="true")
    world.settle()
    world.up(1)  # restarted: out of the ISR
    world.settle()
    world.down(0)
    world.settle()
    assert (world.state("t").leader, world.state("t").isr_ids, world.state("t").lineage) == (1, (1,), 1)
    kinds = [one.kind for one in world.observed if one.fields.get("lineage") or one.fields.get("before") == 0]
    assert kinds == ["unclean_election"], "counted once, as unclean"
    world.up(0)
    world.settle()
    assert world.state("t").leader == 1


def test_where_not_allowed_the_partition_waits_for_an_in_sync_replica() -> None:
    world = three_brokers()
    world.topic("t", (0, 1), m="1")
    world.settle()
    world.up(1)
    world.settle()
    world.down(0)
    world.settle()
    assert world.state("t").leader == NO_LEADER
    world.up(0)
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 0)


def test_partitions_without_a_leader_are_counted_after_every_event() -> None:
    world = three_brokers()
    world.topic("t", (0,), (1,), (2,))
    assert world.core.counts()["offline_partitions"] == 3
    world.settle()
    assert world.core.counts()["offline_partitions"] == 0
    world.down(0, 1)
    world.settle()
    assert world.core.counts()["offline_partitions"] == 2
    world.delete("t")
    world.settle()
    assert (world.core.counts()["offline_partitions"], world.core.counts()["partitions"]) == (0, 0)


def after_a_power_loss(world: World, *, flushed_kept: bool) -> LeaderAndIsr:
    """All machines crashed at the same time, and returned one after the other."""
    world.down(0, 1, 2)
    world.settle()
    for broker in (2, 1, 0):
        world.up(broker, clean=False, flushed_kept=flushed_kept)
        world.settle()
    return world.state("t")


def test_a_power_loss_of_all_brokers_spares_a_group_commit_topic() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2), flush="group")
    world.settle()
    state = after_a_power_loss(world, flushed_kept=True)
    assert (state.leader, state.lineage) == (2, 0)


@pytest.mark.parametrize(("flush", "flushed_kept"), [("os", True), ("group", False)])
def test_a_power_loss_of_all_brokers_voids_replicas_that_may_have_lost_records(flush: str, flushed_kept: bool) -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2), flush=flush)
    world.settle()
    assert after_a_power_loss(world, flushed_kept=flushed_kept).leader == NO_LEADER


def test_a_topic_whose_settings_changed_since_creation_is_not_spared() -> None:
    world = three_brokers()
    topic = world.make_topic("t", (0, 1, 2), flush="group")
    world.topics["t"] = replace(topic, configs_zxid=topic.created_zxid + 1)
    world.topics_seen()
    world.settle()
    assert after_a_power_loss(world, flushed_kept=True).leader == NO_LEADER
