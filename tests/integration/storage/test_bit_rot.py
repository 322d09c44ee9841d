# SPDX-License-Identifier: Apache-2.0
"""A bit of a stored batch flips under running brokers: the broker fetches the batch from another replica (rule T6)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.errors import CorruptBatchError
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.record.envelope import ENVELOPE_BYTES, parse_envelope

from tests.integration.cli.test_cli import succeeds, tidemark
from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

DEADLINE_S = 60.0
RECORDS = 300
SETTINGS = {"segment.bytes": "20000", "min.insync.replicas": "2"}
SCRUBBER = {"log.scrub.interval.ms": "500"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers for the tests of this file."""
    with LocalCluster(tmp_path_factory.mktemp("rotten"), controllers=1) as started:
        yield started


@pytest.fixture
def scrubbing(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers with a scrubber that pauses very briefly."""
    with LocalCluster(tmp_path, brokers=2, controllers=1, settings={"broker": SCRUBBER}) as started:
        yield started


def fill(cluster: LocalCluster, topic: str, replicas: int = 3) -> None:
    configs = {**SETTINGS, "min.insync.replicas": str(min(2, replicas))}
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topic(topic, partitions=1, replication_factor=replicas, configs=configs)
        for number in range(RECORDS):
            producer.send(topic, b"%06d" % number + b"x" * 500, partition=0)
            if number % 5 == 4:
                producer.flush()


def leader_of(cluster: LocalCluster, topic: str) -> int:
    [found] = json.loads(succeeds(cluster, "topic", "describe", topic, "--output", "json"))
    [partition] = found["partitions"]
    return int(partition["leader"])


def log_files(cluster: LocalCluster, broker_id: int, topic: str) -> list[Path]:
    return sorted((cluster.directory / broker_name(broker_id) / f"{topic}-0").glob("*.log"))


def contents(cluster: LocalCluster, broker_id: int, topic: str) -> bytes:
    """The bytes of a log; replicas may roll their segments at other offsets."""
    return b"".join(path.read_bytes() for path in log_files(cluster, broker_id, topic))


def sealed_files(cluster: LocalCluster, broker_id: int, topic: str) -> list[bytes]:
    """The contents of sealed segments and their index files."""
    paths = log_files(cluster, broker_id, topic)[:-1]
    files = [path.with_suffix(suffix) for path in paths for suffix in (".log", ".index", ".timeindex")]
    return [path.read_bytes() for path in files if path.exists()]


def flip(path: Path, byte: int | None = None) -> int:
    """Flip a bit of the third batch of a segment, or of its last if there are fewer; returns the batch's offset."""
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(2):
        following = position + parse_envelope(bytes(data), position).batch_length
        position = following if following < len(data) else position
    offset = parse_envelope(bytes(data), position).base_offset
    at = position + (ENVELOPE_BYTES + 40 if byte is None else byte)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    return offset


def read_all(cluster: LocalCluster, topic: str) -> list[bytes]:
    found: list[bytes] = []
    ends_s = time.monotonic() + DEADLINE_S
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(topic, [0])
        while len(found) < RECORDS:
            assert time.monotonic() < ends_s, f"consumed {len(found)} records"
            batch = consumer.poll(1.0)
            if batch is not None:
                found += [value[:6] for value in batch.rows.column("value").to_pylist()]
    return found


def poll_until_refused(consumer: Consumer) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends_s:
        consumer.poll(1.0)


def metric(cluster: LocalCluster, broker_id: int, name: str) -> float:
    return samples(cluster, broker_name(broker_id))[f"tidemark_broker_log_damaged_ranges{name}"]


def flip_header(path: Path) -> None:
    flip(path, 2)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


@pytest.mark.parametrize("spoil", [flip, flip_header, cut])
def test_a_consumer_gets_every_record_though_a_batch_of_the_leader_is_damaged(
    cluster: LocalCluster, spoil: Callable[[Path], object]
) -> None:
    topic = f"led-{spoil.__name__}"
    fill(cluster, topic)
    leader = leader_of(cluster, topic)
    whole = [path.read_bytes() for path in log_files(cluster, leader, topic)]
    before = metric(cluster, leader, "_repaired_total")
    spoil(log_files(cluster, leader, topic)[1])

    assert read_all(cluster, topic) == [b"%06d" % number for number in range(RECORDS)]

    assert [path.read_bytes() for path in log_files(cluster, leader, topic)] == whole
    assert metric(cluster, leader, "_repaired_total") == before + 1
    assert leader_of(cluster, topic) == leader


def test_a_batch_in_the_segment_that_is_written_is_repaired_too(cluster: LocalCluster) -> None:
    fill(cluster, "active")
    leader = leader_of(cluster, "active")
    flip(log_files(cluster, leader, "active")[-1])

    assert read_all(cluster, "active") == [b"%06d" % number for number in range(RECORDS)]


def test_a_verification_repairs_a_follower(cluster: LocalCluster) -> None:
    fill(cluster, "followed")
    leader = leader_of(cluster, "followed")
    follower = next(one for one in range(3) if one != leader)
    whole = [path.read_bytes() for path in log_files(cluster, follower, "followed")]
    offset = flip(log_files(cluster, follower, "followed")[2])

    out = succeeds(cluster, "replicas", "verify", "--topic", "followed", "--repair")

    assert f"repaired: followed-0 offset {offset}: broker {follower} fetched damaged batches" in out
    assert "1 partition the same on all replicas" in out
    assert [path.read_bytes() for path in log_files(cluster, follower, "followed")] == whole


@pytest.mark.parametrize("spoil", [flip, flip_header])
def test_a_follower_that_fetches_a_damaged_batch_behind_good_ones_has_the_leader_repaired(
    cluster: LocalCluster, spoil: Callable[[Path], object]
) -> None:
    topic = f"behind-{spoil.__name__}"
    fill(cluster, topic)
    leader = leader_of(cluster, topic)
    whole = contents(cluster, leader, topic)
    follower = next(one for one in range(3) if one != leader)
    cluster.terminate(broker_name(follower))
    shutil.rmtree(log_files(cluster, follower, topic)[0].parent)
    spoil(log_files(cluster, leader, topic)[1])
    cluster.restart(broker_name(follower))

    wait_for(lambda: contents(cluster, follower, topic) == whole, "the follower to have every batch", DEADLINE_S / 2)
    assert contents(cluster, leader, topic) == whole


def test_damage_of_all_copies_is_an_error_that_names_the_offset(cluster: LocalCluster) -> None:
    fill(cluster, "lost")
    offsets = {flip(log_files(cluster, broker, "lost")[1]) for broker in range(3)}
    [offset] = offsets

    ended = tidemark(cluster, "replicas", "verify", "--topic", "lost", "--repair")

    assert ended.status == 1
    assert f"lost-0 offset {offset}: broker 0" in ended.out
    assert "All copies of a batch are damaged" in ended.out
    wait_for(lambda: metric(cluster, leader_of(cluster, "lost"), "") == 1, "the metric to show the damage", DEADLINE_S)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign("lost", [0])
        with pytest.raises(CorruptBatchError, match="damaged on this broker's disk"):
            poll_until_refused(consumer)


def test_the_scrubber_repairs_a_follower_that_nothing_reads(scrubbing: LocalCluster) -> None:
    fill(scrubbing, "cold", replicas=2)
    follower = 1 - leader_of(scrubbing, "cold")
    whole = sealed_files(scrubbing, follower, "cold")
    damaged, indexed = log_files(scrubbing, follower, "cold")[1:3]
    flip(damaged)
    time_index = indexed.with_suffix(".timeindex")
    time_index.write_bytes(bytes([time_index.read_bytes()[0] ^ 1]) + time_index.read_bytes()[1:])

    wait_for(
        lambda: sealed_files(scrubbing, follower, "cold") == whole,
        "the scrubber to repair the segment and the index",
        DEADLINE_S,
    )
    assert metric(scrubbing, follower, "_repaired_total") == 1
