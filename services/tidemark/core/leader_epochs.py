# SPDX-License-Identifier: Apache-2.0
"""The leader epoch cache of one replica (rules E1, E2; KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tidemark.model import NO_EPOCH, EpochEntry, LeaderEpoch, Offset


class LeaderEpochs:
    """(epoch, start offset) pairs, both strictly increasing; only the last epoch and the first epoch may be empty.

    A first entry that starts above 0 has the epoch of the last deleted record, which lies below that start. The entry
    has NO_EPOCH if that epoch is not known. Truncation keeps this entry, so that an empty log can still state that
    epoch.

    Invariant: epochs strictly increase, start offsets never decrease.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            if entry.leader_epoch == NO_EPOCH:
                self.begin_at(entry.start_offset, NO_EPOCH)
            self.assign(entry.leader_epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries (epoch, start offset), oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        """The last epoch, -1 when there is none."""
        return self._entries[-1].leader_epoch if self._entries else NO_EPOCH

    @property
    def earliest(self) -> LeaderEpoch:
        """The first known epoch; -1 if there is none."""
        return next((entry.leader_epoch for entry in self._entries if entry.leader_epoch != NO_EPOCH), NO_EPOCH)

    @property
    def let_go(self) -> LeaderEpoch:
        """Leader epoch of the last record below the log start; -1: not known, or no record was deleted."""
        return self._entries[0].leader_epoch if self._entries and self._entries[0].start_offset else NO_EPOCH

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Add an epoch; True if the epoch is new.

        An entry at or past `start_offset` with an older epoch covers no record and is dropped.
        """
        if leader_epoch <= self.latest:
            return False
        self.truncate_from_end(start_offset)
        self._entries.append(EpochEntry(leader_epoch, start_offset))
        return True

    def end_of(self, leader_epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEntry:
        """(largest epoch not above `leader_epoch`, its end offset, exclusive): the answer of rule E2.

        With (1,20) (2,80) (3,120), epoch 1 ends at 80. If every entry is newer: the requested epoch and the first
        entry's start offset. Without entries: the requested epoch and the log end.
        """
        index = bisect_right(self._entries, leader_epoch, key=lambda entry: entry.leader_epoch)
        end = self._entries[index].start_offset if index < len(self._entries) else log_end_offset
        found = self._entries[index - 1].leader_epoch if index else NO_EPOCH
        return EpochEntry(found if found != NO_EPOCH else leader_epoch, end)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Epoch of the record at `offset`, -1 below the first entry."""
        index = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[index - 1].leader_epoch if index else NO_EPOCH

    def truncate_from_end(self, end_offset: Offset) -> bool:
        """Drop entries from `end_offset` on, except the entry of deleted records; True if an entry changed."""
        before = self._entries
        self._entries = before[: bisect_left(before, end_offset, key=_start_of)]
        if not self._entries and before and before[0].start_offset and end_offset:
            # a truncation into the batch that spans the log start begins at the start of that batch
            self.begin_at(min(before[0].start_offset, end_offset), before[0].leader_epoch)
        return self._entries != before

    def truncate_from_start(self, start_offset: Offset) -> bool:
        """Drop entries below `start_offset`; the epoch of the last record below it is kept, with that start."""
        before = self.entries
        index = bisect_left(before, start_offset, key=_start_of)
        if start_offset and (index or not before or before[0].start_offset > start_offset):
            last = before[index - 1].leader_epoch if index else NO_EPOCH
            self._entries[:index] = [EpochEntry(last, start_offset)]
        return self.entries != before

    def continued_by(self, entries: Sequence[EpochEntry]) -> LeaderEpochs:
        """These entries, and before them the earlier ones of this cache. A crash loses a log start that was not
        checkpointed; the records below that start then need their epochs again."""
        if not entries:
            return LeaderEpochs()
        first = entries[0]
        earlier = (
            one
            for one in self._entries
            if one.start_offset < first.start_offset and one.leader_epoch <= first.leader_epoch
        )
        return LeaderEpochs((*earlier, *entries))

    def begin_at(self, start_offset: Offset, epoch_below: LeaderEpoch) -> None:
        """Drop all entries; the last record below `start_offset` is of `epoch_below`, NO_EPOCH if that is not known."""
        self._entries.clear()
        if start_offset:
            self._entries.append(EpochEntry(epoch_below, start_offset))


def _start_of(entry: EpochEntry) -> Offset:
    return entry.start_offset
