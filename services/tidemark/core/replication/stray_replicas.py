# SPDX-License-Identifier: Apache-2.0
"""What lies on this broker's disks, and whether the controller names it: what it does not is stray (rule C8)."""

from __future__ import annotations

from collections.abc import Collection

from tidemark.core.messages import LeaderAndIsrCommand
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import CloseLog
from tidemark.model import ReplicaIdentity, TopicPartition


class StrayReplicas:
    """Replicas that were found on disk and are not open yet, and what a complete command has named so far."""

    def __init__(self, ctx: BrokerContext) -> None:
        self._ctx = ctx
        self._on_disk: dict[TopicPartition, ReplicaIdentity] = {}
        self._named: set[TopicPartition] | None = None
        self._next = (0, 0)
        """Part and slice that continue what was named."""

    def found(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        """This replica lies on disk."""
        self._on_disk[partition] = identity

    def opened(self, partition: TopicPartition) -> None:
        """It is open from now on, or set aside by whoever opens another identity in its place."""
        self._on_disk.pop(partition, None)

    def deleted(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        """The controller wants it gone; one that was never opened goes at once."""
        if self._on_disk.get(partition) == identity:
            del self._on_disk[partition]
            self._ctx.emit(CloseLog(partition, identity, "delete"))

    def forget_names(self) -> None:
        """A new registration: the controller will name everything anew."""
        self._named = None

    def take(self, command: LeaderAndIsrCommand, opened: Collection[TopicPartition]) -> list[TopicPartition]:
        """After all parts of a complete command: sets aside what it did not name; gives those of `opened` to close."""
        named = {one.partition for one in command.partitions}
        here = (command.part, command.slice_index)
        if here == (0, 0):
            self._named = named
        elif self._named is not None and here == self._next:
            self._named |= named
        else:
            self._named = None
        last = command.slice_index == command.slice_count - 1
        self._next = (command.part + 1, 0) if last else (command.part, command.slice_index + 1)
        if not command.complete:
            return []
        everything, self._named = self._named, None
        if everything is None:
            self._ctx.observe("inventory_incomplete", None, part=command.part)
            return []
        for partition, identity in self._on_disk.items():
            if partition not in everything:
                self._ctx.emit(CloseLog(partition, identity, "stray"))
        self._on_disk.clear()
        return [partition for partition in opened if partition not in everything]
