# SPDX-License-Identifier: Apache-2.0
"""A steady load of records with acknowledgement times of one partition, to measure a failover."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PARTITIONS = 6
RECORDS_PER_S = 2000
SIZE_BYTES = 100

Done = Callable[[object], None]
"""Called with None when a record is acknowledged, or with the error when it fails."""


class SteadyLoad:
    """Sends to every partition in turn, and records the acknowledgement times of partition 0.

    Args:
        send: sends a record to a partition; may block, which delays the following records.
    """

    def __init__(self, send: Callable[[int, Done], None]) -> None:
        self._send = send
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._acknowledged: list[tuple[float, float]] = []
        """(sent, acknowledged) in seconds of the wall clock."""
        self.failures: list[object] = []

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def first_after(self, sent_after_s: float, *, timeout_s: float) -> float:
        """Acknowledgement time of the first record of partition 0 that was sent after a recent moment."""
        looked_at = max(0, len(self._acknowledged) - RECORDS_PER_S)
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            times = [acked for sent, acked in self._acknowledged[looked_at:] if sent >= sent_after_s]
            if times:
                return min(times)
            time.sleep(0.01)
        raise RuntimeError(f"nothing acknowledged in partition 0 within {timeout_s:.0f} s")

    def _run(self) -> None:
        started_s, index = time.monotonic(), 0
        while not self._ended.wait(max(0.0, started_s + index / RECORDS_PER_S - time.monotonic())):
            self._send_one(index % PARTITIONS)
            index += 1

    def _send_one(self, partition: int) -> None:
        sent_s = time.time()

        def done(error: object) -> None:
            if error is not None:
                self.failures.append(error)
            elif partition == 0:
                self._acknowledged.append((sent_s, time.time()))

        self._send(partition, done)
