# SPDX-License-Identifier: Apache-2.0
"""Transactions of the clients, at a real cluster: atomic writes, offsets with the records, fencing, timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from tidemark.client import (
    AdminClient,
    Consumer,
    Groups,
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortedError,
    TransactionStateError,
    aio,
    read_table,
)
from tidemark.local.cluster import LocalCluster

from tests.integration.harness.waiting import wait_for

PARTITIONS = 2


@pytest.fixture
def topic(admin: AdminClient) -> Iterator[str]:
    name = f"transactions-{uuid4().hex[:8]}"
    admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    yield name
    admin.delete_topic(name)


def values_in(cluster: LocalCluster, topic: str, isolation_level: str) -> list[bytes | None]:
    """The values up to the present ends, sorted."""
    found: list[bytes | None] = []
    with Consumer(cluster.bootstrap, isolation_level=isolation_level) as consumer:
        assigned = consumer.assign(topic)
        ends = consumer.end_offsets()
        while any(consumer.position(where) < ends[where] for where in assigned):
            batch = consumer.poll(timeout_s=10.0)
            if batch is not None:
                found += batch.rows.column("value").to_pylist()
    return sorted(found, key=str)


def test_records_of_a_transaction_are_visible_together_after_its_commit(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            for partition in range(PARTITIONS):
                producer.send(topic, b"open", partition=partition)
            producer.flush()
            assert values_in(cluster, topic, "read_committed") == []
            assert values_in(cluster, topic, "read_uncommitted") == [b"open"] * PARTITIONS
        wait_for(
            lambda: values_in(cluster, topic, "read_committed") == [b"open"] * PARTITIONS, "the first transaction", 20
        )

        def fail() -> None:
            with producer.transaction():
                for partition in range(PARTITIONS):
                    producer.send(topic, b"aborted", partition=partition)
                producer.flush()
                raise KeyError("aborted")

        with pytest.raises(KeyError):
            fail()
        with producer.transaction():
            producer.send(topic, b"second", partition=0)
        wait_for(lambda: b"second" in values_in(cluster, topic, "read_committed"), "the last transaction", 20)
        assert values_in(cluster, topic, "read_committed") == [b"open", b"open", b"second"]
        assert values_in(cluster, topic, "read_uncommitted") == [b"aborted"] * 2 + [b"open"] * 2 + [b"second"]
        with pytest.raises(TransactionStateError):
            producer.send(topic, b"outside")


def test_offsets_count_with_the_records_of_their_transaction(
    cluster: LocalCluster, topic: str, admin: AdminClient
) -> None:
    target = f"{topic}-target"
    admin.create_topic(target, partitions=1, replication_factor=3)
    with Producer(cluster.bootstrap) as producer:
        producer.send_many(topic, [(b"k", b"%d" % number) for number in range(6)])

    def member() -> Consumer:
        return Consumer(cluster.bootstrap, group=topic, auto_commit_interval_ms=0, isolation_level="read_committed")

    with Producer(cluster.bootstrap, transactional_id=target) as producer, member() as reader:
        reader.subscribe([topic])
        read = [next(reader) for _ in range(4)]
        where = TopicPartition(topic, read[0].partition)

        def fail() -> None:
            with producer.transaction() as tx:
                producer.send(target, b"aborted")
                tx.send_offsets(reader)
                raise KeyError("aborted")

        with pytest.raises(KeyError):
            fail()
        assert reader.committed() == {}
        reader.seek_to_committed()
        assert [next(reader) for _ in range(4)] == read
        with producer.transaction() as tx:
            for record in read:
                producer.send(target, record.value)
            tx.send_offsets(reader)
            with Groups(cluster.bootstrap) as groups:
                rows = {row.partition: row for row in groups.describe_groups([topic])[0].partitions}
            assert [one.offset for one in rows[where].pending] == [4]
            assert rows[where].committed == -1
        assert reader.committed()[where] == 4
    with member() as reader:
        reader.subscribe([topic])
        assert next(reader).offset == 4
    assert values_in(cluster, target, "read_committed") == [b"0", b"1", b"2", b"3"]
    admin.delete_topic(target)


async def test_a_consumer_goes_back_after_an_aborted_transaction(cluster: LocalCluster, topic: str) -> None:
    where = TopicPartition(topic, 0)
    member = aio.Consumer(cluster.bootstrap, group=topic, auto_commit_interval_ms=0, isolation_level="read_committed")
    async with member as reader, aio.Producer(cluster.bootstrap, transactional_id=topic) as producer:

        async def transact(values: list[bytes], *, fails: bool) -> None:
            found = [(await anext(reader)).value for _ in values]
            async with producer.transaction() as tx:
                await tx.send_offsets(reader)
                if fails:
                    raise KeyError(*found)
            assert found == values

        async with aio.Producer(cluster.bootstrap) as other:
            for number in range(4):
                await other.send(topic, b"%d" % number, partition=0)
        await reader.subscribe([topic])
        await transact([b"0", b"1"], fails=False)
        with pytest.raises(KeyError):
            await transact([b"2"], fails=True)
        await reader.seek_to_committed()
        assert reader.position(where) == 2
        await transact([b"2", b"3"], fails=False)
        assert (await reader.committed())[where] == 4


async def test_a_new_producer_of_an_id_fences_the_earlier_one(cluster: LocalCluster, topic: str) -> None:
    async def first_transaction(producer: aio.Producer) -> None:
        async with producer.transaction():
            await producer.send(topic, b"zombie", partition=0)
            await producer.flush()
            async with aio.Producer(cluster.bootstrap, transactional_id=topic) as newer, newer.transaction():
                await newer.send(topic, b"newer", partition=0)

    async with aio.Producer(cluster.bootstrap, transactional_id=topic) as producer:
        with pytest.raises(ProducerFencedError):
            await first_transaction(producer)
        with pytest.raises(ProducerFencedError):
            await producer.transaction().begin()
    wait_for(lambda: values_in(cluster, topic, "read_committed") == [b"newer"], "the newer producer's record alone", 20)


def test_a_producer_continues_after_a_transaction_that_timed_out(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap, transactional_id=topic, transaction_timeout_ms=200) as producer:
        tx = producer.transaction()
        tx.begin()
        producer.send(topic, b"late", partition=0).result(timeout_s=20)
        with Consumer(cluster.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign(topic, [0])
            wait_for(lambda: consumer.end_offsets()[TopicPartition(topic, 0)] > 1, "the abort marker", 20)
        with pytest.raises(TransactionAbortedError, match="longer than its timeout of 200 ms"):
            tx.commit()
        with producer.transaction():
            producer.send(topic, b"again", partition=0)
    wait_for(lambda: values_in(cluster, topic, "read_committed") == [b"again"], "the second transaction alone", 20)


def test_tables_of_typed_topics_are_written_in_transactions(cluster: LocalCluster, admin: AdminClient) -> None:
    name = f"typed-{uuid4().hex[:8]}"
    admin.create_topic(name, partitions=1, replication_factor=3, schema="number INT NOT NULL")
    with Producer(cluster.bootstrap, transactional_id=name) as producer:

        def write(number: int, *, fails: bool) -> None:
            with producer.transaction():
                producer.send(name, {"number": number}).result(timeout_s=20)
                if fails:
                    raise KeyError(number)

        write(1, fails=False)
        with pytest.raises(KeyError):
            write(2, fails=True)
        write(3, fails=False)
        wait_for(lambda: numbers(cluster, name, "read_committed") == [1, 3], "the committed rows", 20)
    assert numbers(cluster, name, "read_uncommitted") == [1, 2, 3]
    admin.delete_topic(name)


def numbers(cluster: LocalCluster, topic: str, isolation_level: str) -> list[int]:
    rows = read_table(cluster.bootstrap, topic, isolation_level=isolation_level).read_all()
    return [int(number) for number in rows.column("number").to_pylist()]
