# SPDX-License-Identifier: Apache-2.0
"""A kill or power loss at any file operation of a cleaning, and at any of the start after it (rule L1).

No record is lost, none is doubled, and the next cleaning finishes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import IDENTITY, PARTITION, memory_directory, open_one
from tests.unit.storage.log.test_cleaner import CONFIGS, NOW_US, Row, cleanable_end, fill, latest_of, opened, rows_of
from tests.unit.storage.log.test_flush import StrictDisk

OPERATIONS = ("pwrite", "fsync", "rename", "replace", "unlink", "open")
SETTINGS = CleanerSettings(dedupe_buffer_bytes=1 << 20, io_buffer_bytes=3000)


class Killed(BaseException):
    """The process was killed: no later operation reaches a file."""


class Killer:
    """Counts operations that change files, and kills at the n-th; half of a killed write is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.count = 0
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **named)
            self.count += 1
            if self.left is not None:
                if self.left == 0 and name == "pwrite":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                if self.left <= 0:
                    self.left = -1
                    raise Killed
                self.left -= 1
            return real(*arguments, **named)

        return operation

    def run(self, work: Callable[[], object], *, at: int | None = None) -> bool:
        """Whether the work ended by itself."""
        self.left, self.count = at, 0
        try:
            work()
        except Killed:
            return False
        finally:
            self.left = None
        return True


@pytest.fixture
def root() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)


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
    assert [row for row in before if row in set(found)] == found, "no row is doubled or invented"
    assert set(after) <= set(found), "nothing is lost"
    names = {name.suffix for name in (path / str(PARTITION)).iterdir()}
    assert not names & {".cleaned", ".swap", ".tmp"}
    clean(log)
    assert rows_of(log) == after
    logs.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_point_of_a_cleaning_loses_and_doubles_nothing(root: Path, killer: Killer, seed: int) -> None:
    pristine, before, after = made(root, seed)
    rng = random.Random(seed)
    ended, at = False, 0
    while not ended:
        path = root / "log"
        shutil.copytree(pristine, path)
        logs, log = opened(path)
        ended = killer.run(lambda log=log: clean(log), at=at)  # type: ignore[misc]
        killer.run(logs.close, at=0)
        logs.close()
        killer.run(lambda: start(path), at=rng.randrange(8))  # noqa: B023 - called here
        check(path, before, after)
        shutil.rmtree(path)
        at += 1
    assert at > 10


def test_a_power_loss_at_any_point_of_a_cleaning_loses_and_doubles_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pristine, before, after = made(root, 0)
    disk, killer = StrictDisk(monkeypatch), Killer(monkeypatch)
    ended, at = False, 0
    while not ended:
        path, later = root / "log", root / "later"
        shutil.copytree(pristine, path)
        logs, log = opened(path)
        for directory, _, names in os.walk(path, topdown=False):
            for name in (*names, "."):
                descriptor = os.open(Path(directory, name), os.O_RDONLY)
                disk.sync(descriptor)
                os.close(descriptor)
        ended = killer.run(lambda log=log: clean(log), at=at)  # type: ignore[misc]
        disk.after_power_loss(path, later)
        logs.close()
        check(later, before, after)
        shutil.rmtree(path)
        shutil.rmtree(later)
        at += 1
    assert at > 10
