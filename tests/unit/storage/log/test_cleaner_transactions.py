# SPDX-License-Identifier: Apache-2.0
"""Transactions in compacted logs (rule X6): at any kill, a read_committed reader sees the latest committed records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.model import Offset
from tidemark.record.envelope import Batch
from tidemark.record.markers import may_be_marker
from tidemark.record.transactions import AbortedBatches, has_records
from tidemark.storage.inspect.committed import committed_part
from tidemark.storage.inspect.inspection import Good, read_log
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_marker, open_one
from tests.unit.storage.log.test_aborted_index import log_rows
from tests.unit.storage.log.test_cleaner import (
    CONFIGS,
    NOW_US,
    Row,
    _rows_in,
    batches_of,
    cleanable_end,
    keyed,
    latest_of,
    opened,
    rows_of,
)

SETTINGS = CleanerSettings(delete_retention_ms=5000, dedupe_buffer_bytes=1 << 20, io_buffer_bytes=3000)


class Sender:
    """Appends records with keys, in transactions of several producers and outside of any."""

    def __init__(self, log: PartitionLog, rng: random.Random, *, producers: Sequence[int] = (1, 2, 3)) -> None:
        self.log = log
        self.rng = rng
        self.epochs = dict.fromkeys(producers, 0)
        self.sequences = dict.fromkeys(producers, 0)

    def send(self, batches: int) -> None:
        for _ in range(batches):
            producer_id = self.rng.choice(list(self.epochs))
            sequence = self.sequences[producer_id]
            records = [
                (b"key-%d" % self.rng.randrange(8), self.rng.randbytes(self.rng.randrange(60)))
                for _ in range(self.rng.randrange(1, 6))
            ]
            if self.rng.random() < 0.2:
                lead(self.log, keyed(records))
            elif sequence and self.rng.random() < 0.4:
                self.end(producer_id, commit=self.rng.random() < 0.5)
            else:
                named = {"producer_id": producer_id, "producer_epoch": self.epochs[producer_id]}
                lead(self.log, keyed(records, base_sequence=sequence, pending=True, **named))
                self.sequences[producer_id] += len(records)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.epochs[producer_id] += 1
        self.sequences[producer_id] = 0
        lead(self.log, make_marker(producer_id=producer_id, producer_epoch=self.epochs[producer_id], commit=commit))

    def end_all(self) -> None:
        for producer_id, sequence in self.sequences.items():
            if sequence:
                self.end(producer_id, commit=self.rng.random() < 0.5)


def replayed(batches: Sequence[Batch]) -> ProducerStates:
    states = ProducerStates()
    for batch in batches:
        states.observe_batch(batch)
    return states


def stable_offset(log: PartitionLog) -> int:
    first = ProducerStates(log.state().producers.entries).first_open_offset
    return int(log.log_end_offset) if first is None else first


def seen(log: PartitionLog, batches: Sequence[Batch] | None = None) -> list[Row]:
    """The rows of a read_committed reader up to the last stable offset; `batches`: all of the log."""
    end = stable_offset(log)
    stable = [batch for batch in batches or batches_of(log) if batch.envelope.next_offset <= end]
    aborted = AbortedBatches(log.aborted_transactions(Offset(0), Offset(end)))
    return [row for batch in stable if has_records(batch.envelope, aborted) for row in _rows_in(bytes(batch.data))]


def clean(log: PartitionLog, *, now_us: int = NOW_US) -> None:
    clean_log(log, stable_offset(log), SETTINGS, now_us=now_us, pace=lambda _: None)


def check_whole(log: PartitionLog, batches: Sequence[Batch] | None = None) -> None:
    """A replay of the rest has the open transactions of before, and each row has its marker."""
    batches = batches or batches_of(log)
    states, known = replayed(batches), ProducerStates(log.state().producers.entries)
    assert states.open_producers == known.open_producers
    assert states.first_open_offset == known.first_open_offset
    markers = {one.envelope.base_offset for one in batches if may_be_marker(one.envelope)}
    assert {row.last_offset for row in log_rows(log)} <= markers


def dumped(log: PartitionLog) -> list[Row]:
    """The rows that `log dump --committed` prints below the last stable offset, from the files alone."""
    part, end = committed_part(log.path), stable_offset(log)
    good = [piece.batch for _, piece in read_log(log.path) if isinstance(piece, Good)]
    found = [one for one in good if part.has(one.envelope) and one.envelope.next_offset <= end]
    return [row for batch in found for row in _rows_in(bytes(batch.data))]


@pytest.mark.parametrize("seed", range(4))
def test_a_read_committed_reader_sees_the_latest_committed_record_of_each_key(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs, log = opened(directory)
    sender = Sender(log, rng)
    for number in range(3):
        sender.send(45)
        before, end = seen(log), cleanable_end(log, stable_offset(log))
        clean(log, now_us=NOW_US + number * 6_000_000)
        assert seen(log) == latest_of(before, below=end)
        assert dumped(log) == seen(log)
        check_whole(log)
        rows = log_rows(log)
        logs.checkpoint({PARTITION: log.log_end_offset})
        logs.close()
        logs = open_one(directory)
        log = sender.log = logs.open(PARTITION, IDENTITY, CONFIGS)[0]
        assert log_rows(log) == rows
        assert seen(log) == latest_of(before, below=end)
        check_whole(log)
    logs.close()


def test_records_of_aborted_transactions_replace_nothing_and_leave(directory: Path) -> None:
    logs, log = opened(directory)
    lead(log, keyed([(b"k", b"kept")]))
    lead(
        log,
        keyed(
            [(b"k", b"aborted"), (b"only", b"aborted")], producer_id=1, producer_epoch=0, base_sequence=0, pending=True
        ),
    )
    lead(log, make_marker(producer_id=1, commit=False))
    lead(log, keyed([(b"filler", bytes(4000))]), keyed([(b"active", b"")]))
    clean(log)
    values = [value for _, _, value in rows_of(log)]
    assert b"kept" in values
    assert b"aborted" not in values
    logs.close()


def test_the_cleaner_stops_at_the_last_stable_offset(directory: Path) -> None:
    logs, log = opened(directory)
    sender = Sender(log, random.Random(1), producers=(1,))
    lead(log, keyed([(b"open", b"")], producer_id=9, producer_epoch=0, base_sequence=0, pending=True))
    sender.send(80)
    before = rows_of(log)
    assert log.segment_count() > 3
    clean(log)
    assert rows_of(log) == before
    lead(log, make_marker(producer_id=9))
    clean(log)
    assert rows_of(log) != before
    logs.close()


def test_a_marker_leaves_once_its_transaction_has_and_the_retention_has_passed(directory: Path) -> None:
    logs, log = opened(directory)
    sender = Sender(log, random.Random(2))
    sender.send(60)
    sender.end_all()
    lead(log, keyed([(b"key-%d" % key, b"latest") for key in range(8)]))
    lead(log, keyed([(b"filler", bytes(4000))]), keyed([(b"active", b"")]))

    def markers() -> int:
        return sum(may_be_marker(batch.envelope) for batch in batches_of(log))

    at_first = markers()
    assert at_first > 6
    clean(log)
    clean(log, now_us=NOW_US + 4_900_000)
    assert markers() == at_first, "the retention of their horizon has not passed"
    clean(log, now_us=NOW_US + 5_100_000)
    left = markers()
    assert 3 <= left < at_first
    last = {batch.envelope.producer_id: batch for batch in batches_of(log) if may_be_marker(batch.envelope)}
    assert set(last) == {1, 2, 3}, "the last marker of a known producer fences its late batches"
    check_whole(log)
    log.adopt(log.state()._replace(producers=ProducerStates()), log.cleaning.point)  # all producers expired
    clean(log, now_us=NOW_US + 6_000_000)
    clean(log, now_us=NOW_US + 20_000_000)
    assert markers() < left
    assert not replayed(batches_of(log)).open_producers
    logs.close()


@pytest.mark.parametrize("truncated", [True, False])
def test_a_snapshot_from_before_a_cleaning_opens_no_transaction_whose_marker_was_removed(
    directory: Path, truncated: bool
) -> None:
    logs, log = opened(directory)
    plain = [keyed([(b"key", b"value")]) for _ in range(12)]
    lead(log, *plain[:2])
    lead(log, keyed([(b"key", b"aborted")], base_sequence=0, pending=True, producer_id=1, producer_epoch=0))
    for batch in plain:  # a roll writes a snapshot with the open transaction
        lead(log, batch)
    logs.checkpoint({PARTITION: log.log_end_offset})
    lead(log, make_marker(producer_id=1, producer_epoch=1, commit=False))
    end = lead(log, keyed([(b"other", b"value")]))
    for batch in plain:
        lead(log, batch)
    clean(log)
    log._replayed._producers = ProducerStates()  # the producer has expired
    for passed_s in (0, 10):
        clean(log, now_us=NOW_US + passed_s * 1_000_000)
    assert not any(may_be_marker(batch.envelope) for batch in batches_of(log))
    if truncated:
        log.truncate(Offset(end))  # as after an unclean election
    else:
        logs.close()
        logs = open_one(directory)
        log = logs.open(PARTITION, IDENTITY, CONFIGS)[0]
    assert ProducerStates(log.state().producers.entries).open_producers == ()
    check_whole(log)
    logs.close()


@pytest.mark.parametrize("truncated", [True, False])
def test_a_replay_across_the_clean_point_knows_producers_below_the_log_start(directory: Path, truncated: bool) -> None:
    """Regression: the states of producers in deleted segments were lost, as were their coordinator epochs."""
    logs, log = opened(directory)
    plain = [keyed([(b"key", b"value")]) for _ in range(12)]
    lead(log, keyed([(b"key", b"value")], base_sequence=0, producer_id=5, producer_epoch=0))
    end = [lead(log, batch) for batch in plain][-1]  # a roll writes a snapshot
    log.trim(Offset(end - 1))
    logs.checkpoint({PARTITION: Offset(end)})
    for batch in plain * 2:
        lead(log, batch)
    clean(log)
    assert log.segments.all[0].base_offset > 0
    if truncated:
        log.truncate(Offset(end))  # as after an unclean election
    else:
        logs.close()
        logs = open_one(directory)
        log = logs.open(PARTITION, IDENTITY, CONFIGS)[0]
    assert log.state().producers.entries[5].batches[-1].last_sequence == 0
    logs.close()
