# SPDX-License-Identifier: Apache-2.0
"""A kill at any step of a compaction: the table and the archive have each row once, and the next compaction ends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tidemark.client.tables import iceberg
from tidemark.client.tables.archive_files import Archive
from tidemark.client.tables.iceberg_catalog import opened_catalog

from tests.unit.client.tables.logs import NAME, SECOND, Logs
from tests.unit.client.tables.test_iceberg_compaction import (
    Killed,
    archive,
    compacted,
    in_archive,
    offsets,
    paths,
    two_versions,
)


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """End the process between the step `at` and the next step; returns the number of steps so far."""
    count = 0

    def stepped(owner: Any, name: str) -> None:
        step = getattr(owner, name)

        def run(*given: Any, **options: Any) -> Any:
            done = step(*given, **options)
            tick()
            return done

        monkeypatch.setattr(owner, name, run)

    def tick() -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Killed

    stepped(Archive, "add_merged")
    stepped(SqlCatalog, "commit_table")
    stepped(Path, "unlink")
    return lambda: count


def test_a_compaction_that_is_killed_at_any_step_leaves_each_row_once_and_the_next_one_completes_it(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, saved = tmp_path / "archive", tmp_path / "saved"
    two_versions(logs, root)
    shutil.copytree(root, saved)
    is_whole, at = False, 0
    while not is_whole:
        at += 1
        shutil.rmtree(root)
        shutil.copytree(saved, root)
        with monkeypatch.context() as patched:
            steps = killing(patched, at)
            with suppress(Killed):
                compacted(root, grace_hours=0)
                is_whole = True
        assert steps() <= at
        with opened_catalog(root, None) as catalog:
            assert offsets(catalog.load_table(NAME)) == list(range(8)), f"killed at step {at}"
            assert in_archive(root, 8) == list(range(8)), f"killed at step {at}"
            assert compacted(root, grace_hours=0).merged <= 2
            table = catalog.load_table(NAME)
            assert offsets(table) == in_archive(root, 8) == list(range(8)), f"after step {at}"
            files = [path.as_uri() for path in (root / "data" / "0").iterdir()]
            assert paths(table) == sorted(files), f"after step {at}"
            assert len(files) == 2
            assert iceberg.offsets_of(table) == {0: 8}
    assert at > 10


@pytest.mark.parametrize("seed", range(2))
def test_archives_compactions_and_kills_in_any_order_keep_each_row_once(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    archive(logs, tmp_path)
    for _ in range(12):
        with monkeypatch.context() as patched:
            killing(patched, random.choice([0, random.randrange(1, 12)]))
            with suppress(Killed):
                match random.randrange(5):
                    case 0:
                        logs.evolve(SECOND)
                        archive(logs, tmp_path)
                    case 1 | 2:
                        archive(logs, tmp_path, random.randrange(1, 3))
                    case _:
                        compacted(tmp_path, grace_hours=random.choice([0, 24]))
        archived = Archive(tmp_path).ends()[0].end
        assert in_archive(tmp_path, archived) == list(range(archived))
        with opened_catalog(tmp_path, None) as catalog:
            table = catalog.load_table(NAME)
            assert offsets(table) == list(range(iceberg.offsets_of(table).get(0, 0)))
    archive(logs, tmp_path)
    compacted(tmp_path, grace_hours=0)
    with opened_catalog(tmp_path, None) as catalog:
        assert offsets(catalog.load_table(NAME)) == list(range(logs.end(0)))
