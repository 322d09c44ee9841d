# SPDX-License-Identifier: Apache-2.0
"""The index of aborted transactions after a kill at any operation (rule X5)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tidemark.model import Offset

from tests.crash.disk import Image, read_image, write_image
from tests.unit.storage.batches import lead, open_one
from tests.unit.storage.kills import Killer
from tests.unit.storage.log.test_aborted_index import file_rows, log_rows, open_log, rows_of, stored, transactions


def test_a_kill_at_any_operation_of_appends_checkpoints_and_truncations_leaves_the_rows_of_the_batches(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, killer = random.Random(7), Killer(monkeypatch)
    path = directory / "before"
    logs = open_one(path)
    log = open_log(logs)

    def work() -> None:
        for number, batch in enumerate(transactions(rng, 40, abort_share=0.9)):
            lead(log, batch, epoch=number // 20)
            if number % 9 == 5:
                logs.checkpoint({})
            if number == 20:
                log.truncate(Offset(log.log_end_offset // 2))

    images: list[Image] = []
    killer.each_point(work, lambda: images.append(read_image(path)))
    assert log.segment_count() > 2
    logs.close()
    seen: set[frozenset[tuple[str, bytes | None]]] = set()
    found_rows = 0
    for image in images:
        if frozenset(image.items()) in seen:
            continue
        seen.add(frozenset(image.items()))
        place = directory / "log"
        write_image(image, place)
        again = open_one(place)
        found = open_log(again)
        rows = rows_of(stored(found))
        assert log_rows(found) == rows
        found_rows += len(rows)
        again.checkpoint({})
        assert file_rows(found.path) == rows
        again.close()
        shutil.rmtree(place)
    assert len(seen) > 20
    assert found_rows > 50
