"""Metrics of the controller, and a log line for each thing it observed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidemark.core.controller_effects import Observed
from tidemark.core.controller_events import ControllerEvent
from tidemark.runtime.metrics import METRICS, Metrics

_log = logging.getLogger(__name__)

_LINES_MAX: Final = 100
"""Of one kind and one event: the failure of a broker with thousands of partitions is not told thousands of times."""


class ControllerMetrics:
    """`tidemark_controller_*`."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self.active = metrics.gauge("controller_active", "1 on the active controller, 0 on a standby")
        self._elections = metrics.counter("controller_leader_elections", "Leaders elected", ["clean"])
        self._maybe_lost = metrics.counter(
            "controller_records_maybe_lost", "Records that unclean elections may have lost, where that is known"
        )
        self._to_log: dict[str, list[Observed]] = {}
        self._observed = metrics.counter("controller_observations", "Things observed, by kind", ["kind"])
        self._seconds = metrics.histogram("controller_event_duration_seconds", "Time to decide an event", ["event"])
        self._counts = {
            "partitions": metrics.gauge("controller_partitions", "Partitions"),
            "offline_partitions": metrics.gauge("controller_offline_partitions", "Partitions with no leader"),
            "leader_and_isr_pending": metrics.gauge(
                "controller_leader_and_isr_pending", "Brokers with a LeaderAndIsr unanswered"
            ),
            "live_brokers": metrics.gauge("controller_live_brokers", "Registered brokers"),
            "suspected_brokers": metrics.gauge("controller_suspected_brokers", "Brokers suspected by heartbeat"),
        }

    def observed(self, effect: Observed) -> None:
        """Count, and log with the event it belongs to."""
        self._observed.labels(effect.kind).inc()
        if effect.kind in ("leader_elected", "unclean_election"):
            self._elections.labels(str(effect.kind == "leader_elected").lower()).inc()
        self._maybe_lost.inc(int(effect.fields.get("records_maybe_lost", 0)))
        self._to_log.setdefault(effect.kind, []).append(effect)

    def handled(self, event: ControllerEvent, seconds: float) -> None:
        """An event was decided. What it brought about is a line each, or one line where there is much of a kind."""
        self._seconds.labels(type(event).__name__).observe(seconds)
        if not self._to_log:
            return
        to_log, self._to_log = self._to_log, {}
        for kind, effects in to_log.items():
            if len(effects) > _LINES_MAX:
                _log.info(kind, extra={"partitions": len(effects), "first": str(effects[0].partition)})
                continue
            for effect in effects:
                partition = {} if effect.partition is None else {"partition": str(effect.partition)}
                _log.info(kind, extra={**effect.fields, **partition})

    def counts(self, counts: Mapping[str, int]) -> None:
        """Conditions now."""
        for name, gauge in self._counts.items():
            gauge.set(counts.get(name, 0))
