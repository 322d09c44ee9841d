"""Leadership goes back to preferred replicas by itself, where too many partitions are led elsewhere."""

from __future__ import annotations

from collections import Counter

from tidemark.core.controller_context import ControllerContext
from tidemark.model import NO_LEADER, BrokerId, TopicPartition


class LeaderBalance:
    """Looks every so often, and only if somebody was elected since. What it finds waits to be decided."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._next_ms: int | None = None
        self._changed = True
        self._wanted: set[TopicPartition] = set()

    def elected(self) -> None:
        """Somebody leads since now."""
        self._changed = True

    def due(self, now_ms: int) -> None:
        """Partitions to be decided so that their preferred replica leads again."""
        interval_ms = self._ctx.config.leader_rebalance_interval_ms
        if not interval_ms:
            return
        if self._next_ms is None:
            self._next_ms = now_ms + interval_ms
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + interval_ms
        if self._changed:
            self._changed = False
            self._wanted = self._imbalanced()
            self._ctx.dirty |= self._wanted

    def wants(self, partition: TopicPartition) -> bool:
        """Whether its preferred replica shall lead, once."""
        wanted = partition in self._wanted
        self._wanted.discard(partition)
        return wanted

    def _imbalanced(self) -> set[TopicPartition]:
        prefer: Counter[BrokerId] = Counter()
        elsewhere: dict[BrokerId, set[TopicPartition]] = {}
        for partition, record in self._ctx.records.items():
            first = record.assigned[0]
            prefer[first] += 1
            if record.state is not None and record.state.leader not in (first, NO_LEADER):
                elsewhere.setdefault(first, set()).add(partition)
        limit = self._ctx.config.leader_imbalance_percent
        return {
            partition
            for broker, partitions in elsewhere.items()
            if broker in self._ctx.brokers and 100 * len(partitions) > limit * prefer[broker]
            for partition in partitions
        }
