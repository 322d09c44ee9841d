# SPDX-License-Identifier: Apache-2.0
"""Requested elections: of the preferred replica, and of the last known log of an offline partition (rule T4)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.requested_elections import EXPIRES_MS
from tidemark.core.messages import ReplicaDescription
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ErrorCode,
    IsrEntry,
    LeaderEpoch,
    Offset,
    StateWrite,
    TidemarkError,
)
from tidemark.model import TopicPartition as Partition

from tests.unit.core.controller.worlds.controller_world import World

T = Partition("t", 0)
PREFERRED, LAST_KNOWN = ElectionKind.PREFERRED, ElectionKind.LAST_KNOWN


def held(epoch: int, end: int, high_watermark: int = 0) -> ReplicaDescription:
    return ReplicaDescription(LeaderEpoch(epoch), Offset(end), Offset(high_watermark), damaged=False)


def led_by_another(*assigned: int, partitions: int = 1) -> World:
    """The preferred replica is back and in sync; the next one still leads."""
    world = World()
    for broker in assigned:
        world.register(broker)
    world.elected()
    world.topic("t", *[assigned] * partitions)
    world.settle()
    world.up(assigned[0])
    world.settle()
    for index in range(partitions):
        partition = Partition("t", index)
        assert world.state("t", index).leader == assigned[1]
        world.leader_writes(partition, assigned[1], assigned[0], *assigned[2:])
        world.happens(ev.IsrChangesReported((partition,)))
    world.settle()
    return world


def offline(*assigned: int, gone: tuple[int, ...] = (), **configs: str) -> World:
    """No replica can be elected cleanly, and the topic does not allow an unclean election."""
    world = World()
    for broker in assigned:
        world.register(broker)
    world.elected()
    world.topic("t", assigned, **({"m": "1"} | configs))
    world.settle()
    world.up(*assigned, clean=False)
    world.down(*gone)
    world.settle()
    assert world.state("t").leader == NO_LEADER
    return world


def ask(world: World, kind: ElectionKind, *partitions: Partition) -> list[Any]:
    """An election is requested, and the controller has read the partitions again; returns its effects after that."""
    world.request(kind, *partitions)
    return world.answer(world.take(fx.ReadStates))


def refusals(world: World) -> list[tuple[Partition | None, Any]]:
    return [(one.partition, one.fields["why"]) for one in world.observed if one.kind == "election_refused"]


def written(effects: list[Any]) -> list[StateWrite]:
    return [change for one in effects if isinstance(one, fx.WriteStates) for change in one.changes]


def test_a_preferred_election_begins_an_epoch_and_its_request_is_then_removed() -> None:
    world = led_by_another(0, 1, 2)
    before = world.state("t")
    (change,) = written(ask(world, PREFERRED, T))
    assert (change.state.leader, change.state.leader_epoch) == (0, before.leader_epoch + 1)
    assert (change.state.isr, change.state.lineage) == (before.isr, before.lineage)
    assert change.broker_epochs == {BrokerId(0): world.epochs[BrokerId(0)].broker_epoch}
    assert not world.waiting(fx.FinishElections), "nothing is done before it is written"
    world.settle()
    assert world.state("t") == change.state
    assert (world.requests, world.reports, refusals(world)) == ({}, [], [])


def test_a_repeated_request_writes_nothing() -> None:
    world = led_by_another(0, 1)
    world.request(PREFERRED, T)
    world.settle()
    state = world.state("t")
    assert not written(ask(world, PREFERRED, T))
    world.settle()
    assert (world.state("t"), world.requests, refusals(world)) == (state, {}, [])


def test_an_isr_change_that_was_not_reported_counts() -> None:
    world = led_by_another(0, 1, 2)
    world.leader_writes(T, 1, 2)
    world.happens(ev.IsrChangesReported((T,)))
    world.settle()
    world.leader_writes(T, 1, 2, 0)
    world.request(PREFERRED, T)
    world.settle()
    assert world.state("t").leader == 0


def test_a_preferred_replica_that_is_not_in_sync_is_refused_and_the_others_are_elected() -> None:
    world = led_by_another(0, 1, 2, partitions=2)
    world.leader_writes(T, 1, 2)
    world.happens(ev.IsrChangesReported((T,)))
    world.settle()
    world.request(PREFERRED, T, Partition("t", 1))
    world.settle()
    assert (world.state("t", 0).leader, world.state("t", 1).leader) == (1, 0)
    assert refusals(world) == [(T, "its preferred replica, broker 0, is not in sync")]
    assert not world.requests


def test_a_suspected_preferred_replica_is_not_elected() -> None:
    world = led_by_another(0, 1, 2, 3)
    world.now_ms += 100_000
    world.happens(ev.BrokerSuspected(BrokerId(0), world.epochs[BrokerId(0)].broker_epoch))
    for effect in list(world.pending):
        world.pending.remove(effect)
        world.answer(effect)
    world.leader_writes(T, 1, 0, 2, 3)  # the leader does not know yet that the broker is suspected
    world.request(PREFERRED, T)
    world.settle()
    assert world.state("t").leader == 1
    assert len(refusals(world)) == 1
    assert not world.requests


def test_a_preferred_election_that_conflicts_with_a_leaders_write_is_decided_again() -> None:
    world = led_by_another(0, 1, 2)
    assert written(ask(world, PREFERRED, T))
    world.leader_writes(T, 1, 2)
    world.settle()
    assert world.state("t").leader == 1
    assert refusals(world) == [(T, "its preferred replica, broker 0, is not in sync")]


def test_a_last_known_election_elects_the_longest_log_once() -> None:
    world = offline(0, 1, 2)
    world.logs = {(0, T): held(0, 40, 55), (1, T): held(0, 50, 50), (2, T): held(0, 49, 49)}
    world.request(LAST_KNOWN, T, request_id="r1")
    world.settle()
    state = world.state("t")
    assert (state.leader, state.lineage, state.isr_ids) == (1, 1, (1,))
    (report,) = world.reports
    assert (report.partition, report.topic_id, report.lineage) == (T, world.topics["t"].topic_id, 1)
    assert (report.leader, report.leader_epoch, report.request_id) == (1, state.leader_epoch, "r1")
    assert (report.last_epoch, report.log_end_offset, report.high_watermark) == (0, 50, 55)
    assert (report.records_maybe_lost, report.unheard) == (5, ())
    assert not world.requests
    world.up(1, clean=False)
    world.settle()
    assert world.state("t").leader == NO_LEADER, "the request allowed one election"
    assert len(world.reports) == 1


def test_the_report_names_replicas_that_did_not_answer() -> None:
    world = offline(0, 1, 2, gone=(0,))
    world.logs = {(1, T): held(0, 50, 50), (2, T): held(0, 49, 49)}
    world.request(LAST_KNOWN, T)
    world.settle()
    assert [(report.leader, report.records_maybe_lost, report.unheard) for report in world.reports] == [(1, 0, (0,))]


def test_where_the_topic_allows_it_the_report_names_no_request() -> None:
    world = offline(0, 1, gone=(0, 1), unclean="true")
    world.up(1, clean=False)
    world.settle()
    assert [(report.leader, report.request_id) for report in world.reports] == [(1, "")]


def test_a_single_replica_is_elected_with_a_report_without_offsets() -> None:
    world = World()
    world.register(0)
    world.elected()
    world.topic("t", (0,), m="1")
    world.settle()
    world.up(0, clean=False)
    world.settle()
    (report,) = world.reports
    assert (report.leader, report.lineage, report.records_maybe_lost) == (0, 1, None)


def test_a_partition_with_a_leader_is_refused_even_if_the_leader_fails_later() -> None:
    world = led_by_another(0, 1)
    state = world.state("t")
    world.request(LAST_KNOWN, T)
    world.settle()
    assert refusals(world) == [(T, "it has a leader, broker 1")]
    assert (world.state("t"), world.requests, world.reports) == (state, {}, [])
    world.up(0, 1, clean=False)
    world.settle()
    assert world.state("t").leader == NO_LEADER


def test_a_partition_with_no_live_replica_is_refused_and_not_elected_when_one_returns() -> None:
    world = offline(0, 1, gone=(0, 1))
    world.request(LAST_KNOWN, T)
    world.settle()
    assert refusals(world) == [(T, "none of its replicas is live")]
    assert not world.requests
    world.up(0, clean=False)
    world.settle()
    assert world.state("t").leader == NO_LEADER


def test_a_request_expires_if_a_replica_never_reports() -> None:
    world = offline(0, 1)
    ask(world, LAST_KNOWN, T)
    for _ in range(EXPIRES_MS // 500 + 2):
        for question in world.waiting(fx.DescribeReplicas):
            world.pending.remove(question)
            error = TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, "no")
            world.happens(ev.ReplicasDescribed(question.broker, question.request_id, None, {}, {T: error}))
        world.passes(500)
    assert refusals(world) == [(T, "no replica reported its log end in time")]
    assert world.waiting(fx.FinishElections)
    assert world.state("t").leader == NO_LEADER


def test_a_trusted_replica_that_returns_is_elected_cleanly_and_ends_the_request() -> None:
    world = World()
    for broker in range(2):
        world.register(broker)
    world.elected()
    world.topic("t", (0, 1), m="1")
    world.settle()
    world.up(1)
    world.settle()
    world.down(0)
    world.settle()
    assert world.state("t").leader == NO_LEADER
    world.request(LAST_KNOWN, T)
    world.up(0)
    while waiting := [one for one in world.pending if not isinstance(one, fx.DescribeReplicas)]:
        world.pending.remove(waiting[0])
        world.answer(waiting[0])
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 0)
    assert (world.reports, world.requests, refusals(world)) == ([], {}, [])


@pytest.mark.parametrize("kind", list(ElectionKind))
def test_unknown_partitions_and_partitions_of_deleted_topics_are_refused(kind: ElectionKind) -> None:
    world = offline(0, 1)
    world.delete("t")
    unknown = Partition("nowhere", 3)
    world.request(kind, unknown, T)
    world.settle()
    assert set(refusals(world)) == {(unknown, "there is no such partition"), (T, "there is no such partition")}
    assert not world.requests


def test_a_malformed_request_is_reported_and_removed() -> None:
    world = offline(0, 1)
    world.request(PREFERRED, error=TidemarkError(ErrorCode.INTERNAL, "it is not a JSON object"))
    world.settle()
    told = [dict(one.fields) for one in world.observed if one.kind == "election_request_invalid"]
    assert told == [{"election": "preferred", "why": "it is not a JSON object"}]
    assert not world.requests


def test_a_request_whose_removal_failed_is_removed_again_and_executed_once() -> None:
    world = led_by_another(0, 1)
    world.request(PREFERRED, T)
    while not world.waiting(fx.FinishElections):
        world.answer(world.pending.pop(0))
    epoch = world.state("t").leader_epoch
    world.answer(world.take(fx.FinishElections), lost=True)
    assert world.requests
    world.settle()
    assert (world.requests, world.state("t").leader_epoch) == ({}, epoch)


def test_a_request_replaces_an_earlier_one() -> None:
    world = offline(0, 1)
    world.topic("u", (0, 1), m="1")
    world.settle()
    ask(world, LAST_KNOWN, T)
    assert [one.broker for one in world.waiting(fx.DescribeReplicas)] == [0, 1]
    world.request(LAST_KNOWN, Partition("u", 0))
    world.settle()
    assert world.state("t").leader == NO_LEADER, "the request was withdrawn"
    assert refusals(world) == [(Partition("u", 0), "it has a leader, broker 0")]


def test_a_withdrawn_request_elects_no_leader() -> None:
    world = offline(0, 1)
    ask(world, LAST_KNOWN, T)
    del world.requests[LAST_KNOWN]
    world.happens(ev.ElectionsRequested(LAST_KNOWN, None))
    world.settle()
    assert world.state("t").leader == NO_LEADER
    assert not world.reports


def test_a_new_controller_executes_the_request() -> None:
    world = offline(0, 1)
    world.request(LAST_KNOWN, T, request_id="r1")
    left = world.requests[LAST_KNOWN]
    world.pending.clear()
    world.core = World().core
    world.elected()
    world.happens(ev.ElectionsRequested(LAST_KNOWN, left))
    world.settle()
    assert world.state("t").lineage == 1
    assert [report.request_id for report in world.reports] == ["r1"]


def test_an_election_whose_write_was_not_answered_has_one_report() -> None:
    world = offline(0, 1)
    world.request(LAST_KNOWN, T)
    while not (writes := world.waiting(fx.WriteStates)):
        world.answer(world.pending.pop(0))
    world.pending.remove(writes[0])
    world.answer(writes[0], lost=True)
    world.settle()
    assert (world.state("t").lineage, len(world.reports), world.requests) == (1, 1, {})


def test_entries_keep_the_broker_epoch_they_joined_with() -> None:
    world = led_by_another(0, 1)
    isr = world.state("t").isr
    world.request(PREFERRED, T)
    world.settle()
    assert (
        set(world.state("t").isr)
        == set(isr)
        == {IsrEntry(broker, world.epochs[broker].broker_epoch) for broker in (BrokerId(0), BrokerId(1))}
    )
