# SPDX-License-Identifier: Apache-2.0
"""The cleaner on random logs, with buffers of any size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tidemark.model import Offset
from tidemark.storage.log.cleaner import CleanerSettings
from tidemark.storage.recovery.cleaner_point import read_clean_point
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, snapshot_path

from tests.unit.storage.batches import IDENTITY, PARTITION, checked, open_one
from tests.unit.storage.log.test_cleaner import CONFIGS, clean, cleanable_end, fill, latest_of, opened, rows_of


@pytest.mark.parametrize("seed", range(12))
def test_a_cleaned_log_holds_the_latest_record_of_each_key_at_its_offset(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs, log = opened(directory)
    fill(log, rng, 70, keys=rng.choice((3, 40, 400)))
    high_watermark = rng.randrange(int(log.log_end_offset) + 1)
    before, end = rows_of(log), cleanable_end(log, high_watermark)
    small = CleanerSettings(
        dedupe_buffer_bytes=rng.choice((600, 3000, 1 << 20)), io_buffer_bytes=rng.choice((1, 2000, 1 << 20))
    )

    done = clean(log, small, upto=high_watermark)

    assert rows_of(log) == latest_of(before, below=end)
    assert read_clean_point(directory / str(PARTITION)).offset == done.clean_point == end
    assert log.log_end_offset == before[-1][0] + 1
    for offset in rng.sample(range(int(log.log_end_offset)), 50):
        data = log.read(Offset(offset), end_offset=log.log_end_offset, max_bytes=1)
        assert data
        batch = checked(data)[0].envelope
        assert batch.next_offset > offset, "a read at a removed offset continues after it"
    assert rows_of(log) == latest_of(before, below=end)
    logs.close()

    logs, log = opened(directory)
    assert rows_of(log) == latest_of(before, below=end), "after a kill and a start"
    fill(log, rng, 30, keys=40)
    before = rows_of(log)
    clean(log, small)
    assert rows_of(log) == latest_of(before, below=cleanable_end(log, int(log.log_end_offset)))
    logs.close()


@pytest.mark.parametrize("seed", range(6))
def test_cleaning_changes_neither_epochs_nor_producers(directory: Path, seed: int) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(seed), 150)
    logs.close()
    path = directory / str(PARTITION)

    def found() -> tuple[object, object]:
        """Reopen with the batches as the only source."""
        for offset in segment_offsets(path, SNAPSHOT_SUFFIX):
            snapshot_path(path, offset).unlink()
        (path / EPOCH_FILE).unlink(missing_ok=True)
        logs = open_one(directory)
        recovered = logs.open(PARTITION, IDENTITY, CONFIGS)[1]
        assert recovered.damaged is None
        logs.close()
        return recovered.epochs, {name: entry.batches for name, entry in recovered.producers.entries.items()}

    before = found()
    logs, log = opened(directory)
    done = clean(log)
    assert done.bytes_after < done.bytes_before
    logs.close()
    assert found() == before
