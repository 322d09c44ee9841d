# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: members join, tell what they have, are told what they may read, leave (docs/groups.md, steps G2-G6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidemark.core.groups.group import Group, facts_of
from tidemark.core.groups.pending_changes import Transaction
from tidemark.core.groups.reconciliation import next_holding
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import (
    AWAY,
    CONSUMER,
    JOINING,
    LEAVING,
    NO_PARTITIONS,
    GroupKey,
    Holding,
    HoldingKey,
    MemberSpec,
    MemberState,
    Partitions,
    SpecKey,
    TargetKey,
)
from tidemark.core.groups.target_assignment import Topics, is_outdated, raise_epoch
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError

REBALANCE_TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000
_TOPICS_MAX: Final = 10_000
_NAME_CHARACTERS_MAX: Final = 256
"""Whatever a member may say of itself is remembered in one record, which must never be too large to be replicated."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life.

    Attributes:
        member_epoch: as last answered, or JOINING, LEAVING, AWAY.
        rebalance_timeout_ms: 0: as said before.
        topics: what it wants to read; None: as said before.
        assignor: "": as said before, the broker's choice for a member that joins.
        owned: what it has; None: not told.
        protocol: "" is CONSUMER.
        sequence: rises with each of a member's heartbeats and commits; 0 where it does not number them.
        waited: it was taken in, there was nothing new to tell, and now there may be.
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
    """What the member shall do.

    Attributes:
        assignment: what it may read; None where it has said that it has just that.
        is_news: it may not know this yet; else the assignment is told again, as the last answer may have been lost.
    """

    member_epoch: int
    assignment: Partitions | None = None
    is_news: bool = False


class Situation(NamedTuple):
    """What a request is judged by.

    Attributes:
        topics: those that exist; None: not known yet.
        now_ms: monotonic.
        wall_ms: since 1970, UTC.
        hidden_topics: others that exist, of which nobody knows how they are: nothing of theirs is let go.
    """

    topics: Topics | None
    settings: GroupSettings
    now_ms: int
    wall_ms: int
    hidden_topics: tuple[str, ...] = ()


def heartbeat(transaction: Transaction, beat: Heartbeat, now: Situation) -> HeartbeatAnswer:
    """Carry out a sign of life.

    Raises:
        TidemarkError: INVALID_REQUEST, INVALID_TOPIC_NAME, INCONSISTENT_GROUP_PROTOCOL, UNSUPPORTED_ASSIGNOR,
            GROUP_FULL, UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID; nothing has
            changed then.
    """
    group = transaction.group
    _check_fields(beat, now.settings)
    late = _is_late(group, beat)
    if beat.member_epoch in (LEAVING, AWAY):
        return HeartbeatAnswer(beat.member_epoch) if late else _leave(transaction, beat, now)
    if late:
        if group.holding(beat.member_id).epoch == AWAY:
            return HeartbeatAnswer(AWAY)
        beat = _silenced(beat, group.holding(beat.member_id))
    protocol = beat.protocol or CONSUMER
    if group.specs and protocol != facts_of(group).protocol:
        raise TidemarkError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group {group.group_id!r} is in use as a {facts_of(group).protocol!r} group, not as {protocol!r}: "
            "choose another group id, or stop its members first",
            {"protocol": facts_of(group).protocol},
        )
    joins = beat.member_epoch == JOINING and not late
    missed = late
    if joins:
        before = _admit(transaction, beat, protocol, now)
    else:
        missed |= _check_epoch(group, beat)
        before = group.specs[beat.member_id]
    spec = _spec(beat, before)
    if group.specs.get(beat.member_id) != spec:
        transaction.put(SpecKey(group.group_id, beat.member_id), spec)
    asks_otherwise = before is None or (before.topics, before.assignor) != (spec.topics, spec.assignor)
    if asks_otherwise or is_outdated(group, now.topics):
        raise_epoch(transaction, now.topics, now.settings, now.wall_ms)
    group.last_seen_ms[beat.member_id] = now.now_ms
    return _reconcile(transaction, beat, now.now_ms, joins=joins, missed=missed, late=late)


def remove(transaction: Transaction, members: tuple[str, ...], now: Situation) -> None:
    """Take members out of the group: what they held is free."""
    for member_id in members:
        transaction.remove_member(member_id)
    raise_epoch(transaction, now.topics, now.settings, now.wall_ms)


def overdue(group: Group, now: Situation) -> tuple[str, ...]:
    """Members that were silent for too long, or have not given up what they were told to in their own time."""
    session_ms = now.settings.session_timeout_ms
    return tuple(
        member_id
        for member_id, spec in group.specs.items()
        if now.now_ms - group.last_seen_ms.setdefault(member_id, now.now_ms) > session_ms
        or _revokes_too_long(group, member_id, spec, now.now_ms)
    )


def check_member(group: Group, member_id: str, instance_id: str) -> Holding:
    """What a member of the group holds.

    Raises:
        TidemarkError: FENCED_INSTANCE_ID, UNKNOWN_MEMBER.
    """
    if instance_id:
        known = group.member_of_instance(instance_id)
        if known is not None and known != member_id:
            raise TidemarkError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"another member has the instance id {instance_id!r} of the group {group.group_id!r} now: stop this "
                "one, or give it an instance id of its own",
                {"instance_id": instance_id},
            )
    if member_id not in group.specs:
        raise TidemarkError(
            ErrorCode.UNKNOWN_MEMBER,
            f"the group {group.group_id!r} has no member {member_id!r}: it left, or was silent for too long; give up "
            "all partitions and join again",
            {"member_id": member_id},
        )
    return group.holding(member_id)


def _revokes_too_long(group: Group, member_id: str, spec: MemberSpec, now_ms: int) -> bool:
    if group.holding(member_id).state is not MemberState.UNREVOKED:
        return False
    return now_ms - group.revoking_since_ms.setdefault(member_id, now_ms) > spec.rebalance_timeout_ms


def _check_fields(beat: Heartbeat, settings: GroupSettings) -> None:
    if not 0 < len(beat.member_id) <= _NAME_CHARACTERS_MAX or len(beat.instance_id) > _NAME_CHARACTERS_MAX:
        raise _invalid(f"a member id has 1 to {_NAME_CHARACTERS_MAX} characters, an instance id at most as many")
    if beat.member_epoch < AWAY:
        raise _invalid(f"{beat.member_epoch} is no member epoch: 0 joins, -1 leaves, -2 will be back")
    if beat.sequence < 0:
        raise _invalid(f"{beat.sequence} is no number of a heartbeat: a member counts from 1, and 0 is for none")
    if beat.member_epoch == AWAY and not beat.instance_id:
        raise _invalid("only a static member, with an instance id, can say that it will be back")
    if beat.member_epoch == JOINING and (beat.topics is None or beat.rebalance_timeout_ms <= 0):
        raise _invalid("a member joins with a subscription and a rebalance timeout above 0")
    if not 0 <= beat.rebalance_timeout_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise _invalid(f"a rebalance timeout has 1 to {REBALANCE_TIMEOUT_MS_MAX} ms")
    names = {"a client id": beat.client_id, "the kind of a group": beat.protocol, "an assignor": beat.assignor}
    for what, name in names.items():
        if len(name) > _NAME_CHARACTERS_MAX:
            raise _invalid(f"{what} has at most {_NAME_CHARACTERS_MAX} characters, not {len(name)}: shorten it")
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
        raise _invalid(f"a member subscribes to {_TOPICS_MAX} topics at most, not to {len(topics)}")
    for topic in topics:
        check_topic_name(topic)


def _is_late(group: Group, beat: Heartbeat) -> bool:
    """Whether the member was told what it may read since it said this, or when it did: it may be on its way twice."""
    holding = group.holdings.get(beat.member_id)
    told = 0 if holding is None else holding.sequence - 1 if beat.waited else holding.sequence
    return 0 < beat.sequence <= told


def _silenced(beat: Heartbeat, holding: Holding) -> Heartbeat:
    """What it says it said before it was told; that it asks to be told is still so."""
    epoch = holding.epoch if beat.member_epoch == JOINING else beat.member_epoch
    return replace(beat, member_epoch=epoch, topics=None, owned=None, assignor="", rebalance_timeout_ms=0)


def _check_epoch(group: Group, beat: Heartbeat) -> bool:
    """Whether the member missed an answer: it is in the epoch before, owns no more than it may, and is told again."""
    holding = check_member(group, beat.member_id, beat.instance_id)
    if beat.member_epoch == holding.epoch:
        return False
    if beat.member_epoch == holding.previous_epoch and (beat.owned is None or beat.owned <= holding.held):
        return True
    raise TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member {beat.member_id!r} of the group {group.group_id!r} is in epoch {holding.epoch}, not in "
        f"{beat.member_epoch}: give up all partitions and join again",
        {"member_epoch": str(holding.epoch)},
    )


def _admit(transaction: Transaction, beat: Heartbeat, protocol: str, now: Situation) -> MemberSpec | None:
    """Let a member in; gives what it said of itself before, or the static member did whose place it takes."""
    group = transaction.group
    known = group.member_of_instance(beat.instance_id) if beat.instance_id else None
    if known is not None and known != beat.member_id:
        if group.holding(known).epoch != AWAY:
            raise TidemarkError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"a member with the instance id {beat.instance_id!r} is in the group {group.group_id!r}: stop it, or "
                f"try again when it has been silent for {now.settings.session_timeout_ms} ms",
                {"instance_id": beat.instance_id},
            )
        return _take_place(transaction, known, beat.member_id)
    before = group.specs.get(beat.member_id)
    if before is None:
        if len(group.specs) >= now.settings.max_size:
            raise TidemarkError(
                ErrorCode.GROUP_FULL,
                f"the group {group.group_id!r} has {len(group.specs)} members, as many as group.consumer.max.size "
                "lets in: stop one, or raise the setting",
                {"max_size": str(now.settings.max_size)},
            )
        if facts_of(group).protocol != protocol:
            transaction.put(GroupKey(group.group_id), replace(facts_of(group), protocol=protocol))
    elif group.holding(beat.member_id).epoch == AWAY:
        transaction.put_holding(beat.member_id, _returned(group.holding(beat.member_id)))
    return before


def _take_place(transaction: Transaction, known: str, member_id: str) -> MemberSpec:
    """A static member is back under another member id: everything of the old one is its own."""
    group = transaction.group
    spec, holding, target = group.specs[known], group.holding(known), group.target(known)
    transaction.remove_member(known)
    transaction.put(SpecKey(group.group_id, member_id), spec)
    transaction.put(TargetKey(group.group_id, member_id), target)
    transaction.put(HoldingKey(group.group_id, member_id), _returned(holding))
    return spec


def _returned(holding: Holding) -> Holding:
    """Its client may be another one, that numbers anew."""
    return replace(holding, epoch=JOINING, previous_epoch=JOINING, state=MemberState.UNRELEASED, sequence=0, joined=0)


def _leave(transaction: Transaction, beat: Heartbeat, now: Situation) -> HeartbeatAnswer:
    """For good, or for a while: a static member's partitions wait for it, and it is not missed until its session is."""
    group = transaction.group
    holding = check_member(group, beat.member_id, beat.instance_id)
    if beat.member_epoch == LEAVING:
        remove(transaction, (beat.member_id,), now)
        return HeartbeatAnswer(LEAVING)
    if not group.specs[beat.member_id].instance_id:
        raise _invalid(f"the member {beat.member_id!r} did not join as a static member: it can only leave for good")
    away = replace(holding, epoch=AWAY, previous_epoch=AWAY, state=MemberState.STABLE, revoking=NO_PARTITIONS)
    transaction.put_holding(beat.member_id, replace(away, sequence=max(beat.sequence, holding.sequence)))
    group.last_seen_ms[beat.member_id] = now.now_ms
    group.revoking_since_ms.pop(beat.member_id, None)
    return HeartbeatAnswer(AWAY)


