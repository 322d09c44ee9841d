# SPDX-License-Identifier: Apache-2.0
"""The groups of one partition of `__consumer_offsets`: requests change them, and give answers and records.

Changes are applied immediately. The caller writes the records, in order, before it sends the answer to this request or
to a later one. If the write fails, the caller drops the coordinator and replays the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import starmap
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.core.groups import heartbeat, offsets
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, Refusals
from tidemark.core.groups.pending_changes import PendingChanges
from tidemark.core.groups.state import Change, Committed, OffsetKey
from tidemark.core.groups.target_assignment import is_outdated, raise_epoch
from tidemark.core.pending_writes import PendingWrites, Undo, Writer
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

GROUP_ID_CHARACTERS_MAX: Final = 249

PendingOffsets = PendingWrites[OffsetKey, Committed]
_T = TypeVar("_T")


class Outcome(NamedTuple, Generic[_T]):
    """An answer, and the records to write before the answer is sent."""

    answer: _T
    changes: tuple[Change, ...]


class Swept(NamedTuple):
    """Groups that a timer or a topic change has changed, by id; and (group id, member id) of the members removed."""

    group_ids: tuple[str, ...]
    removed: tuple[tuple[str, str], ...]


class PendingCommit(NamedTuple):
    """The answer to a commit in a transaction: the refused partitions, and the argument of `take_back`."""

    producer: Writer
    undo: Undo[OffsetKey, Committed]
    refused: Refusals


def check_group_id(group_id: str) -> None:
    """Raise INVALID_GROUP_ID unless the group id is valid."""
    if not 0 < len(group_id) <= GROUP_ID_CHARACTERS_MAX or not group_id.isprintable():
        raise TidemarkError(
            ErrorCode.INVALID_GROUP_ID,
            f"{group_id[:GROUP_ID_CHARACTERS_MAX]!r} is not a group id: it needs 1 to {GROUP_ID_CHARACTERS_MAX} "
            "printable characters",
        )


class GroupCoordinator:
    """The groups of one partition of `__consumer_offsets`.

    Attributes:
        _groups: groups with any persistent state, by id.
        _with_members: groups that have members, by id.
        _pending: offsets of open transactions.
    """

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._with_members: dict[str, Group] = {}
        self._pending: PendingOffsets = PendingWrites()

    @classmethod
    def replay(
        cls,
        changes: Iterable[Change],
        now_ms: int,
        pending: Iterable[tuple[Writer, Iterable[tuple[OffsetKey, Committed]]]] = (),
    ) -> GroupCoordinator:
        """Rebuild the state from the records of the log, in order; every member gets a full session timeout.

        Args:
            changes: records that are in force.
            now_ms: the time, monotonic.
            pending: offsets of open transactions, in their order.
        """
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
            if group.members:
                coordinator._with_members[group.group_id] = group
                group.last_seen_ms = dict.fromkeys(group.members, now_ms)
        for producer, offsets_of_one in pending:
            coordinator._pending.add(producer, offsets_of_one)
        return coordinator

    @property
    def groups(self) -> Collection[Group]:
        """All groups; read-only."""
        return self._groups.values()

    @property
    def pending_groups(self) -> Collection[Group]:
        """Empty groups, read-only, for the group ids that have only offsets of open transactions."""
        return [
            Group(one) for one in dict.fromkeys(key.group_id for key in self._pending.keys) if one not in self._groups
        ]

    def group(self, group_id: str) -> Group:
        """One group, read-only; an empty one if there are only offsets of open transactions.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND.
        """
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None and self.pending_offsets(group_id):
            return Group(group_id)
        if group is None:
            raise TidemarkError(
                ErrorCode.GROUP_NOT_FOUND,
                f"there is no group {group_id!r}: it never had a member or an offset, or was deleted or expired; "
                "`tidemark group list` shows the groups",
            )
        return group

    def find(self, group_id: str) -> Group | None:
        """One group, read-only; None if the group does not exist."""
        return self._groups.get(group_id)

    def heartbeat(self, beat: Heartbeat, now: Situation) -> Outcome[HeartbeatAnswer]:
        """Handle a heartbeat, see `heartbeat.heartbeat`; also raises INVALID_GROUP_ID."""
        check_group_id(beat.group_id)
        return self._change(beat.group_id, lambda changes: heartbeat.heartbeat(changes, beat, now))

    def touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Restart the session timeout of a member."""
        group = self._groups.get(group_id)
        if group is not None and member_id in group.members:
            group.last_seen_ms[member_id] = now_ms

    def excuse(self, ms: int) -> None:
        """The coordinator was stopped for `ms`: extend every session and revocation timeout by that time."""
        for group in self._with_members.values():
            for since_ms in (group.last_seen_ms, group.revoking_since_ms):
                for member_id in since_ms:
                    since_ms[member_id] += ms

    def commit(self, asked: Commit, now: Situation) -> Outcome[Refusals]:
        """Commit offsets, see `offsets.commit`; also raises INVALID_GROUP_ID."""
        check_group_id(asked.group_id)
        return self._change(asked.group_id, lambda changes: offsets.commit(changes, asked, now))

    def commit_in_transaction(self, asked: Commit, producer: Writer, now: Situation) -> Outcome[PendingCommit]:
        """Commit offsets with the writes of a transaction (rule X17): in force after its commit marker.

        The producer of the transaction owns the records. If the records are not written, `take_back` is called. An
        offset that a later commit of the same client has set in this transaction stays.

        Raises:
            TidemarkError: INVALID_GROUP_ID; the errors of `offsets.commit`.
        """
        check_group_id(asked.group_id)
        group = self._groups.get(asked.group_id) or Group(asked.group_id)
        values, refused = offsets.values_of(group, asked, now)
        for key in tuple(values):
            known = self._pending.get(producer, key)
            if known is not None and asked.turn.precedes(known.turn):
                del values[key]
        undo = self._pending.add(producer, values.items())
        return Outcome(PendingCommit(producer, undo, refused), tuple(starmap(Change, values.items())))

    def take_back(self, commit: PendingCommit) -> None:
        """Undo `commit_in_transaction`, whose records were not written."""
        self._pending.undo(commit.producer, commit.undo)

    def end_transaction(self, producer_id: int, marker_epoch: int, *, commit: bool) -> tuple[Change, ...]:
        """A marker of a producer is in the log: its offsets take effect (commit) or are dropped (abort); returns the
        offsets that take effect.
        """
        applied = tuple(starmap(Change, self._pending.end(producer_id, marker_epoch, commit=commit)))
        for key, value in applied:
            self._apply(key.group_id, lambda changes, key=key, value=value: changes.put(key, value))  # type: ignore[misc]
        return applied

    def pending_offsets(self, group_id: str) -> dict[TopicPartition, list[tuple[Writer, Committed]]]:
        """The offsets of open transactions, by partition (rule X17)."""
        keys = [key for key in self._pending.keys if key.group_id == group_id]
        return {TopicPartition(key.topic, key.partition): self._pending.values(key) for key in keys}

    def check_stable(self, group_id: str, partitions: Iterable[TopicPartition] | None) -> None:
        """Raise CONCURRENT_TRANSACTIONS if the end of a transaction may change an offset (KIP-447); None: any offset,
        and the error names no topic: the caller may not see all topics of the group.
        """
        keys, where = self._pending.keys, None
        if partitions is not None:
            where = next((str(one) for one in partitions if OffsetKey(group_id, *one) in keys), None)
        elif any(key.group_id == group_id for key in keys):
            where = "one of its partitions"
        if where is not None:
            raise TidemarkError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"a transaction may still change the offset of the group {group_id!r} in {where}: retry after its end",
            )

    def alter_offsets(self, asked: Commit, now: Situation, *, validate_only: bool) -> Outcome[Refusals]:
        """Set offsets of a group without members.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_EMPTY.
        """
        check_group_id(asked.group_id)
        group = self._groups.get(asked.group_id) or Group(asked.group_id)
        offsets.check_empty(group, "its offsets are reset")
        if validate_only:
            return Outcome(offsets.commit(PendingChanges(Group(asked.group_id)), asked, now), ())
        return self._change(asked.group_id, lambda changes: offsets.commit(changes, asked, now))

    def delete_group(self, group_id: str) -> Outcome[None]:
        """Delete a group without members; offsets of open transactions never come into force.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND, GROUP_NOT_EMPTY.
        """
        offsets.check_empty(self.group(group_id), "it is deleted")
        pending = self.pending_offsets(group_id)
        return self._change(group_id, lambda changes: offsets.delete_group(changes, pending))

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> Outcome[Refusals]:
        """Delete offsets of partitions that no member subscribes to, also those of open transactions.

        Raises:
            TidemarkError: INVALID_GROUP_ID, GROUP_NOT_FOUND.
        """
        self.group(group_id)
        pending = self._pending.keys
        return self._change(group_id, lambda changes: offsets.delete_offsets(changes, partitions, pending))

    def remove_overdue(self, now: Situation) -> Outcome[Swept]:
        """Remove the members whose session or revocation timeout has passed."""
        removed: list[tuple[str, str]] = []
        changes: list[Change] = []
        for group in tuple(self._with_members.values()):
            members = heartbeat.overdue(group, now)
            if members:
                removed.extend((group.group_id, member_id) for member_id in members)
                changes.extend(self._remove(group.group_id, members, now).changes)
        return Outcome(Swept(tuple(dict.fromkeys(group_id for group_id, _ in removed)), tuple(removed)), tuple(changes))

    def refresh_topics(self, now: Situation) -> Outcome[Swept]:
        """Compute new target assignments for the groups whose topics were created, deleted or extended."""
        group_ids: list[str] = []
        changes: list[Change] = []
        for group in tuple(self._with_members.values()):
            if is_outdated(group, now.topics):
                group_ids.append(group.group_id)
                changes.extend(self._raise_epoch(group.group_id, now).changes)
        return Outcome(Swept(tuple(group_ids), ()), tuple(changes))

    def expire(self, now: Situation, group_ids: Iterable[str] | None = None) -> Outcome[Swept]:
        """Delete offsets older than `offsets.retention.minutes`, of the groups given or of all."""
        changes: list[Change] = []
        pending = self._pending.keys
        for group_id in tuple(self._groups) if group_ids is None else group_ids:
            changes.extend(self._change(group_id, lambda changes: offsets.expire(changes, now, pending)).changes)
        return Outcome(Swept((), ()), tuple(changes))

    def _remove(self, group_id: str, members: tuple[str, ...], now: Situation) -> Outcome[None]:
        return self._change(group_id, lambda changes: heartbeat.remove(changes, members, now))

    def _raise_epoch(self, group_id: str, now: Situation) -> Outcome[None]:
        return self._change(group_id, lambda changes: raise_epoch(changes, now.topics, now.settings, now.wall_ms))

    def _change(self, group_id: str, change: Callable[[PendingChanges], _T]) -> Outcome[_T]:
        outcome = self._apply(group_id, change)
        if self._pending:
            for one in outcome.changes:
                if isinstance(one.key, OffsetKey):
                    self._pending.overwrite(one.key)
        return outcome

    def _apply(self, group_id: str, change: Callable[[PendingChanges], _T]) -> Outcome[_T]:
        group = self._groups.get(group_id) or Group(group_id)
        changes = PendingChanges(group)
        answer = change(changes)
        for groups, belongs in ((self._groups, group.exists), (self._with_members, bool(group.members))):
            if belongs:
                groups[group_id] = group
            else:
                groups.pop(group_id, None)
        return Outcome(answer, changes.records)
