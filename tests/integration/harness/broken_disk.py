# SPDX-License-Identifier: Apache-2.0
"""Brokers whose disks fail when a test orders this, and the log directories that these brokers report."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TopicPartition
from tidemark.rpc.log_dirs import LogDirectoryContent, describe_log_dirs

from tests.integration.harness.waiting import wait_for

DEADLINE_S: Final = 30.0
ATTEMPTS: Final = 8


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


def two_disks(
    cluster: LocalCluster, admin: AdminClient, create: Callable[[], Sequence[str]], *, leaderships: int
) -> list[LogDirectoryContent]:
    """Return the disks of broker 0, when this broker leads partitions in both.

    Args:
        create: creates topics and returns their names; called again if one directory holds all leaderships.
        leaderships: partitions of these topics that broker 0 leads.
    """
    for _ in range(ATTEMPTS):
        topics = create()
        wait_for(lambda: sum(len(led(disk)) for disk in disks(cluster)) == leaderships, "broker 0 leads its share")
        found = disks(cluster)
        if all(led(disk) for disk in found):
            return found
        for topic in topics:  # a replica goes to the directory with fewer replicas, so one may hold all leaderships
            admin.delete_topic(topic)
        wait_for(lambda: not any(held(disk) for disk in disks(cluster)), "the replicas of the topics are gone")
    raise AssertionError("broker 0 never leads in both of its directories")
