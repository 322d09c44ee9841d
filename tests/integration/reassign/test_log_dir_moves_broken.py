# SPDX-License-Identifier: Apache-2.0
"""Moves into directories that are full or break meanwhile, among real processes: the replica continues (rule M3)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.local.cluster import LocalCluster

from tests.integration.harness.waiting import wait_for
from tests.integration.reassign.test_log_dir_moves import (
    BROKER,
    Load,
    ask,
    consumed,
    copied,
    disks,
    fill,
    make_topic,
    metric,
    paths,
    where,
)
from tests.integration.storage.test_broken_disks import HOOK

RECORDS = 1500
THROTTLE_BYTES_PER_S = 200_000


@pytest.fixture
def cluster(tmp_path: Path, broken: Path) -> Iterator[LocalCluster]:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {BROKER: {"log.dirs": f"{tmp_path / 'disk-a'},{tmp_path / 'disk-b'}"}}
    environment = {"PYTHONPATH": path, "BROKEN_DISK": str(broken)}
    with LocalCluster(
        tmp_path / "cluster", brokers=1, controllers=1, settings=settings, environment=environment
    ) as started:
        yield started


def begin(cluster: LocalCluster) -> tuple[list[bytes], int, str]:
    """A slow move in flight: the written records, the broker of the replica, and the directory that it moves to."""
    make_topic(cluster)
    before = fill(cluster, RECORDS)
    first, _ = where(cluster)
    assert first is not None
    target = paths(cluster)[1 - first]
    assert ask(cluster, target, throttle_bytes_per_s=THROTTLE_BYTES_PER_S) is None
    wait_for(lambda: copied(cluster) > 0, "the copy grows")
    return before, first, target


def test_a_target_that_is_full_holds_the_move_up_until_it_has_space(cluster: LocalCluster, broken: Path) -> None:
    before, first, target = begin(cluster)
    broken.write_text(f"{errno.ENOSPC} {target}\n")
    with Load(cluster) as load:
        load.wait_for(20)
        assert where(cluster)[0] == first
        broken.unlink()
        wait_for(lambda: where(cluster) == (1 - first, None), "the move ends when there is space")
        load.wait_for(5)
    assert consumed(cluster, RECORDS + len(load.acknowledged)) == before + load.acknowledged
    assert metric(cluster, "broker_log_dir_moves_failed_total") == 0


def test_a_target_that_breaks_ends_the_move_and_the_replica_continues(cluster: LocalCluster, broken: Path) -> None:
    before, first, target = begin(cluster)
    broken.write_text(f"{errno.EIO} {target}\n")
    with Load(cluster) as load:
        wait_for(lambda: metric(cluster, "broker_log_dir_moves_failed_total") == 1, "the move is given up")
        load.wait_for(20)
    assert where(cluster) == (first, None)
    assert [disk.error is None for disk in disks(cluster)] == [index == first for index in range(2)]
    broken.unlink()
    cluster.restart(BROKER)
    wait_for(lambda: where(cluster) == (1 - first, None), "a disk that is back has the copy, which states where to")
    assert consumed(cluster, RECORDS + len(load.acknowledged)) == before + load.acknowledged
