# SPDX-License-Identifier: Apache-2.0
"""Typed topics as tables and streams, on real brokers; most tests without Spark, as Spark calls the readers."""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Batch
from tidemark_spark.options import parse_options
from tidemark_spark.reader import TidemarkFilteringReader
from tidemark_spark.sink.writer import open_stream_writer, open_writer
from tidemark_spark.source import TidemarkDataSource
from tidemark_spark.typed.spark_types import spark_field
from tidemark_spark.typed.topic import SchemaChangeError

from tests.spark.harness.reading import batches, needs_pushed_filters, needs_read_limits, next_end

DDL = (
    "carrier STRING NOT NULL, delay INT, price DECIMAL(10,2), day DATE, at TIMESTAMP NOT NULL, local TIMESTAMP_NTZ, "
    "leg STRUCT<origin: STRING, miles: BIGINT>, legs ARRAY<STRUCT<origin: STRING, miles: INT>>, "
    "tags MAP<STRING, INT>, raw BINARY, share DOUBLE, PRIMARY KEY (carrier)"
)
SCHEMA = draft_from_ddl(DDL).keyed(event_time="at")
AT = datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)


def row(number: int, **more: Any) -> dict[str, Any]:
    """A flight with every type; each fifth has nulls."""
    empty = number % 5 == 4
    return {
        "carrier": f"C{number % 7}",
        "delay": None if empty else number - 10,
        "price": None if empty else decimal.Decimal(number * 25).scaleb(-2),
        "day": None if empty else datetime.date(2013, 1, 1 + number % 28),
        "at": AT + datetime.timedelta(minutes=number),
        "local": None if empty else (AT + datetime.timedelta(minutes=number)).replace(tzinfo=None),
        "leg": None if empty else {"origin": "JFK", "miles": number * 100},
        "legs": None if empty else [{"origin": "JFK", "miles": number}, {"origin": None, "miles": None}],
        "tags": None if empty else [("a", number), ("b", None)],
        "raw": None if empty else bytes([number % 256]),
        "share": float("nan") if empty else number / 8,
        **more,
    }


ROWS = [row(number) for number in range(60)]


def options_of(cluster: LocalCluster, topic: str, **more: str) -> dict[str, str]:
    return {"tidemark.bootstrap": cluster.bootstrap, "path": topic, **more}


def schema_of(source: TidemarkDataSource) -> StructType:
    found = source.schema()
    assert isinstance(found, StructType)
    return found


def read(options: dict[str, str], schema: StructType | None = None) -> list[dict[str, Any]]:
    """Rows of a batch read, as Spark would get them."""
    source = TidemarkDataSource(options)
    reader = source.reader(schema or schema_of(source))
    return [one for batch in batches(reader, reader.partitions()) for one in batch.to_pylist()]


def send(cluster: LocalCluster, topic: str, rows: list[dict[str, Any]]) -> None:
    """Send rows, as soon as the producer knows a version of the schema that they fit."""
    until_s = time.monotonic() + 20
    with Producer(cluster.bootstrap) as producer:
        while True:
            try:
                producer.send_table(topic, pa.Table.from_pylist(rows)).result()
                return
            except TidemarkError as error:
                if error.code is not ErrorCode.SCHEMA_MISMATCH or time.monotonic() > until_s:
                    raise
                time.sleep(0.1)


def again_and_again(call: Callable[[], Any]) -> None:
    """Call until it raises; a schema change takes a moment to arrive."""
    for _ in range(200):
        call()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def flights(cluster: LocalCluster) -> str:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("typed-flights", partitions=2, replication_factor=3, schema=SCHEMA)
    with Producer(cluster.bootstrap, linger_ms=1_000) as producer:  # one batch for each partition
        for one in ROWS:
            producer.send("typed-flights", {**one, "tags": None if one["tags"] is None else dict(one["tags"])})
        producer.flush(30)
    return "typed-flights"


