# SPDX-License-Identifier: Apache-2.0
"""Offsets of a group: who may commit, what is forgotten when (docs/groups.md, steps G7 and G9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tidemark.core.groups.group import Group, facts_of
from tidemark.core.groups.heartbeat import Situation, check_member
from tidemark.core.groups.pending_changes import Transaction
from tidemark.core.groups.state import (
    AWAY,
    UNNUMBERED,
    AssignedKey,
    Committed,
    GroupKey,
    GroupPartition,
    OffsetKey,
    Turn,
)
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

Refusals = dict[TopicPartition, TidemarkError]


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to remember, of partitions that exist.

    Attributes:
        member_id: "" for a consumer that chose its partitions by hand.
        member_epoch: -1 without a member.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str
    offsets: Mapping[TopicPartition, Committed]
    turn: Turn = UNNUMBERED


def check_committer(group: Group, member_id: str, member_epoch: int, instance_id: str, sequence: int = 0) -> None:
    """Whether a member, or somebody who is none, may commit and fetch.

    Args:
        sequence: of the request, 0 where the client does not number them.

    Raises:
        TidemarkError: INCONSISTENT_GROUP_PROTOCOL, FENCED_INSTANCE_ID, UNKNOWN_MEMBER, STALE_MEMBER_EPOCH,
            FENCED_MEMBER_EPOCH.
    """
    if not member_id:
        if group.specs:
            raise TidemarkError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group {group.group_id!r} has members that share its partitions: a consumer that chose its own "
                "cannot commit to it; choose another group id, or stop the members first",
                {"protocol": facts_of(group).protocol},
            )
        return
    holding = check_member(group, member_id, instance_id)
    of_before = 0 < sequence < holding.joined
    if member_epoch == holding.epoch and holding.epoch != AWAY and not of_before:
        return
    if member_epoch < holding.epoch and not of_before:
        raise TidemarkError(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"the member {member_id!r} is in epoch {holding.epoch} and asked in {member_epoch}: take in the answer to "
            "its next heartbeat, then ask again for what it still has",
            {"member_epoch": str(holding.epoch)},
        )
    why = "has joined anew since" if of_before else f"is in epoch {holding.epoch}, not in {member_epoch}"
    raise TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member {member_id!r} of the group {group.group_id!r} {why}: give up all partitions and join again",
        {"member_epoch": str(holding.epoch)},
    )


def commit(transaction: Transaction, asked: Commit, now: Situation) -> Refusals:
    """Remember offsets, beside those that are refused: too much metadata, or a partition that the member does not hold.

    What this commit of its client, or a later one, has set already is done: it counts as made before that. Who does not
    number its commits, such as people who reset offsets, leaves the number as it is.

    Raises:
        TidemarkError: as `check_committer`.
    """
    group = transaction.group
    check_committer(group, asked.member_id, asked.member_epoch, asked.instance_id, asked.turn.sequence)
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
            transaction.put(key, replace(committed, turn=asked.turn if asked.turn.committer_id else turn))
    return refused


def check_empty(group: Group, what: str) -> None:
    """Raises GROUP_NOT_EMPTY while the group has members."""
    if group.specs:
        raise TidemarkError(
            ErrorCode.GROUP_NOT_EMPTY,
            f"the group {group.group_id!r} has {len(group.specs)} members: {what} only when all are stopped",
            {"members": str(len(group.specs))},
        )


def forget_group(transaction: Transaction) -> None:
    """A group without members goes, with its offsets."""
    group = transaction.group
    for topic, partition in tuple(group.offsets):
        transaction.put(OffsetKey(group.group_id, topic, partition), None)
    _forget_shell(transaction)


def forget_offsets(transaction: Transaction, partitions: Collection[TopicPartition]) -> Refusals:
    """Offsets of topics that nobody reads go."""
    group = transaction.group
    refused: Refusals = {}
    for partition in partitions:
        if group.subscribes(partition.topic):
            refused[partition] = TidemarkError(
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                f"members of the group {group.group_id!r} read {partition.topic}: stop them first",
            )
        elif partition in group.offsets:
            transaction.put(OffsetKey(group.group_id, partition.topic, partition.partition), None)
    return refused


def expire(transaction: Transaction, now: Situation) -> None:
    """What nobody has used for `offsets.retention.minutes` goes; so does what belongs to topics that are gone.

    An offset ages from its commit, in a group without members from the time its last one left at the earliest. A group
    with neither members nor offsets ages likewise.
    """
    group = transaction.group
    facts = facts_of(group)
    horizon_ms = now.wall_ms - now.settings.offsets_retention_ms
    idle = not group.specs and facts.empty_since_ms <= horizon_ms
    for partition, committed in tuple(group.offsets.items()):
        unused = idle or (bool(group.specs) and not group.subscribes(partition.topic))
        if (unused and committed.committed_at_ms <= horizon_ms) or _is_orphan(partition, committed, now):
            transaction.put(OffsetKey(group.group_id, partition.topic, partition.partition), None)
    if idle and not group.offsets:
        _forget_shell(transaction)


def _forget_shell(transaction: Transaction) -> None:
    group = transaction.group
    if group.facts is not None:
        transaction.put(AssignedKey(group.group_id), None)
        transaction.put(GroupKey(group.group_id), None)


_ORPHAN_AFTER_MS = 60_000
"""What a broker was told of topics may be older than a commit by a moment."""


def _is_orphan(partition: TopicPartition, committed: Committed, now: Situation) -> bool:
    """Whether its topic was deleted, perhaps made anew, since."""
    if now.topics is None or partition.topic in now.hidden_topics:
        return False
    if now.wall_ms - committed.committed_at_ms < _ORPHAN_AFTER_MS:
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
        return TidemarkError(ErrorCode.INVALID_REQUEST, f"{partition}: {committed.offset} is no offset")
    if not member_id:
        return None  # the group has no members
    owner = group.owner(GroupPartition(partition.topic, committed.topic_id, partition.partition))
    if owner != member_id:
        # Nor may it where nobody holds the partition: somebody may have, and may have committed more.
        return TidemarkError(
            ErrorCode.PARTITION_NOT_ASSIGNED,
            f"{partition} is not read by the member {member_id!r} of the group {group.group_id!r} now: what it read of "
            "it since its last commit is read again by the member that gets the partition",
            {"member_id": owner or ""},
        )
    return None
