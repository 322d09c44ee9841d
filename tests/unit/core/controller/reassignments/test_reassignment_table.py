# SPDX-License-Identifier: Apache-2.0
"""The table of a reassignment (rule M1): every phase with every input, and the properties of the table as a whole."""

from __future__ import annotations

import pytest
from tidemark.core.controller.reassignment import (
    AFTER_COMMIT,
    BEFORE_STEP_1,
    NAMED_IN_NODE,
    TRANSITIONS,
    Effect,
    Fence,
    Input,
    Phase,
    Reassignment,
)
from tidemark.core.reassignment.status import ReassignmentStatus
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    PartitionReassignment,
    TopicPartition,
)

P = TopicPartition("orders", 0)

TABLE = """
requested      off_target           -> queued         enqueue
informing      off_target           -> queued         enqueue
queued         off_target           -> queued         enqueue
requested      at_target            -> informing      name_log_dirs
queued         at_target            -> informing      name_log_dirs
admitted       at_target            -> informing      name_log_dirs
informing      informed             -> ended          finish_entry
queued         slot                 -> admitted       rewrite_topic
admitted       compose              -> adding         draft_adding
adding         compose              -> adding         draft_adding
adding         unwritten            -> adding         rewrite_topic
requested      node_adds            -> copying        report_begin name_log_dirs
informing      node_adds            -> copying        report_begin name_log_dirs
queued         node_adds            -> copying        report_begin name_log_dirs
admitted       node_adds            -> copying        report_begin name_log_dirs
adding         node_adds            -> copying        report_begin name_log_dirs
requested      node_reverts         -> cancelling     report_begin name_log_dirs
informing      node_reverts         -> cancelling     report_begin name_log_dirs
queued         node_reverts         -> cancelling     report_begin name_log_dirs
admitted       node_reverts         -> cancelling     report_begin name_log_dirs
adding         node_reverts         -> cancelling     report_begin name_log_dirs
copying        in_sync              -> copying        commit_target
copying        commit               -> committed      assign_target
copying        cancel               -> cancel_pending
copying        node_reverts         -> cancelling
copying        node_ends            -> requested      report_end
copying        topic_gone           -> requested
cancel_pending request              -> copying
cancel_pending withdraw             -> copying
cancel_pending unwritten            -> cancel_pending rewrite_topic
cancel_pending compose              -> cancel_pending draft_revert
cancel_pending node_reverts         -> cancelling
cancel_pending node_ends            -> requested      report_end
cancel_pending topic_gone           -> requested
cancelling     in_sync              -> cancelling     commit_target
cancelling     commit               -> committed      assign_target
cancelling     node_adds            -> copying
cancelling     node_ends            -> requested      report_end
cancelling     topic_gone           -> requested
committed      leader_informed      -> stopping       stop_replicas
committed      outsider             -> committed      commit_target
committed      node_ends            -> requested      report_end
committed      topic_gone           -> requested
stopping       stopped              -> completing     rewrite_topic
stopping       outsider             -> stopping       commit_target
stopping       node_ends            -> requested      report_end
stopping       topic_gone           -> requested
completing     compose              -> completing     draft_target
completing     outsider             -> completing     commit_target
completing     node_ends            -> requested      report_end
completing     topic_gone           -> requested
adding         topic_gone           -> requested
informing      topic_gone           -> requested
informing      request              -> requested
queued         request              -> requested
admitted       request              -> requested
informing      cancel               -> requested
queued         cancel               -> requested
admitted       cancel               -> requested
requested      withdraw             -> ended
informing      withdraw             -> ended
queued         withdraw             -> ended
admitted       withdraw             -> ended
"""


def rows() -> dict[tuple[Phase, Input], tuple[Phase, tuple[Effect, ...]]]:
    """The rows of `TABLE`: phase, input, next phase, effects."""
    found = {}
    for line in TABLE.strip().splitlines():
        before, after = line.split("->")
        phase, happened = before.split()
        following, *effects = after.split()
        found[Phase(phase), Input(happened)] = (Phase(following), tuple(map(Effect, effects)))
    return found


@pytest.mark.parametrize("happened", Input)
@pytest.mark.parametrize("phase", Phase)
def test_each_input_in_each_phase_follows_the_table(phase: Phase, happened: Input) -> None:
    one = Reassignment(P, phase=phase)
    effects = one.take(happened)
    assert (one.phase, effects) == rows().get((phase, happened), (phase, ()))


