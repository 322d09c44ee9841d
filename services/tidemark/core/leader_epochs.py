# SPDX-License-Identifier: Apache-2.0
"""The leader epoch cache of one replica (rules E1, E2; KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tidemark.model import NO_EPOCH, EpochEntry, LeaderEpoch, Offset


class LeaderEpochs:
    """(epoch, start offset) pairs, both strictly increasing; only the last epoch may be empty, and the first one.

    A first entry that starts above 0 is that of the last record let go, with NO_EPOCH where nobody knows any more: the
    record below it is of that epoch. It stays whatever is cut, so that a log of which nothing is left can still say
    what it held.

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
        """All entries, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        """The last epoch, -1 when there is none."""
        return self._entries[-1].leader_epoch if self._entries else NO_EPOCH

    @property
    def earliest(self) -> LeaderEpoch:
        """The first epoch that is known, -1 when there is none."""
        return next((entry.leader_epoch for entry in self._entries if entry.leader_epoch != NO_EPOCH), NO_EPOCH)

    @property
    def let_go(self) -> LeaderEpoch:
        """Epoch of the last record that was let go, -1 where nobody knows, or none was."""
        return self._entries[0].leader_epoch if self._entries and self._entries[0].start_offset else NO_EPOCH

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Enter an epoch; True when it was new.

        An entry at or past `start_offset` with an older epoch covers no record and is dropped.
        """
        if leader_epoch <= self.latest:
            return False
        self.truncate_from_end(start_offset)
        self._entries.append(EpochEntry(leader_epoch, start_offset))
        return True

    def end_of(self, leader_epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEntry:
        """(largest epoch not above `leader_epoch`, its end offset, exclusive): the answer of rule E2.

        With (1,20) (2,80) (3,120), epoch 1 ends at 80. Where no epoch is so old:
        the epoch asked for and the first epoch's start offset; with no epochs at all, the log end.
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
        """Drop entries that start at or above `end_offset`, but not that of what was let go; True when any changed."""
        before = self._entries
        self._entries = before[: bisect_left(before, end_offset, key=_start_of)]
        if not self._entries and before and before[0].start_offset and end_offset:
            # a cut that falls into the batch that spans the log start begins where that batch does
            self.begin_at(min(before[0].start_offset, end_offset), before[0].leader_epoch)
        return self._entries != before

    def truncate_from_start(self, start_offset: Offset) -> bool:
        """Forget what lies wholly below `start_offset`; the epoch of the last record there is kept, from there on."""
        before = self.entries
        index = bisect_left(before, start_offset, key=_start_of)
        if start_offset and (index or not before or before[0].start_offset > start_offset):
            last = before[index - 1].leader_epoch if index else NO_EPOCH
            self._entries[:index] = [EpochEntry(last, start_offset)]
        return self.entries != before

    def continued_by(self, entries: Sequence[EpochEntry]) -> LeaderEpochs:
        """These entries, and of those here what came before the first of them: a log start that no checkpoint knows of
        yet is forgotten in a crash, and the log says again of which epochs the records below it are."""
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
        """Forget everything; what lies below `start_offset` was of that epoch, NO_EPOCH where nobody knows."""
        self._entries.clear()
        if start_offset:
            self._entries.append(EpochEntry(epoch_below, start_offset))


def _start_of(entry: EpochEntry) -> Offset:
    return entry.start_offset
