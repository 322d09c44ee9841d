# SPDX-License-Identifier: Apache-2.0
"""Records at the start of partitions are deleted by age, size and request, among real processes (rules L1, E3, K1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

DEADLINE_S = 30.0
SETTINGS = {
    "broker": {
        "log.retention.check.interval.ms": "200",
        "replica.high.watermark.checkpoint.interval.ms": "200",
    }
}
SMALL = {"segment.bytes": "2000", "file.delete.delay.ms": "500", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("retention"), controllers=1, settings=SETTINGS) as started:
        yield started


def produce(cluster: LocalCluster, topic: str, count: int) -> int:
    """Send records; returns the next offset."""
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(count):
            last = producer.send(topic, b"%d %s" % (number, b"v" * 300), partition=0).result(DEADLINE_S)
    return last.offset + 1


def bounds(cluster: LocalCluster, topic: str) -> tuple[int, int]:
    with RangeReader(cluster.bootstrap, deadline_s=DEADLINE_S) as reader:
        found = reader.bounds(topic, [0])[0]
        return found.earliest, found.latest


def segments(cluster: LocalCluster, topic: str, broker: int) -> list[int]:
    directory: Path = cluster.directory / broker_name(broker) / f"{topic}-0"
    if not directory.is_dir():
        return []
    return sorted(int(one.name[:20]) for one in directory.iterdir() if ".log" in one.name)


def all_start_at(cluster: LocalCluster, topic: str, offset: int) -> bool:
    starts = [segments(cluster, topic, broker) for broker in range(3)]
    return all(bases and bases[0] >= offset for bases in starts)


def test_every_replica_deletes_old_records_and_consumers_get_the_log_start(
    cluster: LocalCluster, admin: AdminClient
) -> None:
    admin.create_topic("aging", replication_factor=3, configs={**SMALL, "retention.ms": "1000"})
    end = produce(cluster, "aging", 30)
    wait_for(lambda: bounds(cluster, "aging") == (end, end), "an idle log loses its last segment too")
    wait_for(lambda: all_start_at(cluster, "aging", end), "every replica deletes the files")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign("aging", [0], 0)
        with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE) as caught:
            next(iter(consumer))
        assert caught.value.metadata["log_start_offset"] == str(end)
    assert produce(cluster, "aging", 1) == end + 1


def test_the_oldest_segments_beyond_the_size_go(cluster: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("bounded", replication_factor=3, configs={**SMALL, "retention.bytes": "6000"})
    end = produce(cluster, "bounded", 60)
    wait_for(lambda: bounds(cluster, "bounded")[0] > 0, "the front goes")
    earliest, latest = bounds(cluster, "bounded")
    assert (0 < earliest < end, latest) == (True, end)
    wait_for(lambda: all_start_at(cluster, "bounded", earliest), "every replica deletes the files")


def test_deleted_records_are_gone_everywhere_and_after_a_restart_of_all(
    cluster: LocalCluster, admin: AdminClient
) -> None:
    admin.create_topic("cut", replication_factor=3, configs=SMALL)
    end = produce(cluster, "cut", 40)
    ended = tidemark(cluster, "topic", "delete-records", "cut", "--partition", "0", "--before", str(end + 1), "--yes")
    refused(ended, "OFFSET_OUT_OF_RANGE")
    refused(tidemark(cluster, "topic", "delete-records", "cut", "--partition", "0", "--before", "7"), "INVALID_REQUEST")
    refused(
        tidemark(cluster, "topic", "delete-records", "cut", "--partition", "4", "--before", "7", "--yes"),
        "UNKNOWN_PARTITION",
    )
    assert bounds(cluster, "cut") == (0, end)
    out = succeeds(
        cluster, "topic", "delete-records", "cut", "--partition", "0", "--before", "23", "--yes", "--output", "json"
    )
    assert json.loads(out) == {
        "topic": "cut", "partition": 0, "low_watermark": 23, "log_start_offset": 23, "behind": []
    }  # fmt: skip
    assert bounds(cluster, "cut") == (23, end)
    leader = admin.describe_topics(["cut"])[0].partitions[0].leader
    cluster.process(broker_name(leader)).kill()
    wait_for(lambda: admin.describe_topics(["cut"])[0].partitions[0].leader not in (leader, -1), "another leads")
    assert bounds(cluster, "cut") == (23, end), "the next leader had the log start before the answer"
    deleted = admin.delete_records("cut", 0, -1)
    assert (deleted.low_watermark, deleted.behind) == (end, (leader,))
    cluster.restart(broker_name(leader))
    wait_for(lambda: all_start_at(cluster, "cut", end), "the broker that was away follows")
    for broker in range(3):
        cluster.restart(broker_name(broker))
    assert bounds(cluster, "cut") == (end, end)
    assert produce(cluster, "cut", 3) == end + 3
