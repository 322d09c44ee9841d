# SPDX-License-Identifier: Apache-2.0
"""Late answers of storage, ZooKeeper, clients and streams, or answers for another incarnation, change nothing
(rules E5, C7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from tidemark.core.messages import StoppedReplica, StopReplicaCommand
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, VersionedState

from tests.unit.core.replication.stage import ID, P, Stage, batch, entries, node

ANEW = ReplicaIdentity("c" * 32, "d" * 32)
SMOKES = TidemarkError(ErrorCode.STORAGE_ERROR, "it smokes")
LOST = ProducerStates()

OF_STORAGE: Mapping[str, ev.Event] = {
    "opened": ev.LogOpened(P, ID, ev.RecoveredLog(0, 3, 3, 3, entries((4, 0)), LOST)),
    "appended": ev.LogAppended(P, ID, 3),
    "flushed": ev.LogFlushed(P, ID, 3),
    "truncated": ev.LogTruncated(P, ID, 0, 3, LOST),
    "failed": ev.LogFailed(P, ID, SMOKES),
    "full": ev.LogFull(P, ID, 3, LOST, SMOKES),
    "moved": ev.LogMoved(P, ID, 1),
}
OF_OTHERS: Mapping[str, ev.Event] = {
    "expired": ev.ProduceExpired(1, P),
    "released": ev.LogStartRequested(P, ID, 5, 3),
    "written": ev.IsrWritten(P, 7),
    "not written": ev.IsrWriteFailed(P, unknown=True),
    "read": ev.IsrRead(P, VersionedState(node(1, 5, (1, 2)), 7)),
    "read for a follower": ev.FollowerReadDone(2, P, 5, 0, (batch(3, offset=0, epoch=5),)),
    "a follower is gone": ev.FollowerDisconnected(2, 12),
    "a follower is named": ev.PreferredReplicaNamed(P, 2),
    "a leader is there": ev.LeaderConnected(2),
    "a leader is gone": ev.LeaderDisconnected(2),
}


def stopped() -> Stage:
    stage = Stage().leads((1,))
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, (StoppedReplica(P, ID, 5, False),))))
    assert stage.got(fx.CloseLog)
    return stage


def made_anew() -> Stage:
    """The log of another incarnation, with two records."""
    stage = Stage().leads((1,))
    stage.command(node(1, 0, (1,)), identity=ANEW)
    stage.opened(2, (0, 0), high_watermark=2, identity=ANEW)
    return stage


def failed() -> Stage:
    stage = Stage().leads((1,))
    stage.feed(ev.LogFailed(P, ID, SMOKES))
    return stage


def following() -> Stage:
    stage = Stage()
    stage.command(node(3, 5, (3, 1)))
    stage.opened()
    return stage


@pytest.mark.parametrize("event", OF_STORAGE.values(), ids=OF_STORAGE)
@pytest.mark.parametrize("stage_of", [Stage, stopped, made_anew])
def test_answers_of_storage_for_a_closed_log_are_ignored(stage_of: Callable[[], Stage], event: ev.Event) -> None:
    stage = stage_of()
    before = stage.core.queries.replicas()
    assert stage.feed(event) == []
    assert stage.core.queries.replicas() == before


@pytest.mark.parametrize("name", [name for name in OF_STORAGE if name not in ("opened", "failed")])
def test_answers_of_storage_after_a_log_failure_are_ignored(name: str) -> None:
    stage = failed()
    before = stage.core.queries.replicas()
    assert stage.feed(OF_STORAGE[name]) == []
    assert stage.core.queries.replicas() == before


def test_a_log_is_opened_once() -> None:
    stage = Stage().leads((1,))
    stage.write(batch(5))
    assert stage.feed(OF_STORAGE["opened"]) == []
    (view,) = stage.core.queries.replicas()
    assert (view.role, view.log_end_offset, view.high_watermark) == ("leader", 5, 5)


@pytest.mark.parametrize("event", OF_OTHERS.values(), ids=OF_OTHERS)
@pytest.mark.parametrize("stage_of", [Stage, stopped, following, failed])
def test_answers_for_an_ended_role_are_ignored(stage_of: Callable[[], Stage], event: ev.Event) -> None:
    stage = stage_of()
    assert stage.feed(event) == []
    assert stage.core.queries.log_starts(P, 5) is None


def test_a_log_start_requested_in_another_leader_epoch_is_ignored() -> None:
    stage = Stage().leads((1,))
    stage.write(batch(5))
    assert stage.feed(ev.LogStartRequested(P, ID, 4, 3)) == []
    assert stage.core.queries.log_starts(P, 4) is None
    stage.feed(ev.LogStartRequested(P, ID, 5, 3))
    assert stage.one(fx.AdvanceLogStart).start_offset == 3


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (ev.LogFailed(P, ID, SMOKES), ErrorCode.STORAGE_ERROR),
        (ev.StopReplicaArrived(2, StopReplicaCommand(9, 1, 11, (StoppedReplica(P, ID, 5, False),))), None),
    ],
    ids=["its log failed", "the replica was stopped"],
)
def test_a_waiting_command_to_lead_is_answered_when_the_replica_cannot_lead(
    event: ev.Event, code: ErrorCode | None
) -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.feed(event)
    refused = {error.code for reply in stage.got(fx.ReplyToControl) for _, error in reply.refused}
    assert refused == {code or ErrorCode.NOT_A_REPLICA}


def test_a_replica_closed_and_opened_again_does_not_lead_in_an_epoch_that_it_knew() -> None:
    stage = Stage()
    stage.command(node(-1, 5, ()))
    stage.opened()
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, (StoppedReplica(P, ID, 5, False),))))
    stage.command(node(1, 5, (1,)))
    stage.opened()
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]


def test_an_open_follower_answers_a_command_and_refuses_an_older_one_with_its_epoch() -> None:
    stage = following()
    stage.command(node(2, 6, (2, 1)))
    assert stage.one(fx.ReplyToControl) == fx.ReplyToControl(1, None)
    stage.command(node(3, 4, (3, 1)))
    assert [error.metadata["leader_epoch"] for _, error in stage.one(fx.ReplyToControl).refused] == ["6"]
