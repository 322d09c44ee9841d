# SPDX-License-Identifier: Apache-2.0
"""Leadership goes back to preferred replicas by itself, where too many partitions are led elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidemark.core.controller.context import ControllerContext
from tidemark.model import NO_LEADER, BrokerId, TopicPartition


class LeaderBalance:
    """Looks every so often, unless all was in balance and nobody was elected since. What it finds is to be decided."""

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
            elsewhere = self._led_elsewhere()
            self._changed = bool(elsewhere)  # whoever is away or behind now may lead at the next look
            self._wanted = self._too_many(elsewhere)
            self._ctx.dirty |= self._wanted

    def wants(self, partition: TopicPartition) -> bool:
        """Whether its preferred replica shall lead, once."""
        wanted = partition in self._wanted
        self._wanted.discard(partition)
        return wanted

    def _led_elsewhere(self) -> dict[BrokerId, set[TopicPartition]]:
        """By the broker that they prefer."""
        elsewhere: dict[BrokerId, set[TopicPartition]] = {}
        for partition, record in self._ctx.records.items():
            first = record.assigned[0]
            if record.state is not None and record.state.leader not in (first, NO_LEADER):
                elsewhere.setdefault(first, set()).add(partition)
        return elsewhere

    def _too_many(self, elsewhere: Mapping[BrokerId, set[TopicPartition]]) -> set[TopicPartition]:
        prefer = Counter(record.assigned[0] for record in self._ctx.records.values())
        limit = self._ctx.config.leader_imbalance_percent
        return {
            partition
            for broker, partitions in elsewhere.items()
            if broker in self._ctx.brokers and 100 * len(partitions) > limit * prefer[broker]
            for partition in partitions
        }
