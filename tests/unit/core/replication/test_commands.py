# SPDX-License-Identifier: Apache-2.0
"""Commands of the controller (rules F4, E5, C8, T5), as scenarios."""

from __future__ import annotations

import pytest
from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand, StoppedReplica, StopReplicaCommand
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition

from tests.unit.core.replication.stage import BROKERS, ID, P, Stage, batch, node

OTHER = TopicPartition("flights", 1)
RECREATED = ReplicaIdentity("c" * 32, "d" * 32)


def whole_error(stage: Stage) -> ErrorCode | None:
    error = stage.one(fx.ReplyToControl).error
    return error.code if error is not None else None


def test_a_command_of_an_old_controller_or_for_another_registration_is_refused_whole() -> None:
    stage = Stage().leads((1,))
    stage.command(node(2, 6, (1, 2)), controller_epoch=0)
    assert whole_error(stage) is ErrorCode.STALE_CONTROLLER_EPOCH
    stage.command(node(2, 6, (1, 2)), broker_epoch=10)
    assert whole_error(stage) is ErrorCode.STALE_BROKER_EPOCH
    stage.produce()
    assert stage.got(fx.AppendToLog)


def test_a_lower_leader_epoch_is_refused_and_an_equal_one_changes_nothing() -> None:
    stage = Stage().leads((1,))
    stage.write()
    stage.command(node(2, 4, (1, 2)))
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.command(node(1, 5, (1,)))
    assert [type(effect) for effect in stage.out] == [fx.ReplyToControl]
    assert stage.high_watermark() == 1


def test_an_epoch_has_one_leader_for_any_command() -> None:
    stage = Stage().follows(leader=2)
    stage.command(node(1, 5, (1, 2)))
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.chunk(0, batch(offset=0, epoch=5))
    assert stage.got(fx.AppendToLog)


def test_a_recreated_topic_sets_the_old_log_aside_as_stray() -> None:
    stage = Stage().leads((1,))
    stage.produce()
    stage.command(node(1, 0, (1,)), identity=RECREATED)
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert stage.one(fx.CloseLog) == fx.CloseLog(P, ID, "stray")
    assert stage.one(fx.OpenLog) == fx.OpenLog(P, RECREATED)
    stage.feed(ev.LogAppended(P, ID, 1))
    assert stage.out == []
    stage.opened(identity=RECREATED)
    assert stage.refusals() == []
    assert stage.one(fx.LeadershipChanged).leading


def test_the_latest_command_wins_while_the_log_opens() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1, 2)))
    assert not stage.got(fx.ReplyToControl), "the command to lead is answered when the log is open"
    stage.command(node(2, 6, (1, 2)))
    assert [reply.refused[0][1].code if reply.refused else None for reply in stage.got(fx.ReplyToControl)] == [
        ErrorCode.FENCED_LEADER_EPOCH,
        None,
    ]
    stage.opened()
    assert stage.one(fx.ConnectToLeader).leader == 2
    assert not stage.got(fx.LeadershipChanged)


def test_a_damaged_replica_follows_but_does_not_lead_cleanly() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1, 2)))
    stage.opened(4, (3, 0), high_watermark=9, damaged="a CRC is wrong at offset 4")
    assert "replica_damaged" in [seen.kind for seen in stage.got(fx.Observed)]
    assert stage.refusals() == [ErrorCode.REPLICA_DAMAGED]
    stage.command(node(2, 6, (1, 2)))
    stage.feed(ev.LeaderConnected(2))
    stage.answered(3, 20, current=6, in_sync=20)
    assert stage.said().positions[0].fetch_offset == 4
    stage.chunk(4, batch(16, offset=4, epoch=3), high_watermark=20, epoch=6)
    stage.feed(ev.LogAppended(P, ID, 20))
    stage.command(node(1, 7, (1, 2)))
    assert stage.refusals() == []


def test_a_damaged_replica_leads_in_the_lineage_that_was_started_for_it() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.opened(4, (3, 0), damaged="a CRC is wrong at offset 4")
    stage.command(node(1, 6, (1,), lineage=1))
    assert stage.refusals() == []
    assert stage.one(fx.LeadershipChanged).leading


def part(
    number: int, *partitions: TopicPartition, complete: bool = False, of_slices: tuple[int, int] = (0, 1)
) -> ev.LeaderAndIsrArrived:
    commands = tuple(PartitionCommand(one, ID, BROKERS, node(-1, 1, (1,)), 0) for one in partitions)
    index, count = of_slices
    command = LeaderAndIsrCommand(
        9, 1, 11, commands, part=number, complete=complete, slice_index=index, slice_count=count
    )
    return ev.LeaderAndIsrArrived(1, command)


def test_a_replica_that_a_complete_command_omits_is_stray_on_disk_too() -> None:
    stage = Stage()
    third = TopicPartition("gone", 3)
    stage.feed(ev.BrokerRegistered(11, {OTHER: (ID, 0), third: (ID, 2)}))
    stage.feed(part(0, P))
    stage.feed(part(1, OTHER, complete=True))
    assert stage.got(fx.CloseLog) == [fx.CloseLog(third, ID, "stray")]
    stage.feed(part(0, P, complete=True))
    assert stage.got(fx.CloseLog) == [fx.CloseLog(OTHER, ID, "stray")]


