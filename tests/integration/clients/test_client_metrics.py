# SPDX-License-Identifier: Apache-2.0
"""Clients state their names, choose brokers, and accept tables."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pandas as pd
import pyarrow as pa
import pytest
from tidemark.client.aio import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code


@pytest.fixture
async def topic(cluster: LocalCluster) -> AsyncIterator[str]:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(name, partitions=2, replication_factor=3)
        yield name


async def test_a_producer_counts_acknowledged_and_failed_records(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            await producer.send(topic, b"12345678", partition=number % 2)
        waiting = producer.metrics()
        assert (waiting.acknowledged_records, waiting.buffered_bytes > 80) == (0, True)
        await producer.flush()
        told = producer.metrics()
        assert (told.acknowledged_records, told.failed_records, told.buffered_bytes) == (10, 0, 0)
        assert 2 <= told.acknowledged_batches <= 10
        assert told.acknowledged_bytes >= 80
        handle = await producer.send(topic, bytes(4 << 20), partition=0)
        with raises_code(ErrorCode.BATCH_TOO_LARGE):
            await handle
        assert producer.metrics().failed_records == 1
        assert producer.metrics().refusals > 0


async def test_a_consumer_reports_its_lag_and_why_each_partition_waits(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
        for number in range(6):
            await producer.send(topic, str(number).encode(), partition=0)
        await producer.flush()
        await consumer.assign(topic)
        consumer.pause([(topic, 1)])
        first = await anext(consumer)
        assert first.value == b"0"
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        assert consumer.lag()[zero] == 5
        health = consumer.health()
        assert (health[zero].state, health[zero].position, health[zero].lag) == ("reading", 1, 5)
        assert "leads in epoch" in health[zero].detail
        assert health[one].state == "paused"
        for _ in range(5):
            await anext(consumer)
        assert consumer.health()[zero].state == "caught up"
        assert consumer.metrics().given_records == 6
        await consumer.seek(zero, 100)
        with pytest.raises(TidemarkError):
            await consumer.poll(20)
        assert consumer.health()[zero].state == "failed"
        assert consumer.health()[zero].detail


async def test_a_partitioner_of_the_applications_own_is_asked_for_records_and_rows(
    cluster: LocalCluster, topic: str
) -> None:
    def by_length(_: str, __: bytes | None, value: bytes | None, partitions: int) -> int:
        return len(value or b"") % partitions

    async with Producer(cluster.bootstrap, partitioner=by_length) as producer:
        where = [await (await producer.send(topic, value)) for value in (b"a", b"bb", b"ccc")]
        assert [one.partition for one in where] == [1, 0, 1]
        named = await (await producer.send(topic, b"a", partition=0))
        assert named.partition == 0
        rows = await (await producer.send_table(topic, pa.table({"value": ["a", "bb", "cc"]})))
        assert {one.partition: one.record_count for one in rows} == {0: 2, 1: 1}

    def nowhere(_: str, __: bytes | None, ___: bytes | None, partitions: int) -> int:
        return partitions

    async with Producer(cluster.bootstrap, partitioner=nowhere) as producer:
        for sending in (producer.send(topic, b"a"), producer.send_table(topic, pa.table({"value": ["a"]}))):
            with raises_code(ErrorCode.UNKNOWN_PARTITION):
                await sending


async def test_a_data_frame_is_sent_and_other_types_are_refused(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
        await (await producer.send_table(topic, pd.DataFrame({"key": ["k"], "value": ["v"]})))
        with raises_code(ErrorCode.INVALID_PAYLOAD):
            await producer.send_table(topic, [{"value": "v"}])  # type: ignore[arg-type]
        await consumer.assign(topic)
        record = await anext(consumer)
        assert (record.key, record.value) == (b"k", b"v")
