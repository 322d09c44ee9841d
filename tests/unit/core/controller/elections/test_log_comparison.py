# SPDX-License-Identifier: Apache-2.0
"""Elections after a crash of every eligible replica (rule T7): they wait for each other, and compare their logs."""

from __future__ import annotations

from typing import Any

from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.messages import ReplicaDescription
from tidemark.model import NO_LEADER, BrokerId, ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World

T = TopicPartition("t", 0)
WAIT_MS = 5_000


def held(end: int, *, epoch: int = 0, cut: bool = False) -> ReplicaDescription:
    return ReplicaDescription(LeaderEpoch(epoch), Offset(end), Offset(0), damaged=cut, cut=cut)


def all_down(*assigned: int, **configs: str) -> World:
    """All brokers of a partition with these in-sync replicas are killed at the same time, and their sessions expire."""
    world = World()
    for broker in assigned:
        world.register(broker)
    world.elected()
    world.topic("t", assigned, **({"m": "2"} | configs))
    world.settle()
    world.down(*assigned)
    world.settle()
    assert world.state("t").leader == NO_LEADER
    return world


def comes_back(world: World, broker: int, *, crashed: bool = True) -> None:
    """The broker registers; all that the controller asks for is answered, except the survey."""
    world.up(broker, crashed=crashed)
    others(world)


def others(world: World) -> None:
    while waiting := [one for one in world.pending if not isinstance(one, fx.DescribeReplicas)]:
        world.pending.remove(waiting[0])
        world.answer(waiting[0])


def says(world: World, broker: int, replica: ReplicaDescription) -> None:
    question = next(one for one in world.waiting(fx.DescribeReplicas) if one.broker == broker)
    world.pending.remove(question)
    world.happens(ev.ReplicasDescribed(question.broker, question.request_id, None, {T: replica}))
    others(world)


def passes(world: World, ms: int) -> None:
    world.passes(ms)
    others(world)


def reports(world: World, kind: str) -> list[Any]:
    return [one for one in world.observed if one.kind == kind]


def test_the_first_replica_to_come_back_waits_and_the_furthest_log_leads() -> None:
    world = all_down(0, 1, 2)
    comes_back(world, 0)
    says(world, 0, held(90))
    passes(world, WAIT_MS - 1_000)
    assert world.state("t").leader == NO_LEADER
    comes_back(world, 1)
    comes_back(world, 2)
    says(world, 1, held(100))
    assert world.state("t").leader == NO_LEADER, "one candidate has not answered yet"
    says(world, 2, held(99))
    assert (world.state("t").leader, world.state("t").lineage) == (1, 0)
    assert not world.reports


def test_a_later_epoch_wins_over_a_longer_log() -> None:
    world = all_down(0, 1)
    comes_back(world, 0)
    comes_back(world, 1)
    says(world, 0, held(100, epoch=3))
    says(world, 1, held(90, epoch=4))
    assert world.state("t").leader == 1


def test_the_wait_for_a_replica_that_stays_away_is_bounded() -> None:
    world = all_down(0, 1, 2)
    passes(world, 60_000)
    comes_back(world, 1)
    passes(world, 60_000)
    assert world.state("t").leader == NO_LEADER, "the wait begins with the first answer"
    says(world, 1, held(90))
    passes(world, WAIT_MS - 1)
    assert world.state("t").leader == NO_LEADER
    passes(world, 1)
    assert (world.state("t").leader, world.state("t").lineage) == (1, 0)


def test_after_a_clean_stop_nothing_waits() -> None:
    world = all_down(0, 1, 2)
    comes_back(world, 2, crashed=False)
    assert world.state("t").leader == 2
    assert not world.waiting(fx.DescribeReplicas)


def test_a_replica_that_stopped_cleanly_leads_at_once_beside_one_that_crashed() -> None:
    world = all_down(0, 1, 2)
    comes_back(world, 0)
    comes_back(world, 2, crashed=False)
    assert world.state("t").leader == 2


def test_failover_to_a_live_in_sync_replica_waits_for_none() -> None:
    world = World()
    for broker in (0, 1, 2):
        world.register(broker)
    world.elected()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.up(0, crashed=True)
    others(world)
    assert world.state("t").leader == 1
    assert not world.waiting(fx.DescribeReplicas)


def test_a_single_replica_waits_for_none() -> None:
    world = all_down(0, m="1")
    comes_back(world, 0)
    assert world.state("t").leader == 0


