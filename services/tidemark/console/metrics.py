# SPDX-License-Identifier: Apache-2.0
"""Metrics of the console: requests by page, questions to the cluster by kind, open live updates."""

from __future__ import annotations

from tidemark.runtime.metrics import METRICS, Metrics


class ConsoleMetrics:
    """Counts requests, queries and streams into `metrics`."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self._requests = metrics.counter("console_requests", "Requests for a page", ("page", "status"))
        self._seconds = metrics.histogram("console_request_seconds", "Time to make a page", ("page",))
        self._queries = metrics.counter(
            "console_queries", "Calls to the cluster; pages share their answers", ("kind", "result")
        )
        self._streams = metrics.gauge("console_streams", "Open pages with live updates")

    def on_request(self, page: str, status: int, seconds: float) -> None:
        """Count a page that was made or refused."""
        self._requests.labels(page, str(status)).inc()
        self._seconds.labels(page).observe(seconds)

    def on_query(self, kind: str, succeeded: bool) -> None:
        """Count a call to the cluster that ended."""
        self._queries.labels(kind, "ok" if succeeded else "error").inc()

    def on_stream(self, change: int) -> None:
        """Count an open page that connected (1) or left (-1)."""
        self._streams.inc(change)
