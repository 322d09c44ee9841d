# SPDX-License-Identifier: Apache-2.0
"""Crash points: a life is recorded once; the tests end it after any of its operations, by any kind of crash."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.disk import Crash, Disk, Image, read_image, write_image
from tests.crash.lives import CONFIGS, Life, Note, Version, open_directories, small_intervals
from tests.crash.recorder import Mark, Operation, Recorder, Write
from tests.crash.verdict import Moment, judge
from tests.unit.storage.batches import IDENTITY, PARTITION


class Lived(NamedTuple):
    """A complete life with its operations."""

    seed: int
    operations: Sequence[Operation]
    versions: Sequence[Version]


class Point(NamedTuple):
    """A crash after the first `after` operations; the seed `draw` decides which unsynced data the disk keeps.

    `again`: a second crash within the start that follows.
    """

    after: int
    crash: Crash
    draw: int
    again: bool = False


class CrashPointError(AssertionError):
    """A failed check; the message names the crash point, for a replay."""


def lived(seed: int, steps: int | Sequence[Callable[[Life], None]], directory: Path) -> Lived:
    """Record a life, and check that the record is complete."""
    root = directory / "life"
    root.mkdir()
    recorder = Recorder(root)
    with recorder.active(), small_intervals():
        life = Life(root, seed, recorder)
        life.live(steps)
    disk = Disk()
    for operation in recorder.operations:
        disk.apply(operation)
    assert disk.current() == read_image(root), "something changed files past the recorder"
    shutil.rmtree(root)
    return Lived(seed, recorder.operations, life.versions)


def points_of(life: Lived, *, draws: int) -> Iterator[Point]:
    """All points, rising; `draws` of each random kind of crash."""
    for after, operation in enumerate(life.operations, 1):
        if isinstance(operation, Mark):
            continue
        if isinstance(operation, Write) and len(operation.data) > 1:
            yield Point(after, Crash.TORN_KILL, 0)
        yield Point(after, Crash.KILL, 0)
        yield Point(after, Crash.STRICT, 0)
        for draw in range(draws):
            yield Point(after, Crash.ORDERED, draw)
            yield Point(after, Crash.LOOSE, draw)
        yield Point(after, Crash.KILL, 0, again=True)
        yield Point(after, Crash.ORDERED, 0, again=True)


def try_points(life: Lived, points: Iterable[Point], directory: Path) -> int:
    """Crash at each of these points, in the order of `points_of`, and check the start that follows.

    Returns the number of points.

    Raises:
        CrashPointError: a start lost durable data or had a wrong state.
    """
    disk = Disk()
    done = tried = 0
    for point in points:
        while done < point.after - 1:
            disk.apply(life.operations[done])
            done += 1
        if point.crash is Crash.TORN_KILL:
            write = life.operations[point.after - 1]
            assert isinstance(write, Write)
            image = disk.torn(write)
        else:
            if done < point.after:
                disk.apply(life.operations[done])
                done += 1
            rng = random.Random(f"{life.seed} {point.after} {point.draw}")
            image = disk.after(point.crash, rng)
            if point.again:
                image = _crashed_again(image, life.seed, point.crash, rng, directory / "image")
        _judge(life, point, image, directory / "image")
        tried += 1
    return tried


def _crashed_again(image: Image, seed: int, crash: Crash, rng: random.Random, place: Path) -> Image:
    """The disk after a crash within the start too: a kill, or a power loss after a power loss."""
    write_image(image, place)
    disk, nodes = Disk.of(image)
    recorder = Recorder(place)
    recorder.adopt(nodes)
    with recorder.active():
        logs = open_directories(place, seed)
        logs.open(PARTITION, IDENTITY, CONFIGS)
        logs.close()
    cut_short = rng.randint(0, len(recorder.operations))
    for operation in recorder.operations[:cut_short]:
        disk.apply(operation)
    left = disk.after(crash, rng)
    for operation in recorder.operations[cut_short:]:
        disk.apply(operation)
    assert disk.current() == read_image(place), "something changed files past the recorder"
    shutil.rmtree(place)
    return left


def _judge(life: Lived, point: Point, image: Image, place: Path) -> None:
    write_image(image, place)
    moment = Moment(*_notes_around(life, point.after), life.versions, point.crash, life.seed)
    try:
        judge(place, moment)
    except Exception as error:
        again = ", and again in the start after it" if point.again else ""
        operation = f"operation {point.after}, {life.operations[point.after - 1]!r:.200}"
        raise CrashPointError(
            f"life {life.seed}, {point.crash.value} (draw {point.draw}{again}) after {operation}, "
            f"between {moment.before} and {moment.after}: {error}"
        ) from error
    finally:
        shutil.rmtree(place)


def _notes_around(life: Lived, after: int) -> tuple[Note, Note]:
    earlier = (one.note for one in reversed(life.operations[:after]) if isinstance(one, Mark))
    later = (one.note for one in life.operations[after:] if isinstance(one, Mark))
    return next(earlier), next(later)
