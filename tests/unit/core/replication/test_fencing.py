# SPDX-License-Identifier: Apache-2.0
"""Fencing by sessions and registrations, and refused commands, late or for another broker epoch
(rules E3, E5, F2, F4, T5), as scenarios."""

from __future__ import annotations

import pytest
from tidemark.core.messages import LeaderAndIsrCommand, StoppedReplica, StopReplicaCommand
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import BrokerRegistration, ErrorCode, ReplicaIdentity, TidemarkError

from tests.unit.core.replication.stage import ID, P, Stage, batch, node

SMOKES = TidemarkError(ErrorCode.STORAGE_ERROR, "it smokes")


def answers(stage: Stage) -> list[ErrorCode | None]:
    return [reply.error.code if reply.error is not None else None for reply in stage.got(fx.ReplyToControl)]


def leads(stage: Stage) -> bool:
    stage.produce()
    (code,) = [code for _, _, code in stage.replies()] or [None]
    return code is not ErrorCode.NOT_LEADER


# -- sessions and registrations --------------------------------------------------------------------------------


def test_a_new_registration_ends_every_leadership_without_a_session_event() -> None:
    stage = Stage().leads((1,))
    stage.feed(ev.BrokerRegistered(21))
    assert stage.one(fx.LeadershipChanged).leading is False
    assert not leads(stage)


def test_a_waiting_command_to_lead_ends_with_its_session() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.feed(ev.SessionExpired())
    assert stage.refusals() == [ErrorCode.STALE_BROKER_EPOCH]
    stage.opened()
    assert not stage.got(fx.LeadershipChanged)
    assert not leads(stage)


def test_a_follower_keeps_following_without_a_session() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    stage.feed(ev.SessionExpired())
    stage.opened()
    assert stage.one(fx.ConnectToLeader).leader == 2
    stage.feed(ev.LeaderConnected(2))
    stage.feed(ev.BrokerRegistered(21))
    assert not stage.got(fx.LeadershipChanged)
    assert stage.one(fx.DisconnectFromLeader).leader == 2
    assert stage.one(fx.ConnectToLeader).leader == 2, "with the broker epoch of the new registration"
    stage.feed(ev.LeaderConnected(2))
    stage.chunk(0, batch(offset=0, epoch=5))
    assert stage.got(fx.AppendToLog)


def test_an_epoch_known_before_a_registration_is_never_led_after_it() -> None:
    stage = Stage()
    stage.command(node(-1, 5, ()))
    stage.opened()
    stage.feed(ev.BrokerRegistered(21))
    stage.command(node(1, 5, (1,)), broker_epoch=21)
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.command(node(1, 6, (1,)), broker_epoch=21)
    assert leads(stage)


def test_an_unregistered_broker_refuses_every_command() -> None:
    stage = Stage()
    stage.feed(ev.SessionExpired())
    for broker_epoch in (11, -1):
        stage.command(node(1, 5, (1,)), broker_epoch=broker_epoch)
        assert answers(stage) == [ErrorCode.STALE_BROKER_EPOCH]


def test_a_log_opened_again_is_not_led_in_the_epoch_of_its_failure() -> None:
    """The log may be opened again without records that this epoch acknowledged."""
    stage = Stage().leads((1,))
    stage.feed(ev.LogFailed(P, ID, SMOKES))
    stage.command(node(1, 5, (1,)))
    assert stage.got(fx.OpenLog)
    stage.opened()
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.command(node(1, 4, (1,)))
    (reply,) = stage.got(fx.ReplyToControl)
    assert [error.metadata["leader_epoch"] for _, error in reply.refused] == ["5"]
    stage.command(node(1, 6, (1,)))
    assert leads(stage)


# -- late commands ---------------------------------------------------------------------------------------------


def test_a_command_to_follow_is_answered_at_once_one_to_lead_when_its_log_is_open() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    assert answers(stage) == [None]
    stage.command(node(1, 6, (1, 2)))
    assert answers(stage) == []
    stage.opened()
    assert answers(stage) == [None]


def test_the_newest_command_of_an_epoch_wins_while_the_log_opens_in_any_order() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1, 2, 3)), version=1)
    stage.command(node(1, 5, (1, 2)), version=3)
    stage.command(node(1, 5, (1, 2, 3)), version=2)
    stage.opened()
    (view,) = stage.core.queries.replicas()
    assert (view.role, view.isr) == ("leader", (1, 2))


def test_an_older_command_of_the_same_epoch_brings_back_no_older_assignment() -> None:
    stage = Stage().leads((1, 2))
    stage.command(node(1, 5, (1, 2)), version=3, assigned=(1, 2))
    stage.command(node(1, 5, (1, 2)), version=2, assigned=(1, 2, 3))
    assert answers(stage) == [None]
    (view,) = stage.core.queries.replicas()
    assert view.assigned == (1, 2)
    stage.fetches(3, 0)
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]
    stage.command(node(1, 5, (1, 2)), version=4, assigned=(1, 2, 3))
    (view,) = stage.core.queries.replicas()
    assert view.assigned == (1, 2, 3)


