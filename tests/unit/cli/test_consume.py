"""When `consume` ends."""

from __future__ import annotations

import pytest
from tidemark.cli.consume import copy
from tidemark.cli.records import Record
from tidemark.client.records import ConsumerRecord
from tidemark.model import ErrorCode, TidemarkError


def records(count: int, first: int = 0) -> list[ConsumerRecord]:
    return [ConsumerRecord("t", 0, first + index, 0, None, b"v", ()) for index in range(count)]


class Topic:
    """Batches that come after so many seconds each; time passes only while somebody waits for them."""

    def __init__(self, *batches: tuple[float, list[ConsumerRecord]]) -> None:
        self.time_s = 0.0
        self._batches = list(batches)

    def now_s(self) -> float:
        return self.time_s

    def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        if not self._batches:
            self.time_s += timeout_s
            return []
        after_s, batch = self._batches[0]
        waited_s = min(after_s, timeout_s)
        self.time_s += waited_s
        if waited_s < after_s:
            self._batches[0] = (after_s - waited_s, batch)
            return []
        return self._batches.pop(0)[1]


class Screen:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.seen: list[int] = []

    def show(self, record: Record) -> None:
        self.offsets.append(record.offset)

    def flush(self) -> None:
        self.seen = list(self.offsets)


def test_it_ends_after_the_number_asked_for_even_within_a_batch() -> None:
    topic, screen = Topic((0.0, records(5)), (0.0, records(5, 5))), Screen()
    assert copy(topic, screen, max_records=7, timeout_s=None, now_s=topic.now_s) == 7
    assert screen.seen == list(range(7))


def test_silence_ends_it_and_each_record_starts_the_wait_anew() -> None:
    topic, screen = Topic((1.5, records(1)), (1.5, records(1, 1)), (2.5, records(1, 2))), Screen()
    assert copy(topic, screen, max_records=None, timeout_s=2.0, now_s=topic.now_s) == 2
    assert screen.seen == [0, 1]
    assert topic.time_s == pytest.approx(5.0)


def test_silence_before_the_number_asked_for_is_a_refusal_that_counts() -> None:
    topic, screen = Topic((0.0, records(3))), Screen()
    with pytest.raises(TidemarkError, match="3 of 5 records") as refused:
        copy(topic, screen, max_records=5, timeout_s=0.5, now_s=topic.now_s)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert screen.seen == [0, 1, 2]


def test_a_timeout_of_zero_takes_what_is_there() -> None:
    topic, screen = Topic((0.0, records(2))), Screen()
    assert copy(topic, screen, max_records=None, timeout_s=0.0, now_s=topic.now_s) == 2