def columns(ddl: str) -> StructType:
    """The schema of a read that names its columns itself."""
    return StructType([spark_field(column) for column in draft_from_ddl(ddl).columns])


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with NaN replaced, for NaN is not equal to itself."""
    return [{**one, "share": "NaN" if one["share"] != one["share"] else one["share"]} for one in rows]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: one["at"])


def test_a_typed_topic_is_a_table_with_its_columns(cluster: LocalCluster, flights: str) -> None:
    options = options_of(cluster, flights)
    assert schema_of(TidemarkDataSource(options)).simpleString() == (
        "struct<carrier:string,delay:int,price:decimal(10,2),day:date,at:timestamp,local:timestamp_ntz,"
        "leg:struct<origin:string,miles:bigint>,legs:array<struct<origin:string,miles:int>>,tags:map<string,int>,"
        "raw:binary,share:double>"
    )
    assert comparable(in_order(read(options))) == comparable(ROWS)
    subscribed = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": flights}
    assert comparable(in_order(read(subscribed))) == comparable(ROWS)


def test_columns_are_chosen_by_name_path_and_schema_and_the_broker_sends_no_others(
    cluster: LocalCluster, flights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    rows_of = BatchRows.rows

    def counting(self: BatchRows, batch: Batch, *others: Any) -> Any:
        sizes.append(len(batch.data))
        return rows_of(self, batch, *others)

    monkeypatch.setattr(BatchRows, "rows", counting)
    whole = in_order(read(options_of(cluster, flights)))
    whole_bytes = sum(sizes)
    sizes.clear()
    found = read(options_of(cluster, flights, columns="leg.miles, delay, at, _partition"))
    assert list(found[0]) == ["leg", "delay", "at", "_partition"]
    miles = [
        {"leg": one["leg"] and {"miles": one["leg"]["miles"]}, "delay": one["delay"], "at": one["at"]} for one in whole
    ]
    assert [{name: one[name] for name in miles[0]} for one in in_order(found)] == miles
    assert sum(sizes) < whole_bytes / 2
    sizes.clear()
    chosen = read(options_of(cluster, flights), columns("leg STRUCT<miles: BIGINT>, delay INT, at TIMESTAMP"))
    assert in_order(chosen) == miles
    assert sum(sizes) < whole_bytes / 2


def test_metadata_columns_come_when_asked(cluster: LocalCluster, flights: str) -> None:
    found = read(options_of(cluster, flights, columns="delay", metadataColumns="true"))
    assert list(found[0]) == ["delay", "_key", "_partition", "_offset", "_timestamp", "_headers"]
    with RangeReader(cluster.bootstrap, deadline_s=30) as reader:
        ends = {partition: bound.latest for partition, bound in reader.bounds(flights, [0, 1]).items()}
    places = sorted((one["_partition"], one["_offset"]) for one in found)
    assert places == [(partition, offset) for partition in (0, 1) for offset in range(ends[partition])]
    by_delay = {one["delay"]: one for one in found if one["delay"] is not None}
    assert by_delay[-10]["_key"] == b"C0"
    assert by_delay[-10]["_headers"] is None
    assert by_delay[-10]["_timestamp"] == AT, "the event time"
    assert {one["_deleted"] for one in read(options_of(cluster, flights, metadataColumns="_deleted"))} == {False}


def test_wrong_columns_and_options_are_refused_with_a_sentence(cluster: LocalCluster, flights: str) -> None:
    def refused(sentence: str, schema: StructType | None = None, **more: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            read(options_of(cluster, flights, **more), schema)

    refused("has no column 'delays'; it has carrier, delay", columns="delays")
    refused("'metadataColumns' names '_offsets'; expected true, false or some of _key", metadataColumns="_offsets")
    refused("schema version 1: the schema states bigint for the column 'delay', which is int", columns("delay BIGINT"))
    refused("column 'leg' has no field 'dest'", columns("leg STRUCT<dest: STRING>"))
    refused("a column 'dest'; topic typed-flights has carrier, delay", columns("dest STRING"))
    refused("schemaChange' is 'ignore'; expected fail or latestAtRestart", schemaChange="ignore")
    source = TidemarkDataSource(options_of(cluster, flights, valueFormat="string"))
    with pytest.raises(ValueError, match=r"has a schema, and this read gives bytes: read it alone, by load\('typed-fl"):
        source.reader(StructType([])).partitions()
    both = TidemarkDataSource({"tidemark.bootstrap": cluster.bootstrap, "subscribePattern": "typed-.*"})
    with pytest.raises(ValueError, match="topic typed-flights has a schema, and this read gives bytes"):
        both.reader(StructType([])).partitions()


def test_a_topic_without_a_schema_is_read_by_load_too_and_stays_as_it_was(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("typed-not", partitions=1, replication_factor=3)
    with Producer(cluster.bootstrap) as producer:
        producer.send("typed-not", b"value", key=b"key").result()
    source = TidemarkDataSource(options_of(cluster, "typed-not", columns="key, value"))
    assert source.schema() == "key binary, value binary"
    schema = StructType([StructField(name, BinaryType()) for name in ("key", "value")])
    assert read(source.options, schema) == [{"key": b"key", "value": b"value"}]
    with pytest.raises(ValueError, match="'metadataColumns' is for topics with a schema; this one has none"):
        read(options_of(cluster, "typed-not", metadataColumns="true"), schema)


def test_every_version_is_read_as_that_of_the_load(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("typed-old", partitions=1, replication_factor=3, schema="a INT NOT NULL, b INT, c STRING")
        send(cluster, "typed-old", [{"a": 1, "b": 2, "c": "x"}])
        first = TidemarkDataSource(options_of(cluster, "typed-old", metadataColumns="_offset"))
        before = schema_of(first)
        second = {
            "columns": [
                {"name": "a", "type": "int64", "nullable": False},
                {"name": "bee", "type": "int32", "renamed_from": "b"},
                {"name": "d", "type": "string", "default": "new"},
            ]
        }
        admin.alter_topic_schema("typed-old", second)
        admin.alter_topic_schema("typed-old", {"columns": [*second["columns"], {"name": "b", "type": "string"}]})
    send(cluster, "typed-old", [{"a": 1 << 40, "bee": 3, "d": "y", "b": "other"}])
    newest = read(options_of(cluster, "typed-old"))
    assert newest == [{"a": 1, "bee": 2, "d": "new", "b": None}, {"a": 1 << 40, "bee": 3, "d": "y", "b": "other"}]
    assert read(options_of(cluster, "typed-old", columns="d")) == [{"d": "new"}, {"d": "y"}]
    in_second = [{"a": 1, "bee": 2, "d": "new"}, {"a": 1 << 40, "bee": 3, "d": "y"}]
    assert read(options_of(cluster, "typed-old", schemaVersion="2")) == in_second
    with pytest.raises(ValueError, match="option 'schemaVersion' is '9'; topic typed-old has versions 1 to 3"):
        schema_of(TidemarkDataSource(options_of(cluster, "typed-old", schemaVersion="9")))
    # A table that was loaded before the change keeps its schema, or raises an error if that is impossible.
    narrow = StructType([field for field in before.fields if field.name in ("b", "c")])
    reader = first.reader(narrow)
    assert [one for batch in batches(reader, reader.partitions()) for one in batch.to_pylist()] == [
        {"b": 2, "c": "x"},
        {"b": 3, "c": None},
    ]
    reader = first.reader(before)
    with pytest.raises(TidemarkError, match="a reader with version 1 of the schema cannot read a batch of version 3"):
        list(batches(reader, reader.partitions()))


@needs_read_limits
def test_a_stream_ends_at_a_change_of_the_schema_or_continues_until_the_restart(cluster: LocalCluster) -> None:
    name = "typed-stream"
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(name, partitions=1, replication_factor=3, schema="a INT")
        send(cluster, name, [{"a": 1}])
        options = options_of(cluster, name, startingOffsets="earliest")

        def opened(**more: str) -> Any:
            source = TidemarkDataSource({**options, **more})
            return source.streamReader(schema_of(source))

        strict, lenient = opened(), opened(schemaChange="latestAtRestart")
        start = strict.initialOffset()
        middle = next_end(strict, start)
        assert [one.to_pylist() for one in batches(strict, strict.partitions(start, middle))] == [[{"a": 1}]]
        admin.alter_topic_schema(name, "a INT, b STRING")
    send(cluster, name, [{"a": 2, "b": "x"}])
    with pytest.raises(SchemaChangeError, match=r"version 2 of its schema, .* began with version 1\. Start"):
        again_and_again(lambda: next_end(strict, middle))
    end = next_end(lenient, middle)
    assert [one.to_pylist() for one in batches(lenient, lenient.partitions(middle, end))] == [[{"a": 2}]]
    again = opened()
    assert [one.to_pylist() for one in batches(again, again.partitions(middle, end))] == [[{"a": 2, "b": "x"}]]
    for reader in (strict, lenient, again):
        reader.stop()


@needs_pushed_filters
def test_filters_leave_rows_out_in_the_task_and_none_that_pass(cluster: LocalCluster, flights: str) -> None:
    from pyspark.sql import datasource as d

    source = TidemarkDataSource(options_of(cluster, flights))
    whole = source.reader(schema_of(source))
    rows = [one for batch in batches(whole, whole.partitions()) for one in batch.to_pylist()]
    late = AT + datetime.timedelta(minutes=50)
    wanted: list[tuple[Any, Any]] = [
        (d.GreaterThan(("delay",), 20), lambda one: one["delay"] is not None and one["delay"] > 20),
        (d.In(("carrier",), ("C1", "C2")), lambda one: one["carrier"] in ("C1", "C2")),
        (d.Not(d.EqualTo(("carrier",), "C1")), lambda one: one["carrier"] != "C1"),
        (d.Not(d.EqualNullSafe(("delay",), -10)), lambda one: one["delay"] != -10),
        (d.IsNull(("leg",)), lambda one: one["leg"] is None),
        (d.EqualTo(("leg", "miles"), 300), lambda one: one["leg"] and one["leg"]["miles"] == 300),
        (d.LessThan(("day",), datetime.date(2013, 1, 3)), lambda one: one["day"] and one["day"].day < 3),
        (d.GreaterThanOrEqual(("at",), late), lambda one: one["at"].minute >= 50),
        (d.LessThan(("price",), decimal.Decimal("1.5")), lambda one: one["price"] is not None and one["price"] < 1.5),
        (d.StringStartsWith(("carrier",), "C3"), lambda one: one["carrier"] == "C3"),
        # NaN is larger than any number for Spark.
        (d.GreaterThan(("share",), 7.0), lambda one: not one["share"] <= 7.0),
        (d.In(("share",), (-0.0, 1.5)), lambda one: one["share"] in (0.0, 1.5) or one["share"] != one["share"]),
    ]
    for pushed, passes in wanted:
        reader = filtering(source)
        assert list(reader.pushFilters([pushed])) == [pushed], "Spark applies it again"
        found = [one for batch in batches(reader, reader.partitions()) for one in batch.to_pylist()]
        assert comparable(found) == comparable([one for one in rows if passes(one)]), pushed

    reader = filtering(source)
    list(reader.pushFilters([d.GreaterThanOrEqual(("at",), late)]))
    assert reader._table is not None
    assert reader._table.rows.times.from_us == int(late.timestamp()) * 1_000_000, (
        "brokers omit columns of older batches"
    )


@needs_pushed_filters
def test_a_bound_of_the_event_time_keeps_rows_from_before_a_change_to_create_time(cluster: LocalCluster) -> None:
    from pyspark.sql import datasource as d

    name, kind = "typed-append-time", "message.timestamp.type"
    with AdminClient(cluster.admin_address) as admin:
        schema = "at TIMESTAMP NOT NULL, EVENT_TIME (at)"
        admin.create_topic(name, partitions=1, replication_factor=3, schema=schema, configs={kind: "LogAppendTime"})
        future = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
        send(cluster, name, [{"at": future}])
        admin.alter_configs(ConfigResource(ConfigKind.TOPIC, name), {kind: "CreateTime"})
    source = TidemarkDataSource(options_of(cluster, name))
    reader = filtering(source)
    list(reader.pushFilters([d.GreaterThan(("at",), datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC))]))
    until_s = time.monotonic() + 20
    while any(one.timestamp_type for part in reader.partitions() for one in part.ranges):  # type: ignore[attr-defined]
        assert time.monotonic() < until_s, "brokers do not know the change"
        time.sleep(0.05)
    assert [one for batch in batches(reader, reader.partitions()) for one in batch.to_pylist()] == [{"at": future}]


def filtering(source: TidemarkDataSource) -> TidemarkFilteringReader:
    schema = schema_of(source)
    return TidemarkFilteringReader(parse_options(source.options, typed=True), schema, source.table(schema))


def test_spark_reads_a_typed_topic_as_table_and_stream(
    spark: SparkSession, cluster: LocalCluster, flights: str, tmp_path: Path
) -> None:
    reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    rows = [one.asDict(recursive=True) for one in reader.load(flights).collect()]
    naive = [
        {**one, "at": one["at"].astimezone().replace(tzinfo=None), "tags": one["tags"] and dict(one["tags"])}
        for one in ROWS
    ]
    assert comparable(in_order(rows)) == comparable(naive)
    two = reader.option("metadataColumns", "_offset").schema("carrier string, leg struct<miles: bigint>").load(flights)
    assert two.where("leg.miles > 500").groupBy("carrier").count().agg({"count": "sum"}).collect()[0][0] == sum(
        one["leg"] is not None and one["leg"]["miles"] > 500 for one in ROWS
    )
    stream = spark.readStream.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    query = (
        stream.option("startingOffsets", "earliest")
        .load(flights)
        .writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    rows = [one.asDict(recursive=True) for one in spark.table("typed").collect()]
    assert comparable(in_order(rows)) == comparable(naive)


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("carrier STRING, at TIMESTAMP, delays INT", "has no column 'delays': did you mean delay"),
        (
            "carrier STRING, at TIMESTAMP, delay BIGINT",
            "column 'delay' is bigint in the table and int in the schema: cast",
        ),
        ("carrier STRING", "the table lacks the column 'at', which is never null and has no default"),
        ("carrier STRING, at TIMESTAMP, leg STRUCT<dest: STRING>", "column 'leg' has no field 'dest'; it has origin"),
        ("carrier STRING, at TIMESTAMP, price DECIMAL(12,2)", r"column 'price' is decimal\(12,2\) in the table"),
        ("carrier STRING, at TIMESTAMP, local TIMESTAMP", "column 'local' is timestamp in the table and timestamp_ntz"),
        ("carrier STRING, at TIMESTAMP, tags MAP<STRING, BIGINT>", "column 'tags.value' is bigint"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_first_task(
    cluster: LocalCluster, flights: str, ddl: str, sentence: str
) -> None:
    options = {"tidemark.bootstrap": cluster.bootstrap, "topic": flights}
    for opened in (open_writer, open_stream_writer):
        with pytest.raises(ValueError, match=f"topic typed-flights, schema version 1: .*{sentence}"):
            opened(options, columns(ddl), overwrite=False)


def test_wider_columns_and_defaults_make_a_table_fit(cluster: LocalCluster, flights: str) -> None:
    options = {"tidemark.bootstrap": cluster.bootstrap, "path": flights}
    ddl = "carrier STRING, at TIMESTAMP, delay SMALLINT, price DECIMAL(8,2), share FLOAT, leg STRUCT<miles: INT>"
    fields = [*columns(ddl).fields, StructField("_offset", LongType())]
    open_writer(options, StructType(fields), overwrite=False)
    headers = StructField("_headers", MapType(StringType(), BinaryType()))
    with pytest.raises(
        ValueError, match="column '_headers' is map<string,binary>; expected array<struct<key:string,value"
    ):
        open_writer(options, StructType([*fields, headers]), overwrite=False)


def test_spark_writes_rows_into_a_typed_topic(
    spark: SparkSession, cluster: LocalCluster, flights: str, tmp_path: Path
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("typed-copy", partitions=3, replication_factor=3, schema=SCHEMA)
    source = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    headers = (
        "array(named_struct('key', 'n', 'value', cast(carrier as binary)), named_struct('key', 'm', 'value', null))"
    )
    table = source.load(flights).selectExpr("*", f"if(delay % 2 = 0, {headers}, null) as _headers", "1L as _offset")
    table.write.format("tidemark").mode("append").option("tidemark.bootstrap", cluster.bootstrap).save("typed-copy")
    found = read(options_of(cluster, "typed-copy", metadataColumns="_key, _partition"))
    assert comparable(in_order([{name: one[name] for name in ROWS[0]} for one in found])) == comparable(ROWS)
    for one in read(options_of(cluster, "typed-copy", columns="carrier, delay, _headers")):
        written = [{"key": "n", "value": one["carrier"].encode()}, {"key": "m", "value": None}]
        assert one["_headers"] == (None if one["delay"] is None or one["delay"] % 2 else written)
    places = {(one["_key"], one["_partition"]) for one in found}
    assert len(places) == len({one["carrier"] for one in ROWS}), "rows of a key are in one partition"

    stream = spark.readStream.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    rows = stream.option("startingOffsets", "earliest").option("columns", "carrier, at, delay").load(flights)
    query = (
        rows.selectExpr("carrier", "at", "delay", "1 as _partition")
        .writeStream.format("tidemark")
        .option("tidemark.bootstrap", cluster.bootstrap)
        .option("topic", "typed-copy")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    found = read(options_of(cluster, "typed-copy", columns="delay, at, _partition"))
    assert len(found) == 2 * len(ROWS)
    assert sum(one["_partition"] == 1 for one in found) >= len(ROWS)
    with pytest.raises(
        Exception, match="SCHEMA_MISMATCH: topic typed-copy, schema version 1: row 2, column carrier: null"
    ):
        spark.range(3, numPartitions=1).selectExpr(
            "if(id = 2, null, 'AA') as carrier", "timestamp_seconds(id) as at"
        ).write.format("tidemark").mode("append").option("tidemark.bootstrap", cluster.bootstrap).save("typed-copy")
