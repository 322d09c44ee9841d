# SPDX-License-Identifier: Apache-2.0
"""A member that reads, goes back, commits and fails at random: its group continues where the application stopped."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Iterable

import pyarrow as pa
import pytest
from tidemark.client import AdminClient, Consumer, Producer, TopicPartition
from tidemark.client.records import records_of
from tidemark.local.cluster import LocalCluster

from tests.integration.harness.waiting import wait_for

PARTITIONS = 2
RECORDS = 40
SESSIONS = 4
Offsets = dict[int, int]


class FailureError(Exception):
    """The application fails on the records that it got last."""


class Application:
    """Reads as a member, and computes where its group has to continue: offsets by partition."""

    def __init__(self, consumer: Consumer, topic: str, starts: Offsets) -> None:
        self.consumer = consumer
        self.topic = topic
        self.got = dict(starts)
        self.processed = dict(starts)
        self.committed = dict.fromkeys(starts, 0)
        """Offsets that the application committed itself since it went back."""

    def step(self, dice: random.Random) -> None:
        match dice.choice(("next", "list", "list", "rows", "commit", "commit at", "seek", "go back")):
            case "next":
                if min(self.got.values()) < RECORDS:
                    self._take([next(self.consumer)[1:3]])
            case "list":
                records = self.consumer.poll_records(0.02, max_records=dice.choice([1, 3, 20]))
                self._take(record[1:3] for record in records)
            case "rows":
                found = self.consumer.poll(0.02)
                self._take(record[1:3] for record in ([] if found is None else records_of(*found)))
            case "commit":
                self.consumer.commit()
                self.committed = dict(self.got)
            case "commit at":
                partition = dice.randrange(PARTITIONS)
                self.committed[partition] = dice.randrange(self.got[partition] + 1)
                self.consumer.commit({(self.topic, partition): self.committed[partition]})
            case "seek":
                self._moved(dice.randrange(PARTITIONS), dice.randrange(RECORDS))
            case "go back":
                self.consumer.seek_to_committed()
                for partition in self.got:
                    self._at(partition, self.consumer.position((self.topic, partition)))

    def end(self, *, fails: bool) -> Offsets:
        done = self.processed if fails else self.got
        return {partition: max(offset, self.committed[partition]) for partition, offset in done.items()}

    def _take(self, places: Iterable[tuple[int, int]]) -> None:
        self.processed = dict(self.got)
        for partition, offset in places:
            assert offset == self.got[partition], f"partition {partition}"
            self.got[partition] += 1

    def _moved(self, partition: int, offset: int) -> None:
        self.consumer.seek((self.topic, partition), offset)
        self._at(partition, offset)

    def _at(self, partition: int, offset: int) -> None:
        self.got[partition] = self.processed[partition] = offset
        self.committed[partition] = 0


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    name = f"numbers-{uuid.uuid4().hex[:12]}"
    values = pa.table({"value": pa.array([b"v"] * RECORDS, pa.binary())})
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
        for partition in range(PARTITIONS):
            producer.send_table(name, values, partition=partition)
        producer.flush(30)
    return name


@pytest.mark.parametrize("seed", range(12))
def test_a_group_continues_where_its_application_stopped(
    cluster: LocalCluster, group: str, topic: str, seed: int
) -> None:
    dice = random.Random(seed)
    at = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(SESSIONS):
        at = _session(cluster, group, topic, at, dice)
        with Consumer(cluster.bootstrap, group=group) as reader:
            found = reader.committed()
        assert {partition: found.get(TopicPartition(topic, partition), 0) for partition in at} == at


def _session(cluster: LocalCluster, group: str, topic: str, at: Offsets, dice: random.Random) -> Offsets:
    fails, interval_ms = dice.random() < 0.5, dice.choice([10, 60_000])
    bytes_max = dice.choice([1, 1 << 20])
    member = Consumer(
        cluster.bootstrap, group=group, auto_commit_interval_ms=interval_ms, max_partition_bytes=bytes_max
    )
    application = Application(member, topic, at)
    with contextlib.suppress(FailureError), member:
        member.subscribe([topic])
        wait_for(lambda: len(member.assignment) == PARTITIONS, "the member has all partitions")
        for _ in range(dice.randrange(1, 15)):
            application.step(dice)
        if fails:
            raise FailureError
    return application.end(fails=fails)
