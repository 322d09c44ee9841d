# SPDX-License-Identifier: Apache-2.0
"""Where the data of a local cluster is kept: one cluster at a time, and a place that can be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.local.cluster import LocalCluster
from tidemark.local.directory import HeldDirectory
from tidemark.model import ErrorCode, TidemarkError


def test_a_directory_that_another_cluster_holds_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Two ZooKeepers on the same data would spoil it."""
    other = HeldDirectory(tmp_path)
    other.take()
    with pytest.raises(TidemarkError, match="is held by another local cluster: stop that one") as refused:
        LocalCluster(tmp_path).start()
    assert refused.value.code is ErrorCode.STORAGE_ERROR
    assert not (tmp_path / "zookeeper").exists()
    other.release()
    again = HeldDirectory(tmp_path)
    again.take()
    again.release()


def test_what_cannot_be_a_directory_is_refused_with_its_cause(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.write_text("")
    with pytest.raises(TidemarkError, match=r"cannot keep a cluster: .*; name another with --directory") as refused:
        LocalCluster(taken).start()
    assert refused.value.code is ErrorCode.STORAGE_ERROR