def test_a_complete_command_counts_once_every_slice_of_every_part_has_arrived() -> None:
    stage = Stage()
    third, gone = TopicPartition("third", 3), TopicPartition("gone", 3)
    stage.feed(ev.BrokerRegistered(11, dict.fromkeys((P, OTHER, third, gone), (ID, 0))))
    stage.feed(part(0, P, of_slices=(0, 2)))
    stage.feed(part(0, OTHER, of_slices=(1, 2)))
    stage.feed(part(1, third, complete=True))
    assert stage.got(fx.CloseLog) == [fx.CloseLog(gone, ID, "stray")]


@pytest.mark.parametrize("missing", [0, 1])
def test_an_inventory_with_a_missing_slice_sets_nothing_aside(missing: int) -> None:
    stage = Stage()
    stage.feed(ev.BrokerRegistered(11, {OTHER: (ID, 0)}))
    for index in {0, 1} - {missing}:
        stage.feed(part(0, P, of_slices=(index, 2)))
    stage.feed(part(1, P, complete=True))
    assert not stage.got(fx.CloseLog)
    assert stage.one(fx.Observed).kind == "inventory_incomplete"


def test_an_inventory_with_a_missing_part_sets_nothing_aside() -> None:
    stage = Stage()
    stage.feed(part(0, P, OTHER))
    stage.feed(part(1, P))
    stage.feed(part(3, P, complete=True))
    assert not stage.got(fx.CloseLog)
    assert stage.one(fx.Observed).kind == "inventory_incomplete"


def stop(stage: Stage, *, epoch: int, delete: bool, identity: ReplicaIdentity = ID) -> None:
    stopped = StoppedReplica(P, identity, epoch, delete)
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, (stopped,))))


def test_a_stopped_replica_is_closed_and_deleted_only_if_the_command_deletes_it() -> None:
    stage = Stage().leads((1,))
    stop(stage, epoch=4, delete=True)
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stop(stage, epoch=6, delete=True, identity=RECREATED)
    assert stage.refusals() == [ErrorCode.UNKNOWN_TOPIC_ID]
    stop(stage, epoch=5, delete=False)
    assert stage.one(fx.CloseLog).set_aside is None
    stage.leads((1,), epoch=5)
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stop(stage, epoch=5, delete=True)
    assert stage.one(fx.CloseLog).set_aside == "delete"
    assert list(stage.core.queries.replicas()) == []


@pytest.mark.parametrize("leads", [True, False])
def test_a_failed_log_is_reported_with_its_leader_epoch(leads: bool) -> None:
    stage = Stage()
    if leads:
        stage.leads((1, 2))
    else:
        stage.follows(2)
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "no space")))
    assert stage.one(fx.ReportLogFailed) == fx.ReportLogFailed(P, ID, 5)


def test_a_log_that_cannot_be_opened_is_reported_too() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "no such disk")))
    assert stage.one(fx.ReportLogFailed) == fx.ReportLogFailed(P, ID, 5)


def test_an_overtaken_command_does_not_suspect_a_broker_again() -> None:
    stage = Stage().leads((1, 2))
    stage.command(node(1, 5, (1, 2)), suspected=[3], sequence=7)
    stage.command(node(1, 5, (1, 2)), sequence=8)
    assert whole_error(stage) is None
    stage.command(node(1, 5, (1, 2)), suspected=[3], sequence=7)
    assert whole_error(stage) is ErrorCode.REQUEST_TIMED_OUT
    stage.fetches(3, 0)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2, 3)


def test_a_complete_command_that_was_overtaken_sets_no_newer_replica_aside() -> None:
    stage = Stage().leads((1,))
    command = LeaderAndIsrCommand(9, 1, 11, (), complete=True, sequence=3)
    stage.command(node(1, 5, (1,)), sequence=4)
    stage.feed(ev.LeaderAndIsrArrived(0, command))
    assert whole_error(stage) is ErrorCode.REQUEST_TIMED_OUT
    assert not stage.got(fx.CloseLog)
    stage.command(node(1, 6, (1,)), controller_epoch=2, sequence=1)
    assert whole_error(stage) is None, "the sequence numbers of a new controller start again"


def stop_numbered(stage: Stage, sequence: int) -> None:
    stopped = (StoppedReplica(P, ID, 5, True),)
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, stopped, sequence)))


def test_a_command_that_was_overtaken_by_a_stop_does_not_bring_the_replica_back() -> None:
    stage = Stage().leads((1, 2))
    stage.command(node(1, 5, (1, 2)), sequence=7)
    stop_numbered(stage, 8)
    assert stage.one(fx.CloseLog).set_aside == "delete"
    stage.command(node(1, 5, (1, 2)), sequence=7)
    assert whole_error(stage) is ErrorCode.REQUEST_TIMED_OUT
    assert list(stage.core.queries.replicas()) == []


def test_an_overtaken_stop_leaves_a_replica_assigned_again_since() -> None:
    stage = Stage().follows(leader=2, epoch=5)
    stop_numbered(stage, 8)
    stage.command(node(2, 5, (1, 2)), sequence=9)
    stop_numbered(stage, 8)
    assert whole_error(stage) is ErrorCode.REQUEST_TIMED_OUT
    assert len(list(stage.core.queries.replicas())) == 1
