# SPDX-License-Identifier: Apache-2.0
"""Members of a group, one rule per test (docs/groups.md, G2 to G6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer
from tidemark.core.groups.records import encode
from tidemark.core.groups.state import AWAY, LEAVING, GroupPartition, GroupState, MemberState, TopicFacts
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.groups.group_world import GROUP, SESSION_MS, GroupWorld, Member


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld({"a": TopicFacts("a-id", 4)})


def a(*indexes: int) -> frozenset[GroupPartition]:
    return frozenset(GroupPartition("a", "a-id", index) for index in indexes)


def refusal(what: Callable[[], object]) -> ErrorCode:
    with pytest.raises(TidemarkError) as refused:
        what()
    assert len(refused.value.message) > 40, "the message names the next step"
    return refused.value.code


def beat(world: GroupWorld, member: Member, **fields: object) -> object:
    request = Heartbeat(GROUP, member.member_id, member.epoch, instance_id=member.instance_id)
    return world.coordinator.heartbeat(replace(request, **fields), world.situation).answer  # type: ignore[arg-type]


JOIN = {"topics": ("a",), "rebalance_timeout_ms": SESSION_MS}


def test_the_first_member_gets_every_partition_at_once(world: GroupWorld) -> None:
    answer = world.beat(world.add("a"))
    assert answer is not None
    assert (answer.member_epoch, answer.assignment) == (1, a(0, 1, 2, 3))
    assert world.group.state is GroupState.STABLE


def test_a_join_that_is_repeated_is_the_same_join(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member, answer_lost=True)
    answer = world.beat(member)
    assert answer is not None
    assert (answer.member_epoch, answer.assignment, len(world.group.members)) == (1, a(0, 1, 2, 3), 1)


def numbered(world: GroupWorld, member_id: str, sequence: int, **fields: object) -> HeartbeatAnswer:
    request = replace(Heartbeat(GROUP, member_id, 1), sequence=sequence, **fields)  # type: ignore[arg-type]
    outcome = world.coordinator.heartbeat(request, world.situation)
    world.write(outcome)
    return outcome.answer


JOIN_ANEW = {**JOIN, "member_epoch": 0, "owned": a()}


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_delayed_join_does_not_report_an_empty_assignment(world: GroupWorld, taken_over: bool) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    numbered(world, "m1", 2, owned=a(0, 1, 2, 3))
    assert numbered(world, "m2", 1, **JOIN_ANEW).assignment == a()
    if taken_over:
        world.fail_over()
    assert numbered(world, "m1", 1, **JOIN_ANEW).assignment == a(0, 1, 2, 3), "the same assignment as before"
    assert numbered(world, "m2", 2, member_epoch=2).assignment == a()
    kept = numbered(world, "m1", 3, **JOIN_ANEW).assignment
    assert kept is not None, "this join reports no partitions"
    assert len(kept) == 2
    assert numbered(world, "m2", 3, member_epoch=2).assignment == a(0, 1, 2, 3) - kept


def test_a_report_about_an_earlier_assignment_revokes_nothing(world: GroupWorld) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    numbered(world, "m1", 2, owned=a(0, 1, 2, 3))
    numbered(world, "m2", 1, **JOIN_ANEW)
    kept = numbered(world, "m1", 4, owned=a(0, 1, 2, 3)).assignment
    assert kept is not None
    assert world.group.current("m1").state is MemberState.UNREVOKED
    assert numbered(world, "m1", 3, owned=a()).assignment == kept, "sent before the answer"
    assert numbered(world, "m1", 4, owned=a()).assignment == kept
    assert world.group.current("m1").state is MemberState.UNREVOKED
    assert numbered(world, "m1", 5, owned=kept).member_epoch == 2


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_report_repeated_before_the_answer_confirms_nothing(world: GroupWorld, taken_over: bool) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    numbered(world, "m1", 2, owned=a(0, 1, 2, 3))
    numbered(world, "m2", 1, **JOIN_ANEW)
    kept = numbered(world, "m1", 3).assignment
    assert numbered(world, "m1", 4, owned=kept).member_epoch == 2
    numbered(world, "m2", 2, member_epoch=LEAVING)
    assert numbered(world, "m1", 5, member_epoch=2).member_epoch == 3, "this answer gets lost"
    assert numbered(world, "m1", 7, member_epoch=2, owned=kept).assignment == a(0, 1, 2, 3)
    assert numbered(world, "m1", 8, member_epoch=3, owned=a(0, 1, 2, 3)).assignment is None
    if taken_over:
        world.fail_over()
    newcomer = numbered(world, "m3", 1, **JOIN_ANEW)
    for late in (6, 7):
        numbered(world, "m1", late, member_epoch=2, owned=kept)
    assert not numbered(world, "m3", 2, member_epoch=newcomer.member_epoch).assignment
    assert world.group.current("m1").held == a(0, 1, 2, 3)


def test_a_late_heartbeat_moves_its_member_to_no_epoch(world: GroupWorld) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    numbered(world, "m1", 2, owned=a(0, 1, 2, 3))
    world.topics["a"] = TopicFacts("a-id", 5)
    assert numbered(world, "m1", 3).member_epoch == 2
    numbered(world, "m1", 4, member_epoch=2, owned=a(0, 1, 2, 3, 4))
    world.topics["a"] = TopicFacts("a-id", 6)
    numbered(world, "m1", 3)
    assert numbered(world, "m1", 5, member_epoch=2).member_epoch == 3, "the member has missed no answer"


def test_a_waiting_heartbeat_gets_the_new_assignment_unless_a_later_one_did(world: GroupWorld) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    assert not numbered(world, "m1", 2).is_news
    world.topics["a"] = TopicFacts("a-id", 5)
    news = numbered(world, "m1", 2, waited=True)
    assert (news.member_epoch, news.assignment) == (2, a(0, 1, 2, 3, 4))
    world.topics["a"] = TopicFacts("a-id", 6)
    assert numbered(world, "m1", 3, member_epoch=2).member_epoch == 3
    world.topics["a"] = TopicFacts("a-id", 7)
    assert numbered(world, "m1", 2, member_epoch=2, waited=True).member_epoch == 3


def test_a_join_that_waits_for_its_topics_joins_when_they_are_known(world: GroupWorld) -> None:
    known = world.situation
    before = world.coordinator.heartbeat(
        replace(Heartbeat(GROUP, "m1", 0, sequence=1), **JOIN), known._replace(topics=None)
    )
    assert before.answer.member_epoch == 0
    waits = replace(Heartbeat(GROUP, "m1", 0, sequence=1, waited=True), **JOIN)
    assert world.coordinator.heartbeat(waits, known).answer.assignment == a(0, 1, 2, 3)


def test_a_retried_heartbeat_gets_the_content_of_the_lost_answer(world: GroupWorld) -> None:
    for _ in range(2):
        answer = numbered(world, "m1", 1, **JOIN_ANEW)
        assert (answer.member_epoch, answer.assignment, answer.is_news) == (1, a(0, 1, 2, 3), True)
    world.check_replay()


def test_a_delayed_leave_does_not_remove_a_member_that_joined_again(world: GroupWorld) -> None:
    numbered(world, "m1", 1, **JOIN_ANEW)
    numbered(world, "m1", 2, member_epoch=LEAVING)
    numbered(world, "m1", 3, **JOIN_ANEW)
    assert numbered(world, "m1", 2, member_epoch=LEAVING).member_epoch == LEAVING
    assert world.group.current("m1").held == a(0, 1, 2, 3)
    static = {"instance_id": "one"}
    numbered(world, "m2", 1, **JOIN_ANEW, **static)
    numbered(world, "m2", 2, member_epoch=AWAY, **static)
    assert numbered(world, "m2", 1, **JOIN_ANEW, **static).member_epoch == AWAY, "the member has left for a while since"
    assert numbered(world, "m2", 3, **JOIN_ANEW, **static).member_epoch > 0


def test_a_static_member_returning_as_another_process_numbers_from_1_again(world: GroupWorld) -> None:
    static = {"instance_id": "one"}
    numbered(world, "m1", 7, **JOIN_ANEW, **static)
    numbered(world, "m1", 8, member_epoch=AWAY, **static)
    answer = numbered(world, "m2", 1, **JOIN_ANEW, **static)
    assert answer.assignment == a(0, 1, 2, 3)
    assert numbered(world, "m2", 2, owned=answer.assignment, **static).assignment is None
    assert refusal(lambda: numbered(world, "m2", -1)) is ErrorCode.INVALID_REQUEST


def test_a_partition_moves_only_after_its_member_confirmed_the_revocation(world: GroupWorld) -> None:
    first, second = world.add("a"), world.add("a")
    world.beat(first)
    world.beat(second)
    assert second.reading == set()
    assert world.group.current(second.member_id).state is MemberState.UNRELEASED
    told = beat(world, first)
    given_up = world.group.current(first.member_id).revoking
    assert len(given_up) == 2
    assert told == (1, first.reading - given_up, True)
    for _ in range(3):  # no report: the assignment is sent again, as the answer may be lost
        assert beat(world, first) == (1, first.reading - given_up, False)
        world.beat(second)
        assert second.reading == set()
    first.reading -= given_up
    beat(world, first, owned=frozenset(first.reading))
    world.beat(second)
    assert second.reading == given_up


def test_a_member_with_an_unchanged_assignment_does_not_receive_the_assignments_of_others(world: GroupWorld) -> None:
    world.topics["b"] = TopicFacts("b-id", 2)
    reads_a, reads_b = world.add("a"), world.add("b")
    world.settle()
    before = set(reads_a.reading)
    world.topics["b"] = TopicFacts("b-id", 3)
    world.write(world.coordinator.refresh_topics(world.situation))
    answer = world.beat(reads_a)
    assert answer is not None
    assert answer.assignment is None
    assert reads_a.reading == before
    world.settle()
    assert len(reads_b.reading) == 3


def test_an_answer_that_was_lost_does_not_fence_and_any_other_old_epoch_does(world: GroupWorld) -> None:
    first = world.add("a")
    world.beat(first)
    world.add("a")
    world.settle()
    epoch = world.group.current(first.member_id).epoch
    owned = frozenset(first.reading)
    before = world.group.current(first.member_id).previous_epoch
    assert before < epoch
    first.epoch = before
    assert beat(world, first, owned=owned) == (epoch, owned, True)
    assert beat(world, first) == (epoch, owned, True)
    assert refusal(lambda: beat(world, first, owned=a(0, 1, 2, 3))) is ErrorCode.FENCED_MEMBER_EPOCH
    first.epoch = epoch + 1
    assert refusal(lambda: beat(world, first, owned=owned)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_silent_member_is_removed_after_its_session_and_its_partitions_move(world: GroupWorld) -> None:
    silent, other = world.add("a"), world.add("a")
    world.settle()
    world.kill(silent)
    world.now_ms += SESSION_MS - 100
    world.beat(other)
    world.write(world.coordinator.remove_overdue(world.situation))
    assert silent.member_id in world.group.members
    world.now_ms += 101
    outcome = world.coordinator.remove_overdue(world.situation)
    assert outcome.answer.removed == ((GROUP, silent.member_id),)
    world.write(outcome)
    world.settle()
    assert other.reading == a(0, 1, 2, 3)
    assert refusal(lambda: beat(world, silent)) is ErrorCode.UNKNOWN_MEMBER


def test_a_member_that_does_not_give_up_in_its_own_time_is_out(world: GroupWorld) -> None:
    stubborn, other = world.add("a"), world.add("a")
    world.beat(stubborn)
    world.beat(other)
    beat(world, stubborn)
    for _ in range(11):
        world.now_ms += SESSION_MS // 10
        beat(world, stubborn)
        world.beat(other)
    removed = world.coordinator.remove_overdue(world.situation).answer.removed
    assert removed == ((GROUP, stubborn.member_id),)


def test_time_while_the_coordinator_was_stopped_counts_against_no_member(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    world.now_ms += 10 * SESSION_MS
    world.coordinator.excuse(10 * SESSION_MS)
    assert world.coordinator.remove_overdue(world.situation).answer.removed == ()
    world.now_ms += SESSION_MS + 1
    assert world.coordinator.remove_overdue(world.situation).answer.removed == ((GROUP, member.member_id),)


def test_a_new_coordinator_gives_every_member_a_full_session(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    world.now_ms += SESSION_MS
    world.fail_over()
    world.now_ms += SESSION_MS
    assert world.coordinator.remove_overdue(world.situation).answer.removed == ()
    assert beat(world, member) == (1, a(0, 1, 2, 3), False), "the assignment is sent again, once"
    assert beat(world, member, owned=a(0, 1, 2, 3)) == (1, None, False)
    assert beat(world, member) == (1, None, False)


def test_a_static_member_returns_to_its_partitions_under_another_id(world: GroupWorld) -> None:
    static, other = world.add("a", instance_id="one"), world.add("a")
    world.settle()
    mine, epoch = frozenset(static.reading), world.group.epoch
    assert refusal(lambda: world.coordinator.heartbeat(_join("else", "one"), world.situation)) is (
        ErrorCode.UNRELEASED_INSTANCE_ID
    )
    world.leave(static, epoch=AWAY)
    world.beat(other)
    assert world.group.state is GroupState.STABLE
    again = world.add("a", instance_id="one")
    answer = world.beat(again)
    assert answer is not None
    assert (answer.assignment, answer.member_epoch) == (mine, epoch)
    assert world.group.epoch == epoch
    assert refusal(lambda: beat(world, static)) is ErrorCode.FENCED_INSTANCE_ID


def _join(member_id: str, instance_id: str) -> Heartbeat:
    return Heartbeat(GROUP, member_id, 0, instance_id=instance_id, topics=("a",), rebalance_timeout_ms=1)


def test_a_static_member_that_stays_away_is_out_after_a_session(world: GroupWorld) -> None:
    static, other = world.add("a", instance_id="one"), world.add("a")
    world.settle()
    world.leave(static, epoch=AWAY)
    for _ in range(12):
        world.advance(SESSION_MS // 10)
        world.beat(other)
    world.settle()
    assert other.reading == a(0, 1, 2, 3)


def test_a_member_that_leaves_twice_gets_unknown_member(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    world.leave(member)
    assert world.group.state is GroupState.EMPTY
    assert refusal(lambda: beat(world, member, member_epoch=LEAVING)) is ErrorCode.UNKNOWN_MEMBER


def test_a_topic_created_again_is_another_topic(world: GroupWorld) -> None:
    member = world.add("a")
    world.settle()
    world.topics["a"] = TopicFacts("new-id", 4)
    world.settle()
    assert {partition.topic_id for partition in member.reading} == {"new-id"}


def test_members_wait_while_the_topics_are_unknown(world: GroupWorld) -> None:
    unknown = world.situation._replace(topics=None)
    outcome = world.coordinator.heartbeat(_join("m", ""), unknown)
    assert outcome.answer.assignment == frozenset()
    assert world.group.state is GroupState.ASSIGNING
    world.coordinator.refresh_topics(world.situation)
    again = world.coordinator.heartbeat(_join("m", ""), world.situation)
    assert again.answer.assignment == a(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "x" * 250}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "a\nb"}, ErrorCode.INVALID_GROUP_ID),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": 0}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": AWAY}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER),
        ({"assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"protocol": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, ErrorCode.GROUP_FULL),
    ],
)
def test_an_invalid_join_is_refused_and_changes_nothing(fields: dict[str, object], code: ErrorCode) -> None:
    world = GroupWorld({"a": TopicFacts("a-id", 4)}, max_size=1)
    world.beat(world.add("a"))
    before = tuple(world.group.values())
    request = replace(_join("new", ""), **fields)  # type: ignore[arg-type]
    assert refusal(lambda: world.coordinator.heartbeat(request, world.situation)) is code
    assert tuple(world.group.values()) == before


def test_the_assignor_named_by_most_members_wins_and_the_brokers_first_without_votes(world: GroupWorld) -> None:
    for number, assignor in enumerate(("", "range", "uniform", "range")):
        world.coordinator.heartbeat(replace(_join(f"m{number}", ""), assignor=assignor), world.situation)
    assert world.group.target_metadata.assignor == "range"
    world.coordinator.heartbeat(Heartbeat(GROUP, "m1", LEAVING), world.situation)
    assert world.group.target_metadata.assignor == "uniform", "a tie: the order of the broker decides"
    world.coordinator.heartbeat(Heartbeat(GROUP, "m2", LEAVING), world.situation)
    world.coordinator.heartbeat(Heartbeat(GROUP, "m3", LEAVING), world.situation)
    assert world.group.target_metadata.assignor == "sticky"


@pytest.mark.parametrize("written", range(7))
def test_after_a_partly_written_leave_every_partition_has_a_reader_at_the_end(world: GroupWorld, written: int) -> None:
    leaver, other = world.add("a"), world.add("a")
    world.settle()
    outcome = world.coordinator.heartbeat(Heartbeat(GROUP, leaver.member_id, LEAVING), world.situation)
    world.log.extend(encode(change) for change in outcome.changes[:written])
    world.kill(leaver)
    world.fail_over()
    world.settle()
    assert other.reading == a(0, 1, 2, 3)


@pytest.mark.parametrize("written", range(6))
def test_after_a_partly_written_join_the_member_gets_its_share(world: GroupWorld, written: int) -> None:
    first = world.add("a")
    world.settle()
    second = world.add("a")
    request = Heartbeat(GROUP, second.member_id, 0, topics=("a",), rebalance_timeout_ms=SESSION_MS)
    outcome = world.coordinator.heartbeat(request, world.situation)
    world.log.extend(encode(change) for change in outcome.changes[:written])
    world.fail_over()
    world.settle()
    assert (len(first.reading), len(second.reading)) == (2, 2)
