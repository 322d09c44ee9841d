# SPDX-License-Identifier: Apache-2.0
"""Metrics of the controller, and a log line for each observation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.core.controller.effects import Observed
from tidemark.core.controller.events import ControllerEvent
from tidemark.core.controller.partition_counts import OF_LEAVING
from tidemark.core.messages import PartitionCommand
from tidemark.model import NO_EPOCH, TopicPartition
from tidemark.runtime.metrics import METRICS, Metrics

_log = logging.getLogger(__name__)

_LINES_MAX: Final = 100
"""Number of log lines of one kind for one event; more become one line with the count, such as when a broker with
many partitions fails.
"""
_LEVELS: Final = {"unclean_election": logging.WARNING, "broker_too_old": logging.WARNING}
"""Log levels of kinds that are not logged at level info."""
_ELECTED_MAX: Final = 100_000

_COUNTS: Final = {
    "topics": "Topics",
    "partitions": "Partitions",
    "offline_partitions": "Partitions without a leader",
    "not_preferred_leaders": "Partitions whose leader is not the first of the assigned replicas",
    "leader_and_isr_pending": "Brokers that have not answered a LeaderAndIsr yet",
    "live_brokers": "Registered brokers",
    "suspected_brokers": "Brokers that are registered but do not answer heartbeats",
    "unreadable_nodes": "Topics and partitions whose ZooKeeper node cannot be read",
    "moves": "Partitions with a queued or running reassignment",
    "replicas_to_move": "Replicas that reassignments add and that are not in sync yet",
}
_NAMES: Final = {"moves": "reassignments", "replicas_to_move": "reassignment_replicas_remaining"}


class _Elected(NamedTuple):
    """The elected leader, its leader epoch (-1: unknown), and the time at which the controller chose it."""

    leader: int
    epoch: int
    at_s: float


class ControllerMetrics:
    """Metrics of the controller, `tidemark_controller_*`, and its log lines."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self._active = metrics.gauge("controller_active", "1 on the active controller, 0 on a standby")
        self._epoch = metrics.gauge("controller_epoch", "Present controller epoch; 0 on a standby")
        elections = metrics.counter("controller_leader_elections", "Leaders elected", ["clean"])
        self._elections = {clean: elections.labels(str(clean).lower()) for clean in (True, False)}
        self._election_seconds = metrics.histogram(
            "controller_leader_election_seconds", "Time from the choice of a leader to its confirmation"
        )
        self._maybe_lost = metrics.counter(
            "controller_records_maybe_lost", "Records that unclean elections may have lost, as far as known"
        )
        self._to_log: dict[str, list[Observed]] = {}
        self._observed = metrics.counter("controller_observations", "Observations by kind", ["kind"])
        self._seconds = metrics.histogram("controller_event_duration_seconds", "Time to process an event", ["event"])
        self._waited = metrics.histogram("controller_event_queue_seconds", "Time of an event in the queue")
        self._queue_size = metrics.gauge("controller_event_queue_size", "Events in the queue")
        left = metrics.counter("replica_isr_shrinks", "Replicas that written ISR changes removed", ("reason",))
        self._left_isrs = {reason: left.labels(reason) for reason in OF_LEAVING}
        self._elected: dict[TopicPartition, _Elected] = {}
        self._counts = {
            name: metrics.gauge(f"controller_{_NAMES.get(name, name)}", doc) for name, doc in _COUNTS.items()
        }

    def term_begins(self, epoch: int, queue_size: Callable[[], int]) -> None:
        """Note that this controller is the active one; `queue_size` gives the number of queued events."""
        self._active.set(1)
        self._epoch.set(epoch)
        self._queue_size.set_function(queue_size)

    def term_ends(self) -> None:
        """Note that this controller is a standby; the next active controller reports the counts."""
        self._active.set(0)
        self._epoch.set(0)
        self._queue_size.set_function(lambda: 0)
        self._elected.clear()
        self.counts({})

    def observed(self, effect: Observed) -> None:
        """Count the observation; `handled` logs the observations of one event together."""
        self._observed.labels(effect.kind).inc()
        if effect.kind in ("leader_elected", "unclean_election"):
            self._elections[effect.kind == "leader_elected"].inc()
            assert effect.partition is not None, "an election is of a partition"
            leader, epoch = int(effect.fields["leader"]), int(effect.fields.get("leader_epoch", NO_EPOCH))
            chosen_s = time.perf_counter() - int(effect.fields.get("write_ms", 0)) / 1000
            self._elected[effect.partition] = _Elected(leader, epoch, chosen_s)
        elif effect.kind == "partition_offline" and effect.partition is not None:
            self._elected.pop(effect.partition, None)
        self._maybe_lost.inc(int(effect.fields.get("records_maybe_lost", 0)))
        self._to_log.setdefault(effect.kind, []).append(effect)

    def leaders_confirmed(self, broker: int, partitions: Iterable[PartitionCommand]) -> None:
        """Note that the broker accepted these commands."""
        for command in partitions:
            elected = self._elected.get(command.partition)
            if elected is not None and elected.leader == broker and command.state.leader_epoch >= elected.epoch:
                del self._elected[command.partition]
                self._election_seconds.observe(time.perf_counter() - elected.at_s)

    def left_isrs(self, by_reason: Mapping[str, int]) -> None:
        """Count the replicas that elections removed from ISRs."""
        for reason, count in by_reason.items():
            self._left_isrs[reason].inc(count)

    def waited(self, seconds: float) -> None:
        """Note that an event left the queue after this time."""
        self._waited.observe(seconds)

    def handled(self, event: ControllerEvent, seconds: float) -> None:
        """Log the observations of a handled event: one line each, or one line for many of a kind.

        Possible loss is logged for every partition (rule T4).
        """
        self._seconds.labels(type(event).__name__).observe(seconds)
        if not self._to_log:
            return
        to_log, self._to_log = self._to_log, {}
        for kind, effects in to_log.items():
            unclean = kind == "unclean_election"
            if len(effects) > _LINES_MAX and not unclean:
                _log.info(kind, extra={"partitions": len(effects), "first": str(effects[0].partition)})
                continue
            for effect in effects:
                partition = {} if effect.partition is None else {"partition": str(effect.partition)}
                _log.log(_LEVELS.get(kind, logging.INFO), kind, extra={**effect.fields, **partition})

    def failed(self, error: BaseException, event: ControllerEvent | None) -> None:
        """Log the unexpected error that ended the term."""
        extra = {"event": "" if event is None else type(event).__name__}
        _log.error("the term ends: unexpected error", exc_info=error, extra=extra)

    def counts(self, counts: Mapping[str, int]) -> None:
        """Set the gauges of partitions and commands by condition."""
        if len(self._elected) > _ELECTED_MAX:  # elections of deleted topics are never confirmed
            self._elected.clear()
        for name, gauge in self._counts.items():
            gauge.set(counts.get(name, 0))
