# SPDX-License-Identifier: Apache-2.0
"""Known defects in storage (mutants), each of which a crash point must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.core.replication import replica_log
from tidemark.core.replication.unstable_transactions import UncommittedEnds
from tidemark.model import Offset
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.log.aborted_index import AbortedIndex
from tidemark.storage.log.cleaning import SegmentCleaning
from tidemark.storage.log.durability import Captured, Durability
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.replayed_state import ReplayedState
from tidemark.storage.recovery import log_loader, producer_snapshot
from tidemark.storage.recovery.aborted_replay import StoredAborted
from tidemark.storage.recovery.damage import CutPoint

from tests.crash.disk import Crash
from tests.crash.points import CrashPointError, Point, lived, points_of, try_points
from tests.unit.storage.batches import memory_directory

STEPS = 40
LIVES = 7
EACH = 5
"""The test tries each fifth point of a life, by crashes without random choices."""

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


def start_without_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_loader, "_take_aborted", nothing)


def files_of_aborted_transactions_count_past_the_recovery_point(patch: pytest.MonkeyPatch) -> None:
    read = StoredAborted._read

    def trusting(stored: StoredAborted, segment: Any, recovery_point: int, *, is_complete: bool) -> None:
        read(stored, segment, 1 << 62, is_complete=is_complete)

    patch.setattr(StoredAborted, "_read", trusting)


def seal_without_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayedState, "_write_aborted", nothing)


def aborted_transactions_outlive_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AbortedIndex, "truncate", nothing)


def snapshot_without_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producer_snapshot, "_item", lambda one, entry: [one, *entry[:1], entry.last_timestamp_us, entry[1]])


def stable_offset_starts_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_log, "UncommittedEnds", lambda known_from: UncommittedEnds(Offset(0)))


def full_disk_releases_files_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Durability, "release_by_mark", lambda log, release: log._release_trimmed(release.log_start))


def full_disk_releases_files_before_the_mark_is_durable(patch: pytest.MonkeyPatch) -> None:
    mark_truncation = Durability.mark_truncation
    patch.setattr(Durability, "mark_truncation", lambda log, cut, durable=False: mark_truncation(log, cut))


def mark_of_a_full_disk_lowers_high_watermarks(patch: pytest.MonkeyPatch) -> None:
    mark_truncation = Durability.mark_truncation

    def lowering(log: Durability, cut: CutPoint, *, durable: bool = False) -> None:
        mark_truncation(log, cut._replace(end_offset=min(cut.end_offset, log._segments.end_offset)), durable=durable)

    patch.setattr(Durability, "mark_truncation", lowering)


MUTANTS: list[Mutant] = [
    flush_without_names,
    checkpoint_without_sync,
    cut_without_mark,
    reset_without_a_mark_of_its_own,
    high_watermark_of_before_a_cut,
    front_goes_before_the_checkpoint,
    cleaned_segment_not_synced,
    snapshots_outlive_a_cut,
    start_without_aborted_transactions,
    files_of_aborted_transactions_count_past_the_recovery_point,
    seal_without_aborted_transactions,
    aborted_transactions_outlive_a_cut,
    snapshot_without_open_transactions,
    stable_offset_starts_at_the_high_watermark,
    full_disk_releases_files_without_a_mark,
    full_disk_releases_files_before_the_mark_is_durable,
    mark_of_a_full_disk_lowers_high_watermarks,
]
SHOWN_BY = {
    cut_without_mark: 1,
    reset_without_a_mark_of_its_own: 1,
    cleaned_segment_not_synced: 6,
    full_disk_releases_files_without_a_mark: 3,
    full_disk_releases_files_before_the_mark_is_durable: 3,
    mark_of_a_full_disk_lowers_high_watermarks: 3,
}
"""The first life that showed each mutant that life 0 does not show; the test tries later lives too."""


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
def test_a_known_defect_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    mutant(monkeypatch)
    with pytest.raises((CrashPointError, AssertionError)):
        try_lives(directory, (SHOWN_BY.get(mutant, 0), *range(LIVES)))
