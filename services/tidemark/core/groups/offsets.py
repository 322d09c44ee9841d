# SPDX-License-Identifier: Apache-2.0
"""Committed offsets of a group: commit, delete, expire (docs/groups.md, steps G7 and G9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tidemark.core.groups.group import Group, metadata_of
from tidemark.core.groups.heartbeat import Situation, check_member
from tidemark.core.groups.pending_changes import PendingChanges
from tidemark.core.groups.state import (
    AWAY,
    UNNUMBERED,
    Committed,
    GroupKey,
    GroupPartition,
    OffsetKey,
    TargetMetadataKey,
    Turn,
)
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request

Refusals = dict[TopicPartition, TidemarkError]


@dataclass(frozen=True, slots=True)
class Commit:
    """A request to commit offsets of existing partitions.

    Attributes:
        member_id: "" for a consumer that assigned its partitions itself.
        member_epoch: epoch of the member; -1 without a member.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str
    offsets: Mapping[TopicPartition, Committed]
    turn: Turn = UNNUMBERED


def check_committer(group: Group, member_id: str, member_epoch: int, instance_id: str, sequence: int = 0) -> None:
    """Raise unless the client, a member or not, may commit and fetch offsets.

    Args:
        sequence: of the request; 0 if the client does not number its requests.

    Raises:
        TidemarkError: INCONSISTENT_GROUP_PROTOCOL, FENCED_INSTANCE_ID, UNKNOWN_MEMBER, STALE_MEMBER_EPOCH,
            FENCED_MEMBER_EPOCH.
    """
    if not member_id:
        if group.members:
            raise TidemarkError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group {group.group_id!r} has members that share its partitions. A consumer that assigned its "
                "own cannot commit to the group. Choose another group id, or stop the members first",
                {"protocol": metadata_of(group).protocol},
            )
        return
    current = check_member(group, member_id, instance_id)
    of_before = 0 < sequence < current.joined
    if member_epoch == current.epoch and current.epoch != AWAY and not of_before:
        return
    if member_epoch < current.epoch and not of_before:
        raise TidemarkError(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"the member {member_id!r} is in epoch {current.epoch} and the request has epoch {member_epoch}. Apply the "
            "answer to the next heartbeat, then retry for the partitions that are still assigned",
            {"member_epoch": str(current.epoch)},
        )
    why = "has joined again since" if of_before else f"is in epoch {current.epoch}, not in {member_epoch}"
    raise TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member {member_id!r} of the group {group.group_id!r} {why}: revoke all partitions and join again",
        {"member_epoch": str(current.epoch)},
    )


def commit(changes: PendingChanges, asked: Commit, now: Situation) -> Refusals:
    """Commit offsets; returns the refused offsets: too much metadata, or a partition that the member does not hold.

    An offset that this commit, or a later one of the same client, has set already stays. A client that does not number
    its commits, such as an offset reset, keeps the number of the offset.

    Raises:
        TidemarkError: the errors of `check_committer`.
    """
    values, refused = values_of(changes.group, asked, now)
    for key, value in values.items():
        changes.put(key, value)
    return refused


def values_of(group: Group, asked: Commit, now: Situation) -> tuple[dict[OffsetKey, Committed], Refusals]:
    """The values that `commit` sets, and the refused partitions; raises the errors of `check_committer`."""
    check_committer(group, asked.member_id, asked.member_epoch, asked.instance_id, asked.turn.sequence)
    values: dict[OffsetKey, Committed] = {}
    refused: Refusals = {}
    for partition, committed in asked.offsets.items():
        error = _refusal(group, asked.member_id, partition, committed, now)
        if error is not None:
            refused[partition] = error
            continue
        known = group.offsets.get(partition)
        turn = UNNUMBERED if known is None else known.turn
        if not asked.turn.is_done_by(turn):
            key = OffsetKey(group.group_id, partition.topic, partition.partition)
            values[key] = replace(committed, turn=asked.turn if asked.turn.committer_id else turn)
    return values, refused


def check_empty(group: Group, what: str) -> None:
    """Raise GROUP_NOT_EMPTY while the group has members."""
    if group.members:
        raise TidemarkError(
            ErrorCode.GROUP_NOT_EMPTY,
            f"the group {group.group_id!r} has {len(group.members)} members: {what} only after they have stopped",
            {"members": str(len(group.members))},
        )


