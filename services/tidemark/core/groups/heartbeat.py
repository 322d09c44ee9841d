# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: members join, report their partitions, get their assignment, leave (docs/groups.md, steps G2-G6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidemark.core.groups.group import Group, metadata_of
from tidemark.core.groups.pending_changes import PendingChanges
from tidemark.core.groups.reconciliation import next_assignment
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import (
    AWAY,
    CONSUMER,
    JOINING,
    LEAVING,
    NO_PARTITIONS,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupKey,
    MemberMetadata,
    MemberMetadataKey,
    MemberState,
    Partitions,
    TargetAssignmentKey,
)
from tidemark.core.groups.target_assignment import Topics, is_outdated, raise_epoch
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, invalid_request

REBALANCE_TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000
_TOPICS_MAX: Final = 10_000
_NAME_CHARACTERS_MAX: Final = 256
"""Bounds on the fields of a member: its subscription is one record, which must never be too large to replicate."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The content of a member's heartbeat.

    Attributes:
        member_epoch: the epoch last answered, or JOINING, LEAVING, AWAY.
        rebalance_timeout_ms: rebalance timeout of the member; 0: unchanged.
        topics: names of the subscribed topics; None: unchanged.
        assignor: name of the assignor; "": unchanged, or the default of the broker for a member that joins.
        owned: partitions that the member reads; None: not reported.
        protocol: "" means CONSUMER.
        sequence: rises with each heartbeat and commit of a member; 0 if the member does not number them.
        waited: the heartbeat was applied before, had no change to report, and is now checked again.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str = ""
    rebalance_timeout_ms: int = 0
    topics: tuple[str, ...] | None = None
    assignor: str = ""
    owned: Partitions | None = None
    protocol: str = ""
    client_id: str = ""
    client_host: str = ""
    sequence: int = 0
    waited: bool = False


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat.

    Attributes:
        assignment: partitions that the member may read; None after the member has reported exactly these.
        is_news: the member may not know this assignment yet; otherwise the assignment is sent again, as the last answer
            may be lost.
    """

    member_epoch: int
    assignment: Partitions | None = None
    is_news: bool = False


class Situation(NamedTuple):
    """Time, topics and settings for a request.

    Attributes:
        topics: the existing topics; None while unknown.
        now_ms: monotonic.
        wall_ms: milliseconds since 1970, UTC.
        hidden_topics: other existing topics whose state is unknown; their offsets are kept.
    """

    topics: Topics | None
    settings: GroupSettings
    now_ms: int
    wall_ms: int
    hidden_topics: tuple[str, ...] = ()


def heartbeat(changes: PendingChanges, beat: Heartbeat, now: Situation) -> HeartbeatAnswer:
    """Apply a heartbeat to the state of its group.

    Raises:
        TidemarkError: INVALID_REQUEST, INVALID_TOPIC_NAME, INCONSISTENT_GROUP_PROTOCOL, UNSUPPORTED_ASSIGNOR,
            GROUP_FULL, UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID; then the state
            is unchanged.
    """
    group = changes.group
    _check_fields(beat, now.settings)
    late = _is_late(group, beat)
    if beat.member_epoch in (LEAVING, AWAY):
        return HeartbeatAnswer(beat.member_epoch) if late else _leave(changes, beat, now)
    if late:
        if group.current(beat.member_id).epoch == AWAY:
            return HeartbeatAnswer(AWAY)
        beat = _without_reports(beat, group.current(beat.member_id))
    protocol = beat.protocol or CONSUMER
    if group.members and protocol != metadata_of(group).protocol:
        raise TidemarkError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group {group.group_id!r} is in use as a {metadata_of(group).protocol!r} group, not as {protocol!r}: "
            "choose another group id, or stop its members first",
            {"protocol": metadata_of(group).protocol},
        )
    joins = beat.member_epoch == JOINING and not late
    missed = late
    if joins:
        before = _admit(changes, beat, protocol, now)
    else:
        missed |= _check_epoch(group, beat)
        before = group.members[beat.member_id]
    member = _metadata(beat, before)
    if group.members.get(beat.member_id) != member:
        changes.put(MemberMetadataKey(group.group_id, beat.member_id), member)
    asks_otherwise = before is None or (before.topics, before.assignor) != (member.topics, member.assignor)
    if asks_otherwise or is_outdated(group, now.topics):
        raise_epoch(changes, now.topics, now.settings, now.wall_ms)
    group.last_seen_ms[beat.member_id] = now.now_ms
    return _reconcile(changes, beat, now.now_ms, joins=joins, missed=missed, late=late)


def remove(changes: PendingChanges, members: tuple[str, ...], now: Situation) -> None:
    """Remove members from the group; their partitions become free."""
    for member_id in members:
        changes.remove_member(member_id)
    raise_epoch(changes, now.topics, now.settings, now.wall_ms)


def overdue(group: Group, now: Situation) -> tuple[str, ...]:
    """Members whose session timeout has passed, or that have not revoked partitions within their rebalance timeout."""
    session_ms = now.settings.session_timeout_ms
    return tuple(
        member_id
        for member_id, member in group.members.items()
        if now.now_ms - group.last_seen_ms.setdefault(member_id, now.now_ms) > session_ms
        or _revokes_too_long(group, member_id, member, now.now_ms)
    )