def test_all_parts_of_a_command_are_applied_and_so_is_one_without_a_number() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)), sequence=4)
    stage.command(node(2, 6, (1, 2)), sequence=4)
    assert answers(stage) == [None]
    stage.command(node(2, 7, (1, 2)), sequence=0)
    assert answers(stage) == [None]
    stage.command(node(2, 8, (1, 2)), sequence=3)
    (view,) = stage.core.queries.replicas()
    assert view.leader_epoch == 8, "any number follows a command without a number"
    stage.command(node(2, 9, (1, 2)), sequence=2)
    assert answers(stage) == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "code"),
    [(0, 11, ErrorCode.STALE_CONTROLLER_EPOCH), (1, 10, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_a_stop_of_an_old_controller_or_for_another_registration_is_refused(
    controller_epoch: int, broker_epoch: int, code: ErrorCode
) -> None:
    stage = Stage().leads((1,))
    stopped = (StoppedReplica(P, ID, 5, True),)
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, controller_epoch, broker_epoch, stopped)))
    assert answers(stage) == [code]
    assert not stage.got(fx.CloseLog)
    assert leads(stage)


def test_a_stop_without_an_epoch_matches_any_and_one_of_an_older_epoch_is_refused() -> None:
    stage = Stage().leads((1,))
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, (StoppedReplica(P, ID, 4, True),))))
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    assert not stage.got(fx.CloseLog)
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 11, (StoppedReplica(P, ID, -1, True),))))
    assert stage.one(fx.CloseLog) == fx.CloseLog(P, ID, "delete")


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("identity", [ID, ReplicaIdentity("c" * 32, "d" * 32)])
def test_a_replica_never_opened_is_deleted_only_with_the_named_identity(
    delete: bool, identity: ReplicaIdentity
) -> None:
    stage = Stage()
    stage.feed(ev.BrokerRegistered(21, {P: (ID, 3)}))
    stage.feed(ev.StopReplicaArrived(1, StopReplicaCommand(9, 1, 21, (StoppedReplica(P, identity, 5, delete),))))
    assert answers(stage) == [None]
    closed = [fx.CloseLog(P, ID, "delete")] if delete and identity == ID else []
    assert stage.got(fx.CloseLog) == closed


# -- where leaders are -----------------------------------------------------------------------------------------


def registered(stage: Stage, *brokers: BrokerRegistration) -> None:
    stage.feed(ev.LeaderAndIsrArrived(1, LeaderAndIsrCommand(9, 1, 11, (), brokers)))


def test_a_follower_reconnects_to_a_leader_with_another_address() -> None:
    stage = Stage().follows()
    registered(stage, BrokerRegistration(2, "elsewhere", 9192, broker_epoch=22))
    assert stage.one(fx.DisconnectFromLeader).leader == 2
    assert stage.one(fx.ConnectToLeader) == fx.ConnectToLeader(2, "elsewhere", 9192, 22)
    registered(stage, BrokerRegistration(2, "host2", 9192, broker_epoch=12))
    assert not stage.got(fx.ConnectToLeader), "an older registration is ignored"
    registered(stage, BrokerRegistration(2, "elsewhere", 9192, broker_epoch=22))
    assert not stage.got(fx.ConnectToLeader), "an equal registration is ignored"
    registered(stage, BrokerRegistration(2, "elsewhere", 9292, broker_epoch=22))
    assert stage.one(fx.ConnectToLeader) == fx.ConnectToLeader(2, "elsewhere", 9292, 22)


def test_a_leader_is_followed_once_its_address_is_known() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)), assigned=(1,))
    stage.opened()
    assert not stage.got(fx.ConnectToLeader)
    registered(stage, BrokerRegistration(2, "host2", 9192, broker_epoch=12))
    assert stage.one(fx.ConnectToLeader).leader == 2


# -- lineages and damage ---------------------------------------------------------------------------------------


def test_a_damaged_replica_refuses_every_command_to_lead_in_its_lineage() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.opened(5, high_watermark=9, damaged="a hole")
    assert stage.refusals() == [ErrorCode.REPLICA_DAMAGED]
    stage.command(node(1, 6, (1,)))
    assert stage.refusals() == [ErrorCode.REPLICA_DAMAGED]
    stage.command(node(1, 7, (1,), lineage=1))
    assert leads(stage)


def test_in_a_lineage_that_the_replica_led_a_truncation_below_the_high_watermark_fails_an_assertion() -> None:
    stage = Stage().leads((1,), end=10, epochs=[(4, 0)])
    assert stage.high_watermark() == 10
    stage.command(node(2, 6, (1, 2)))
    stage.feed(ev.LeaderConnected(2))
    with pytest.raises(AssertionError, match="below the high watermark"):
        stage.answered(4, 5, current=6)


@pytest.mark.parametrize("damaged", [None, "a hole"])
def test_a_high_watermark_binds_only_a_sound_log_that_was_in_line_with_a_leader_of_this_lineage(
    damaged: str | None,
) -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2), lineage=1))
    stage.opened(10, (4, 0), high_watermark=8, damaged=damaged)
    stage.feed(ev.LeaderConnected(2))
    if damaged is not None:
        stage.answered(4, 10)
    stage.command(node(2, 6, (1, 2), lineage=1))
    stage.answered(4, 5, current=6)
    assert stage.one(fx.TruncateLog).end_offset == 5