def test_the_twelve_steps_are_taken_in_their_order() -> None:
    one = Reassignment(P, PartitionReassignment(P, brokers(4, 5)))
    taken = [
        (happened, one.take(happened), one.phase)
        for happened in (
            Input.OFF_TARGET,
            Input.SLOT,
            Input.COMPOSE,
            Input.NODE_ADDS,
            Input.IN_SYNC,
            Input.COMMIT,
            Input.LEADER_INFORMED,
            Input.STOPPED,
            Input.COMPOSE,
            Input.NODE_ENDS,
            Input.AT_TARGET,
            Input.INFORMED,
        )
    ]
    assert [phase for _, _, phase in taken] == [
        Phase.QUEUED,
        Phase.ADMITTED,
        Phase.ADDING,
        Phase.COPYING,
        Phase.COPYING,
        Phase.COMMITTED,
        Phase.STOPPING,
        Phase.COMPLETING,
        Phase.COMPLETING,
        Phase.REQUESTED,
        Phase.INFORMING,
        Phase.ENDED,
    ]
    assert [effect for _, effects, _ in taken for effect in effects] == [
        Effect.ENQUEUE,
        Effect.REWRITE_TOPIC,
        Effect.DRAFT_ADDING,
        Effect.REPORT_BEGIN,
        Effect.NAME_LOG_DIRS,
        Effect.COMMIT_TARGET,
        Effect.ASSIGN_TARGET,
        Effect.STOP_REPLICAS,
        Effect.REWRITE_TOPIC,
        Effect.DRAFT_TARGET,
        Effect.REPORT_END,
        Effect.NAME_LOG_DIRS,
        Effect.FINISH_ENTRY,
    ]


# -- the properties of the table as a whole --------------------------------------------------------------------------


def test_a_reassignment_ends_from_every_phase() -> None:
    ends = {Phase.ENDED}
    while more := {phase for (phase, _), (after, _) in TRANSITIONS.items() if after in ends} - ends:
        ends |= more
    assert ends == set(Phase)


def test_every_phase_is_reached_from_a_new_entry() -> None:
    reached = {Phase.REQUESTED}
    while more := {after for (phase, _), (after, _) in TRANSITIONS.items() if phase in reached} - reached:
        reached |= more
    assert reached == set(Phase)


def test_nothing_follows_an_ended_reassignment() -> None:
    assert not [row for row in TRANSITIONS if row[0] is Phase.ENDED]


def test_after_step_7_no_input_leads_back_to_copying() -> None:
    following = {after for (phase, _), (after, _) in TRANSITIONS.items() if phase in AFTER_COMMIT}
    assert following <= {*AFTER_COMMIT, Phase.REQUESTED}


def test_replicas_are_stopped_only_after_the_leader_has_acknowledged_step_7() -> None:
    stops = [row for row, (_, effects) in TRANSITIONS.items() if Effect.STOP_REPLICAS in effects]
    assert stops == [(Phase.COMMITTED, Input.LEADER_INFORMED)]


def test_the_topics_node_is_drafted_only_while_it_is_composed() -> None:
    drafts = {Effect.DRAFT_ADDING, Effect.DRAFT_REVERT, Effect.DRAFT_TARGET}
    assert {happened for (_, happened), (_, effects) in TRANSITIONS.items() if drafts & set(effects)} == {Input.COMPOSE}


def test_an_entry_leaves_its_node_only_while_the_topics_node_names_no_reassignment() -> None:
    finishes = {phase for (phase, _), (_, effects) in TRANSITIONS.items() if Effect.FINISH_ENTRY in effects}
    assert finishes.isdisjoint(NAMED_IN_NODE)


# -- the fields ---------------------------------------------------------------------------------------------------


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))


def found(original: tuple[int, ...], target: tuple[int, ...], removing: tuple[int, ...]) -> ReassignmentStatus:
    adding = tuple(one for one in target if one not in original)
    return ReassignmentStatus(brokers(*original), brokers(*target), brokers(*adding), brokers(*removing), (), {})


def state(leader: int, *isr: int, elr: tuple[int, ...] = (), min_isr: int = 1, epoch: int = 3) -> LeaderAndIsr:
    entries = tuple(IsrEntry(one, BrokerEpoch(0)) for one in brokers(*isr))
    left = tuple(IsrEntry(one, BrokerEpoch(0)) for one in brokers(*elr))
    return LeaderAndIsr(
        leader=BrokerId(leader), leader_epoch=LeaderEpoch(epoch), isr=entries, elr=left, min_isr=min_isr
    )


def copying() -> Reassignment:
    """A reassignment from 1, 2, 3 to 4, 5, 3."""
    one = Reassignment(P, PartitionReassignment(P, brokers(4, 5, 3)), target=brokers(4, 5, 3))
    one.take_node(found((1, 2, 3), (4, 5, 3), (1, 2)))
    assert one.phase is Phase.COPYING
    return one


