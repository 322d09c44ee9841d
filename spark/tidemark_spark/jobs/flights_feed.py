# SPDX-License-Identifier: Apache-2.0
"""Sends a year of flights to a topic, day by day, while leaders of its partitions are killed.

A year in half a minute is a million times faster than real time. While one partition has no leader for a second, the
other partitions, and with them the rollup's watermark, would advance by weeks. The feed therefore stays at most some
days ahead of the reader, which bounds the delay of every row, also during a failover.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import pandas as pd
from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.model import NO_LEADER

FIELDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "carrier": str,
    "flight": int,
    "origin": str,
    "dest": str,
    "dep_delay": int,
    "time_hour": datetime.fromisoformat,
}
"""Columns of a flight; "NA" in the CSV is null."""
SCHEMA: Final = (
    "carrier STRING NOT NULL, flight INT, origin STRING, dest STRING, dep_delay INT, time_hour TIMESTAMP NOT NULL, "
    "PRIMARY KEY (carrier)"
)
EVENT_TIME: Final = "time_hour"
_STALLED_S: Final = 240.0
_POLL_S: Final = 0.05


class StalledError(Exception):
    """No progress within the time limit; the message is one sentence."""


class Killable(Protocol):
    """The part of a local cluster that kills need."""

    def kill(self, name: str) -> None:
        """Send SIGKILL to a service."""

    def restart(self, name: str) -> None:
        """Restart a service and wait until it is SERVING."""


@dataclass(frozen=True)
class Day:
    """Flights of one day in the order of departure, cancelled flights last."""

    date: str
    records: list[dict[str, Any]]


def days_of(flights: pd.DataFrame) -> list[Day]:
    """Days in calendar order; the CSV has the months as text: 1, 10, 11, 12, 2, ..."""
    dates = flights["year"] + "-" + flights["month"].str.zfill(2) + "-" + flights["day"].str.zfill(2)
    return [Day(str(date), list(_records(of_day))) for date, of_day in flights.groupby(dates, sort=True)]


def _records(flights: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for values in flights[list(FIELDS)].itertuples(index=False, name=None):
        yield {
            name: None if text == "NA" else kind(text)
            for (name, kind), text in zip(FIELDS.items(), values, strict=True)
        }


class Feed:
    """Sends days, at most `lead_days` ahead of the reader.

    Args:
        producer: a producer with acks=all.
        topic: target topic, with `SCHEMA`.
        lead_days: number of days that may be sent and not yet read.
        read_offsets: offset of the next record to read, by partition; raises if the reader failed.
    """

    def __init__(
        self, producer: Producer, topic: str, lead_days: int, read_offsets: Callable[[], Mapping[int, int]]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._lead_days = lead_days
        self._read_offsets = read_offsets
        self._unread: deque[list[SendHandle]] = deque()
        self._ends: dict[int, int] = {}
        self.sent = 0

    def send(self, day: Day) -> None:
        """Send one day when the limit allows it."""
        while len(self._unread) >= self._lead_days:
            self._wait_until_read(self._unread.popleft())
        self._unread.append([self._producer.send(self._topic, record) for record in day.records])
        self.sent += len(day.records)

    def drain(self) -> None:
        """Wait until all flights are read."""
        while self._unread:
            self._wait_until_read(self._unread.popleft())

    def _wait_until_read(self, handles: list[SendHandle]) -> None:
        for handle in handles:
            where = handle.result(_STALLED_S)
            self._ends[where.partition] = max(self._ends.get(where.partition, 0), where.offset + 1)
        before, since_s = dict(self._read_offsets()), time.monotonic()
        while any(before.get(partition, 0) < end for partition, end in self._ends.items()):
            if time.monotonic() - since_s > _STALLED_S:
                raise StalledError(
                    f"no record was read for {_STALLED_S:.0f} s; the query is at {before} of {self._ends}"
                )
            time.sleep(_POLL_S)
            now = dict(self._read_offsets())
            if now != before:
                before, since_s = now, time.monotonic()


class LeaderKiller:
    """Kills leaders of a topic, one at a time, each after the previous leader is in every ISR again. Must be closed."""

    def __init__(self, cluster: Killable, admin: AdminClient, topic: str, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topic = topic
        self._say = say
        self._background = ThreadPoolExecutor(1, thread_name_prefix="leader-killer")
        self._recovering: Future[None] | None = None
        self.killed: list[int] = []
        """Ids of the killed brokers."""

    def __enter__(self) -> LeaderKiller:
        return self

    def __exit__(self, *error: Any) -> None:
        self._background.shutdown()

    def kill(self, partition: int) -> None:
        """Kill the leader of a partition by kill -9; a background thread restarts it."""
        self.recovered()
        leader = self._leader(partition)
        self._cluster.kill(f"broker-{leader}")
        self.killed.append(leader)
        self._say(f"kill -9 of broker {leader}, the leader of {self._topic}-{partition}")
        self._recovering = self._background.submit(self._recover, partition, leader)

    def recovered(self) -> None:
        """Wait until the last killed broker is in every ISR again; raises the error of the background thread."""
        if self._recovering is not None:
            self._recovering.result()

    def _recover(self, partition: int, killed: int) -> None:
        started_s = time.monotonic()
        _until(lambda: self._leader(partition) not in (killed, NO_LEADER), f"{self._topic}-{partition} has no leader")
        self._say(f"broker {self._leader(partition)} leads {self._topic}-{partition}, {_since(started_s)} later")
        self._cluster.restart(f"broker-{killed}")
        _until(self._is_whole, f"broker {killed} is not back in every ISR")
        self._say(f"broker {killed} is back in every ISR, {_since(started_s)} after it was killed")

    def _leader(self, partition: int) -> int:
        return self._admin.describe_topics([self._topic])[0].partitions[partition].leader

    def _is_whole(self) -> bool:
        topics = self._admin.describe_topics(self._admin.list_topics())
        return all(
            len(partition.in_sync_replicas) == len(partition.assigned_replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )


def _since(started_s: float) -> str:
    return f"{time.monotonic() - started_s:.1f} s"


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    until_s = time.monotonic() + _STALLED_S
    while not holds():
        if time.monotonic() > until_s:
            raise StalledError(f"{otherwise} after {_STALLED_S:.0f} s")
        time.sleep(_POLL_S)
