# SPDX-License-Identifier: Apache-2.0
"""The data directory of a local cluster: one cluster at a time, and a directory that can be created."""

from __future__ import annotations

from pathlib import Path

from tidemark.local.cluster import LocalCluster
from tidemark.local.directory import HeldDirectory
from tidemark.model import ErrorCode

from tests.refusals import raises_code


def test_a_directory_locked_by_another_cluster_is_refused_before_any_start(tmp_path: Path) -> None:
    """Two ZooKeepers on the same data would corrupt the data."""
    other = HeldDirectory(tmp_path)
    other.take()
    with raises_code(ErrorCode.STORAGE_ERROR, "is locked by another local cluster: stop that"):
        LocalCluster(tmp_path).start()
    assert not (tmp_path / "zookeeper").exists()
    other.release()
    again = HeldDirectory(tmp_path)
    again.take()
    again.release()


def test_a_file_as_directory_is_refused_with_the_cause(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.write_text("")
    with raises_code(ErrorCode.STORAGE_ERROR, r"cannot hold a cluster's data: it is a file; name another"):
        LocalCluster(taken).start()
