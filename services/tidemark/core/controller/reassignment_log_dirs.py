# SPDX-License-Identifier: Apache-2.0
"""The controller's part in log directories that moves name (rules M1, M3).

Which directory a broker shall hold its replica in is said with every LeaderAndIsr while the move's entry is there, so
that a new replica is made there and one that lies elsewhere is moved there by its broker (rule M3). The move ends when
its replicas are settled and each of these brokers has been told; what brokers then still copy from one directory into
another they go on with by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.reassignment.request import named_directories
from tidemark.model import BrokerId, ErrorCode, Move, TidemarkError, TopicPartition

DIRECTORY_REFUSALS: Final = frozenset(
    (ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.LOG_DIR_OFFLINE, ErrorCode.REPLICA_OFFLINE)
)
"""What a broker answers that has adopted a partition but cannot hold it where it was told to."""


class MoveDirectories:
    """Partitions with named directories, and who has been told of them."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._told: dict[TopicPartition, set[BrokerId]] = {}
        self._refused: set[tuple[BrokerId, TopicPartition]] = set()

    def want(self, record: PartitionRecord, move: Move | None) -> None:
        """What this move names holds from now on; None: nothing does, and nobody need hear of that."""
        wanted = {} if move is None or move.cancel else named_directories(move)
        if wanted == record.log_dirs:
            return
        partition = record.partition
        record.log_dirs = wanted
        self._told.pop(partition, None)
        self._refused = {one for one in self._refused if one[1] != partition}
        if wanted:
            self._told[partition] = set()
            self._ctx.mark_changed(record)
            self._ctx.dirty.add(partition)

    def told(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Brokers have taken in commands about these; gives those of them that name directories."""
        found = self._told.keys() & set(partitions)
        for partition in found:
            record = self._ctx.records.get(partition)
            if record is not None and record.state is not None:
                self._told[partition] |= {broker for broker in record.log_dirs if self._was_told(broker, partition)}
        return found

    def _was_told(self, broker: BrokerId, partition: TopicPartition) -> bool:
        link = self._ctx.links.get(broker)
        return link is not None and link.was_told(partition)

    def waiting(self) -> Iterable[TopicPartition]:
        """Those that name directories."""
        return self._told.keys()

    def are_told(self, record: PartitionRecord) -> bool:
        """Whether every broker that shall hold its replica in a named directory has heard of it."""
        return record.log_dirs.keys() <= self._told.get(record.partition, set())

    def is_news(self, broker: BrokerId, partition: TopicPartition) -> bool:
        """Whether this broker's refusal of the directory is the first one."""
        if (broker, partition) in self._refused or partition not in self._told:
            return False
        self._refused.add((broker, partition))
        return True

    def forget(self, partition: TopicPartition) -> None:
        """It is gone."""
        self._told.pop(partition, None)


def directory_refusal(broker: BrokerId, error: TidemarkError) -> TidemarkError:
    """For people: the move goes on, only the directory is another."""
    return TidemarkError(
        error.code,
        f"broker {broker} cannot hold it where the move says: {error.message}; the move goes on, its replica lies in a "
        "directory that the broker chose: tidemark log-dirs move puts it elsewhere",
        {**error.metadata, "broker": str(broker)},
    )
