# SPDX-License-Identifier: Apache-2.0
"""Metrics of damaged batches and their repair (rule T6)."""

from __future__ import annotations

from tidemark.runtime.metrics import Metrics


class RepairCounts:
    """Counters and gauge of damaged ranges of logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._found = metrics.counter("broker_log_damaged_ranges_found", "Damaged ranges of logs that were found")
        self._repaired = metrics.counter(
            "broker_log_damaged_ranges_repaired", "Damaged ranges of logs that were replaced from another replica"
        )
        self._left = metrics.gauge(
            "broker_log_damaged_ranges", "Damaged ranges of logs for which no other replica has a good copy"
        )

    def found(self, count: int) -> None:
        """Count damaged ranges that were found."""
        self._found.inc(count)

    def repaired(self, count: int) -> None:
        """Count damaged ranges that were replaced."""
        self._repaired.inc(count)

    def unrepaired(self, count: int) -> None:
        """The number of damaged ranges that have no good copy now."""
        self._left.set(count)