def check_member(group: Group, member_id: str, instance_id: str) -> CurrentAssignment:
    """The current assignment of a member.

    Raises:
        TidemarkError: FENCED_INSTANCE_ID, UNKNOWN_MEMBER.
    """
    if instance_id:
        known = group.member_of_instance(instance_id)
        if known is not None and known != member_id:
            raise TidemarkError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"another member has the instance id {instance_id!r} of the group {group.group_id!r} now: stop this "
                "member, or give it its own instance id",
                {"instance_id": instance_id},
            )
    if member_id not in group.members:
        raise TidemarkError(
            ErrorCode.UNKNOWN_MEMBER,
            f"the group {group.group_id!r} has no member {member_id!r}: it left, or its session timed out; revoke "
            "all partitions and join again",
            {"member_id": member_id},
        )
    return group.current(member_id)


def _revokes_too_long(group: Group, member_id: str, member: MemberMetadata, now_ms: int) -> bool:
    if group.current(member_id).state is not MemberState.UNREVOKED:
        return False
    return now_ms - group.revoking_since_ms.setdefault(member_id, now_ms) > member.rebalance_timeout_ms


def _check_fields(beat: Heartbeat, settings: GroupSettings) -> None:
    if not 0 < len(beat.member_id) <= _NAME_CHARACTERS_MAX or len(beat.instance_id) > _NAME_CHARACTERS_MAX:
        raise invalid_request(f"a member id has 1 to {_NAME_CHARACTERS_MAX} characters, an instance id at most as many")
    if beat.member_epoch < AWAY:
        raise invalid_request(f"{beat.member_epoch} is not a member epoch: 0 joins, -1 leaves, -2 leaves for a while")
    if beat.sequence < 0:
        raise invalid_request(f"{beat.sequence} is not a heartbeat number: a member counts from 1; 0 means no number")
    if beat.member_epoch == AWAY and not beat.instance_id:
        raise invalid_request("only a static member, with an instance id, can leave for a while")
    if beat.member_epoch == JOINING and (beat.topics is None or beat.rebalance_timeout_ms <= 0):
        raise invalid_request("a member that joins must have a subscription and a rebalance timeout above 0")
    if not 0 <= beat.rebalance_timeout_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise invalid_request(f"a rebalance timeout is 1 to {REBALANCE_TIMEOUT_MS_MAX} ms")
    names = {"a client id": beat.client_id, "the kind of a group": beat.protocol, "an assignor": beat.assignor}
    for what, name in names.items():
        if len(name) > _NAME_CHARACTERS_MAX:
            raise invalid_request(f"{what} has at most {_NAME_CHARACTERS_MAX} characters, not {len(name)}: shorten it")
    if beat.topics is not None:
        _check_subscription(beat.topics)
    if beat.assignor and beat.assignor not in settings.assignors:
        raise TidemarkError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"there is no assignor {beat.assignor!r} here: name one of {', '.join(settings.assignors)}, or none",
            {"assignors": ",".join(settings.assignors)},
        )


def _check_subscription(topics: tuple[str, ...]) -> None:
    if len(topics) > _TOPICS_MAX:
        raise invalid_request(f"a member subscribes to {_TOPICS_MAX} topics at most, not to {len(topics)}")
    for topic in topics:
        check_topic_name(topic)


def _is_late(group: Group, beat: Heartbeat) -> bool:
    """Whether the member got an answer to this heartbeat or to a later one: the network may deliver it twice."""
    current = group.current_assignments.get(beat.member_id)
    answered = 0 if current is None else current.sequence - 1 if beat.waited else current.sequence
    return 0 < beat.sequence <= answered


def _without_reports(beat: Heartbeat, current: CurrentAssignment) -> Heartbeat:
    """A late heartbeat without its reports, which are older than the last answer. The member still gets an answer."""
    epoch = current.epoch if beat.member_epoch == JOINING else beat.member_epoch
    return replace(beat, member_epoch=epoch, topics=None, owned=None, assignor="", rebalance_timeout_ms=0)


def _check_epoch(group: Group, beat: Heartbeat) -> bool:
    """Whether the member missed an answer: it is in the previous epoch and owns no more than its assignment."""
    current = check_member(group, beat.member_id, beat.instance_id)
    if beat.member_epoch == current.epoch:
        return False
    if beat.member_epoch == current.previous_epoch and (beat.owned is None or beat.owned <= current.held):
        return True
    raise TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member {beat.member_id!r} of the group {group.group_id!r} is in epoch {current.epoch}, not in "
        f"{beat.member_epoch}: revoke all partitions and join again",
        {"member_epoch": str(current.epoch)},
    )