def test_one_eligible_replica_of_several_assigned_waits_for_none() -> None:
    world = World()
    for broker in (0, 1):
        world.register(broker)
    world.elected()
    world.topic("t", (0, 1), m="1")
    world.settle()
    world.down(0)
    world.settle()
    world.down(1)
    world.settle()
    comes_back(world, 1)
    assert (world.state("t").leader, world.state("t").lineage) == (1, 0)


def test_a_replica_with_a_cut_tail_waits_for_whole_ones_beyond_the_wait() -> None:
    world = all_down(0, 1, 2)
    comes_back(world, 0)
    says(world, 0, held(90, cut=True))
    passes(world, 10 * WAIT_MS)
    assert world.state("t").leader == NO_LEADER
    comes_back(world, 1)
    says(world, 1, held(80))
    assert (world.state("t").leader, world.state("t").lineage) == (1, 0), (
        "the cut log is not a candidate, and it is long"
    )
    assert not world.reports


def test_with_a_cut_tail_everywhere_the_furthest_log_leads_with_a_loss_report() -> None:
    world = all_down(0, 1)
    comes_back(world, 0)
    comes_back(world, 1)
    says(world, 0, held(90, cut=True))
    says(world, 1, held(95, cut=True))
    assert (world.state("t").leader, world.state("t").lineage) == (1, 1)
    assert [(one.leader, one.log_end_offset) for one in world.reports] == [(1, 95)]
    assert len(reports(world, "unclean_election")) == 1


def test_a_reported_cut_tail_ends_the_eligibility_beside_a_whole_replica() -> None:
    world = all_down(0, 1)
    comes_back(world, 0)
    epoch = world.epochs[BrokerId(0)].broker_epoch
    world.happens(ev.ReplicaFailed(BrokerId(0), epoch, T, world.state("t").leader_epoch, damaged=True, cut=True))
    others(world)
    assert [entry.broker_id for entry in world.state("t").elr] == [1]
    comes_back(world, 1)
    assert (world.state("t").leader, world.state("t").lineage) == (1, 0)


def test_the_last_eligible_replica_that_refuses_for_a_cut_tail_is_elected_uncleanly() -> None:
    world = all_down(0, m="1")
    world.up(0, crashed=True)
    world.answer(world.take(fx.WriteStates))
    command = world.take(fx.SendLeaderAndIsr)
    metadata = {"cut": "true", "last_epoch": "0", "log_end_offset": "90", "high_watermark": "90"}
    error = TidemarkError(ErrorCode.REPLICA_DAMAGED, "a torn tail was cut off", metadata)
    world.happens(ev.ControlAnswered(command.broker, command.request_id, None, ((T, error),)))
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 1)
    assert [(one.leader, one.log_end_offset) for one in world.reports] == [(0, 90)]
    assert world.state("t").isr_ids == (0,)


def test_a_registered_broker_whose_process_has_ended_is_awaited_until_it_registers_again() -> None:
    world = World()
    for broker in (0, 1):
        world.register(broker)
    world.elected()
    world.topic("t", (0, 1))
    world.settle()
    world.down(0)
    others(world)
    world.up(0, crashed=True)
    others(world)
    world.down(1)
    others(world)
    assert world.state("t").leader == NO_LEADER
    world.up(1, crashed=True)
    others(world)
    says(world, 0, held(5))
    question = next(one for one in world.waiting(fx.DescribeReplicas) if one.broker == 1)
    world.pending.remove(question)
    gone = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "refused")
    world.happens(ev.ReplicasDescribed(question.broker, question.request_id, gone))
    assert world.state("t").leader == NO_LEADER
    world.up(1, crashed=True)
    others(world)
    says(world, 1, held(6))
    assert world.state("t").leader == 1


def test_a_new_controller_compares_the_logs_again() -> None:
    world = all_down(0, 1)
    comes_back(world, 0)
    says(world, 0, held(5))
    world.fails_over()
    others(world)
    assert world.state("t").leader == NO_LEADER
    says(world, 0, held(5))
    comes_back(world, 1)
    says(world, 1, held(7))
    assert world.state("t").leader == 1


def test_an_allowed_unclean_election_waits_for_trusted_replicas_first() -> None:
    world = all_down(0, 1, 2, unclean="true")
    comes_back(world, 0)
    says(world, 0, held(90, cut=True))
    passes(world, WAIT_MS - 1_000)
    assert world.state("t").leader == NO_LEADER
    passes(world, 1_000)
    assert (world.state("t").leader, world.state("t").lineage) == (0, 1)
