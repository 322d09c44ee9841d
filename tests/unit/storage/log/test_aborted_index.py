# SPDX-License-Identifier: Apache-2.0
"""The index of aborted transactions through appends, rolls, starts, truncation, retention and moves (rule X5)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.model import Offset
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch
from tidemark.record.transactions import AbortedBatches, AbortedTransaction
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.aborted_index import AbortedIndex
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.aborted_file import AbortedRow, read_aborted, write_aborted
from tidemark.storage.recovery.aborted_replay import aborted_row
from tidemark.storage.segments.segment import ABORTED_SUFFIX

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, make_marker, make_pending, open_one
from tests.unit.storage.batches import read_all as read_bytes

SMALL = {"segment.bytes": "4096", "index.interval.bytes": "512"}


def open_log(logs: LogManager) -> PartitionLog:
    return logs.open(PARTITION, IDENTITY, SMALL)[0]


def transactions(rng: random.Random, count: int, *, abort_share: float = 0.6) -> list[Batch]:
    """Batches of transactions that overlap, some without an end, with plain batches between them."""
    epochs = dict.fromkeys(range(1, 6), 0)
    sequences = dict.fromkeys(epochs, 0)
    batches: list[Batch] = []
    for _ in range(count):
        producer_id = rng.choice(list(epochs))
        if rng.random() < 0.3:
            batches.append(make_batch(["plain"] * rng.randint(1, 3)))
        elif rng.random() < 0.55 or not sequences[producer_id]:
            values = ["x" * rng.randint(1, 200)] * rng.randint(1, 4)
            batches.append(
                make_pending(
                    values,
                    producer_id=producer_id,
                    producer_epoch=epochs[producer_id],
                    sequence=sequences[producer_id],
                )
            )
            sequences[producer_id] += len(values)
        else:
            epochs[producer_id] += 1
            sequences[producer_id] = 0
            commit = rng.random() > abort_share
            batches.append(make_marker(producer_id=producer_id, producer_epoch=epochs[producer_id], commit=commit))
    return batches


def rows_of(batches: Sequence[Batch]) -> list[AbortedRow]:
    """The rows by a replay of stamped batches."""
    states, rows = ProducerStates(), []
    for batch in batches:
        ended = states.observe_batch(batch)
        if ended is not None and not ended.commit:
            rows.append(aborted_row(ended, states))
    return rows


def log_rows(log: PartitionLog) -> list[AbortedRow]:
    return [row for segment in log.segments.all for row in log._replayed.aborted_rows(segment)]


def stored(log: PartitionLog) -> list[Batch]:
    return list(check_batches(read_bytes(log)))


def file_rows(path: Path) -> list[AbortedRow]:
    return [row for file in sorted(path.glob(f"*{ABORTED_SUFFIX}")) for row in read_aborted(file.with_suffix(""))]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("end", ["clean", "checkpoint", "kill"])
def test_the_index_of_a_start_is_that_of_a_replay_of_the_batches(directory: Path, seed: int, end: str) -> None:
    rng = random.Random(seed)
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(rng, 90):
        lead(log, batch)
        if end != "clean" and rng.random() < 0.03:
            logs.checkpoint({})
    expected = rows_of(stored(log))
    assert expected
    assert log_rows(log) == expected
    if end == "clean":
        logs.close_clean(0, {PARTITION: log.log_end_offset})
        assert file_rows(log.path) == expected
    elif end == "checkpoint":
        logs.checkpoint({})
        assert file_rows(log.path) == expected
    logs.close()
    logs = open_one(directory)
    log = open_log(logs)
    assert log.segment_count() > 2
    assert log_rows(log) == expected
    more = transactions(rng, 20)
    for batch in more:
        lead(log, batch)
    assert log_rows(log) == rows_of(stored(log))
    logs.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_truncation_at_every_batch_keeps_the_rows_of_the_markers_below(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(rng, 60):
        lead(log, batch)
    logs.checkpoint({})
    batches = stored(log)
    for number in range(len(batches) - 1, -1, -1):
        log.truncate(Offset(batches[number].envelope.base_offset))
        expected = rows_of(batches[:number])
        assert log_rows(log) == expected
        if number % 3 == 0:  # a kill, sometimes after a checkpoint
            if number % 2:
                logs.checkpoint({})
            logs.close()
            logs = open_one(directory)
            log = open_log(logs)
            assert log_rows(log) == expected
    logs.close()


def test_other_markers_after_a_truncation_replace_the_rows_in_the_files(directory: Path) -> None:
    logs = open_one(directory)
    log = open_log(logs)
    lead(
        log,
        make_pending(["a"], producer_id=1),
        make_pending(["b"], producer_id=2),
        make_marker(producer_id=1, commit=False),
    )
    logs.checkpoint({})
    assert [row.producer_id for row in file_rows(log.path)] == [1]
    log.truncate(Offset(2))
    lead(log, make_marker(producer_id=2, commit=False), epoch=1)
    logs.close()
    logs = open_one(directory)
    log = open_log(logs)
    assert log_rows(log) == [AbortedRow(2, 1, 2, 0)]
    logs.checkpoint({})
    assert file_rows(log.path) == [AbortedRow(2, 1, 2, 0)]
    logs.close()


@pytest.mark.parametrize("damage", ["flipped", "shortened", "without its last row", "emptied"])
def test_a_damaged_file_is_rebuilt_from_the_batches(directory: Path, damage: str) -> None:
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(random.Random(3), 90):
        lead(log, batch)
    expected = log_rows(log)
    logs.close_clean(0, {PARTITION: log.log_end_offset})
    files = sorted(log.path.glob(f"*{ABORTED_SUFFIX}"))
    assert len(files) > 2
    content = files[1].read_bytes()
    damaged = {
        "flipped": bytes((*content[:9], content[9] ^ 4, *content[10:])),
        "shortened": content[:-3],
        "without its last row": content[:-40],
        "emptied": b"",
    }
    files[1].write_bytes(damaged[damage])
    logs = open_one(directory)
    log = open_log(logs)
    assert log_rows(log) == expected
    logs.checkpoint({})
    assert file_rows(log.path) == expected
    logs.close()


def test_an_abort_below_the_checkpoint_of_a_damaged_log_outlives_kills(directory: Path) -> None:
    """Life 63 of the crash points: the checkpoint covers lost records, not those that replaced them."""
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(random.Random(1), 90):
        lead(log, batch)
    logs.checkpoint({})
    end = log.log_end_offset
    log.segments.active.log_path.unlink()
    logs.close()
    for _ in range(2):
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert found.damaged is not None
        assert log.log_end_offset < end
        assert log_rows(log) == rows_of(stored(log))
        lead(log, make_pending(["new"], producer_id=9, producer_epoch=latest_of(log, 9)))
        lead(log, make_marker(producer_id=9, producer_epoch=latest_of(log, 9) + 1, commit=False))
        logs.close()
    logs = open_one(directory)
    log = open_log(logs)
    while log.log_end_offset < end:
        lead(log, make_batch(["plain"]))
    for _ in range(3):  # the first start finds the damage refetched
        assert log_rows(log) == rows_of(stored(log))
        logs.close()
        logs = open_one(directory)
        log = open_log(logs)
    assert logs.open(PARTITION, IDENTITY, SMALL)[1].damaged is None
    logs.close()


def latest_of(log: PartitionLog, producer_id: int) -> int:
    entry = log.state().producers.entries.get(producer_id)
    return 0 if entry is None else entry.producer_epoch


def test_retention_removes_the_rows_with_their_segments(directory: Path) -> None:
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(random.Random(4), 120):
        lead(log, batch)
    before = log_rows(log)
    third = log.segments.all[2].base_offset
    log.trim(Offset(third))
    assert log_rows(log) == [row for row in before if row.last_offset >= third]
    logs.checkpoint({})
    logs.close()
    logs = open_one(directory)
    log = open_log(logs)
    assert log_rows(log) == [row for row in before if row.last_offset >= third]
    assert file_rows(log.path) == log_rows(log)
    logs.close()


def test_a_reset_forgets_all_rows(directory: Path) -> None:
    logs = open_one(directory)
    log = open_log(logs)
    lead(log, make_pending(["a"], producer_id=1), make_marker(producer_id=1, commit=False))
    logs.checkpoint({})
    log.reset(Offset(100))
    assert log_rows(log) == []
    logs.close()
    logs = open_one(directory)
    assert log_rows(open_log(logs)) == []
    logs.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_look_up_finds_each_transaction_that_has_batches_in_a_range(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(rng, 150):
        lead(log, batch)
    batches, rows = stored(log), log_rows(log)
    everything = AbortedBatches(AbortedTransaction(*row[:3]) for row in rows)
    for _ in range(200):
        first = rng.randrange(len(batches))
        last = min(len(batches) - 1, first + rng.randrange(12))
        start, end = batches[first].envelope.base_offset, batches[last].envelope.next_offset
        found = log.aborted_transactions(Offset(start), Offset(end))
        assert all(one.first_offset < end and one.last_offset > start for one in found)
        named = AbortedBatches(found)
        for batch in batches[first : last + 1]:
            assert (batch.envelope in named) == (batch.envelope in everything)
    logs.close()


def test_a_look_up_does_not_read_on_past_the_transactions_of_its_range() -> None:
    index = AbortedIndex()
    for number in range(1000):
        index.add(AbortedRow(7, 10 * number, 10 * number + 5, 10 * number + 6))
    found = index.overlapping(100, 120)
    assert [one.first_offset for one in found] == [100, 110]
    assert index.overlapping(10_000, 10_010) == ()


def test_rows_are_little_endian_and_of_one_size(directory: Path) -> None:
    stem = directory / "00000000000000000000"
    write_aborted(stem, [AbortedRow(1, 2, 3, 4), AbortedRow(5, 6, 7, 8)])
    data = stem.with_suffix(ABORTED_SUFFIX).read_bytes()
    assert len(data) == 120
    assert data[4:8] == b"\1\0\0\0"
    assert data[8:40] == b"".join(number.to_bytes(8, "little") for number in (1, 2, 3, 4))
    assert data[84:] == b"".join((b"\2\0\0\0", b"\2", bytes(31)))
    assert read_aborted(stem) == [AbortedRow(1, 2, 3, 4), AbortedRow(5, 6, 7, 8)]
    write_aborted(stem, [])
    assert not stem.with_suffix(ABORTED_SUFFIX).exists()
    assert read_aborted(stem) == ()


@pytest.mark.parametrize("lost", [True, False])
def test_the_scrubber_rewrites_a_lost_or_damaged_file(directory: Path, lost: bool) -> None:
    logs = open_one(directory)
    log = open_log(logs)
    for batch in transactions(random.Random(3), 90):
        lead(log, batch)
    logs.checkpoint({})
    segment = next(one for one in log.segments.all[:-1] if read_aborted(one.stem))
    rows = read_aborted(segment.stem)
    path = segment.stem.with_suffix(ABORTED_SUFFIX)
    if lost:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert log.cleaning.heal_index(segment)
    assert read_aborted(segment.stem) == rows
    assert not log.cleaning.heal_index(segment)
    logs.close()
