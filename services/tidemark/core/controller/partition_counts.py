# SPDX-License-Identifier: Apache-2.0
"""What people are told of the cluster as the active controller has it: counts, and whom its elections took out of ISRs.

Counted again only after something has happened: an idle cluster costs nothing by the partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.isr_change_reasons import REASSIGNED
from tidemark.model import NO_LEADER, BrokerId, IsrEntry

BROKER_FAILED: Final = "broker_failed"
REPLICA_FAILED: Final = "replica_failed"
SHUTDOWN: Final = "shutdown"
SUSPECTED: Final = "suspected"

OF_LEAVING: Final = (BROKER_FAILED, SUSPECTED, SHUTDOWN, REPLICA_FAILED, REASSIGNED)


class ControllerCounts:
    """One per core; only looks."""

    def __init__(self, ctx: ControllerContext, reassignments: Reassignments) -> None:
        self._ctx = ctx
        self._reassignments = reassignments
        self._scanned: Mapping[str, int] | None = None
        self._left: Counter[str] = Counter()

    def changed(self) -> None:
        """Something has happened."""
        self._scanned = None

    def now(self, suspected: Collection[BrokerId]) -> dict[str, int]:
        """Partitions by condition, brokers, moves, and commands that wait for their answer."""
        ctx = self._ctx
        if self._scanned is None:
            self._scanned = self._scan()
        return {
            **self._scanned,
            "topics": len(ctx.topics),
            "partitions": len(ctx.records),
            "leader_and_isr_pending": sum(link.leadership.request_id is not None for link in ctx.links.values()),
            "live_brokers": len(ctx.brokers),
            "suspected_brokers": len(suspected),
        }

    def _scan(self) -> dict[str, int]:
        offline = elsewhere = 0
        for record in self._ctx.records.values():
            state = record.state
            if state is None or state.leader == NO_LEADER:
                offline += 1
            elif record.assigned and state.leader != record.assigned[0]:
                elsewhere += 1
        return {
            "offline_partitions": offline,
            "not_preferred_leaders": elsewhere,
            "moves": self._reassignments.wanted_count(),
            "replicas_to_move": self._reassignments.replicas_left(),
        }

    def isr_written(self, record: PartitionRecord, leaving: Collection[BrokerId]) -> None:
        """What is being written of this partition is the node now; `leaving`: brokers that are shutting down."""
        before, after = record.state, record.writing
        if before is None or after is None or before.isr == after.isr:
            return
        stay = set(after.isr_ids)
        for entry in before.isr:
            if entry.broker_id not in stay:
                self._left[self._why(record, entry, leaving)] += 1

    def take_left(self) -> Mapping[str, int]:
        """Replicas that left ISRs since this was last asked, by reason."""
        left, self._left = self._left, Counter()
        return left

    def _why(self, record: PartitionRecord, entry: IsrEntry, leaving: Collection[BrokerId]) -> str:
        """One of `OF_LEAVING`."""
        registration = self._ctx.brokers.get(entry.broker_id)
        if registration is None or registration.broker_epoch != entry.broker_epoch:
            return BROKER_FAILED
        if entry.broker_id in leaving:
            return SHUTDOWN
        topic = self._ctx.topics.get(record.partition.topic)
        removing = topic.removing.get(record.partition.partition, ()) if topic is not None else ()
        if entry.broker_id not in record.assigned or entry.broker_id in removing:
            return REASSIGNED
        return SUSPECTED if entry.broker_id in self._ctx.unwanted else REPLICA_FAILED
