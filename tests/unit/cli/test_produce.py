"""Counting what became of the sends."""

from __future__ import annotations

from tidemark.cli.produce import Tally
from tidemark.client.records import RecordMetadata
from tidemark.model import ErrorCode, TidemarkError


class Done:
    def __init__(self, outcome: RecordMetadata | TidemarkError) -> None:
        self._outcome = outcome

    def result(self) -> RecordMetadata:
        if isinstance(self._outcome, TidemarkError):
            raise self._outcome
        return self._outcome


def test_acknowledged_records_are_counted_by_partition_and_the_first_failure_is_kept() -> None:
    tally = Tally()
    first, second = (TidemarkError(ErrorCode.REQUEST_TIMED_OUT, text) for text in ("first", "second"))
    for outcome in (RecordMetadata("t", 1, 0, 0), first, RecordMetadata("t", 1, 1, 0), second):
        tally.note(Done(outcome))
    assert (tally.acknowledged, tally.failed, dict(tally.by_partition)) == (2, 2, {1: 2})
    assert tally.first_error is first
