# SPDX-License-Identifier: Apache-2.0
"""Figures of the active controller: partitions by condition, and replicas that its elections removed from ISRs.

Partitions are counted again only after an event, so an idle partition costs nothing. Many partitions are counted less
often, since a failure changes thousands of them for seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.isr_change_reasons import REASSIGNED
from tidemark.model import NO_LEADER, BrokerId, IsrEntry, IsrReasons

BROKER_FAILED: Final = "broker_failed"
ELECTED: Final = "elected"
REPLICA_FAILED: Final = "replica_failed"
SHUTDOWN: Final = "shutdown"
SUSPECTED: Final = "suspected"

PARTITIONS_A_CALL: Final = 2_000
"""Partitions of a count that takes a millisecond. After a count of more partitions, the same number of calls do not
count.
"""

OF_LEAVING: Final = (BROKER_FAILED, SUSPECTED, SHUTDOWN, REPLICA_FAILED, REASSIGNED)


class PartitionCounts:
    """Reads the controller's state, and changes none of it.

    Attributes:
        _scanned: the counts by partition; None before the first call.
        _is_outdated: an event may have changed `_scanned`.
        _calls_left: number of calls of `now` that do not count, since the last count.
        _left: replicas that left ISRs since `take_left`, by reason.
    """

    def __init__(self, ctx: ControllerContext, reassignments: Reassignments) -> None:
        self._ctx = ctx
        self._reassignments = reassignments
        self._scanned: Mapping[str, int] | None = None
        self._is_outdated = True
        self._calls_left = 0
        self._left: Counter[str] = Counter()

    def changed(self) -> None:
        """An event may have changed the counts."""
        self._is_outdated = True

    def now(self, suspected: Collection[BrokerId]) -> dict[str, int]:
        """Partitions by condition, brokers, reassignments, and commands in flight."""
        ctx = self._ctx
        self._calls_left -= 1
        if self._scanned is None or (self._is_outdated and self._calls_left < 0):
            self._scanned, self._is_outdated = self._scan(), False
            self._calls_left = len(ctx.partitions) // PARTITIONS_A_CALL
        return {
            **self._scanned,
            "topics": len(ctx.topics),
            "partitions": len(ctx.partitions),
            "leader_and_isr_pending": sum(
                pending.leader_and_isr.request_id is not None for pending in ctx.commands.values()
            ),
            "live_brokers": len(ctx.brokers),
            "unreadable_nodes": len(ctx.unreadable_topics) + len(ctx.unreadable_states),
            "suspected_brokers": len(suspected),
        }

    def _scan(self) -> dict[str, int]:
        offline = elsewhere = 0
        for partition_state in self._ctx.partitions.values():
            state = partition_state.state
            if state is None or state.leader == NO_LEADER or self._is_stuck(partition_state, state.leader):
                offline += 1
            elif partition_state.assigned and state.leader != partition_state.assigned[0]:
                elsewhere += 1
        return {
            "offline_partitions": offline,
            "not_preferred_leaders": elsewhere,
            "moves": self._reassignments.wanted_count(),
            "replicas_to_move": self._reassignments.replicas_left(),
        }

    def _is_stuck(self, partition_state: PartitionState, leader: BrokerId) -> bool:
        """Whether the leader has failed, and no leader can be elected while the node is unreadable."""
        return leader not in self._ctx.brokers and partition_state.partition in self._ctx.unreadable_states

    def isr_written(self, partition_state: PartitionState, leaving: Collection[BrokerId]) -> IsrReasons:
        """Count a write of this partition that succeeded; returns the replicas that joined and left the ISR.

        Args:
            partition_state: state whose write was not yet noted as written.
            leaving: brokers in controlled shutdown.
        """
        before, after = partition_state.state, partition_state.writing
        if before is None or after is None or before.isr == after.isr:
            return ()
        known, stay = set(before.isr_ids), set(after.isr_ids)
        left = tuple(
            (entry.broker_id, self._why(partition_state, entry, leaving))
            for entry in before.isr
            if entry.broker_id not in stay
        )
        self._left.update(reason for _, reason in left)
        return tuple((broker_id, ELECTED) for broker_id in after.isr_ids if broker_id not in known) + left

    def take_left(self) -> Mapping[str, int]:
        """Replicas that left ISRs since the last call, by reason."""
        left, self._left = self._left, Counter()
        return left

    def _why(self, partition_state: PartitionState, entry: IsrEntry, leaving: Collection[BrokerId]) -> str:
        """The reason for which a replica left the ISR, one of `OF_LEAVING`."""
        registration = self._ctx.brokers.get(entry.broker_id)
        if registration is None or registration.broker_epoch != entry.broker_epoch:
            return BROKER_FAILED
        if entry.broker_id in leaving:
            return SHUTDOWN
        topic = self._ctx.topics.get(partition_state.partition.topic)
        removing = topic.removing.get(partition_state.partition.partition, ()) if topic is not None else ()
        if entry.broker_id not in partition_state.assigned or entry.broker_id in removing:
            return REASSIGNED
        return SUSPECTED if entry.broker_id in self._ctx.avoided else REPLICA_FAILED
