"""What a broker tells Prometheus: counts of what went through, and its replicas as they are when somebody looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemark.core.broker_context import MoveTraffic
from tidemark.core.broker_queries import BrokerQueries
from tidemark.core.effects import Observed
from tidemark.core.replica import ReplicaView
from tidemark.runtime.metrics import Metrics

_SCRAPE_WAIT_S: Final = 2.0
_SLICE: Final = 200
"""So many replicas are looked at before the event loop is given back."""
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
"""What is told at level info; the rest at debug, unless it is in `_ALARMING`."""
_ALARMING: Final = frozenset(
    {
        "unclean_election",
        "replica_damaged",
        "chunk_refused",
        "log_failed",
        "report_refused",
        "leader_disk_lags",
    }
)

_LINES_A_SECOND: Final = 20
"""Of one kind: thousands of replicas change hands at once when a broker dies, and each line takes the loop's time."""

_log = logging.getLogger(__name__)


class _Chatter:
    """How many lines of one kind this second has seen."""

    __slots__ = ("lines", "second", "silenced")

    def __init__(self) -> None:
        self.second = -1
        self.lines = 0
        self.silenced = 0

    def admit(self) -> bool:
        """Whether one more line is fine."""
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.lines = second, 0
        self.lines += 1
        if self.lines > _LINES_A_SECOND:
            self.silenced += 1
            return False
        return True


class BrokerMetrics:
    """Counters of one broker; names as in the docs, `tidemark_` before them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._batches = metrics.counter("broker_produced_batches", "Batches that producers sent")
        self._bytes = metrics.counter("broker_produced_bytes", "Bytes that producers sent")
        self.fetched_bytes = metrics.counter("broker_fetched_bytes", "Bytes that consumers were given")
        self.follower_fetched_bytes = metrics.counter(
            "broker_follower_fetched_bytes", "Of what consumers were given, the bytes of partitions led elsewhere"
        )
        self.preferred_read_replicas = metrics.counter(
            "broker_preferred_read_replicas",
            "Fetches of a partition that were sent to a replica in the consumer's rack",
        )
        self.replicated_bytes = metrics.counter("broker_replicated_bytes", "Bytes that followers were given")
        self.produce_seconds = metrics.histogram("broker_produce_seconds", "From a produce request to its answer")
        self.append_seconds = metrics.histogram("broker_append_seconds", "From an append's queue to its write(2)")
        self.flush_seconds = metrics.histogram("broker_flush_seconds", "An fdatasync of a log whose topic asks for it")
        self.offline_log_directories = metrics.gauge("offline_log_directories", "Log directories that have failed")
        self.full_log_directories = metrics.gauge("full_log_directories", "Log directories that lately had no space")
        self._shrinks = metrics.counter("replica_isr_shrinks", "ISR changes of leaders here that took somebody out")
        self._expands = metrics.counter("replica_isr_expands", "ISR changes of leaders here that took somebody in")
        self._chatter: dict[str, _Chatter] = {}
        self._observed = metrics.counter("replica_observed", "What befell replicas here, by kind", ("kind",))

    def produced(self, batch_count: int, size_bytes: int) -> None:
        """A produce request came."""
        self._batches.inc(batch_count)
        self._bytes.inc(size_bytes)

    def observe(self, effect: Observed) -> None:
        """Carry out `Observed`: a log line and a count."""
        kind = effect.kind
        self._observed.labels(kind).inc()
        if kind == "isr_shrunk":
            self._shrinks.inc()
        elif kind == "isr_expanded":
            self._expands.inc()
        level = logging.WARNING if kind in _ALARMING else logging.INFO if kind in _LOUD else logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        chatter = self._chatter.setdefault(kind, _Chatter())
        if chatter.admit():
            extra = {"partition": str(effect.partition), **{_field(name): text for name, text in effect.fields.items()}}
            if chatter.silenced:
                extra["silenced_before"], chatter.silenced = chatter.silenced, 0
            _log.log(level, kind, extra=extra)

    def show_replicas(self, core: BrokerQueries) -> None:
        """Compute the gauges of all replicas, and of moves, at each scrape; the core is asked on this event loop."""
        self._metrics.registry.register(_ReplicaGauges(core, asyncio.get_running_loop()))


class _ReplicaGauges(Collector):
    """Scrapes come on a thread of their own; the replicas belong to the event loop."""

    def __init__(self, core: BrokerQueries, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """The names alone: registering must not ask the event loop that it runs on."""
        return _all((), MoveTraffic(0, 0, 0))

    def collect(self) -> Iterable[Metric]:
        """The gauges as of now; none when the event loop does not answer."""
        asking = self._ask()
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the loop has ended
            asking.close()
            return ()
        try:
            return tuple(_all(*asked.result(_SCRAPE_WAIT_S)))
        except (FutureTimeoutError, asyncio.CancelledError):
            asked.cancel()
            return ()

    async def _ask(self) -> tuple[tuple[ReplicaView, ...], MoveTraffic]:
        views: list[ReplicaView] = []
        for number, partition in enumerate(self._core.partitions()):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            view = self._core.replica(partition)
            if view is not None:
                views.append(view)
        return tuple(views), self._core.move_traffic()


def _all(views: tuple[ReplicaView, ...], traffic: MoveTraffic) -> Iterator[Metric]:
    yield from _gauges(views)
    yield CounterMetricFamily(
        "tidemark_replica_reassignment_out_bytes", "Bytes sent to replicas that moves add", value=traffic.bytes_out
    )
    yield CounterMetricFamily(
        "tidemark_replica_reassignment_in_bytes",
        "Bytes that replicas added here took in",
        value=traffic.bytes_in,
    )
    yield GaugeMetricFamily(
        "tidemark_replica_throttled", "Led partitions whose moves wait for their throttle now", value=traffic.throttled
    )


def _gauges(views: tuple[ReplicaView, ...]) -> Iterator[Metric]:
    led = [view for view in views if view.role == "leader"]
    followed = [view for view in views if view.role == "follower"]
    values = {
        "count": ("Replicas here", len(views)),
        "leader_count": ("Replicas that lead", len(led)),
        "offline_count": ("Replicas whose log failed", sum(view.role == "offline" for view in views)),
        "under_replicated": ("Led partitions that lack an in-sync replica", sum(view.under_replicated for view in led)),
        "under_min_isr": ("Led partitions with fewer in sync than m", sum(len(one.isr) < one.min_isr for one in led)),
        "at_min_isr": ("Led partitions with just m in sync", sum(len(view.isr) == view.min_isr for view in led)),
        "uncommitted_records_max": (
            "Largest distance from high watermark to log end of a led partition",
            max((view.log_end_offset - view.high_watermark for view in led), default=0),
        ),
        "lag_records_max": (
            "Largest distance from high watermark to log end of a followed partition",
            max((view.log_end_offset - view.high_watermark for view in followed), default=0),
        ),
    }
    for name, (doc, value) in values.items():
        yield GaugeMetricFamily(f"tidemark_replica_{name}", doc, value=float(value))


def _field(name: str) -> str:
    """A field's name for the log: those of a log record's own must not be hidden."""
    return f"{name}_" if name in ("name", "args", "msg", "message", "module", "process", "thread") else name
