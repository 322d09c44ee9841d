# SPDX-License-Identifier: Apache-2.0
"""A kill or power loss at any file operation of a cleaning, and at any of the start after it (rule L1).

No record is lost, none is doubled, and the next cleaning finishes."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog

from tests.crash.disk import Image, read_image, write_image
from tests.unit.storage.batches import IDENTITY, PARTITION, open_one
from tests.unit.storage.kills import Killer
from tests.unit.storage.log.test_cleaner import CONFIGS, NOW_US, Row, cleanable_end, fill, latest_of, opened, rows_of
from tests.unit.storage.log.test_flush import StrictDisk

SETTINGS = CleanerSettings(dedupe_buffer_bytes=1 << 20, io_buffer_bytes=3000)


def made(root: Path, seed: int) -> tuple[Path, list[Row], list[Row]]:
    """A stopped log after one cleaning, its rows, and the rows that the next cleaning must leave."""
    path = root / "before"
    logs, log = opened(path)
    rng = random.Random(seed)
    fill(log, rng, 25, keys=8)
    clean(log)
    fill(log, rng, 25, keys=8)
    logs.checkpoint({PARTITION: log.log_end_offset})
    before = rows_of(log)
    after = latest_of(before, below=cleanable_end(log, int(log.log_end_offset)))
    logs.close()
    assert len(after) < len(before)
    return path, before, after


def clean(log: PartitionLog) -> None:
    clean_log(log, log.log_end_offset, SETTINGS, now_us=NOW_US, pace=lambda _: None)


def start(path: Path) -> None:
    logs = open_one(path)
    logs.open(PARTITION, IDENTITY, CONFIGS)
    logs.close()


def check(path: Path, before: list[Row], after: list[Row]) -> None:
    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged is None
    found = rows_of(log)
    kept = set(found)
    assert [row for row in before if row in kept] == found, "no row is doubled or invented"
    assert set(after) <= kept, "nothing is lost"
    names = {name.suffix for name in (path / str(PARTITION)).iterdir()}
    assert not names & {".cleaned", ".swap", ".tmp"}
    clean(log)
    assert rows_of(log) == after
    logs.close()


class Checker:
    """Checks the rest of a log; the same files once."""

    def __init__(self, before: list[Row], after: list[Row]) -> None:
        self._before, self._after = before, after
        self._checked: set[frozenset[tuple[str, bytes | None]]] = set()

    def check(self, path: Path) -> None:
        files = frozenset(read_image(path).items())
        if files not in self._checked:
            check(path, self._before, self._after)
            self._checked.add(files)


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_point_of_a_cleaning_loses_and_doubles_nothing(
    directory: Path, killer: Killer, seed: int
) -> None:
    path, before, after = made(directory, seed)
    rng, checker = random.Random(seed), Checker(before, after)
    images: list[Image] = []
    logs, log = opened(path)
    killer.each_point(lambda: clean(log), lambda: images.append(read_image(path)))
    logs.close()
    for image in images:
        place = directory / "log"
        write_image(image, place)
        killer.run(lambda place=place: start(place), at=rng.randrange(8))  # type: ignore[misc]
        checker.check(place)
        shutil.rmtree(place)
    assert len(images) > 10


def test_a_power_loss_at_any_point_of_a_cleaning_loses_and_doubles_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before, after = made(directory, 0)
    disk, killer, checker = StrictDisk(monkeypatch), Killer(monkeypatch), Checker(before, after)
    places: list[Path] = []
    logs, log = opened(path)
    for folder, _, names in os.walk(path, topdown=False):
        for name in (*names, "."):
            descriptor = os.open(Path(folder, name), os.O_RDONLY)
            disk.sync(descriptor)
            os.close(descriptor)

    def lose_power() -> None:
        places.append(directory / f"later-{len(places)}")
        disk.after_power_loss(path, places[-1])

    killer.each_point(lambda: clean(log), lose_power)
    logs.close()
    for place in places:
        checker.check(place)
        shutil.rmtree(place)
    assert len(places) > 10
