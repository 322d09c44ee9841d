# SPDX-License-Identifier: Apache-2.0
"""The broker's counters and histograms, and a log line for each event that its core observed."""

from __future__ import annotations

import logging
import time
from typing import Final

from prometheus_client import Counter

from tidemark.broker.metrics.topics import TopicMetrics
from tidemark.core.internal_topics import INTERNAL_TOPICS
from tidemark.core.isr_change_reasons import OF_JOINING, OF_LEAVING, reasons_in
from tidemark.core.replication.effects import AppendToLog, Observed
from tidemark.model import ErrorCode
from tidemark.runtime.metrics import Metrics

_LOUD: Final = frozenset(
    {
        "became_leader",
        "isr_shrinking",
        "isr_shrunk",
        "isr_expanded",
        "isr_write_failed",
        "fenced",
        "truncated",
        "log_reset",
        "inventory_incomplete",
    }
)
"""Kinds logged at level info; `_ALARMING` at warning, all others at debug."""
_ALARMING: Final = frozenset(
    {
        "unclean_election",
        "replica_damaged",
        "tail_cut",
        "chunk_refused",
        "log_failed",
        "report_refused",
        "leader_disk_lags",
        "leader_log_damaged",
    }
)

_LINES_A_SECOND: Final = 20
"""Limit for one kind: when a broker fails, thousands of replicas change, and each line takes time of the event loop."""

_log = logging.getLogger(__name__)


class _Kind:
    """Counter and level of one kind, its lines in the current second, and the number of suppressed lines."""

    __slots__ = ("counter", "level", "lines", "second", "silenced")

    def __init__(self, kind: str, counter: Counter) -> None:
        self.counter = counter
        self.level = logging.WARNING if kind in _ALARMING else logging.INFO if kind in _LOUD else logging.DEBUG
        self.second = -1
        self.lines = 0
        self.silenced = 0

    def admit(self) -> bool:
        """Count one more line; whether it may be logged."""
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.lines = second, 0
        self.lines += 1
        if self.lines > _LINES_A_SECOND:
            self.silenced += 1
            return False
        return True


class BrokerMetrics:
    """Metrics of one broker; the docs name them with the prefix `tidemark_`."""

    def __init__(self, metrics: Metrics) -> None:
        self._batches = metrics.loop_counter("broker_produced_batches", "Batches of producers that were appended")
        self._bytes = metrics.loop_counter("broker_produced_bytes", "Bytes of producers that were appended")
        self.fetched_bytes = metrics.loop_counter("broker_fetched_bytes", "Bytes sent to consumers")
        self.follower_fetched_bytes = metrics.loop_counter(
            "broker_follower_fetched_bytes", "Bytes sent to consumers from partitions that this broker does not lead"
        )
        self.preferred_read_replicas = metrics.loop_counter(
            "broker_preferred_read_replicas",
            "Fetches of a partition that were redirected to a replica in the consumer's rack",
        )
        self.replicated_bytes = metrics.loop_counter("broker_replicated_bytes", "Bytes sent to followers")
        self.produce_seconds = metrics.loop_histogram(
            "broker_produce_seconds", "Time from a produce request to its answer"
        ).of()
        self._requests = metrics.loop_counter("broker_produce_requests", "Produce requests")
        self._records = metrics.loop_counter("broker_produced_records", "Records of producers that were appended")
        self._produce_errors = metrics.counter(
            "broker_produce_errors", "Refused partitions of produce requests, by error code", ("code",)
        )
        self._fetches = metrics.loop_counter("broker_fetch_requests", "Fetch requests of consumers")
        self._fetch_errors = metrics.counter(
            "broker_fetch_errors", "Refused partitions of fetch requests, by error code", ("code",)
        )
        seconds = metrics.loop_histogram(
            "broker_fetch_seconds",
            "Time to serve a fetch of a consumer or follower, without the wait for records",
            ("kind",),
            ("consumer", "follower"),
        )
        self._fetch_seconds, self.follower_read_seconds = seconds.of("consumer"), seconds.of("follower")
        self.topics = TopicMetrics()
        self.append_seconds = metrics.loop_histogram(
            "broker_append_seconds", "Time of an append from its queue to its write(2)"
        ).of()
        self.flush_seconds = metrics.loop_histogram(
            "broker_flush_seconds", "Time of an fdatasync of a log whose topic requires flushes"
        ).of()
        self.offline_log_directories = metrics.gauge("offline_log_directories", "Log directories that have failed")
        self.full_log_directories = metrics.gauge("full_log_directories", "Log directories that recently had no space")
        shrinks = metrics.counter("replica_isr_shrinks", "Replicas that written ISR changes removed", ("reason",))
        self._shrinks = {reason: shrinks.labels(reason) for reason in OF_LEAVING}
        expands = metrics.counter("replica_isr_expands", "Replicas that written ISR changes added", ("reason",))
        self._expands = {reason: expands.labels(reason) for reason in OF_JOINING}
        self._kinds: dict[str, _Kind] = {}
        self._observed = metrics.counter("replica_observed", "Events of replicas on this broker, by kind", ("kind",))
        self._observed.labels("isr_write_failed")

    def produce_requested(self) -> None:
        """Count a produce request."""
        self._requests.value += 1

    def appended(self, effect: AppendToLog) -> None:
        """Count a leader's append of producer batches; neither refused batches nor duplicates reach this."""
        topic = effect.partition.topic
        if not effect.stamp or topic in INTERNAL_TOPICS:
            return
        records = sum([batch.envelope.record_count for batch in effect.batches])
        size_bytes = sum([len(batch.data) for batch in effect.batches])
        self._batches.value += len(effect.batches)
        self._bytes.value += size_bytes
        self._records.value += records
        self.topics.produced(topic, size_bytes, records)

    def produce_refused(self, code: ErrorCode) -> None:
        """Count a refused partition of a produce request."""
        self._produce_errors.labels(str(code)).inc()

    def fetched(self, seconds: float) -> None:
        """Count an answered fetch of a consumer; `seconds` is without the wait for records."""
        self._fetches.value += 1
        self._fetch_seconds.observe(seconds)

    def fetch_refused(self, code: ErrorCode) -> None:
        """Count a refused partition of a consumer's fetch."""
        self._fetch_errors.labels(str(code)).inc()

    def observe(self, effect: Observed) -> None:
        """Count and log an observation of the core."""
        kind = effect.kind
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _Kind(kind, self._observed.labels(kind))
        known.counter.inc()
        if kind in ("isr_shrunk", "isr_expanded"):
            counters = self._shrinks if kind == "isr_shrunk" else self._expands
            for reason in reasons_in(str(effect.fields["reasons"])):
                counters[reason].inc()
        if _log.isEnabledFor(known.level) and known.admit():
            extra = {"partition": str(effect.partition), **{_field(name): text for name, text in effect.fields.items()}}
            if known.silenced:
                extra["silenced_before"], known.silenced = known.silenced, 0
            _log.log(known.level, kind, extra=extra)


def _field(name: str) -> str:
    """The field's name in the log; attributes of a log record get a suffix."""
    return f"{name}_" if name in ("name", "args", "msg", "message", "module", "process", "thread") else name
