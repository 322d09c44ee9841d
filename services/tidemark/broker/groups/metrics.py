# SPDX-License-Identifier: Apache-2.0
"""Metrics of all groups of this broker together; `lag_metrics` has the metrics of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.core.groups.state import Change, OffsetKey, TargetMetadataKey
from tidemark.runtime.metrics import Metrics


class GroupMetrics:
    """Counters and gauges of one broker."""

    def __init__(self, metrics: Metrics) -> None:
        self.groups = metrics.gauge("group_count", "Groups that this broker coordinates, by state", ("state",))
        self.members = metrics.gauge("group_members", "Members of groups that this broker coordinates")
        self.offsets = metrics.gauge("group_offsets", "Committed offsets of these groups")
        self.loading = metrics.gauge(
            "group_partitions_loading", "Partitions of __consumer_offsets that are being loaded"
        )
        self.rebalances = metrics.counter("group_rebalances", "Computations of a new target assignment")
        self.removed_members = metrics.counter(
            "group_members_removed", "Evicted members: silent, or slow to release partitions"
        )
        self.heartbeats = metrics.counter("group_heartbeats", "Heartbeats that were answered")
        self.fenced = metrics.counter("group_requests_refused", "Refused requests of members, by code", ("code",))
        self.committed_offsets = metrics.counter("group_committed_offsets", "Offsets that were committed or deleted")
        self.commit_seconds = metrics.histogram("group_commit_seconds", "Time from a commit request to its answer")
        self.failed_writes = metrics.counter("group_failed_writes", "Writes to __consumer_offsets that failed")
        self.loads = metrics.counter("group_loads", "Loads of a partition of __consumer_offsets")

    def note(self, changes: Iterable[Change]) -> None:
        """Count the records of changes by kind, before their write."""
        for change in changes:
            if isinstance(change.key, OffsetKey):
                self.committed_offsets.inc()
            elif isinstance(change.key, TargetMetadataKey) and change.value is not None:
                self.rebalances.inc()

    def show(self, by_state: Mapping[str, int], *, members: int, offsets: int, loading: int) -> None:
        """Set the gauges; `loading`: number of partitions that are being loaded."""
        for state, number in by_state.items():
            self.groups.labels(state).set(number)
        self.members.set(members)
        self.offsets.set(offsets)
        self.loading.set(loading)
