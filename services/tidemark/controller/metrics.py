"""Metrics of the controller, and a log line for each thing it observed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidemark.core.controller_effects import Observed
from tidemark.core.controller_events import ControllerEvent
from tidemark.runtime.metrics import METRICS, Metrics

_log = logging.getLogger(__name__)


class ControllerMetrics:
    """`tidemark_controller_*`."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self.active = metrics.gauge("controller_active", "1 on the active controller, 0 on a standby")
        self._elections = metrics.counter("controller_leader_elections", "Leaders elected", ["clean"])
        self._maybe_lost = metrics.counter(
            "controller_records_maybe_lost", "Records that unclean elections may have lost, where that is known"
        )
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
        """Log and count."""
        self._observed.labels(effect.kind).inc()
        if effect.kind in ("leader_elected", "unclean_election"):
            self._elections.labels(str(effect.kind == "leader_elected").lower()).inc()
        self._maybe_lost.inc(int(effect.fields.get("records_maybe_lost", 0)))
        fields = dict(effect.fields)
        if effect.partition is not None:
            fields["partition"] = str(effect.partition)
        _log.info(effect.kind, extra=fields)

    def handled(self, event: ControllerEvent, seconds: float) -> None:
        """An event was decided."""
        self._seconds.labels(type(event).__name__).observe(seconds)

    def counts(self, counts: Mapping[str, int]) -> None:
        """Conditions now."""
        for name, gauge in self._counts.items():
            gauge.set(counts.get(name, 0))
