# SPDX-License-Identifier: Apache-2.0
"""Replicas added and removed within a leader epoch, and removed partitions (rules R3, R8, C7, M1), as scenarios."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tidemark.core.messages import (
    LeaderAndIsrCommand,
    PartitionCommand,
    Refusal,
    ReplicaDescription,
    ReplicaQuestion,
    StoppedReplica,
    StopReplicaCommand,
)
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication import streams
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition

from tests.unit.core.replication.stage import ID, P, Stage, batch, node

AGAIN = ReplicaIdentity("a" * 32, "c" * 32)


def isr_written(stage: Stage) -> None:
    stage.version += 1
    stage.feed(ev.IsrWritten(P, stage.version))


def led_by_1(assigned: tuple[int, ...] = (1, 2)) -> Stage:
    """Broker 1 leads with 2 in sync; four records are committed."""
    stage = Stage()
    stage.command(node(1, 5, (1, 2)), assigned=assigned)
    stage.opened()
    stage.fetches(2, 0)
    stage.write(batch(4))
    stage.disk_answers()
    stage.reports(2, 4)
    assert stage.high_watermark() == 4
    return stage


def moved_from_2_to_3() -> Stage:
    """Replica 3 was added and is in sync, so the controller has removed replica 2."""
    stage = led_by_1()
    stage.command(node(1, 5, (1, 2)), assigned=(1, 3, 2), adding=(3,))
    stage.fetches(3, 0)
    stage.disk_answers()
    stage.reports(3, 4)
    isr_written(stage)
    stage.command(node(1, 5, (1, 3)), assigned=(1, 3))
    return stage


# -- replicas that are added -----------------------------------------------------------------------------------


def test_a_replica_added_in_the_same_epoch_is_served_and_joins_at_the_high_watermark() -> None:
    stage = led_by_1()
    stage.fetches(3, 0)
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]
    stage.command(node(1, 5, (1, 2)), assigned=(1, 3, 2), adding=(3,))
    stage.fetches(3, 0)
    assert stage.refused_followers() == []
    stage.disk_answers()
    stage.reports(3, 3)
    assert not stage.got(fx.WriteIsr), "below the high watermark"
    stage.reports(3, 4)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2, 3)


def test_a_replica_being_added_delays_no_acknowledgement_and_is_not_under_replication() -> None:
    stage = led_by_1()
    stage.command(node(1, 5, (1, 2)), assigned=(1, 3, 2), adding=(3,))
    request = stage.write()
    stage.reports(2, 5)
    assert stage.replies() == [(request, 4, None)]
    assert not stage.led().under_replicated
    stage.command(node(1, 5, (1, 2)), assigned=(1, 3, 2))
    assert stage.led().under_replicated


def test_a_follower_unknown_to_its_leader_retries_with_longer_pauses_until_a_command() -> None:
    stage = Stage().follows(leader=2)
    asked = []
    for _ in range(100):
        stage.feed(ev.Tick(), after_ms=100)
        if any(effect.message.positions for effect in stage.got(fx.SendToLeader)):
            asked.append(stage.now)
        stage.from_leader(refusals=[Refusal(P, ErrorCode.NOT_A_REPLICA, "", 5, 0)])
        assert not stage.got(fx.Observed)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert 3_000 <= gaps[-1] <= 5_100
    stage.command(node(2, 5, (1, 2)))
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().positions


# -- replicas that are removed ---------------------------------------------------------------------------------


def test_an_unassigned_replica_is_refused_and_neither_waited_for_nor_admitted_to_the_isr() -> None:
    stage = moved_from_2_to_3()
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]
    request = stage.write()
    stage.disk_answers()
    assert not any(one.follower == 2 for one in stage.reads)
    stage.reports(3, 5)
    assert stage.replies() == [(request, 4, None)]
    stage.fetches(2, 5, last_epoch=5)
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]
    stage.feed(ev.Tick(), after_ms=600)
    assert not stage.got(fx.WriteIsr)


def test_a_record_waiting_while_a_member_leaves_is_acknowledged_without_that_member() -> None:
    stage = led_by_1(assigned=(1, 2, 3))
    request = stage.write()
    assert not stage.replies()
    stage.command(node(1, 5, (1,)), assigned=(1, 3))
    assert stage.replies() == [(request, 4, None)]


def test_a_replica_assigned_again_in_the_same_epoch_starts_without_progress() -> None:
    stage = moved_from_2_to_3()
    stage.command(node(1, 5, (1, 3)), assigned=(1, 3, 2), adding=(2,))
    stage.fetches(2, 0)
    assert stage.refused_followers() == []
    assert not stage.got(fx.WriteIsr), "the new log is empty"
    stage.disk_answers()
    stage.reports(2, 4)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 3, 2)


def test_a_join_that_crossed_the_controllers_removal_is_reverted_at_once() -> None:
    stage = led_by_1(assigned=(1, 2, 3))
    stage.fetches(3, 0)
    stage.disk_answers()
    stage.reports(3, 4)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2, 3)
    stage.feed(ev.IsrWritten(P, stage.version + 1))
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2), version=stage.version)
    shrink = stage.one(fx.WriteIsr)
    assert (shrink.state.isr_ids, shrink.state.elr) == ((1, 2), ())
    request = stage.write()
    stage.disk_answers()
    stage.reports(2, 5)
    assert not stage.replies(), "ZooKeeper may still hold 3 in the ISR (rule R3)"
    stage.reports(3, 5)
    assert stage.replies() == [(request, 4, None)]
    stage.feed(ev.IsrWritten(P, stage.version + 2))
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]


def test_an_unassigned_member_stays_while_min_isr_needs_it_and_is_not_eligible_once_evicted() -> None:
    stage = led_by_1(assigned=(1, 2, 3))
    stage.command(node(1, 5, (1, 2), min_isr=2), assigned=(1, 3))
    assert not stage.got(fx.WriteIsr)
    request = stage.write()
    stage.disk_answers()
    stage.reports(2, 5)
    assert stage.replies() == [(request, 4, None)]
    stage.write()
    stage.disk_answers()
    writes = [write for _ in range(25) if stage.feed(ev.Tick(), after_ms=500) for write in stage.got(fx.WriteIsr)]
    (shrink,) = writes
    assert (shrink.state.isr_ids, shrink.state.elr) == ((1,), ())


def test_a_join_in_flight_of_an_unassigned_replica_bounds_the_high_watermark_until_decided() -> None:
    stage = led_by_1(assigned=(1, 2, 3))
    stage.fetches(3, 0)
    stage.disk_answers()
    stage.reports(3, 4)
    stage.one(fx.WriteIsr)
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2))
    request = stage.write()
    stage.disk_answers()
    stage.reports(2, 5)
    assert not stage.replies()
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(node(1, 5, (1, 2)), stage.version)
    assert stage.replies() == [(request, 4, None)]
    assert not stage.got(fx.WriteIsr)


# -- partitions that are removed -------------------------------------------------------------------------------


def described(stage: Stage, *, epoch: int = 6) -> ReplicaDescription | ErrorCode:
    try:
        return stage.core.queries.describe(ReplicaQuestion(P, ID, epoch))
    except TidemarkError as error:
        return error.code


def test_a_sealed_leader_refuses_records_and_describes_its_log_once_committed() -> None:
    stage = led_by_1()
    stage.command(node(1, 6, (1, 2), sealed=True), assigned=(1, 2))
    stage.produce()
    assert stage.replies() == [(2, -1, ErrorCode.PARTITION_SEALED)]
    assert described(stage, epoch=5) is ErrorCode.FENCED_LEADER_EPOCH
    assert described(stage, epoch=7) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert described(stage) == ReplicaDescription(5, 4, 4, False, 0)


def test_a_sealed_leader_with_uncommitted_records_asks_for_a_retry() -> None:
    stage = Stage()
    stage.command(node(1, 6, (1, 2), sealed=True), assigned=(1, 2))
    stage.opened(4, (5, 0), high_watermark=1)
    assert described(stage) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.fetches(2, 4, epoch=6, last_epoch=5)
    assert described(stage) == ReplicaDescription(5, 4, 4, False, 0)


def test_an_empty_sealed_partition_differs_from_one_with_records() -> None:
    stage = Stage()
    stage.command(node(1, 6, (1, 2), sealed=True), assigned=(1, 2))
    stage.opened(7, start=7, high_watermark=7)
    found = described(stage)
    assert isinstance(found, ReplicaDescription)
    assert found.log_start_offset == found.log_end_offset == found.high_watermark == 7


def stop_of(identity: ReplicaIdentity, epoch: int, *, sequence: int = 0) -> ev.StopReplicaArrived:
    replicas = (StoppedReplica(P, identity, epoch, True),)
    return ev.StopReplicaArrived(2, StopReplicaCommand(9, 1, 11, replicas, sequence))


def test_a_removed_partition_that_is_added_again_begins_with_an_empty_log() -> None:
    stage = led_by_1()
    stage.command(node(1, 6, (1, 2), sealed=True), assigned=(1, 2))
    stage.feed(stop_of(ID, 6))
    assert stage.one(fx.CloseLog) == fx.CloseLog(P, ID, "delete")
    stage.command(node(1, 0, (1, 2)), assigned=(1, 2), identity=AGAIN)
    assert stage.one(fx.OpenLog) == fx.OpenLog(P, AGAIN)
    stage.feed(ev.LogFlushed(P, ID, 4))
    stage.opened(identity=AGAIN)
    stage.fetches(2, 4, epoch=6, last_epoch=5)
    assert stage.refused_followers() == [], (
        "the log of the broker has the old incarnation, so the request waits for the command"
    )
    assert stage.high_watermark() == 0
    stage.feed(stop_of(ID, 6))
    assert stage.refusals() == [ErrorCode.UNKNOWN_TOPIC_ID], "a late stop of the old incarnation leaves the new one"


def test_a_late_command_does_not_bring_a_deleted_replica_back() -> None:
    stage = led_by_1()
    stage.command(node(2, 6, (2, 3)), assigned=(1, 2, 3), sequence=7)
    stage.feed(stop_of(ID, 6, sequence=8))
    assert stage.one(fx.CloseLog).set_aside == "delete"
    stage.command(node(2, 6, (2, 3)), assigned=(1, 2, 3), sequence=7)
    assert not stage.got(fx.OpenLog)
    stage.command(node(2, 6, (2, 3)), assigned=(1, 2, 3), sequence=9)
    assert stage.got(fx.OpenLog)


def test_a_late_stop_does_not_delete_a_replica_assigned_again() -> None:
    stage = led_by_1()
    stage.command(node(2, 6, (2, 3)), assigned=(1, 2, 3), sequence=7)
    stage.feed(stop_of(ID, 6, sequence=8))
    stage.command(node(2, 6, (2, 3)), assigned=(2, 3, 1), adding=(1,), sequence=9)
    stage.feed(stop_of(ID, 6, sequence=8))
    assert not stage.got(fx.CloseLog)


def test_a_replica_assigned_again_in_the_epoch_of_its_deletion_is_created_again() -> None:
    stage = led_by_1()
    stage.command(node(2, 6, (2, 3)), assigned=(1, 2, 3))
    stage.feed(stop_of(ID, 6))
    stage.command(node(2, 6, (2, 3)), assigned=(2, 3, 1), adding=(1,))
    assert stage.refusals() == []
    assert stage.one(fx.OpenLog) == fx.OpenLog(P, ID)


@pytest.mark.parametrize("told_to_stop", [True, False])
def test_a_follower_never_appends_chunks_of_an_older_incarnation(told_to_stop: bool) -> None:
    stage = Stage().follows(leader=2, epoch=0)
    stage.chunk(0, batch(offset=0, epoch=0), epoch=0)
    assert stage.got(fx.AppendToLog)
    if told_to_stop:
        stage.feed(stop_of(ID, 0))
        assert stage.one(fx.DisconnectFromLeader).leader == 2
    stage.command(node(2, 0, (1, 2)), identity=AGAIN)
    stage.opened(identity=AGAIN)
    stage.chunk(0, batch(offset=0, epoch=0), epoch=0)
    assert not stage.got(fx.AppendToLog), "the chunk was sent on the old stream"
    stage.feed(ev.LeaderConnected(2))
    assert [position.identity for position in stage.said().positions] == [AGAIN]
    stage.chunk(0, batch(offset=0, epoch=0), epoch=0)
    assert stage.one(fx.AppendToLog).identity == AGAIN


def test_another_incarnation_reconnects_a_stream_that_other_partitions_use() -> None:
    stage = Stage().follows(leader=2, epoch=0)
    other = PartitionCommand(TopicPartition("other", 0), ID, (1, 2), node(2, 0, (1, 2)), 1)
    stage.feed(ev.LeaderAndIsrArrived(3, LeaderAndIsrCommand(9, 1, 11, (other,))))
    stage.feed(ev.LogOpened(other.partition, ID, ev.RecoveredLog(0, 0, 0, 0, (), ProducerStates(), None)))
    assert [position.partition for position in stage.said().positions] == [other.partition]
    stage.command(node(2, 0, (1, 2)), identity=AGAIN)
    stage.opened(identity=AGAIN)
    kinds = [type(effect) for effect in stage.out if not isinstance(effect, fx.Observed)]
    assert kinds == [fx.DisconnectFromLeader, fx.ConnectToLeader]
    stage.chunk(0, batch(offset=0, epoch=0), epoch=0)
    assert not stage.got(fx.AppendToLog), "the chunk was sent on the old stream"
    stage.feed(ev.LeaderConnected(2))
    assert {position.identity for position in stage.said().positions} == {ID, AGAIN}


def test_a_stream_that_has_fetched_many_deleted_partitions_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_FETCHED_MIN", 8)
    stage = Stage().follows(leader=2, epoch=0)
    ended = 0
    for number in range(40):
        partition = TopicPartition(f"brief-{number}", 0)
        command = PartitionCommand(partition, ID, (1, 2), node(2, 0, (1, 2)), 1)
        stage.feed(ev.LeaderAndIsrArrived(3, LeaderAndIsrCommand(9, 1, 11, (command,))))
        stage.feed(ev.LogOpened(partition, ID, ev.RecoveredLog(0, 0, 0, 0, (), ProducerStates(), None)))
        if stage.got(fx.DisconnectFromLeader):
            ended += 1
            stage.feed(ev.LeaderConnected(2))
            assert {position.partition for position in stage.said().positions} == {P, partition}
        stop = StopReplicaCommand(9, 1, 11, (StoppedReplica(partition, ID, 0, True),), 0)
        stage.feed(ev.StopReplicaArrived(4, stop))
        assert not stage.got(fx.DisconnectFromLeader)
    assert 2 <= ended <= 5
