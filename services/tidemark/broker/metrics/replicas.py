# SPDX-License-Identifier: Apache-2.0
"""Metrics of replicas, computed for each scrape.

The event loop owns the replicas, so their figures are read there in slices. The thread of the scrape computes sums and
writes the text, tens of thousands of lines.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final, NamedTuple

from tidemark.broker.metrics.disks import DiskFigures, read_disks
from tidemark.core.replication.context import MoveTraffic
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica_stats import FollowerFigures, LeaderFigures, ReplicaFigures
from tidemark.model import BrokerId, TopicPartition
from tidemark.runtime.metrics_text import counter, family, gauge, header, labels
from tidemark.runtime.slices import Pace
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

_SCRAPE_WAIT_S: Final = 2.0
_OF_EACH: Final = ("tidemark_partition_", "tidemark_replica_follower_")

Led = list[tuple[ReplicaFigures, LeaderFigures]]


class _Lag:
    """Lag of one follower: sums and maxima."""

    __slots__ = ("records", "records_max", "size_bytes", "size_bytes_max", "time_max_ms")

    def __init__(self) -> None:
        self.records = self.records_max = self.size_bytes = self.size_bytes_max = self.time_max_ms = 0

    def add(self, records: int, size_bytes: int, time_ms: int) -> None:
        if records:
            self.records += records
            self.records_max = max(self.records_max, records)
            self.size_bytes += size_bytes
            self.size_bytes_max = max(self.size_bytes_max, size_bytes)
        if time_ms > self.time_max_ms:
            self.time_max_ms = time_ms


class _Behind(NamedTuple):
    """A follower of one partition, and the bytes that it lacks."""

    partition: TopicPartition
    follower: FollowerFigures
    lag_bytes: int


class ReplicaMetrics:
    """A source of metrics as text.

    Args:
        broker_id: id of this broker.
        logs: the log manager; read on the thread of the scrape.
        now_ms: the clock of the core's events.
        on_scrape: called on the event loop at each scrape with the partitions of this broker's replicas.

    Attributes:
        partitions: whether metrics of each partition are written (`metrics.partitions`).
    """

    def __init__(
        self,
        broker_id: BrokerId,
        queries: BrokerQueries,
        logs: LogManager,
        now_ms: Callable[[], int],
        on_scrape: Callable[[Collection[TopicPartition]], None] = lambda partitions: None,
    ) -> None:
        self.partitions = True
        self._broker_id = broker_id
        self._queries = queries
        self._logs = logs
        self._now_ms = now_ms
        self._on_scrape = on_scrape
        self._loop = asyncio.get_running_loop()
        self._labels: dict[TopicPartition, str] = {}

    def render(self, names: Collection[str] = ()) -> str:
        """The current families. Families of each partition are omitted if `names` requests only other families.
        Families of replicas are missing when the event loop does not answer in time.
        """
        disks = read_disks(self._logs)
        asking = self._ask()
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the event loop has ended
            asking.close()
            return disks.text
        try:
            rows, traffic = asked.result(_SCRAPE_WAIT_S)
        except (FutureTimeoutError, asyncio.CancelledError):
            asked.cancel()
            return disks.text
        led: Led = [(row, row.led) for row in rows if row.led is not None]
        behind = _behind(led, disks.logs)
        parts = [disks.text, *_counts(rows, led), *_lags(rows, led, behind), *_moves(led, behind, traffic)]
        if self.partitions and (not names or any(name.startswith(_OF_EACH) for name in names)):
            parts += self._each(rows, led, behind, disks)
        return "".join(parts)

    async def _ask(self) -> tuple[list[ReplicaFigures], MoveTraffic]:
        pace, rows, queries, now_ms = Pace(), [], self._queries, self._now_ms()
        partitions = queries.partitions()
        self._on_scrape(partitions)
        for partition in partitions:
            if pace.is_due:
                await pace.give_way()
            figures = queries.figures(partition, now_ms)
            if figures is not None:
                rows.append(figures)
        return rows, queries.move_traffic()

    def _each(
        self,
        rows: Sequence[ReplicaFigures],
        led: Led,
        behind: Sequence[_Behind],
        disks: DiskFigures,
    ) -> Iterable[str]:
        known = self._labels
        of = [known.get(row.partition) or _label(row.partition) for row in rows]
        self._labels = label_of = dict(zip([row.partition for row in rows], of, strict=True))
        yield from _each_replica(rows, of)
        sized = [row.partition for row in rows if row.partition in disks.logs]
        sized_of = [label_of[partition] for partition in sized]
        sizes = [disks.sizes[partition] for partition in sized]
        yield _many("log_size_bytes", "Size of the log", sized_of, sizes)
        counts = [disks.logs[partition].segment_count() for partition in sized]
        yield _many("log_segments", "Segments of the log", sized_of, counts)
        led_of = [label_of[row.partition] for row, _ in led]
        yield _many("leader", "Id of the leader", led_of, [self._broker_id] * len(led))
        yield from _each_led(led, led_of)
        yield from _each_follower(behind, label_of)


def _behind(led: Led, logs: dict[TopicPartition, PartitionLog]) -> list[_Behind]:
    found = []
    for row, leader in led:
        for one in leader.followers:
            log = logs.get(row.partition) if one.lag_records else None
            found.append(_Behind(row.partition, one, log.bytes_from(one.from_offset) if log is not None else 0))
    return found


def _counts(rows: Sequence[ReplicaFigures], led: Led) -> Iterable[str]:
    values = {
        "count": ("Replicas on this broker", len(rows)),
        "leader_count": ("Replicas that are leaders", len(led)),
        "offline_count": ("Replicas whose log failed", sum([row.offline for row in rows])),
        "under_replicated": (
            "Led partitions that lack an in-sync replica",
            sum([one.under_replicated for _, one in led]),
        ),
        "under_min_isr": (
            "Led partitions whose ISR is smaller than min.insync.replicas",
            sum([one.isr_count < one.min_isr for _, one in led]),
        ),
        "at_min_isr": (
            "Led partitions that lack an in-sync replica and whose ISR has exactly min.insync.replicas members",
            sum([_at_min_isr(one) for _, one in led]),
        ),
        "reassigning": (
            "Led partitions to which a reassignment adds replicas",
            sum([one.reassigning for _, one in led]),
        ),
        "uncommitted_records_max": (
            "Most records between high watermark and log end of a led partition",
            max([row.log_end_offset - row.high_watermark for row, _ in led], default=0),
        ),
        "unstable_records_max": (
            "Most records between last stable offset and high watermark of a led partition",
            max([one.unstable_records for _, one in led], default=0),
        ),
        "high_watermark_stalled_seconds_max": (
            "Longest time since the high watermark of a led partition advanced, while its log end is ahead",
            max([one.uncommitted_ms for _, one in led], default=0) / 1000,
        ),
    }
    for name, (doc, value) in values.items():
        yield gauge(f"tidemark_replica_{name}", doc, value)


def _at_min_isr(led: LeaderFigures) -> bool:
    return led.under_replicated and led.isr_count == led.min_isr


def _lags(rows: Sequence[ReplicaFigures], led: Led, behind: Sequence[_Behind]) -> Iterable[str]:
    """Followers that a reassignment adds are not counted as lagging; `_moves` has their figures."""
    each: defaultdict[BrokerId, _Lag] = defaultdict(_Lag)
    for _, one, lag_bytes in behind:
        if not one.adding:
            each[one.broker_id].add(one.lag_records, lag_bytes, one.lag_ms)
    records_max = max([lag.records_max for lag in each.values()], default=0)
    size_bytes_max = max([lag.size_bytes_max for lag in each.values()], default=0)
    time_max_ms = max([lag.time_max_ms for lag in each.values()], default=0)
    fetch_lag = max([row.fetch_lag_records for row in rows], default=0)
    led_here = "follower of a led partition"
    yield gauge("tidemark_replica_lag_records_max", f"Most records that a {led_here} lacks", records_max)
    yield gauge("tidemark_replica_lag_bytes_max", f"Most bytes that a {led_here} lacks", size_bytes_max)
    doc = f"Longest time since a {led_here} was caught up"
    yield gauge("tidemark_replica_lag_seconds_max", doc, time_max_ms / 1000)
    of = {labels(follower=str(broker_id)): lag for broker_id, lag in sorted(each.items())}
    records = {label: lag.records for label, lag in of.items()}
    yield family(
        "tidemark_replica_lag_records", "gauge", "Records that the follower lacks, of all led partitions", records
    )
    size_bytes = {label: lag.size_bytes for label, lag in of.items()}
    yield family(
        "tidemark_replica_lag_bytes", "gauge", "Bytes that the follower lacks, of all led partitions", size_bytes
    )
    seconds = {label: lag.time_max_ms / 1000 for label, lag in of.items()}
    doc = "Longest time since the follower was caught up with a led partition"
    yield family("tidemark_replica_lag_seconds", "gauge", doc, seconds)
    doc = "Most records below the leader's high watermark that a follower on this broker lacks"
    yield gauge("tidemark_replica_fetch_lag_records_max", doc, fetch_lag)


def _moves(led: Led, behind: Sequence[_Behind], traffic: MoveTraffic) -> Iterable[str]:
    name = "tidemark_replica_reassignment"
    left = sum([one.lag_bytes for one in behind if one.follower.adding])
    yield counter(f"{name}_out_bytes_total", "Bytes sent to replicas that reassignments add", traffic.bytes_out)
    yield counter(f"{name}_in_bytes_total", "Bytes that replicas added on this broker appended", traffic.bytes_in)
    yield gauge(f"{name}_remaining_bytes", "Bytes that replicas added by reassignments still lack", left)
    doc = "The lowest throttle of a reassignment of a led partition; 0 for none"
    yield gauge(f"{name}_throttle_bytes_per_second", doc, traffic.throttle_bytes_per_s)
    doc = "Led partitions whose reassignment now waits for its throttle"
    yield gauge("tidemark_replica_throttled", doc, traffic.throttled)
    doc = "Bytes that followers on this broker appended"
    yield counter("tidemark_broker_replicated_in_bytes_total", doc, traffic.replicated_bytes_in)


def _each_replica(rows: Sequence[ReplicaFigures], of: Sequence[str]) -> Iterable[str]:
    yield _many("leader_epoch", "Leader epoch of the replica", of, [row.leader_epoch for row in rows])
    yield _many("is_leader", "1 if the replica is the leader", of, [int(row.led is not None) for row in rows])
    yield _many("is_offline", "1 if its log has failed", of, [int(row.offline) for row in rows])
    yield _many("log_start_offset", "Log start offset", of, [row.log_start_offset for row in rows])
    doc = "End of the committed records, exclusive"
    yield _many("high_watermark", doc, of, [row.high_watermark for row in rows])
    yield _many("log_end_offset", "End of the appended records, exclusive", of, [row.log_end_offset for row in rows])
    doc = "Records between high watermark and log end"
    yield _many("uncommitted_records", doc, of, [row.log_end_offset - row.high_watermark for row in rows])


def _each_led(led: Led, of: Sequence[str]) -> Iterable[str]:
    preferred = [int(one.preferred) for _, one in led]
    yield _many("leader_is_preferred", "1 if the leader is the first of the assigned replicas", of, preferred)
    yield _many("replicas", "Assigned replicas", of, [row.replica_count for row, _ in led])
    yield _many("in_sync_replicas", "Members of the ISR", of, [one.isr_count for _, one in led])
    yield _many("min_in_sync_replicas", "min.insync.replicas", of, [one.min_isr for _, one in led])
    doc = "1 if a replica is not in sync, apart from replicas that a reassignment adds"
    yield _many("under_replicated", doc, of, [int(one.under_replicated) for _, one in led])
    doc = "1 if the ISR is smaller than min.insync.replicas"
    yield _many("under_min_isr", doc, of, [int(one.isr_count < one.min_isr) for _, one in led])
    doc = "1 if a replica is not in sync and the ISR has exactly min.insync.replicas members"
    yield _many("at_min_isr", doc, of, [int(_at_min_isr(one)) for _, one in led])
    doc = "Records between last stable offset and high watermark"
    yield _many("unstable_records", doc, of, [one.unstable_records for _, one in led])
    doc = "Time since the high watermark advanced, while the log end is ahead"
    yield _many("high_watermark_stalled_seconds", doc, of, [one.uncommitted_ms / 1000 for _, one in led])


def _each_follower(behind: Sequence[_Behind], label_of: dict[TopicPartition, str]) -> Iterable[str]:
    of = [f'{label_of[one.partition][:-1]},follower="{one.follower.broker_id}"}}' for one in behind]
    name = "tidemark_replica_follower_lag"
    records = [one.follower.lag_records for one in behind]
    yield header(f"{name}_records", "gauge", "Records that the follower lacks") + _lines(f"{name}_records", of, records)
    size_bytes = [one.lag_bytes for one in behind]
    yield header(f"{name}_bytes", "gauge", "Bytes that the follower lacks") + _lines(f"{name}_bytes", of, size_bytes)
    seconds = [one.follower.lag_ms / 1000 for one in behind]
    doc = "Time since the follower was last caught up"
    yield header(f"{name}_seconds", "gauge", doc) + _lines(f"{name}_seconds", of, seconds)


def _many(name: str, doc: str, of: Sequence[str], values: Sequence[float]) -> str:
    name = f"tidemark_partition_{name}"
    return header(name, "gauge", doc) + _lines(name, of, values)


def _lines(name: str, of: Sequence[str], values: Sequence[float]) -> str:
    return "".join([f"{name}{label} {value}\n" for label, value in zip(of, values, strict=True)])


def _label(partition: TopicPartition) -> str:
    return labels(topic=partition.topic, partition=str(partition.partition))
