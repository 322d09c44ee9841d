# SPDX-License-Identifier: Apache-2.0
"""Metrics of a broker's groups."""

from __future__ import annotations

from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.core.groups.state import Change, Committed, OffsetKey, TargetMetadata, TargetMetadataKey
from tidemark.runtime.metrics import Metrics


def test_commits_and_rebalances_are_counted_by_their_records() -> None:
    metrics = Metrics()
    group_metrics = GroupMetrics(metrics)
    committed = Change(OffsetKey("g", "a", 0), Committed(1, -1, "", "", "", 0))
    group_metrics.note(
        [committed, Change(OffsetKey("g", "a", 1), None), Change(TargetMetadataKey("g"), TargetMetadata(3, "range"))]
    )
    group_metrics.note([Change(TargetMetadataKey("g"), None)])
    group_metrics.show({"stable": 2, "empty": 1}, members=5, offsets=7, loading=1)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"tidemark_group_{name}", labels)

    assert (value("committed_offsets_total"), value("rebalances_total")) == (2, 1)
    assert (value("count", state="stable"), value("count", state="empty")) == (2, 1)
    assert (value("members"), value("offsets"), value("partitions_loading")) == (5, 7, 1)
