# SPDX-License-Identifier: Apache-2.0
"""Rule T5 for a torn tail of any length, and for flips, truncation and deletion in all files of one log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import check_batches

from tests.unit.storage.batches import IDENTITY, PARTITION, open_one
from tests.unit.storage.recovery.damaging import (
    CHECKPOINTED,
    CONFIGS,
    cut_file,
    ends,
    flip,
    in_copy,
    read_one,
    replica,
    segments,
)


def test_a_torn_tail_of_any_length_is_truncated_and_is_no_damage(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    last = segments(path)[-1]
    size = last.stat().st_size
    assert int(last.stem) < 30
    for cut in range(1, 200):
        name = last.name
        outcome = in_copy(path, lambda copy, name=name, cut=cut: cut_file(replica(copy) / name, size - cut))
        assert not isinstance(outcome, TidemarkError)
        recovered, content = outcome
        assert (recovered.log_end_offset, recovered.damaged, recovered.high_watermark) == (30, None, 18)
        assert content == whole[: ends(whole)[30]]


def test_a_flipped_byte_above_the_recovery_point_is_found(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    sizes = ends(whole)
    base = 0
    for segment in segments(path):
        length = segment.stat().st_size
        for position in range(0, length, 29):
            offset = next(end - 2 for end, size in sizes.items() if size > base + position)
            if offset < CHECKPOINTED:
                continue  # below the recovery point nothing is scanned
            outcome = in_copy(path, lambda copy, n=segment.name, p=position: flip(replica(copy) / n, p))
            assert not isinstance(outcome, TidemarkError)
            recovered, content = outcome
            assert content == whole[: len(content)]
            assert recovered.log_end_offset == offset
            assert (recovered.damaged is None) == (offset == 30), (offset, recovered.damaged)
        base += length


@pytest.mark.parametrize("state", ["killed", "stopped"])
def test_a_flipped_byte_below_the_recovery_point_is_never_read_as_valid(
    state: str, request: pytest.FixtureRequest
) -> None:
    path, whole = request.getfixturevalue(state)
    first = segments(path)[0]
    good = check_batches(whole)
    for position in range(0, first.stat().st_size, 31):
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        flip(replica(copy) / first.name, position)
        logs = open_one(copy)
        log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
        for offset in range(log.log_end_offset):
            batch = read_one(log, offset)
            assert batch in (ErrorCode.STORAGE_ERROR, ErrorCode.CORRUPT_BATCH, ErrorCode.INVALID_BATCH) or (
                batch == good[offset // 2]
            )
        logs.close()
        shutil.rmtree(copy)


@pytest.mark.parametrize("state", ["killed", "stopped"])
def test_damaged_truncated_or_deleted_small_files_are_rewritten_or_refused(
    state: str, request: pytest.FixtureRequest
) -> None:
    path, whole = request.getfixturevalue(state)
    files = [file.relative_to(path) for file in path.rglob("*") if file.is_file() and file.suffix != ".log"]
    names = {file.name for file in files}
    assert {"meta.json", "partition.json", "leader-epoch-checkpoint", "recovery-point-checkpoint"} <= names
    for file in files:
        size = (path / file).stat().st_size
        spoils: list[Callable[[Path], object]] = [lambda copy, f=file: (copy / f).unlink()]
        spoils += [lambda copy, f=file, p=p: flip(copy / f, p) for p in range(0, size, max(1, size // 12))]
        spoils += [lambda copy, f=file, p=p: cut_file(copy / f, p) for p in range(0, size, max(1, size // 5))]
        for spoil in spoils:
            outcome = in_copy(path, spoil)
            if isinstance(outcome, TidemarkError):
                assert file.name == "meta.json", (file, outcome)
                assert "restore the file" in outcome.message.lower()
                continue
            recovered, content = outcome
            if file.name == "partition.json" and recovered.fresh:
                assert recovered.damaged
                assert content == b""
                continue
            assert content == whole, file
            assert recovered.damaged is None, file
            assert recovered.epochs == ((0, 0), (1, 8), (2, 16), (3, 24)), file
            assert recovered.producers.entries[4].batches[-1].last_sequence == 31, file
            assert recovered.high_watermark in (0, 18, 30)
