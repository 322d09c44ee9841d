# SPDX-License-Identifier: Apache-2.0
"""A checker is worth what it catches: known mistakes in storage, each found by some crash point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.log.checkpointed import Captured
from tidemark.storage.log.cleanable import CleanableLog
from tidemark.storage.log.partition_log import PartitionLog

from tests.crash.disk import Crash
from tests.crash.points import CrashPointError, Point, lived, points_of, try_points
from tests.unit.storage.batches import memory_directory

STEPS = 40
EACH = 5
"""Every so many points of a life are tried, in the ways in which nothing is left to chance."""

Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing(*arguments: Any, **named: Any) -> None:
    """In place of what should be done."""


def flush_without_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_sync_names", nothing)


def checkpoint_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directory_module, "sync_file_system", nothing)


def cut_without_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_mark_cut", nothing)


def reset_without_a_mark_of_its_own(patch: pytest.MonkeyPatch) -> None:
    mark_cut = PartitionLog._mark_cut
    patch.setattr(PartitionLog, "_mark_cut", lambda log, cut: mark_cut(log, cut._replace(resetting=False)))


def high_watermark_of_before_a_cut(patch: pytest.MonkeyPatch) -> None:
    capture = PartitionLog.capture

    def unbounded(log: PartitionLog) -> Captured | None:
        captured = capture(log)
        return captured and captured._replace(high_watermark_max=captured.log_end)

    patch.setattr(PartitionLog, "capture", unbounded)


def front_goes_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    trim = PartitionLog.trim

    def at_once(log: PartitionLog, start_offset: Any) -> None:
        trim(log, start_offset)
        if log._unmade is None:
            log._rename_trimmed(int(start_offset))

    patch.setattr(PartitionLog, "trim", at_once)


def cleaned_segment_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanableLog, "make_durable", nothing)


def snapshots_outlive_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_drop_snapshots", nothing)


MUTANTS: list[Mutant] = [
    flush_without_names,
    checkpoint_without_sync,
    cut_without_mark,
    reset_without_a_mark_of_its_own,
    high_watermark_of_before_a_cut,
    front_goes_before_the_checkpoint,
    cleaned_segment_not_synced,
    snapshots_outlive_a_cut,
]


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


def try_lives(directory: Path, lives: int) -> None:
    for seed in islice(count(), lives):
        life = lived(seed, STEPS, directory)
        points: list[Point] = [
            point for point in points_of(life, draws=0) if point.crash in (Crash.KILL, Crash.STRICT) and not point.again
        ]
        try_points(life, points[::EACH], directory)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_known_mistake_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    mutant(monkeypatch)
    with pytest.raises((CrashPointError, AssertionError)):
        try_lives(directory, 6)