def _spec(beat: Heartbeat, before: MemberSpec | None) -> MemberSpec:
    if before is None:
        before = MemberSpec("", "", "", beat.rebalance_timeout_ms, (), "")
    return MemberSpec(
        instance_id=beat.instance_id if beat.member_epoch == JOINING else before.instance_id,
        client_id=beat.client_id or before.client_id,
        client_host=beat.client_host or before.client_host,
        rebalance_timeout_ms=beat.rebalance_timeout_ms or before.rebalance_timeout_ms,
        topics=before.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
        assignor=beat.assignor or before.assignor,
    )


def _reconcile(
    transaction: Transaction, beat: Heartbeat, now_ms: int, *, joins: bool, missed: bool, late: bool
) -> HeartbeatAnswer:
    group, member_id = transaction.group, beat.member_id
    owned = NO_PARTITIONS if joins and beat.owned is None else beat.owned
    before = group.holding(member_id)
    holding = before
    if group.assigned.epoch and not late:
        holding = next_holding(
            before,
            group.target(member_id),
            group.assigned.epoch,
            owned=owned,
            joins=joins,
            is_free=lambda one: group.owner(one) in (None, member_id),
        )
    if holding.epoch != before.epoch:  # as it may miss any number of answers, the one that it knows counts
        holding = replace(holding, previous_epoch=beat.member_epoch)
    is_news = missed or joins or holding.assigned != before.assigned or owned not in (None, holding.assigned)
    if is_news:
        group.acknowledged.discard(member_id)
    elif owned is not None:
        group.acknowledged.add(member_id)
    if joins:
        holding = replace(holding, sequence=beat.sequence, joined=beat.sequence)
    elif is_news or holding != before:
        holding = replace(holding, sequence=max(beat.sequence, before.sequence))
    transaction.put_holding(member_id, holding)
    if holding.state is not MemberState.UNREVOKED:
        group.revoking_since_ms.pop(member_id, None)
    elif holding.revoking != before.revoking:
        group.revoking_since_ms[member_id] = now_ms
    tells = is_news or member_id not in group.acknowledged
    return HeartbeatAnswer(holding.epoch, holding.assigned if tells else None, is_news)


def _invalid(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_REQUEST, sentence)
