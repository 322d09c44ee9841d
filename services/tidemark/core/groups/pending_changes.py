# SPDX-License-Identifier: Apache-2.0
"""What one request changes in one group: applied at once, and gathered as records to write together."""

from __future__ import annotations

from tidemark.core.groups.group import Group
from tidemark.core.groups.state import Change, GroupKey, Holding, HoldingKey, Key, SpecKey, TargetKey, Value


class Transaction:
    """One group while a request changes it. What is refused is refused before the first change.

    The order of the records is such that a coordinator that finds only the first of them goes on from there: epochs
    come before what follows from them, what is given up before what is taken, a member's holding goes before it does.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._changes: dict[tuple[type[Key], Key], Change] = {}  # keys of two kinds may be equal as tuples

    @property
    def changes(self) -> tuple[Change, ...]:
        """So far; each key once, a new epoch first: who finds only that computes anew, with whom it finds."""
        epoch = self._changes.get((GroupKey, GroupKey(self.group.group_id)))
        if epoch is None or epoch.value is None:
            return tuple(self._changes.values())
        return (epoch, *(change for change in self._changes.values() if change is not epoch))

    def put(self, key: Key, value: Value | None) -> None:
        """A key has this value from now on, None for none."""
        self.group.put(key, value)
        self._changes.pop((type(key), key), None)
        self._changes[type(key), key] = Change(key, value)

    def put_holding(self, member_id: str, holding: Holding) -> None:
        """What a member holds, where that is something else than before."""
        if self.group.holdings.get(member_id) != holding:
            self.put(HoldingKey(self.group.group_id, member_id), holding)

    def remove_member(self, member_id: str) -> None:
        """Nothing is remembered of it."""
        for key, known in (
            (HoldingKey(self.group.group_id, member_id), self.group.holdings),
            (TargetKey(self.group.group_id, member_id), self.group.targets),
            (SpecKey(self.group.group_id, member_id), self.group.specs),
        ):
            if member_id in known:
                self.put(key, None)
