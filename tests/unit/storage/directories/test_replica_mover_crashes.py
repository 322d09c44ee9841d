# SPDX-License-Identifier: Apache-2.0
"""A kill or power loss at any file operation of a move, and at any of the start after it (rule M3).

One complete replica remains, and the move can be retried."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.model import Offset
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.directories import log_manager as manager_module
from tidemark.storage.directories.log_manager import LogManager

from tests.crash.disk import Image, read_image, write_image
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch
from tests.unit.storage.directories.moving import STEP_BYTES, Content, begin, content, move, names_in, open_in, open_two
from tests.unit.storage.kills import Killer
from tests.unit.storage.log.test_cleaner import CONFIGS, clean, fill
from tests.unit.storage.log.test_flush import StrictDisk


class ExecutorAtOnce:
    """Runs each call in the thread that submits the call, so that file operations have one order."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)

    def shutdown(self, **_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _deletions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "ThreadPoolExecutor", ExecutorAtOnce)


def made(root: Path, seed: int) -> tuple[Path, Content]:
    """A stopped replica in the first of two directories, trimmed and cleaned."""
    rng = random.Random(seed)
    path = root / "before"
    logs, log = open_in(path)
    fill(log, rng, 16, keys=6)
    clean(log)
    fill(log, rng, 6, keys=6)
    log.trim(Offset(17))
    found = content(log)
    logs.checkpoint({PARTITION: log.log_end_offset})
    logs.close()
    return path, found


def start(path: Path) -> None:
    logs = open_two(path)
    logs.open(PARTITION, IDENTITY, CONFIGS)
    logs.close()


def move_in_steps(logs: LogManager) -> None:
    future = begin(logs)
    while not future.copy(STEP_BYTES).caught_up:
        logs.checkpoint({PARTITION: future.source.log_end_offset})
    logs.mover.finish(future, future.source.log_end_offset)


def check(path: Path, before: Content) -> int:
    """Check for one complete replica that can be appended to and moved; returns its directory."""
    logs = open_two(path)
    log, found = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert found.damaged is None
    assert content(log) == before
    assert found.high_watermark == before.end
    where = logs.directory_of(PARTITION)
    assert where is not None
    log = move(logs, 1 - where)
    assert content(log) == before
    lead(log, make_batch(["after"]), epoch=90)
    after = content(log)
    logs.close()
    logs = open_two(path)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert content(log) == after
    logs.close()
    left = [[name for name in names_in(path, one) if not name.endswith("-stray")] for one in "ab"]
    assert left[1 - where] == [str(PARTITION)]
    assert left[where] == [], "leftovers of the move are deleted, except strays"
    return where


class Checker:
    """Checks images of a root with the same replica; the same files once."""

    def __init__(self, before: Content) -> None:
        self._before = before
        self._checked: dict[frozenset[tuple[str, bytes | None]], int] = {}

    def check(self, path: Path) -> int:
        """Check the files below `path`; returns the directory of the replica."""
        files = frozenset(read_image(path).items())
        if files not in self._checked:
            self._checked[files] = check(path, self._before)
        return self._checked[files]


def test_a_kill_at_any_point_of_a_move_leaves_one_whole_replica(directory: Path, killer: Killer) -> None:
    path, before = made(directory, 1)
    rng, checker = random.Random(1), Checker(before)
    images: list[Image] = []
    places: list[int] = []
    logs, _ = open_in(path)
    killer.each_point(lambda: move_in_steps(logs), lambda: images.append(read_image(path)))
    logs.close()
    for image in images:
        place = directory / "log"
        write_image(image, place)
        killer.run(lambda: start(place), at=rng.randrange(12))  # noqa: B023 - called here
        places.append(checker.check(place))
        shutil.rmtree(place)
    assert len(images) > 30
    assert places == sorted(places), "before the commit in the old directory, after it in the new one"
    assert set(places) == {0, 1}


def test_a_power_loss_at_any_point_of_a_move_leaves_one_whole_replica(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = made(directory, 0)
    disk, killer, checker = StrictDisk(monkeypatch), Killer(monkeypatch), Checker(before)
    images: list[Image] = []
    places: list[int] = []

    def sync_all(top: Path, _: object = None) -> None:
        for folder, _, names in os.walk(top, topdown=False):
            for name in (*names, "."):
                descriptor = os.open(Path(folder, name), os.O_RDONLY)
                disk.sync(descriptor)
                os.close(descriptor)

    monkeypatch.setattr(directory_module, "sync_file_system", sync_all)
    logs, _ = open_in(path)
    sync_all(path)
    killer.each_point(lambda: move_in_steps(logs), lambda: images.append(disk.image(path)))
    logs.close()
    for image in images:
        place = directory / "log"
        write_image(image, place)
        places.append(checker.check(place))
        shutil.rmtree(place)
    assert len(images) > 30
    assert set(places) == {0, 1}
