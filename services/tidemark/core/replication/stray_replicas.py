# SPDX-License-Identifier: Apache-2.0
"""Finds stray replicas: those on the disks of this broker that the controller does not name (rule C8)."""

from __future__ import annotations

from collections.abc import Collection

from tidemark.core.messages import LeaderAndIsrCommand
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import CloseLog
from tidemark.model import ReplicaIdentity, TopicPartition


class StrayReplicas:
    """The replicas on disk that are not open, and the partitions that a complete command has named so far.

    A complete command comes in parts and slices, in order. Replicas become stray only if all of these arrived.

    Attributes:
        _on_disk: by partition, the replicas that were found on disk and that no command has named since.
        _named: partitions named by the parts so far, None when a part is missing.
        _next: (part, slice) that continues `_named`.
    """

    def __init__(self, ctx: BrokerContext) -> None:
        self._ctx = ctx
        self._on_disk: dict[TopicPartition, ReplicaIdentity] = {}
        self._named: set[TopicPartition] | None = None
        self._next = (0, 0)

    def found(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        """Note a replica that was found on disk."""
        self._on_disk[partition] = identity

    def opened(self, partition: TopicPartition) -> None:
        """Drop a replica that is opened now, or set aside since another identity of the partition is opened."""
        self._on_disk.pop(partition, None)

    def deleted(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        """Delete a replica that was never opened; other replicas are left to their manager."""
        if self._on_disk.get(partition) == identity:
            del self._on_disk[partition]
            self._ctx.emit(CloseLog(partition, identity, "delete"))

    def forget_names(self) -> None:
        """A new registration: the controller will name all replicas again."""
        self._named = None

    def take(self, command: LeaderAndIsrCommand, opened: Collection[TopicPartition]) -> list[TopicPartition]:
        """Add a part of a complete command.

        After the last part, set aside the replicas on disk that the command omits; returns those of `opened` to close.
        """
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
