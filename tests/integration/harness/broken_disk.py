# SPDX-License-Identifier: Apache-2.0
"""Brokers whose disks fail when a test orders this, and the log directories that these brokers report."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TopicPartition
from tidemark.rpc.log_dirs import LogDirectoryContent, describe_log_dirs

DEADLINE_S: Final = 30.0


@contextlib.contextmanager
def cluster_with_hook(hook: str, directory: Path, broken: Path, *, brokers: int) -> Iterator[LocalCluster]:
    """Broker 0 has two log directories; every service runs `hook` first, which finds `broken` in BROKEN_DISK."""
    place = directory / "hook"
    place.mkdir()
    (place / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {broker_name(0): {"log.dirs": f"{directory / 'disk-a'},{directory / 'disk-b'}"}}
    environment = {"PYTHONPATH": path, "BROKEN_DISK": str(broken)}
    with LocalCluster(
        directory / "cluster", brokers=brokers, controllers=1, settings=settings, environment=environment
    ) as started:
        yield started


def disks(cluster: LocalCluster) -> list[LogDirectoryContent]:
    """Log directories of broker 0."""
    return list(asyncio.run(describe_log_dirs(cluster.address(broker_name(0)))))


def held(disk: LogDirectoryContent) -> set[TopicPartition]:
    return {replica.partition for replica in disk.replicas}


def led(disk: LogDirectoryContent) -> list[TopicPartition]:
    return sorted(replica.partition for replica in disk.replicas if replica.leader)
