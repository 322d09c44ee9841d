# SPDX-License-Identifier: Apache-2.0
"""Metrics of the transactions that this broker coordinates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark.core.transactions.phases import PREPARED, Phase
from tidemark.core.transactions.state import Change, TransactionMetadata
from tidemark.runtime.metrics import Metrics


class Figures(NamedTuple):
    """Counts of all transactional ids of this broker.

    Attributes:
        loading: partitions of __transaction_state that are being loaded.
        completing: transactions that are decided, and of which some partition has no marker yet.
        oldest_s: age of the oldest open transaction; 0 without one.
        completing_s: time since the oldest decision that is being completed; 0 without one.
    """

    ids: int = 0
    ongoing: int = 0
    completing: int = 0
    loading: int = 0
    oldest_s: float = 0
    completing_s: float = 0


class TransactionMetrics:
    """Counters and gauges of one broker."""

    def __init__(self, metrics: Metrics) -> None:
        self.ids = metrics.gauge("transactional_ids", "Transactional ids that this broker coordinates")
        self.open = metrics.gauge("transactions_open", "Open transactions that this broker coordinates")
        self.oldest_s = metrics.gauge(
            "transaction_oldest_seconds", "Age of the oldest open transaction that this broker coordinates"
        )
        self.completing = metrics.gauge(
            "transactions_completing", "Transactions that are decided, and of which some partition has no marker yet"
        )
        self.completing_s = metrics.gauge(
            "transaction_completing_seconds", "Time since the oldest decision that is still being completed"
        )
        self.loading = metrics.gauge(
            "transaction_partitions_loading", "Partitions of __transaction_state that are being loaded"
        )
        self.decisions = metrics.counter(
            "transaction_decisions",
            "Decisions about transactions with writes, by result and reason",
            ("result", "reason"),
        )
        self.refused = metrics.counter("transaction_requests_refused", "Refused requests, by code", ("code",))
        self.markers = metrics.counter("transaction_markers", "Markers that partitions have confirmed")
        self.marker_retries = metrics.counter("transaction_marker_retries", "Markers that had to be sent again")
        self.failed_writes = metrics.counter("transaction_failed_writes", "Writes to __transaction_state that failed")
        self.loads = metrics.counter("transaction_loads", "Loads of a partition of __transaction_state")

    def note(self, changes: Iterable[Change]) -> None:
        """Count the decisions among committed records."""
        for change in changes:
            if isinstance(change.value, TransactionMetadata) and change.value.phase in PREPARED:
                result = "commit" if change.value.phase is Phase.PREPARE_COMMIT else "abort"
                self.decisions.labels(result, str(change.value.end_reason)).inc()

    def show(self, figures: Figures) -> None:
        """Set the gauges of transactions."""
        self.ids.set(figures.ids)
        self.open.set(figures.ongoing)
        self.completing.set(figures.completing)
        self.completing_s.set(figures.completing_s)
        self.loading.set(figures.loading)
        self.oldest_s.set(figures.oldest_s)
