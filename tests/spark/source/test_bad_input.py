# SPDX-License-Identifier: Apache-2.0
"""Errors of a query name the option or the partition, on real Spark; nothing hangs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name

MakeTopic = Callable[..., str]
NOBODY = "127.0.0.1:1,127.0.0.1:2"
PATIENCE_S = 200.0
pytestmark = pytest.mark.timeout(420)


def first_line(error: PySparkException) -> str:
    """The part of Spark's message that every tool shows."""
    return str(error).strip().splitlines()[0]


def fill(cluster: LocalCluster, topic: str, count: int, value: bytes = b"v") -> None:
    """Send this number of records to partition 0."""
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, pa.table({"value": pa.array([value] * count, pa.binary())}), partition=0)
        producer.flush(60)


def batch(spark: SparkSession, cluster: LocalCluster, **options: str) -> DataFrame:
    reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    return reader.options(**options).load()


def run_stream(spark: SparkSession, directory: Path, **options: str) -> None:
    """Read up to the present end, into Parquet, with the checkpoint in the same directory."""
    table = spark.readStream.format("tidemark").options(**options).load()
    writer = table.select("partition", "offset").writeStream.format("parquet").option("path", str(directory / "rows"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(PATIENCE_S)), "it hangs"
    finally:
        query.stop()


def read_batch(spark: SparkSession, directory: Path) -> None:
    table = spark.read.format("tidemark").options(**{"tidemark.bootstrap": NOBODY, "deadlineMs": "500"})
    table.option("subscribe", "any").load().collect()


def read_stream(spark: SparkSession, directory: Path) -> None:
    run_stream(spark, directory, **{"tidemark.bootstrap": NOBODY, "deadlineMs": "500", "subscribe": "any"})


def write_batch(spark: SparkSession, directory: Path) -> None:
    rows = spark.sql("select cast('v' as binary) as value").write.format("tidemark").mode("append")
    rows.options(**{"tidemark.bootstrap": NOBODY, "topic": "any", "deadlineMs": "500"}).save()


@pytest.mark.parametrize("job", [read_batch, read_stream, write_batch])
def test_unreachable_addresses_are_reported_in_time_each_with_its_cause(
    spark: SparkSession, tmp_path: Path, job: Callable[[SparkSession, Path], None]
) -> None:
    began_s = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        job(spark, tmp_path)
    assert time.monotonic() - began_s < PATIENCE_S
    told = str(caught.value)
    for address in NOBODY.split(","):
        assert re.search(rf"{address}: \w+", told), told


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffsets": '{"held": {"0": 5}}', "endingOffsets": '{"held": {"0": 3}}'},
            r"endingOffsets .*3.* held-0.* is below|held-0.*is below",
        ),
        ({"startingOffsets": '{"held": {"0": 5}'}, r"option 'startingOffsets' is not JSON"),
        ({"endingOffsets": '{"held": {"0": "five"}}'}, r"endingOffsets\['held'\]\['0'\] is 'five'"),
        ({"startingOffsets": '{"held": [5]}'}, r"startingOffsets\['held'\] is \[5\]"),
        ({"startingOffsets": '{"held": {"0": 77}}'}, r"startingOffsets names offset 77 of held-0, which has 0"),
        ({"assign": '{"held": [4]}', "subscribe": ""}, r"subscribe and assign are"),
    ],
)
def test_an_invalid_offset_is_reported_in_the_first_line_with_its_option_and_partition(
    spark: SparkSession, cluster: LocalCluster, held: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        batch(spark, cluster, **{"subscribe": held, **options}).collect()
    assert re.search(sentence, first_line(caught.value))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is for batch reads; this is a stream"),
        (
            {"startingOffset": "earliest"},
            "tidemark has no option 'startingoffset' for reads; did you mean 'startingOffsets'\\?",
        ),
    ],
)
def test_a_query_reports_a_wrong_option_of_a_stream(
    spark: SparkSession, cluster: LocalCluster, held: str, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        run_stream(spark, tmp_path, **{**of_held(cluster), **options})
    assert re.search(sentence, first_line(caught.value))


def test_a_wrong_option_of_a_write_is_reported_in_the_first_line(spark: SparkSession) -> None:
    rows = spark.sql("select cast('v' as binary) as value").write.format("tidemark").mode("append")
    with pytest.raises(PySparkException) as caught:
        rows.options(**{"tidemark.bootstrap": NOBODY, "topci": "any"}).save()
    assert "tidemark has no option 'topci' for writes; did you mean 'topic'?" in first_line(caught.value)


def test_a_wrong_column_is_reported_in_the_first_line(spark: SparkSession, cluster: LocalCluster, held: str) -> None:
    with pytest.raises(PySparkException) as caught:
        batch(spark, cluster, subscribe=held, columns="value, size")
    assert "names 'size'" in first_line(caught.value)


def test_an_error_of_a_task_is_reported_without_a_stack_trace_of_python(
    spark: SparkSession, cluster: LocalCluster, held: str
) -> None:
    options = {"subscribe": held, "valueFormat": "json", "valueSchema": "a INT"}
    with pytest.raises(PySparkException) as caught:
        batch(spark, cluster, **options).collect()
    assert "Traceback" not in str(caught.value)


@pytest.fixture(scope="module")
def held(cluster: LocalCluster) -> str:
    """Topic `held`, whose one partition holds offsets 0 to 10."""
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("held", partitions=1, replication_factor=3)
    fill(cluster, "held", 10)
    return "held"


@pytest.fixture(scope="module")
def finished(spark: SparkSession, cluster: LocalCluster, held: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a query that has read all of `held`; for copies."""
    directory = tmp_path_factory.mktemp("finished")
    run_stream(spark, directory, **of_held(cluster))
    return directory


def of_held(cluster: LocalCluster) -> dict[str, str]:
    return {"tidemark.bootstrap": cluster.bootstrap, "subscribe": "held", "startingOffsets": "earliest"}


def last_offsets(directory: Path) -> Path:
    """The file with the offsets of the query, without its checksum file."""
    path = max((directory / "checkpoint").glob("offsets/[0-9]*"), key=lambda path: int(path.name))
    path.with_name(f".{path.name}.crc").unlink()
    return path


def test_a_checkpoint_of_another_cluster_is_refused_with_both_cluster_ids(
    spark: SparkSession, cluster: LocalCluster, finished: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(finished, tmp_path / "moved")
    path = last_offsets(moved)
    text = path.read_text()
    (here,) = set(re.findall(r'"cluster": ?"(\w+)"', text))
    elsewhere = "0123456789abcdef0123456789abcdef"
    path.write_text(text.replace(here, elsewhere))
    sentence = f"the checkpoint is of cluster {elsewhere}, and 'tidemark.bootstrap' leads to cluster {here}"
    with pytest.raises(PySparkException, match=sentence):
        run_stream(spark, moved, **of_held(cluster))


def test_a_checkpoint_of_another_source_is_refused_with_the_next_step(
    spark: SparkSession, cluster: LocalCluster, finished: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(finished, tmp_path / "moved")
    path = last_offsets(moved)
    *first, last = path.read_text().splitlines()
    assert "cluster" in last
    path.write_text("\n".join([*first, '{"held":{"0":5}}']))
    with pytest.raises(PySparkException, match=r"not an offset of the source tidemark.* new checkpointLocation"):
        run_stream(spark, moved, **of_held(cluster))


def test_a_leader_that_dies_in_mid_task_is_replaced_within_the_task(
    spark: SparkSession, cluster: LocalCluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("bereaved", partitions=1)
    for _ in range(4):
        fill(cluster, name, 10_000, bytes(1000))
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Offsets and attempts; the first batch waits until the leader has ended."""
        context = TaskContext.get()
        assert context is not None
        for one in batches:
            if not begun.exists():
                begun.touch()
                until_s = time.monotonic() + PATIENCE_S
                while not killed.exists() and time.monotonic() < until_s:
                    time.sleep(0.01)
            attempts = pa.array([context.attemptNumber()] * one.num_rows, pa.int32())
            yield pa.RecordBatch.from_arrays([one.column(0), attempts], ["offset", "attempt"])

    with AdminClient(cluster.admin_address) as admin:
        leader = broker_name(admin.describe_topics([name])[0].partitions[0].leader)
    table = batch(spark, cluster, subscribe=name, columns="offset, value").select("offset", "value")
    with ThreadPoolExecutor(1) as background:
        running = background.submit(table.mapInArrow(held_up, "offset long, attempt int").toArrow)
        try:
            until_s = time.monotonic() + PATIENCE_S
            while not begun.exists():
                assert time.monotonic() < until_s, "the task does not begin"
                time.sleep(0.01)
            cluster.kill(leader)
            killed.touch()
            rows = running.result(PATIENCE_S)
        finally:
            killed.touch()
            cluster.restart(leader)
    assert rows.column("offset").to_pylist() == list(range(40_000))
    assert set(rows.column("attempt").to_pylist()) == {0}
