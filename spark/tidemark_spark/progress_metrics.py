# SPDX-License-Identifier: Apache-2.0
"""Metrics of streaming queries for Prometheus: a listener that counts, and an HTTP server in the driver.

Needs no other library than Spark, so the image of a job needs no change. Names are `tidemark_spark_*`, in base
units; the labels are bounded by the queries of the driver and the partitions that they read.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from tidemark.runtime.metrics_text import family, labels

from tidemark_spark.progress import PartitionProgress, partition_progress

DEFAULT_PORT: Final = 9404

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES: Final = {
    "query_active": ("gauge", "1 while the query runs, 0 after its end"),
    "query_failures_total": ("counter", "Runs of the query that ended with an error"),
    "batches_total": ("counter", "Completed micro-batches"),
    "input_rows_total": ("counter", "Rows that micro-batches read, from all sources"),
    "phase_seconds_total": ("counter", "Time of micro-batches by Spark's phase; triggerExecution is the total"),
    "batch_seconds": ("gauge", "Time of the last micro-batch"),
    "last_progress_timestamp_seconds": (
        "gauge",
        "Time of the last micro-batch, or of the last trigger without records",
    ),
    "partition_offset": ("gauge", "Offset of the next record to read"),
    "partition_lag_offsets": ("gauge", "Later offsets when the micro-batch was planned; from PySpark 4.2"),
    "partition_skipped_offsets": ("gauge", "Offsets deleted before the query read them, since its start"),
    "skipped_offsets_total": ("counter", "Offsets deleted before the query read them, since this driver's start"),
}
"""Type and help of each metric, by name without prefix."""


@dataclass(slots=True)
class _Query:
    """Counts of one query, over all its runs in this driver."""

    active: bool = True
    failures: int = 0
    batches: int = 0
    rows: int = 0
    phases_ms: dict[str, int] = field(default_factory=dict)
    last_batch_ms: int = 0
    last_progress_s: float = 0.0
    partitions: list[PartitionProgress] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


class QueryMetrics:
    """Counts and renders Spark's reports on its queries; safe for several threads.

    The label of a query is its name, or its id without a name. Counts stay until the driver ends, so that a failed
    query is still reported, as not active.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._names: dict[str, str] = {}
        """Name by id: the event of a query's end has only its id."""

    def started(self, query_id: str, name: str | None, now_s: float) -> None:
        """Note the start of a query."""
        with self._lock:
            query = self._named(query_id, name)
            query.active = True
            query.last_progress_s = now_s

    def progressed(self, progress: Mapping[str, Any], now_s: float) -> None:
        """Count a micro-batch; `progress` is Spark's JSON, parsed."""
        with self._lock:
            query = self._named(str(progress["id"]), progress.get("name"))
            phases_ms = {str(phase): int(spent_ms) for phase, spent_ms in (progress.get("durationMs") or {}).items()}
            query.batches += 1
            query.rows += sum(int(source.get("numInputRows") or 0) for source in progress.get("sources", ()))
            for phase, spent_ms in phases_ms.items():
                query.phases_ms[phase] = query.phases_ms.get(phase, 0) + spent_ms
            query.last_batch_ms = phases_ms.get("triggerExecution", sum(phases_ms.values()))
            query.last_progress_s = now_s
            found = [one for source in progress.get("sources", ()) for one in partition_progress(source)]
            query.partitions = found or query.partitions
            for one in found:
                query.skipped[one.topic] += one.newly_skipped_offsets

    def idle(self, query_id: str, now_s: float) -> None:
        """Note a trigger without new records."""
        with self._lock:
            self._named(query_id, None).last_progress_s = now_s

    def ended(self, query_id: str, *, failed: bool) -> None:
        """Note the end of a query."""
        with self._lock:
            query = self._named(query_id, None)
            query.active = False
            query.failures += failed

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        with self._lock:
            samples: dict[str, list[tuple[str, float]]] = {name: [] for name in _FAMILIES}
            for query, counted in self._queries.items():
                for name, of, value in _samples(counted):
                    samples[name].append((labels(query=query, **of), value))
        return "".join(
            family(f"tidemark_spark_{name}", kind, doc, samples[name]) for name, (kind, doc) in _FAMILIES.items()
        )

    def _named(self, query_id: str, name: str | None) -> _Query:
        known = self._names.setdefault(query_id, name or query_id)
        return self._queries.setdefault(known, _Query())


class MetricsListener(StreamingQueryListener):
    """Serves the metrics of a session's queries at http://host:port/metrics, from the driver.

    Use: spark.streams.addListener(MetricsListener()). Removing the listener does not close the port; `close` does.

    Args:
        host: address to listen on; default: all interfaces, since Prometheus runs on another machine.
        port: port to listen on; 0: a free port, in the attribute `port`.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, host: str = "0.0.0.0", port: int = DEFAULT_PORT) -> None:
        self.metrics = QueryMetrics()
        self._server = _Server((host, port), self.metrics)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="tidemark metrics", daemon=True).start()

    def close(self) -> None:
        """Stop the server and release the port."""
        self._server.shutdown()
        self._server.server_close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - these names are Spark's
        """Count the start of a query."""
        self.metrics.started(str(event.id), event.name, time.time())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count a micro-batch."""
        self.metrics.progressed(json.loads(event.progress.json), time.time())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Count a trigger without new records."""
        self.metrics.idle(str(event.id), time.time())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Count the end of a query, with or without an error."""
        self.metrics.ended(str(event.id), failed=event.exception is not None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metrics: QueryMetrics) -> None:
        super().__init__(address, _Handler)
        self.metrics = metrics


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "metrics are at /metrics")
            return
        body = self.server.metrics.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log a scrape."""


def _samples(query: _Query) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "query_active", {}, float(query.active)
    yield "query_failures_total", {}, query.failures
    yield "batches_total", {}, query.batches
    yield "input_rows_total", {}, query.rows
    for phase, spent_ms in query.phases_ms.items():
        yield "phase_seconds_total", {"phase": phase}, spent_ms / 1000
    yield "batch_seconds", {}, query.last_batch_ms / 1000
    yield "last_progress_timestamp_seconds", {}, query.last_progress_s
    for one in query.partitions:
        of = {"topic": one.topic, "partition": str(one.partition)}
        yield "partition_offset", of, one.offset
        if one.lag_offsets is not None:
            yield "partition_lag_offsets", of, one.lag_offsets
        yield "partition_skipped_offsets", of, one.skipped_offsets
    for topic, skipped_offsets in query.skipped.items():
        yield "skipped_offsets_total", {"topic": topic}, skipped_offsets
