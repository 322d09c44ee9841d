# SPDX-License-Identifier: Apache-2.0
"""A cleaning of a log with transactions, killed at any point (rules T5, X6)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.crash.disk import Image, read_image, write_image
from tests.unit.storage.batches import IDENTITY, PARTITION, open_one
from tests.unit.storage.kills import Killer
from tests.unit.storage.log.test_cleaner import CONFIGS, NOW_US, Row, batches_of, cleanable_end, latest_of, opened
from tests.unit.storage.log.test_cleaner_crashes import start
from tests.unit.storage.log.test_cleaner_transactions import Sender, check_whole, clean, seen, stable_offset


def test_a_kill_at_any_point_of_a_cleaning_shows_no_aborted_record(directory: Path, killer: Killer) -> None:
    rng = random.Random(5)
    path = directory / "before"
    logs, log = opened(path)
    sender = Sender(log, rng)
    sender.send(20)
    clean(log)
    sender.send(20)
    logs.checkpoint({PARTITION: log.log_end_offset})
    before, end = seen(log), cleanable_end(log, stable_offset(log))
    after = latest_of(before, below=end)
    assert len(after) < len(before)
    logs.close()
    images: list[Image] = []
    logs, log = opened(path)
    killer.each_point(lambda: clean(log, now_us=NOW_US + 6_000_000), lambda: images.append(read_image(path)))
    logs.close()
    assert len(images) > 10
    checked: set[frozenset[tuple[str, bytes | None]]] = set()
    for image in images:
        place = directory / "log"
        write_image(image, place)
        if rng.random() < 0.5:
            killer.run(lambda place=place: start(place), at=rng.randrange(8))  # type: ignore[misc]
        files = frozenset(read_image(place).items())
        if files not in checked:
            _check(place, before, after)
            checked.add(files)
        shutil.rmtree(place)


def _check(path: Path, before: list[Row], after: list[Row]) -> None:
    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged is None
    batches = batches_of(log)
    found = seen(log, batches)
    kept = set(found)
    assert [row for row in before if row in kept] == found
    assert set(after) <= kept
    check_whole(log, batches)
    clean(log, now_us=NOW_US + 6_000_000)
    assert seen(log) == after
    logs.close()