def _admit(changes: PendingChanges, beat: Heartbeat, protocol: str, now: Situation) -> MemberMetadata | None:
    """Admit a member; returns the previous subscription of it, or of the static member that it replaces."""
    group = changes.group
    known = group.member_of_instance(beat.instance_id) if beat.instance_id else None
    if known is not None and known != beat.member_id:
        if group.current(known).epoch != AWAY:
            raise TidemarkError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"a member with the instance id {beat.instance_id!r} is in the group {group.group_id!r}: stop it, or "
                f"retry after its session timeout of {now.settings.session_timeout_ms} ms",
                {"instance_id": beat.instance_id},
            )
        return _replace_static_member(changes, known, beat.member_id)
    before = group.members.get(beat.member_id)
    if before is None:
        if len(group.members) >= now.settings.max_size:
            raise TidemarkError(
                ErrorCode.GROUP_FULL,
                f"the group {group.group_id!r} has {len(group.members)} members, the limit of group.consumer.max.size: "
                "stop one, or raise the setting",
                {"max_size": str(now.settings.max_size)},
            )
        if metadata_of(group).protocol != protocol:
            changes.put(GroupKey(group.group_id), replace(metadata_of(group), protocol=protocol))
    elif group.current(beat.member_id).epoch == AWAY:
        changes.put_current(beat.member_id, _returned(group.current(beat.member_id)))
    return before


def _replace_static_member(changes: PendingChanges, known: str, member_id: str) -> MemberMetadata:
    """A static member returns under another member id: move all values of the old id to the new one."""
    group = changes.group
    member, current, target = group.members[known], group.current(known), group.target(known)
    changes.remove_member(known)
    changes.put(MemberMetadataKey(group.group_id, member_id), member)
    changes.put(TargetAssignmentKey(group.group_id, member_id), target)
    changes.put(CurrentAssignmentKey(group.group_id, member_id), _returned(current))
    return member


def _returned(current: CurrentAssignment) -> CurrentAssignment:
    """The assignment of a returned static member; a new client may number its heartbeats from 1 again."""
    return replace(current, epoch=JOINING, previous_epoch=JOINING, state=MemberState.UNRELEASED, sequence=0, joined=0)


def _leave(changes: PendingChanges, beat: Heartbeat, now: Situation) -> HeartbeatAnswer:
    """Leave permanently or temporarily: the partitions of a static member stay assigned until its session times out."""
    group = changes.group
    current = check_member(group, beat.member_id, beat.instance_id)
    if beat.member_epoch == LEAVING:
        remove(changes, (beat.member_id,), now)
        return HeartbeatAnswer(LEAVING)
    if not group.members[beat.member_id].instance_id:
        raise invalid_request(
            f"the member {beat.member_id!r} did not join as a static member, so it can only leave permanently"
        )
    away = replace(current, epoch=AWAY, previous_epoch=AWAY, state=MemberState.STABLE, revoking=NO_PARTITIONS)
    changes.put_current(beat.member_id, replace(away, sequence=max(beat.sequence, current.sequence)))
    group.last_seen_ms[beat.member_id] = now.now_ms
    group.revoking_since_ms.pop(beat.member_id, None)
    return HeartbeatAnswer(AWAY)


def _metadata(beat: Heartbeat, before: MemberMetadata | None) -> MemberMetadata:
    if before is None:
        before = MemberMetadata("", "", "", beat.rebalance_timeout_ms, (), "")
    return MemberMetadata(
        instance_id=beat.instance_id if beat.member_epoch == JOINING else before.instance_id,
        client_id=beat.client_id or before.client_id,
        client_host=beat.client_host or before.client_host,
        rebalance_timeout_ms=beat.rebalance_timeout_ms or before.rebalance_timeout_ms,
        topics=before.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
        assignor=beat.assignor or before.assignor,
    )


def _reconcile(
    changes: PendingChanges, beat: Heartbeat, now_ms: int, *, joins: bool, missed: bool, late: bool
) -> HeartbeatAnswer:
    group, member_id = changes.group, beat.member_id
    owned = NO_PARTITIONS if joins and beat.owned is None else beat.owned
    before = group.current(member_id)
    current = before
    if group.target_metadata.epoch and not late:
        current = next_assignment(
            before,
            group.target(member_id),
            group.target_metadata.epoch,
            owned=owned,
            joins=joins,
            is_free=lambda one: group.owner(one) in (None, member_id),
        )
    if current.epoch != before.epoch:  # the epoch that the member knows, as it may have missed answers
        current = replace(current, previous_epoch=beat.member_epoch)
    is_news = missed or joins or current.assigned != before.assigned or owned not in (None, current.assigned)
    if is_news:
        group.acknowledged.discard(member_id)
    elif owned is not None:
        group.acknowledged.add(member_id)
    if joins:
        current = replace(current, sequence=beat.sequence, joined=beat.sequence)
    elif is_news or current != before:
        current = replace(current, sequence=max(beat.sequence, before.sequence))
    changes.put_current(member_id, current)
    if current.state is not MemberState.UNREVOKED:
        group.revoking_since_ms.pop(member_id, None)
    elif current.revoking != before.revoking:
        group.revoking_since_ms[member_id] = now_ms
    sends = is_news or member_id not in group.acknowledged
    return HeartbeatAnswer(current.epoch, current.assigned if sends else None, is_news)
