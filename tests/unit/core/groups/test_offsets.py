# SPDX-License-Identifier: Apache-2.0
"""Offsets of a group: commits and deletion (docs/groups.md, G7 and G9); records as bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.groups.heartbeat import Heartbeat
from tidemark.core.groups.offsets import Commit
from tidemark.core.groups.records import decode, encode
from tidemark.core.groups.state import (
    NO_PARTITIONS,
    UNNUMBERED,
    Change,
    Committed,
    GroupState,
    OffsetKey,
    TopicFacts,
    Turn,
)
from tidemark.core.pending_writes import Writer
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code
from tests.unit.core.groups.group_world import GROUP, GroupWorld
from tests.unit.core.groups.test_heartbeat import refusal

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld({"a": TopicFacts("a-id", 4), "b": TopicFacts("b-id", 1)})


def at(world: GroupWorld, offset: int, topic: str = "a", text: str = "", turn: Turn = UNNUMBERED) -> Committed:
    return Committed(offset, 3, text, f"{topic}-id", "i", world.situation.wall_ms, turn)


def commit(
    world: GroupWorld,
    topic: str = "a",
    partition: int = 0,
    *,
    by: tuple[str, int] = ("", -1),
    offset: int = 5,
    text: str = "",
    turn: tuple[str, int] = UNNUMBERED,
) -> dict[TopicPartition, ErrorCode]:
    asked = Commit(GROUP, *by, "", {TopicPartition(topic, partition): at(world, offset, topic, text)}, Turn(*turn))
    outcome = world.coordinator.commit(asked, world.situation)
    world.write(outcome)
    return {where: error.code for where, error in outcome.answer.items()}


def test_consumers_without_a_member_id_commit_only_to_groups_without_members(world: GroupWorld) -> None:
    assert commit(world) == {}
    assert world.group.offsets[TopicPartition("a", 0)].offset == 5
    world.beat(world.add("a"))
    assert refusal(lambda: commit(world)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_commits_in_its_epoch_only(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    me = member.member_id
    assert commit(world, by=(me, 1)) == {}
    assert refusal(lambda: commit(world, by=(me, 0))) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(lambda: commit(world, by=(me, 2))) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refusal(lambda: commit(world, by=("unknown", 1))) is ErrorCode.UNKNOWN_MEMBER


def test_a_commit_never_overwrites_the_offset_of_the_new_owner(world: GroupWorld) -> None:
    first, second = world.add("a"), world.add("a")
    world.settle()
    theirs = next(iter(second.reading)).partition
    assert commit(world, partition=theirs, by=(second.member_id, second.epoch), offset=100) == {}
    assert commit(world, partition=theirs, by=(first.member_id, first.epoch), offset=50) == {
        TopicPartition("a", theirs): ErrorCode.PARTITION_NOT_ASSIGNED
    }
    assert world.group.offsets[TopicPartition("a", theirs)].offset == 100


def test_a_delayed_commit_is_refused_for_a_partition_without_an_owner(world: GroupWorld) -> None:
    first, second = world.add("a"), world.add("a")
    world.beat(first)
    world.beat(second)
    world.beat(first)  # the member must revoke half of its partitions
    (lost, *_) = world.group.current(first.member_id).revoking
    world.add("a")
    world.beat(list(world.members.values())[-1])  # the member must revoke more, before it confirmed the first
    epoch = first.epoch
    world.beat(first)
    assert world.group.current(first.member_id).epoch == epoch
    assert world.group.owner(lost) in (None, second.member_id)
    assert commit(world, partition=lost.partition, by=(first.member_id, epoch)) == {
        TopicPartition("a", lost.partition): ErrorCode.PARTITION_NOT_ASSIGNED
    }


def test_a_member_may_commit_partitions_that_it_is_revoking(world: GroupWorld) -> None:
    first = world.add("a")
    world.beat(first)
    world.beat(world.add("a"))
    world.beat(first)
    (going, *_) = world.group.current(first.member_id).revoking
    assert commit(world, partition=going.partition, by=(first.member_id, first.epoch)) == {}


@pytest.mark.parametrize("by_member", [True, False])
def test_a_delayed_commit_does_not_undo_a_later_one_of_its_client(world: GroupWorld, by_member: bool) -> None:
    member = world.add("a") if by_member else None
    if member is not None:
        world.beat(member)
    by = ("", -1) if member is None else (member.member_id, member.epoch)

    def committed(offset: int, turn: tuple[str, int]) -> int:
        assert commit(world, by=by, offset=offset, turn=turn) == {}
        return world.group.offsets[TopicPartition("a", 0)].offset

    assert committed(469, ("me", 2)) == 469
    assert committed(468, ("me", 1)) == 469, "a delayed commit"
    assert committed(469, ("me", 2)) == 469, "a repeated commit"
    world.fail_over()
    assert committed(468, ("me", 1)) == 469, "also after a failover of the coordinator"
    assert committed(400, ("me", 3)) == 400, "a later commit may lower the offset"
    assert committed(450, ("another", 1)) == 450
    assert committed(300, UNNUMBERED) == 300
    assert committed(450, ("another", 1)) == 300, "a commit without a number keeps the number before"
    assert committed(200, UNNUMBERED) == 200
    assert committed(100, ("me", 1)) == 100, "another client has committed since, so the number counts again"


def test_a_commit_of_before_a_member_joined_again_is_refused(world: GroupWorld) -> None:
    world.beat(world.add("a"))
    (me,) = world.members
    joins = Heartbeat(GROUP, me, 0, topics=("a",), rebalance_timeout_ms=1, owned=NO_PARTITIONS)
    world.write(world.coordinator.heartbeat(replace(joins, sequence=7), world.situation))
    epoch = world.group.current(me).epoch
    for known in (epoch, epoch - 1):
        late = {"by": (me, known), "offset": 65, "turn": ("c", 6)}
        assert refusal(lambda late=late: commit(world, **late)) is ErrorCode.FENCED_MEMBER_EPOCH  # type: ignore[misc]
    assert commit(world, by=(me, epoch), offset=12, turn=("c", 8)) == {}
    assert commit(world, by=(me, epoch), offset=13) == {}, "a commit without a number"


@pytest.mark.parametrize(
    ("offset", "text", "code"),
    [(-1, "", ErrorCode.INVALID_REQUEST), (0, "é" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE)],
)
def test_a_commit_that_is_wrong_is_refused_by_itself(
    world: GroupWorld, offset: int, text: str, code: ErrorCode
) -> None:
    assert commit(world, offset=offset, text=text) == {TopicPartition("a", 0): code}
    assert world.coordinator.find(GROUP) is None, "the group has no state left"


def test_offsets_age_from_the_time_the_last_member_left(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    commit(world, by=(member.member_id, 1))
    world.now_ms += 2 * WEEK_MS
    world.write(world.coordinator.expire(world.situation))
    assert world.group.offsets, "a member continues from the offset"
    world.leave(member)
    world.now_ms += WEEK_MS - 1
    world.write(world.coordinator.expire(world.situation))
    assert world.group.offsets
    world.now_ms += 1
    world.write(world.coordinator.expire(world.situation))
    assert world.coordinator.find(GROUP) is None
    world.check_replay()


def test_offsets_of_unsubscribed_topics_expire_in_a_group_with_members(world: GroupWorld) -> None:
    commit(world, "b")
    world.beat(world.add("a"))
    world.now_ms += WEEK_MS
    world.write(world.coordinator.expire(world.situation))
    assert world.group.offsets == {}


def test_offsets_of_a_deleted_topic_are_deleted_also_if_it_was_created_again(world: GroupWorld) -> None:
    commit(world, "a")
    commit(world, "b")
    del world.topics["a"]
    world.topics["b"] = TopicFacts("another", 1)
    world.write(world.coordinator.expire(world.situation))
    assert len(world.group.offsets) == 2, "the metadata of this broker may be old"
    world.now_ms += 60_001
    world.write(world.coordinator.expire(world.situation._replace(topics=None)))
    assert len(world.group.offsets) == 2, "this broker knows no topic"
    world.hidden_topics = ("a", "b")
    world.write(world.coordinator.expire(world.situation))
    assert len(world.group.offsets) == 2, "the state of these topics is unknown"
    world.hidden_topics = ()
    world.write(world.coordinator.expire(world.situation))
    assert world.coordinator.find(GROUP) is None


@pytest.mark.parametrize("recreated", [False, True])
def test_an_offset_with_a_value_of_an_open_transaction_does_not_expire(world: GroupWorld, recreated: bool) -> None:
    """The tombstone would follow the pending value in the log: its commit marker would not bring the value in force."""
    commit(world, "a")
    world.now_ms += WEEK_MS
    topic_id = "another" if recreated else "a-id"
    world.topics["a"] = TopicFacts(topic_id, 4)
    where = TopicPartition("a", 0)
    asked = Commit(GROUP, "", -1, "", {where: replace(at(world, 9), topic_id=topic_id)})
    world.coordinator.commit_in_transaction(asked, Writer(40, 0), world.situation)
    assert world.coordinator.expire(world.situation).changes == ()
    world.coordinator.end_transaction(40, 1, commit=True)
    assert world.group.offsets[where].offset == 9
    world.now_ms += WEEK_MS
    world.coordinator.expire(world.situation)
    assert world.coordinator.find(GROUP) is None


def test_a_group_is_altered_and_deleted_only_without_members(world: GroupWorld) -> None:
    member = world.add("a")
    world.beat(member)
    asked = Commit(GROUP, "", -1, "", {TopicPartition("a", 0): at(world, 9)})
    alter = world.coordinator.alter_offsets
    assert refusal(lambda: alter(asked, world.situation, validate_only=True)) is ErrorCode.GROUP_NOT_EMPTY
    assert refusal(lambda: world.coordinator.delete_group(GROUP)) is ErrorCode.GROUP_NOT_EMPTY
    world.leave(member)
    assert alter(asked, world.situation, validate_only=True).changes == ()
    assert world.group.offsets == {}
    world.write(alter(asked, world.situation, validate_only=False))
    assert world.group.offsets[TopicPartition("a", 0)].offset == 9
    world.write(world.coordinator.delete_group(GROUP))
    assert refusal(lambda: world.coordinator.delete_group(GROUP)) is ErrorCode.GROUP_NOT_FOUND
    world.check_replay()


@pytest.mark.parametrize("committed", [False, True])
def test_a_group_with_a_pending_offset_is_found_and_its_deletion_outlives_the_transaction(
    world: GroupWorld, committed: bool
) -> None:
    """KIP-447: the only trace of a group may be the offset of its first transaction."""
    if committed:
        commit(world, partition=1)
    asked, producer = Commit(GROUP, "", -1, "", {TopicPartition("a", 0): at(world, 9)}), Writer(40, 0)
    world.coordinator.commit_in_transaction(asked, producer, world.situation)
    assert (world.coordinator.group(GROUP).group_id, world.coordinator.group(GROUP).state) == (GROUP, GroupState.EMPTY)
    assert [one.group_id for one in world.coordinator.pending_groups] == ([] if committed else [GROUP])
    deleted = world.coordinator.delete_group(GROUP).changes
    assert Change(OffsetKey(GROUP, "a", 0), None) in deleted
    assert world.coordinator.end_transaction(40, 1, commit=True) == ()
    assert refusal(lambda: world.coordinator.group(GROUP)) is ErrorCode.GROUP_NOT_FOUND


def test_offsets_of_a_topic_are_deleted_only_without_subscribers(world: GroupWorld) -> None:
    commit(world, "b")
    commit(world, "a")
    world.beat(world.add("a"))
    outcome = world.coordinator.delete_offsets(GROUP, [TopicPartition("a", 0), TopicPartition("b", 0)])
    assert {where.topic: error.code for where, error in outcome.answer.items()} == {
        "a": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    }
    assert world.group.offsets.keys() == {TopicPartition("a", 0)}


@pytest.mark.parametrize("committed", [False, True])
def test_the_deletion_of_an_offset_outlives_a_transaction_that_has_a_value_for_it(
    world: GroupWorld, committed: bool
) -> None:
    where, other, producer = TopicPartition("a", 0), TopicPartition("a", 1), Writer(40, 0)
    if committed:
        commit(world, "a")
    offsets = {where: at(world, 9), other: at(world, 9)}
    world.coordinator.commit_in_transaction(Commit(GROUP, "", -1, "", offsets), producer, world.situation)
    deleted = world.coordinator.delete_offsets(GROUP, [where]).changes
    assert deleted == (Change(OffsetKey(GROUP, *where), None),), "the log needs the tombstone, too"
    world.coordinator.end_transaction(40, 1, commit=True)
    assert world.group.offsets.keys() == {other}


def test_a_record_has_one_encoding_that_this_and_later_versions_read(world: GroupWorld) -> None:
    change = Change(OffsetKey("gruppe-ü", "a", 3), at(world, 7, text="\ud800 not a character", turn=Turn("me", 3)))
    key, value = encode(change)
    assert key == '["offset","gruppe-ü","a",3]'.encode()
    assert decode(key, value) == change
    assert decode(key, None) == Change(change.key, None)
    of_before = Change(change.key, at(world, 7))
    assert decode(*encode(of_before)) == of_before
    assert b"turn" not in (encode(of_before)[1] or b""), "the encoding of an earlier version"
    assert value is not None
    assert decode(key, value[:-1] + b',"more":1}') == change
    assert decode(b'["of a later version",1]', b"{}") is None


@pytest.mark.parametrize("key", [b"", b"{}", b"[]", b'["offset"]', b"\xff", b"7"])
def test_a_record_that_is_none_is_refused(key: bytes) -> None:
    with raises_code(ErrorCode.INVALID_PAYLOAD):
        decode(key, b"{}")


def test_a_value_of_another_kind_is_refused(world: GroupWorld) -> None:
    key, _ = encode(Change(OffsetKey("g", "a", 0), at(world, 1)))
    for value in (b"[]", b"{}", b"1", b'"x"'):
        with pytest.raises(TidemarkError):
            decode(key, value)
