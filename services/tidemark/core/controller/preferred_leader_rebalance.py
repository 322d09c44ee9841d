# SPDX-License-Identifier: Apache-2.0
"""Automatic preferred leader election, where too many of a broker's preferred partitions are led by other brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidemark.core.controller.context import ControllerContext
from tidemark.model import NO_LEADER, BrokerId, TopicPartition


class PreferredLeaderRebalance:
    """Checks at an interval, unless the last check found only preferred leaders and no election followed.

    Attributes:
        _next_ms: time of the next check; None before the first tick.
        _changed: the next check may find a leader that is not preferred.
        _wanted: partitions whose preferred replica is to lead; each is taken out when it is decided.
    """

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._next_ms: int | None = None
        self._changed = True
        self._wanted: set[TopicPartition] = set()

    def elected(self) -> None:
        """Note that a leader was elected."""
        self._changed = True

    def due(self, now_ms: int) -> None:
        """If the interval has passed, check, and mark the found partitions for a decision."""
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
            self._changed = bool(elsewhere)  # a replica that is offline or lagging now may lead at the next check
            self._wanted = self._too_many(elsewhere)
            self._ctx.dirty |= self._wanted

    def wants(self, partition: TopicPartition) -> bool:
        """Whether the preferred replica is to lead; True once for each check that finds the partition."""
        if partition not in self._wanted:
            return False
        self._wanted.remove(partition)
        return True

    def _led_elsewhere(self) -> dict[BrokerId, set[TopicPartition]]:
        """Partitions that another replica leads, by preferred leader."""
        elsewhere: dict[BrokerId, set[TopicPartition]] = {}
        for partition, partition_state in self._ctx.partitions.items():
            first, state = partition_state.assigned[0], partition_state.state
            if state is not None and state.leader not in (first, NO_LEADER):
                elsewhere.setdefault(first, set()).add(partition)
        return elsewhere

    def _too_many(self, elsewhere: Mapping[BrokerId, set[TopicPartition]]) -> set[TopicPartition]:
        """Partitions of the live brokers that exceed the configured share."""
        prefer = Counter(partition_state.assigned[0] for partition_state in self._ctx.partitions.values())
        limit = self._ctx.config.leader_imbalance_percent
        return {
            partition
            for broker, partitions in elsewhere.items()
            if broker in self._ctx.brokers and 100 * len(partitions) > limit * prefer[broker]
            for partition in partitions
        }
