# SPDX-License-Identifier: Apache-2.0
"""All groups that one partition of `__consumer_offsets` remembers: requests in, answers and records out.

Changes are applied at once. Whoever carries this out writes the records, in order, before any answer that was given
after them leaves; where that fails, what is here is thrown away and read anew from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.core.groups import heartbeat, offsets
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, Refusals
from tidemark.core.groups.pending_changes import Transaction
from tidemark.core.groups.state import Change
from tidemark.core.groups.target_assignment import is_outdated, raise_epoch
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

GROUP_ID_CHARACTERS_MAX: Final = 249

_T = TypeVar("_T")


class Outcome(NamedTuple, Generic[_T]):
    """An answer, and the records that must be written before it is given."""

    answer: _T
    changes: tuple[Change, ...]


class Swept(NamedTuple):
    """What time, or news of topics, did to members: the ids of groups changed, and the members taken out."""

    group_ids: tuple[str, ...]
    removed: tuple[tuple[str, str], ...]


def check_group_id(group_id: str) -> None:
    """Raises INVALID_GROUP_ID."""
    if not 0 < len(group_id) <= GROUP_ID_CHARACTERS_MAX or not group_id.isprintable():
        raise TidemarkError(
            ErrorCode.INVALID_GROUP_ID,
            f"{group_id[:GROUP_ID_CHARACTERS_MAX]!r} is no group id: one has 1 to {GROUP_ID_CHARACTERS_MAX} printable "
            "characters",
        )


class GroupCoordinator:
    """The state of one partition; `replay` makes it, the rest changes it."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._with_members: dict[str, Group] = {}

    @classmethod
    def replay(cls, changes: Iterable[Change], now_ms: int) -> GroupCoordinator:
        """From what the log holds, in order; every member is given a whole session to say that it lives."""
        last = {(type(change.key), change.key): change for change in changes}
        coordinator = cls()
        groups = coordinator._groups
        for change in last.values():
            if change.value is not None:
                group_id = change.key.group_id
                group = groups.get(group_id)
                if group is None:
                    group = groups[group_id] = Group(group_id)
                group.put(change.key, change.value)
        for group in coordinator._groups.values():
            if group.specs:
                coordinator._with_members[group.group_id] = group
                group.last_seen_ms = dict.fromkeys(group.specs, now_ms)
        return coordinator

    @property
    def groups(self) -> Collection[Group]:
        """All of them, to be read only."""
        return self._groups.values()

    def group(self, group_id: str) -> Group:
        """One, to be read only.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND.
        """
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise TidemarkError(
                ErrorCode.GROUP_NOT_FOUND,
                f"there is no group {group_id!r}: it has never had a member or an offset, or was deleted or expired",
            )
        return group

    def find(self, group_id: str) -> Group | None:
        """One, to be read only; None where there is none."""
        return self._groups.get(group_id)

    def heartbeat(self, beat: Heartbeat, now: Situation) -> Outcome[HeartbeatAnswer]:
        """See `heartbeat.heartbeat`; INVALID_GROUP_ID too."""
        check_group_id(beat.group_id)
        return self._change(beat.group_id, lambda transaction: heartbeat.heartbeat(transaction, beat, now))

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A member is known to live."""
        group = self._groups.get(group_id)
        if group is not None and member_id in group.specs:
            group.last_seen_ms[member_id] = now_ms

    def excuse(self, ms: int) -> None:
        """The coordinator itself stood still for so long: that is held against no member."""
        for group in self._with_members.values():
            for since_ms in (group.last_seen_ms, group.revoking_since_ms):
                for member_id in since_ms:
                    since_ms[member_id] += ms

    def commit(self, asked: Commit, now: Situation) -> Outcome[Refusals]:
        """See `offsets.commit`; INVALID_GROUP_ID too."""
        check_group_id(asked.group_id)
        return self._change(asked.group_id, lambda transaction: offsets.commit(transaction, asked, now))

    def alter_offsets(self, asked: Commit, now: Situation, *, validate_only: bool) -> Outcome[Refusals]:
        """Set offsets of a group without members.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_EMPTY.
        """
        check_group_id(asked.group_id)
        group = self._groups.get(asked.group_id) or Group(asked.group_id)
        offsets.check_empty(group, "its offsets are reset")
        if validate_only:
            return Outcome(offsets.commit(Transaction(Group(asked.group_id)), asked, now), ())
        return self._change(asked.group_id, lambda transaction: offsets.commit(transaction, asked, now))

    def delete_group(self, group_id: str) -> Outcome[None]:
        """Forget a group.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND, GROUP_NOT_EMPTY.
        """
        offsets.check_empty(self.group(group_id), "it is deleted")
        return self._change(group_id, offsets.forget_group)

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> Outcome[Refusals]:
        """Forget offsets.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND.
        """
        self.group(group_id)
        return self._change(group_id, lambda transaction: offsets.forget_offsets(transaction, partitions))

    def remove_overdue(self, now: Situation) -> Outcome[Swept]:
        """Take out the members whose time is over."""
        removed: list[tuple[str, str]] = []
        changes: list[Change] = []
        for group in tuple(self._with_members.values()):
            members = heartbeat.overdue(group, now)
            if members:
                removed.extend((group.group_id, member_id) for member_id in members)
                changes.extend(self._remove(group.group_id, members, now).changes)
        return Outcome(Swept(tuple(dict.fromkeys(group_id for group_id, _ in removed)), tuple(removed)), tuple(changes))

    def take_in_topics(self, now: Situation) -> Outcome[Swept]:
        """Topics have come, gone or grown: groups that read them are assigned anew."""
        group_ids: list[str] = []
        changes: list[Change] = []
        for group in tuple(self._with_members.values()):
            if is_outdated(group, now.topics):
                group_ids.append(group.group_id)
                changes.extend(self._raise_epoch(group.group_id, now).changes)
        return Outcome(Swept(tuple(group_ids), ()), tuple(changes))

    def expire(self, now: Situation, group_ids: Iterable[str] | None = None) -> Outcome[Swept]:
        """Forget what is older than `offsets.retention.minutes`, of these groups or of all."""
        changes: list[Change] = []
        for group_id in tuple(self._groups) if group_ids is None else group_ids:
            changes.extend(self._change(group_id, lambda transaction: offsets.expire(transaction, now)).changes)
        return Outcome(Swept((), ()), tuple(changes))

    def _remove(self, group_id: str, members: tuple[str, ...], now: Situation) -> Outcome[None]:
        return self._change(group_id, lambda transaction: heartbeat.remove(transaction, members, now))

    def _raise_epoch(self, group_id: str, now: Situation) -> Outcome[None]:
        return self._change(
            group_id, lambda transaction: raise_epoch(transaction, now.topics, now.settings, now.wall_ms)
        )

    def _change(self, group_id: str, change: Callable[[Transaction], _T]) -> Outcome[_T]:
        group = self._groups.get(group_id) or Group(group_id)
        transaction = Transaction(group)
        answer = change(transaction)
        for groups, belongs in ((self._groups, group.exists), (self._with_members, bool(group.specs))):
            if belongs:
                groups[group_id] = group
            else:
                groups.pop(group_id, None)
        return Outcome(answer, transaction.changes)
