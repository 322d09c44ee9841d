# SPDX-License-Identifier: Apache-2.0
"""Records of the blocking consumer, over an async client that notes the calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tidemark.client import Consumer, PartitionBatch
from tidemark.client.consuming.record_reader import RecordReader
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.sync import producer_consumer
from tidemark.model import TopicPartition
from tidemark.record.schema import OFFSET_SCHEMA


class Noting(Lifecycle):
    settings = SimpleNamespace(request_timeout_ms=1000)
    wants_back = False
    reader = RecordReader()

    def __init__(self) -> None:
        self.polled: list[PartitionBatch | BaseException] = []
        self.noted: list[Any] = []

    async def start(self) -> None:
        return

    async def close(self) -> None:
        self.noted.append("closed")

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        self.noted.append((partition.partition, offset))

    def not_done_with_last(self) -> None:
        self.noted.append("not done")


class Polling(Consumer):
    """Its polls return, or are interrupted, as the test says."""

    def __init__(self, noting: Noting) -> None:
        super().__init__("127.0.0.1:1")
        self._noting = noting

    def poll(self, timeout_s: float) -> PartitionBatch | None:
        found = self._noting.polled.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    made = Noting()
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: made)
    return made


def batch(*offsets: int) -> PartitionBatch:
    columns: dict[str, Any] = {name: [None] * len(offsets) for name in OFFSET_SCHEMA.names}
    columns |= {"offset": list(offsets), "timestamp": [0] * len(offsets)}
    return PartitionBatch("a", 2, pa.RecordBatch.from_pydict(columns, schema=OFFSET_SCHEMA))


def read(noting: Noting, count: int) -> None:
    """So many records; then an interruption."""
    with Polling(noting) as consumer:
        assert [next(consumer).offset for _ in range(count)] == list(range(107, 107 + count))
        raise KeyboardInterrupt


def test_an_interrupted_poll_gives_no_records_of_an_earlier_batch_back(noting: Noting) -> None:
    """The member may have lost the partition and taken it up again meanwhile, at a later offset."""
    noting.polled = [batch(107, 108), KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        read(noting, 3)
    assert noting.noted == ["not done", "closed"]


def test_an_interruption_on_a_record_gives_that_record_and_the_rest_back(noting: Noting) -> None:
    noting.polled = [batch(107, 108, 109)]
    with pytest.raises(KeyboardInterrupt):
        read(noting, 2)
    assert noting.noted == [(2, 108), "not done", "closed"]
