# SPDX-License-Identifier: Apache-2.0
"""A load of numbers, each written once, and a read of all numbers: for tests that stop and start brokers."""

from __future__ import annotations

from tidemark.client import Consumer, Producer
from tidemark.client.records import records_of
from tidemark.rpc.security.paths import TlsFiles

from tests.integration.harness.beside import Beside


class NumbersLoad(Beside):
    """Sends a number to each partition, round after round, with acks=all; ends on request, or when a record fails.

    `acknowledged`: partition and offset of each number, from 0 on.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, tls: TlsFiles | None = None) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failure: Exception | None = None
        self._bootstrap = bootstrap
        self._tls = tls
        self._topic = topic
        self._partitions = partitions
        super().__init__()

    def run(self) -> None:
        try:
            with Producer(self._bootstrap, tls=self._tls) as producer:
                while not self.stopping.wait(0.05):
                    first = len(self.acknowledged)
                    sent = [(number, number % self._partitions) for number in range(first, first + self._partitions)]
                    handles = [producer.send(self._topic, str(one).encode(), partition=where) for one, where in sent]
                    for (one, where), handle in zip(sent, handles, strict=True):
                        self.acknowledged[one] = (where, handle.result(60).offset)
        except Exception as error:  # noqa: BLE001 - the test reports the error, on its own thread
            self.failure = error

    def assert_nothing_lost_or_twice(self) -> None:
        """After the end, check that every acknowledged number is at its offset, and that no number occurs twice."""
        assert self.failure is None
        found = self.read()
        assert [number for number, where in self.acknowledged.items() if found.get(where) != number] == [], "lost"
        assert len(found) == len(set(found.values())), "a number is there twice"

    def read(self) -> dict[tuple[int, int], int]:
        """The number at each partition and offset, of all records."""
        with Consumer(self._bootstrap, tls=self._tls) as consumer:
            consumer.assign(self._topic)
            total = sum(consumer.end_offsets().values())
            found: dict[tuple[int, int], int] = {}
            while len(found) < total:
                batch = consumer.poll(20)
                assert batch is not None, f"{len(found)} of {total} records came"
                found |= {(one.partition, one.offset): int(one.value or b"") for one in records_of(*batch)}
        return found
