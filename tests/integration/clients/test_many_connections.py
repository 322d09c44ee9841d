# SPDX-License-Identifier: Apache-2.0
"""More connections than a process may have files: the broker refuses some, and keeps files for its logs."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name

FILES_MAX = 200
PARTITIONS = 20
ROUNDS = 20
BROKER = broker_name(0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"broker": {"replica.high.watermark.checkpoint.interval.ms": "200"}}
    limited = {BROKER: ["prlimit", f"--nofile={FILES_MAX}:{FILES_MAX}"]}
    with LocalCluster(tmp_path, brokers=1, controllers=1, settings=settings, launchers=limited) as started:
        yield started


@contextlib.contextmanager
def connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """The number of connections that the server accepts and keeps."""
    host, port = address.split(":")
    opened = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection((host, int(port)), timeout=1))
        yield opened
    finally:
        for one in opened:
            one.close()


def test_connections_take_no_files_from_the_logs(cluster: LocalCluster) -> None:
    configs = {"segment.bytes": "10000", "min.insync.replicas": "1"}
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("written", partitions=PARTITIONS, replication_factor=1, configs=configs)
        producer.send("written", b"x" * 3000, partition=0).result(10)
        with (
            connections(cluster.address(BROKER), 2 * FILES_MAX),
            connections(cluster.metrics_address(BROKER), FILES_MAX // 2),
        ):
            began_s = time.monotonic()
            for _ in range(ROUNDS):  # rolls segments, under many checkpoints
                sent = [producer.send("written", b"y" * 3000, partition=index) for index in range(PARTITIONS)]
                for one in sent:
                    one.result(10)
            assert time.monotonic() - began_s < 60
    lines = (cluster.directory / "logs" / f"{BROKER}.log").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if json.loads(line)["level"] in ("error", "critical")]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign("written", start="earliest")
        records = iter(consumer)
        assert sum(1 for _ in zip(range(1 + ROUNDS * PARTITIONS), records, strict=False)) == 1 + ROUNDS * PARTITIONS
    with urllib.request.urlopen(f"http://{cluster.metrics_address(BROKER)}/metrics", timeout=10) as answer:
        assert answer.status == 200
