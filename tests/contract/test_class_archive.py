# SPDX-License-Identifier: Apache-2.0
"""The class archive of the local ZooKeeper makes its start faster, and is never needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.local import zookeeper_process
from tidemark.local.zookeeper_process import ZooKeeperProcess, java_command


def archive_options(directory: Path) -> list[str]:
    return [word for word in java_command(directory) if "SharedArchiveFile" in word]


def test_java_maps_an_archive_only_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(zookeeper_process, "CLASS_ARCHIVE", archive)
    assert archive_options(tmp_path) == []
    zookeeper_process.write_archive(archive)
    assert archive.stat().st_size > 1 << 20
    assert archive_options(tmp_path) == [f"-XX:SharedArchiveFile={archive}"]


def test_zookeeper_starts_with_an_archive_that_java_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(b"of another Java")
    monkeypatch.setattr(zookeeper_process, "CLASS_ARCHIVE", archive)
    with ZooKeeperProcess(tmp_path / "zookeeper") as started:
        assert started.running
