# SPDX-License-Identifier: Apache-2.0
"""Numbers in a topic, sent at a steady rate; lists the acknowledged numbers, and those in a topic."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque

from tidemark.client import Producer, SendHandle
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.model import TidemarkError

_PAUSE_S = 0.05
_UNDER_WAY_MAX = 20_000
_DELIVERY_MS = 600_000


class Numbers(threading.Thread):
    """Sends 0, 1, 2, ... to the partitions in turn, `rate` a second, with acks=all, until `finish`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int) -> None:
        super().__init__(name="numbers", daemon=True)
        self.acknowledged: set[int] = set()
        self.sent = 0
        self.failures: list[str] = []
        self._enough = threading.Event()
        self._servers, self._topic = bootstrap, topic
        self._partitions, self._rate = partitions, rate
        self._under_way: deque[tuple[int, SendHandle]] = deque()

    def run(self) -> None:
        """Send until `finish`."""
        try:
            with Producer(self._servers, acks="all", delivery_timeout_ms=_DELIVERY_MS) as producer:
                began_s = time.monotonic()
                while not self._enough.wait(_PAUSE_S):
                    due = int((time.monotonic() - began_s) * self._rate)
                    while self.sent < due and len(self._under_way) < _UNDER_WAY_MAX:
                        value, partition = b"%d" % self.sent, self.sent % self._partitions
                        self._under_way.append((self.sent, producer.send(self._topic, value, partition=partition)))
                        self.sent += 1
                    self._note(done_only=True)
                self._note(done_only=False)
        except TidemarkError as error:
            self.failures.append(f"the producer could not continue: {error}")

    def _note(self, *, done_only: bool) -> None:
        while self._under_way and not (done_only and not self._under_way[0][1].done()):
            number, handle = self._under_way.popleft()
            try:
                handle.result(_DELIVERY_MS / 1000)
            except TidemarkError as error:
                self.failures.append(f"{number} was not acknowledged: {error}")
            else:
                self.acknowledged.add(number)

    def finish(self) -> None:
        """Send no more, and wait until all is acknowledged."""
        self._enough.set()
        self.join()


def count_numbers(bootstrap: str, topic: str, partitions: int, deadline_s: float) -> Counter[int]:
    found: Counter[int] = Counter()
    with RangeReader(bootstrap, deadline_s=deadline_s) as reader:
        for partition, bounds in reader.bounds(topic, range(partitions)).items():
            for rows in reader.read(topic, partition, bounds.earliest, bounds.latest):
                found.update(int(value) for value in rows.column("value").to_pylist())
    return found


def has_records(bootstrap: str, topic: str, partitions: int, deadline_s: float) -> bool:
    with RangeReader(bootstrap, deadline_s=deadline_s) as reader:
        return any(bounds.latest for bounds in reader.bounds(topic, range(partitions)).values())