def delete_group(changes: PendingChanges, pending: Collection[TopicPartition]) -> None:
    """Delete a group without members, with its offsets, also those of open transactions."""
    group = changes.group
    for topic, partition in dict.fromkeys((*group.offsets, *pending)):
        changes.put(OffsetKey(group.group_id, topic, partition), None)
    _delete_group_values(changes)


def delete_offsets(
    changes: PendingChanges, partitions: Collection[TopicPartition], pending: Collection[OffsetKey]
) -> Refusals:
    """Delete offsets of topics that no member subscribes to, also those of open transactions; returns the refused
    partitions.
    """
    group = changes.group
    refused: Refusals = {}
    for partition in partitions:
        if group.subscribes(partition.topic):
            refused[partition] = TidemarkError(
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                f"members of the group {group.group_id!r} subscribe to {partition.topic}: stop them first",
            )
            continue
        key = OffsetKey(group.group_id, partition.topic, partition.partition)
        if partition in group.offsets or key in pending:
            changes.put(key, None)
    return refused


def expire(changes: PendingChanges, now: Situation, pending: Collection[OffsetKey]) -> None:
    """Delete offsets unused for `offsets.retention.minutes`, and offsets of deleted topics.

    An offset ages from its commit; in a group without members, from the departure of the last member at the earliest. A
    group with neither members nor offsets is deleted by the same rule. The keys in `pending` stay: a tombstone would be
    the later value, and no marker would put the offset of an open transaction in force (rule X17).
    """
    group = changes.group
    metadata = metadata_of(group)
    horizon_ms = now.wall_ms - now.settings.offsets_retention_ms
    idle = not group.members and metadata.empty_since_ms <= horizon_ms
    for partition, committed in tuple(group.offsets.items()):
        key = OffsetKey(group.group_id, partition.topic, partition.partition)
        unused = idle or (bool(group.members) and not group.subscribes(partition.topic))
        expired = (unused and committed.committed_at_ms <= horizon_ms) or _is_orphan(partition, committed, now)
        if expired and key not in pending:
            changes.put(key, None)
    if idle and not group.offsets:
        _delete_group_values(changes)


def _delete_group_values(changes: PendingChanges) -> None:
    group = changes.group
    if group.metadata is not None:
        changes.put(TargetMetadataKey(group.group_id), None)
        changes.put(GroupKey(group.group_id), None)


_ORPHAN_AFTER_MS = 60_000
"""Largest time, in ms, by which a broker's view of the topics may be older than a commit."""


def is_young(committed: Committed, wall_ms: int) -> bool:
    """Whether a broker may not know the topic of an offset yet, because its view of the topics is older."""
    return wall_ms - committed.committed_at_ms < _ORPHAN_AFTER_MS


def _is_orphan(partition: TopicPartition, committed: Committed, now: Situation) -> bool:
    """Whether the topic of an offset was deleted since, and possibly created again."""
    if now.topics is None or partition.topic in now.hidden_topics:
        return False
    if is_young(committed, now.wall_ms):
        return False
    facts = now.topics.get(partition.topic)
    return facts is None or facts.topic_id != committed.topic_id


def _refusal(
    group: Group, member_id: str, partition: TopicPartition, committed: Committed, now: Situation
) -> TidemarkError | None:
    limit_bytes = now.settings.metadata_bytes_max
    if len(committed.metadata.encode("utf-8", "surrogatepass")) > limit_bytes:
        return TidemarkError(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"{partition}: metadata of a commit has at most {limit_bytes} bytes (offset.metadata.max.bytes)",
        )
    if committed.offset < 0:
        return invalid_request(f"{partition}: {committed.offset} is not an offset")
    if not member_id:
        return None  # the group has no members
    owner = group.owner(GroupPartition(partition.topic, committed.topic_id, partition.partition))
    if owner != member_id:
        # without an owner too, since another member may have held the partition, and may have committed more
        return TidemarkError(
            ErrorCode.PARTITION_NOT_ASSIGNED,
            f"{partition} is not assigned to the member {member_id!r} of the group {group.group_id!r} now. The member "
            "that gets the partition reads again from the last committed offset",
            {"member_id": owner or ""},
        )
    return None
