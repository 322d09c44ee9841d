# SPDX-License-Identifier: Apache-2.0
"""Known mistakes in storage (mutants), each of which a crash point must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.log.cleaning import SegmentCleaning
from tidemark.storage.log.durability import Captured, Durability
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.replayed_state import ReplayedState

from tests.crash.disk import Crash
from tests.crash.points import CrashPointError, Point, lived, points_of, try_points
from tests.unit.storage.batches import memory_directory

STEPS = 40
LIVES = 6
EACH = 5
"""Every so many points of a life are tried, in the ways in which nothing is left to chance."""

Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing(*arguments: Any, **named: Any) -> None:
    """Does nothing, in place of a required step."""


def flush_without_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Durability, "_sync_names", nothing)


def checkpoint_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directory_module, "sync_file_system", nothing)


def cut_without_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Durability, "mark_truncation", nothing)


def reset_without_a_mark_of_its_own(patch: pytest.MonkeyPatch) -> None:
    mark_truncation = Durability.mark_truncation
    patch.setattr(Durability, "mark_truncation", lambda log, cut: mark_truncation(log, cut._replace(resetting=False)))


def high_watermark_of_before_a_cut(patch: pytest.MonkeyPatch) -> None:
    capture = Durability.capture

    def unbounded(log: Durability) -> Captured | None:
        captured = capture(log)
        return captured and captured._replace(high_watermark_max=captured.log_end)

    patch.setattr(Durability, "capture", unbounded)


def front_goes_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    trim = PartitionLog.trim

    def at_once(log: PartitionLog, start_offset: Any) -> None:
        trim(log, start_offset)
        if log.has_directory:
            log.segments.release_trimmed(int(start_offset))

    patch.setattr(PartitionLog, "trim", at_once)


def cleaned_segment_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentCleaning, "make_durable", nothing)


def snapshots_outlive_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayedState, "_drop_snapshots", nothing)


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
SHOWN_BY = {cut_without_mark: 1, reset_without_a_mark_of_its_own: 1, snapshots_outlive_a_cut: 4}
"""The first lives that showed mutants, where life 0 does not; other lives follow, as other operations may need them."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


def try_lives(directory: Path, seeds: Iterable[int]) -> None:
    for seed in seeds:
        life = lived(seed, STEPS, directory)
        points: list[Point] = [
            point for point in points_of(life, draws=0) if point.crash in (Crash.KILL, Crash.STRICT) and not point.again
        ]
        try_points(life, points[::EACH], directory)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_known_mistake_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    mutant(monkeypatch)
    with pytest.raises((CrashPointError, AssertionError)):
        try_lives(directory, (SHOWN_BY.get(mutant, 0), *range(LIVES)))