def test_the_target_is_the_entrys_until_step_1_is_composed_and_then_stays() -> None:
    one = Reassignment(P)
    one.take_entry(PartitionReassignment(P, brokers(4)))
    one.take_entry(PartitionReassignment(P, brokers(5)))
    assert one.target == (5,)
    for happened in (Input.OFF_TARGET, Input.SLOT, Input.COMPOSE):
        one.take(happened)
    one.take_entry(PartitionReassignment(P, brokers(6)))
    assert (one.phase, one.target) == (Phase.ADDING, (5,))


def test_after_step_7_another_target_in_the_node_does_not_count() -> None:
    one = copying()
    one.take(Input.COMMIT)
    assert one.take_node(found((1, 2, 3), (1, 2, 3), (4, 5))) == ()
    assert (one.phase, one.target, one.removing) == (Phase.COMMITTED, (4, 5, 3), (1, 2))


def test_an_entry_that_was_cancelled_while_step_1_was_written_is_reverted_once_that_is_known() -> None:
    one = Reassignment(P, PartitionReassignment(P, brokers(4)), Phase.ADDING, target=brokers(4))
    one.take_entry(PartitionReassignment(P, brokers(4), cancel=True))
    assert one.phase is Phase.ADDING
    one.take_node(found((1,), (4,), (1,)))
    assert one.phase is Phase.CANCEL_PENDING


def test_when_the_node_names_it_no_more_an_entry_that_is_left_is_compared_again() -> None:
    one = copying()
    one.fence = Fence(one.target, LeaderEpoch(3))
    one.take_entry(PartitionReassignment(P, brokers(1)))
    assert one.leave_node(Input.NODE_ENDS) == (Effect.REPORT_END,)
    assert (one.phase, one.target, one.original, one.removing, one.fence) == (Phase.REQUESTED, (1,), (), (), None)


@pytest.mark.parametrize("happened", [Input.NODE_ENDS, Input.TOPIC_GONE])
def test_a_reassignment_without_an_entry_ends_with_its_node(happened: Input) -> None:
    one = copying()
    one.take_entry(None)
    assert one.phase is Phase.COPYING
    one.leave_node(happened)
    assert one.phase is Phase.ENDED


@pytest.mark.parametrize("phase", BEFORE_STEP_1)
def test_a_deleted_topic_leaves_an_entry_that_waits(phase: Phase) -> None:
    one = Reassignment(P, PartitionReassignment(P, brokers(4)), phase)
    one.leave_node(Input.TOPIC_GONE)
    assert one.phase in BEFORE_STEP_1
    assert one.entry is not None


# -- the conditions of inputs ---------------------------------------------------------------------------------------


def test_in_sync_means_all_of_the_target_and_a_leader() -> None:
    one = copying()
    assert one.is_in_sync(state(1, 1, 3, 4, 5))
    assert not one.is_in_sync(state(1, 1, 2, 3, 4))
    assert not one.is_in_sync(state(-1, 3, 4, 5))


@pytest.mark.parametrize(
    ("seen", "enough"),
    [
        (state(1, 1, 2, 4, min_isr=2), True),  # min_isr of the original replicas
        (state(1, 1, 4, min_isr=2), False),  # 4 is needed for min_isr
        (state(1, 1, min_isr=2), True),  # dropping no replica
        (state(1, 1, elr=(4,), min_isr=2), False),  # 4 may lead
        (state(4, 4, 5), False),  # no original replica is in sync
    ],
)
def test_step_7_reverts_only_if_the_partition_keeps_the_replicas_it_needs(seen: LeaderAndIsr, *, enough: bool) -> None:
    one = copying()
    one.take_node(found((1, 2, 3), (1, 2, 3), (4, 5)))
    assert one.phase is Phase.CANCELLING
    assert one.is_in_sync(seen) == enough


def test_step_7_is_recognised_by_isr_leader_min_isr_and_epoch() -> None:
    one = copying()
    one.fence = Fence(one.target, LeaderEpoch(3))
    assert one.is_commit(state(4, 3, 4, 5, min_isr=2), 2)
    assert not one.is_commit(state(4, 3, 4, 5, min_isr=1), 2)
    assert not one.is_commit(state(1, 1, 3, 4, 5, min_isr=2), 2)
    assert not one.is_commit(state(4, 3, 4, 5, min_isr=2, epoch=2), 2)


def test_a_fence_counts_for_its_target_only_and_none_is_needed_where_no_replica_is_removed() -> None:
    one = copying()
    one.fence = Fence(brokers(4, 5), LeaderEpoch(3))
    assert not one.is_fenced(LeaderEpoch(9))
    one.removing = ()
    assert one.is_fenced(LeaderEpoch(0))
