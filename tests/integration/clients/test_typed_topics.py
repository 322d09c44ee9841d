# SPDX-License-Identifier: Apache-2.0
"""Typed topics from producer to reader: every way of writing and of reading, and schemas that change in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tidemark.client import (
    AdminClient,
    ConfigKind,
    ConfigResource,
    Consumer,
    Producer,
    TidemarkError,
    aio,
    read_table,
    scan,
)
from tidemark.client.producing.partitioner import partition_of
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TopicPartition

from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
FIRST = (
    "carrier STRING NOT NULL, delay INT, at TIMESTAMP NOT NULL, legs ARRAY<STRUCT<origin: STRING, miles: INT>>, "
    "PRIMARY KEY (carrier), EVENT_TIME (at)"
)
SECOND = (
    "carrier STRING NOT NULL, delay BIGINT, at TIMESTAMP NOT NULL, legs ARRAY<STRUCT<origin: STRING, miles: INT>>, "
    "gate STRING NOT NULL DEFAULT '?', PRIMARY KEY (carrier), EVENT_TIME (at)"
)
PARTITIONS = 3


def flight(carrier: str, delay: int | None = None, **more: Any) -> dict[str, Any]:
    return {"carrier": carrier, "delay": delay, "at": NOON, "legs": None, **more}


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: AdminClient) -> Iterator[str]:
    name = f"typed-{abs(hash(request.node.name))}"
    admin.create_topic(name, partitions=PARTITIONS, replication_factor=3, schema=FIRST)
    yield name
    admin.delete_topic(name)


def test_rows_of_every_entrance_come_out_of_every_exit(cluster: LocalCluster, topic: str) -> None:
    rows = [flight(carrier, delay, legs=[{"origin": "EWR", "miles": delay}]) for delay, carrier in enumerate("ABCDAB")]
    with Producer(cluster.bootstrap) as producer:
        one_by_one = [producer.send(topic, row) for row in rows]
        as_table = producer.send_table(topic, pl.DataFrame(rows)).result(timeout_s=30)
        placed = {row["carrier"]: handle.result(30) for row, handle in zip(rows, one_by_one, strict=True)}
    assert all(where.partition == partition_of(key.encode(), PARTITIONS) for key, where in placed.items())
    assert all(where.timestamp_us == NOON.timestamp() * 1e6 for where in placed.values())
    assert sum(batch.record_count for batch in as_table) == len(rows)

    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(topic)
        records = list(islice(consumer, 2 * len(rows)))
    assert sorted(records, key=lambda one: one.value["delay"])[0].value == rows[0]
    assert {(one.value["carrier"], one.partition) for one in records} == {
        (key, where.partition) for key, where in placed.items()
    }
    assert all(one.key == one.value["carrier"].encode() for one in records)

    columns = ["legs.miles", "carrier", "_offset", "_partition"]
    with read_table(cluster.bootstrap, topic, columns=columns) as reader:
        table = reader.read_all()
    assert table.schema.names == ["carrier", "legs", "_offset", "_partition"]
    by_place = {(row["_partition"], row["_offset"]): row for row in table.to_pylist()}
    assert len(by_place) == len(records)
    for record in records:
        row = by_place[record.partition, record.offset]
        assert row["legs"] == [{"miles": record.value["delay"]}]
    frame = scan(cluster.bootstrap, topic)
    found = frame.filter(pl.col("delay") > 3).select("carrier", "delay").sort("delay").collect()
    assert found.rows() == [("A", 4), ("A", 4), ("B", 5), ("B", 5)]
    assert len(frame.head(5).collect()) == 5
    assert scan(cluster.bootstrap, topic, columns=["legs.miles"]).collect().columns == ["legs"]


def test_a_schema_changes_while_producers_and_consumers_run(
    cluster: LocalCluster, topic: str, admin: AdminClient
) -> None:
    with (
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap) as pruned,
        Consumer(cluster.bootstrap) as whole,
    ):
        pruned.assign(topic)
        whole.assign(topic)
        producer.send(topic, flight("A", 1)).result(30)
        with pytest.raises(TidemarkError, match="column gate: the schema has no such column"):
            producer.send(topic, flight("A", 2, gate="B1"))
        batches = pruned.batches(columns=["delay"])
        assert next(batches).rows.to_pylist() == [{"delay": 1}]
        assert next(whole).value == flight("A", 1)
        admin.alter_topic_schema(topic, SECOND, expected_version=1)
        wait_for(lambda: _sends(producer, topic, flight("A", 2**40, gate="B1")), "the producer uses version 2")
        assert next(batches).rows.to_pylist() == [{"delay": 2**40}]
        assert next(whole).value == flight("A", 2**40, gate="B1")
        with Producer(cluster.bootstrap) as other:
            other.send_table(topic, pa.table({"carrier": ["A"], "at": [NOON]})).result(30)
        assert next(batches).rows.schema.field("delay").type == pa.int64()
        assert next(whole).value == flight("A", None, gate="?")
    with Consumer(cluster.bootstrap) as later:
        later.assign(topic)
        assert [one.value["gate"] for one in islice(later, 3)] == ["?", "B1", "?"]
    table = read_table(cluster.bootstrap, topic, columns=["gate", "delay"]).read_all()
    assert table.to_pydict() == {"delay": [1, 2**40, None], "gate": ["?", "B1", "?"]}


def test_a_reader_gets_rows_in_the_version_that_it_names(cluster: LocalCluster, topic: str, admin: AdminClient) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, flight("A", 1)).result(30)
        admin.alter_topic_schema(topic, SECOND)
        wait_for(lambda: _sends(producer, topic, flight("A", 2, gate="B1")), "the producer uses version 2")
    first = read_table(cluster.bootstrap, topic, columns=["carrier"], version=1).read_all()
    assert first.to_pydict() == {"carrier": ["A", "A"]}
    assert "gate" not in scan(cluster.bootstrap, topic, version=1).collect_schema().names()
    assert scan(cluster.bootstrap, topic, version=2).collect()["gate"].to_list() == ["?", "B1"]
    for read in (read_table, scan):
        with raises_code(ErrorCode.UNKNOWN_SCHEMA_VERSION, f"topic {topic} has no version 9 of its schema"):
            read(cluster.bootstrap, topic, version=9)


def test_a_consumer_gets_rows_in_the_version_that_it_names(
    cluster: LocalCluster, topic: str, admin: AdminClient
) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, flight("A", 1)).result(30)
        admin.alter_topic_schema(topic, SECOND.replace("BIGINT", "INT"))
        wait_for(lambda: _sends(producer, topic, flight("A", 2, gate="B1")), "the producer uses version 2")
    for version, gates in ((1, [None, None]), (2, ["?", "B1"])):
        for group in (None, f"group-{topic}-{version}"):
            with _reading(cluster, topic, version, group) as consumer:
                assert [record.value.get("gate") for record in islice(consumer, 2)] == gates
                consumer.seek(_partition_of(consumer), 0)
                batch = consumer.poll(30, columns=["delay"])
                assert batch is not None
                assert batch.rows.to_pydict() == {"delay": [1]}
    with pytest.raises(TidemarkError, match="has no version 9 of its schema"), _reading(cluster, topic, 9, None):
        pass
    with (
        _reading(cluster, topic, 9, f"group-{topic}-9") as consumer,
        raises_code(ErrorCode.UNKNOWN_SCHEMA_VERSION, "has no version 9 of its schema"),
    ):
        consumer.poll(30)
    admin.create_topic(f"{topic}-bytes")
    with (
        pytest.raises(TidemarkError, match="has no schema, and so no schema versions"),
        _reading(cluster, f"{topic}-bytes", 1, None),
    ):
        pass
    admin.delete_topic(f"{topic}-bytes")


@contextlib.contextmanager
def _reading(cluster: LocalCluster, topic: str, version: int, group: str | None) -> Iterator[Consumer]:
    with Consumer(cluster.bootstrap, group=group, schema_versions={topic: version, "other": 7}) as consumer:
        if group is None:
            consumer.assign(topic)
        else:
            consumer.subscribe([topic])
        yield consumer


def _partition_of(consumer: Consumer) -> TopicPartition:
    return next(where for where in consumer.assignment if consumer.position(where))


def _sends(producer: Producer, topic: str, row: dict[str, Any]) -> bool:
    with contextlib.suppress(TidemarkError):
        producer.send(topic, row).result(30)
        return True
    return False


def test_a_refused_row_leaves_nothing_behind(cluster: LocalCluster, topic: str, admin: AdminClient) -> None:
    admin.create_topic(f"{topic}-bytes", partitions=1)
    good = pa.table({"carrier": ["A", "B"], "at": [NOON, NOON]})
    with Producer(cluster.bootstrap) as producer, Producer(cluster.bootstrap, value_serializer="json") as serializing:
        for refuse, code in [
            (lambda: producer.send(topic, b"{}"), ErrorCode.SCHEMA_MISMATCH),
            (lambda: producer.send(topic, None), ErrorCode.SCHEMA_MISMATCH),
            (lambda: serializing.send(topic, flight("A")), ErrorCode.SCHEMA_MISMATCH),
            (lambda: producer.send(topic, flight("A"), key=b"A"), ErrorCode.INVALID_REQUEST),
            (lambda: producer.send(topic, {"carrier": "A"}), ErrorCode.SCHEMA_MISMATCH),
            (
                lambda: producer.send_table(topic, good.append_column("delay", pa.array([1, 2**31]))),
                ErrorCode.SCHEMA_MISMATCH,
            ),
            (lambda: producer.send_table(topic, good, value="carrier"), ErrorCode.INVALID_REQUEST),
            (lambda: producer.send_table(topic, good, timestamp="at"), ErrorCode.INVALID_REQUEST),
            (lambda: producer.send_table(topic, 7), ErrorCode.INVALID_PAYLOAD),
        ]:
            with raises_code(code) as refused:
                refuse()
            assert code is ErrorCode.INVALID_PAYLOAD or topic in refused.value.message
        with pytest.raises(TypeError, match=f"topic {topic}-bytes has no schema"):
            producer.send(f"{topic}-bytes", flight("A"))
        producer.flush(timeout_s=30)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(topic)
        assert set(consumer.end_offsets().values()) == {0}
        with pytest.raises(TidemarkError, match="has no column 'dely'"):
            next(consumer.batches(columns=["dely"]))
        consumer.assign(f"{topic}-bytes")
        with pytest.raises(TidemarkError, match=f"topic {topic}-bytes has no schema"):
            next(consumer.batches(columns=["delay"]))
    with (
        Consumer(cluster.bootstrap, value_deserializer="json") as consumer,
        pytest.raises(TidemarkError, match="omit key_deserializer and value_deserializer"),
    ):
        consumer.assign(topic)
    with pytest.raises(TidemarkError, match="has no schema, so it has no columns"):
        read_table(cluster.bootstrap, f"{topic}-bytes")
    with pytest.raises(TidemarkError, match="has no column 'dely'"):
        read_table(cluster.bootstrap, topic, columns=["dely"])
    admin.delete_topic(f"{topic}-bytes")


def test_a_null_deletes_a_row_of_a_compacted_topic(cluster: LocalCluster, topic: str, admin: AdminClient) -> None:
    with Producer(cluster.bootstrap) as producer:
        with pytest.raises(TidemarkError, match="not compacted"):
            producer.send(topic, None, key="A").result(30)
        admin.alter_configs(ConfigResource(ConfigKind.TOPIC, topic), {"cleanup.policy": "compact"})
        wait_for(lambda: _deletes(producer, topic), "the brokers know of the compaction")
        producer.send(topic, flight("A", 2)).result(30)
        table = pl.DataFrame({"carrier": ["B", "B"], "at": [NOON, NOON], "_deleted": [False, True]})
        producer.send_table(topic, table).result(30)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(topic)
        deleted, kept = islice(consumer, 2)
    assert (deleted.key, deleted.value) == (b"A", None)
    assert (kept.key, kept.value) == (b"A", flight("A", 2))
    marks = read_table(cluster.bootstrap, topic, columns=["carrier", "_deleted"]).read_all().to_pylist()
    assert [one["_deleted"] for one in marks if one["carrier"] == "B"] == [False, True]
    assert read_table(cluster.bootstrap, topic, columns=["carrier", "delay"]).read_all().num_rows == 2


def _deletes(producer: Producer, topic: str) -> bool:
    with contextlib.suppress(TidemarkError):
        producer.send(topic, None, key={"carrier": "A"}).result(30)
        return True
    return False


async def test_asyncio_clients_read_and_write_rows(cluster: LocalCluster, topic: str) -> None:
    async with aio.Producer(cluster.bootstrap, codec="zstd", partitioner=lambda *_: 2) as producer:
        where = await (await producer.send(topic, flight("A", 1)))
        await (await producer.send_table(topic, pa.table({"carrier": ["B"], "at": [NOON]})))
    assert where.partition == 2
    async with aio.Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(topic, [2])
        async with contextlib.aclosing(consumer.batches(columns=["carrier", "_timestamp", "_headers"])) as batches:
            first = await anext(batches)
        assert first.rows.to_pylist() == [{"carrier": "A", "_timestamp": NOON, "_headers": None}]
        record = await anext(consumer)
        assert (record.offset, record.value) == (1, flight("B"))


def test_a_group_reads_rows_each_once_and_batches_take_over_from_records(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send_many(topic, [(None, flight("A", number)) for number in range(10)])
    with Consumer(cluster.bootstrap, group=topic) as consumer:
        consumer.subscribe([topic])
        assert [one.value["delay"] for one in islice(consumer, 3)] == [0, 1, 2]
        consumer.commit()
    with Consumer(cluster.bootstrap, group=topic) as consumer:
        consumer.subscribe([topic])
        where = TopicPartition(topic, partition_of(b"A", PARTITIONS))
        left: list[int] = []
        assert next(consumer).value["delay"] == 3
        for batch in consumer.batches(columns=["delay"]):
            left += batch.rows.column("delay").to_pylist()
            if left[-1] == 9:
                break
        assert left == [4, 5, 6, 7, 8, 9]
        consumer.commit()
        assert consumer.committed([where]) == {where: 10}


def test_tables_are_read_between_offsets_and_times(cluster: LocalCluster, topic: str) -> None:
    hours = [NOON + timedelta(hours=hour) for hour in range(6)]
    with Producer(cluster.bootstrap) as producer:
        for hour in hours:
            producer.send(topic, flight("A") | {"at": hour}).result(30)
    partition = partition_of(b"A", PARTITIONS)

    def found(**between: Any) -> list[int]:
        with read_table(cluster.bootstrap, topic, columns=["_offset"], **between) as reader:
            offsets: list[int] = reader.read_all().column("_offset").to_pylist()
        return offsets

    assert found() == [0, 1, 2, 3, 4, 5]
    assert found(start=hours[2], end=hours[4]) == [2, 3]
    assert found(start={partition: 1}, end={partition: 3}) == [1, 2]
    assert found(start=4, end=100) == [4, 5]
    assert found(partitions=[(partition + 1) % PARTITIONS]) == []
    assert found(start=hours[5] + timedelta(hours=1)) == []
    with pytest.raises(TidemarkError, match="has no partition 7"):
        found(partitions=[7])
    with pytest.raises(TidemarkError, match="without a time zone"):
        found(start=NOON.replace(tzinfo=None))


def test_a_predicate_on_partition_offset_and_time_reads_the_same_rows_as_a_filter_afterwards(
    cluster: LocalCluster, topic: str
) -> None:
    with Producer(cluster.bootstrap) as producer:
        for hour in range(6):
            at = NOON + timedelta(hours=hour)
            rows = [flight(carrier, hour, at=at + timedelta(minutes=place)) for place, carrier in enumerate("ABCDEF")]
            producer.send_table(topic, pl.DataFrame(rows, schema_overrides={"legs": pl.Null})).result(timeout_s=30)
    columns = ["carrier", "delay", "at", "_partition", "_offset", "_timestamp"]
    table = scan(cluster.bootstrap, topic, columns=columns)
    everything = table.collect()
    assert len(everything) == 36
    noon = pl.lit(NOON)
    for predicate in (
        pl.col("at") >= noon + timedelta(hours=5),
        pl.col("_timestamp") < noon + timedelta(hours=1),
        pl.col("at").is_between(NOON + timedelta(hours=2), NOON + timedelta(hours=2, minutes=1)),
        (pl.col("_partition") == 1) & (pl.col("_offset") > 2) & (pl.col("delay") < 4),
        pl.col("_partition").is_in([0, 2]) & (pl.col("at") == NOON),
        (pl.col("at") > NOON) | (pl.col("_offset") == 0),
        pl.col("_offset") > 1 << 40,
    ):
        order = ["_partition", "_offset"]
        assert table.filter(predicate).collect().sort(order).equals(everything.filter(predicate).sort(order))
