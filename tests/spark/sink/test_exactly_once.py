# SPDX-License-Identifier: Apache-2.0
"""Writes in transactions on real brokers: each row counts once after any kill. Most tests call as Spark does."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.transactions.phases import Phase
from tidemark.errors import ProducerFencedError, TransactionAbortedError
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark_spark.jobs import audit
from tidemark_spark.sink import writer as writer_module
from tidemark_spark.sink.options import WriteOptions, parse_write_options
from tidemark_spark.sink.writer import TidemarkCommitMessage, TidemarkStreamWriter, open_stream_writer, open_writer
from tidemark_spark.transactions import coordinator, driver, task
from tidemark_spark.transactions.checkpoint import read_query_id
from tidemark_spark.transactions.driver import StaleCheckpointError
from tidemark_spark.transactions.settings import TransactionSettings, query_identity

from tests.spark.harness.committed_records import committed_values
from tests.spark.harness.reading import committed_records
from tests.spark.harness.secure import with_token

VALUES = StructType([StructField("value", StringType())])
TASKS = 3
ROWS = 100
EXPECTED = {f"{task}-{row}".encode(): 1 for task in range(TASKS) for row in range(ROWS)}


def rows_of(task: int, count: int = ROWS) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, 50):
        yield pa.record_batch({"value": pa.array([f"{task}-{row}" for row in range(first, first + 50)])})


def failing(task: int) -> Iterator[pa.RecordBatch]:
    """Rows of an attempt whose executor is killed after the attempt has sent all of them."""
    yield from rows_of(task)
    yield pa.record_batch({"value": pa.array(["x" * (5 << 20)])})  # a chunk, so that the rows before are sent
    raise OSError("the executor is lost")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A checkpoint as Spark writes it, as far as the sink reads it."""
    (tmp_path / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="ascii")
    return str(tmp_path)


@pytest.fixture
def sums(topic: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """A topic for one test."""
    return topic(f"sums-{uuid.uuid4()}")


def options(cluster: LocalCluster, name: str, **more: str) -> dict[str, str]:
    return {"tidemark.bootstrap": cluster.bootstrap, "topic": name, "transactional": "true", **more}


def micro_batch(cluster: LocalCluster, name: str, checkpoint: str, **more: str) -> TidemarkStreamWriter:
    """The writer that a driver makes before the tasks of a micro-batch."""
    given = options(cluster, name, checkpointLocation=checkpoint, **more)
    return open_stream_writer(given, VALUES, overwrite=False)


def write_all(writer: TidemarkStreamWriter, tasks: Sequence[int] = range(TASKS)) -> list[TidemarkCommitMessage]:
    messages = [writer.write_arrow(rows_of(task)) for task in tasks]
    assert all(isinstance(message, TidemarkCommitMessage) for message in messages)
    return messages  # type: ignore[return-value]


def counted(cluster: LocalCluster, name: str) -> dict[bytes | None, int]:
    """The number of times that each value counts, by the files of a log and by a reader."""
    found = Counter(committed_values(cluster, name))
    assert Counter(record.value for record in committed_records(cluster.bootstrap, name)) == found
    return dict(found)


class Step(StrEnum):
    """The last step that a driver completed."""

    BEGUN = "begun"
    WRITTEN_IN_PART = "written in part"
    WRITTEN = "written"
    COMMITTED = "committed"


@pytest.mark.parametrize("last", list(Step))
def test_rows_count_once_although_the_driver_died_after_any_step_and_its_rest_lives_on(
    cluster: LocalCluster, sums: str, checkpoint: str, last: Step
) -> None:
    first = micro_batch(cluster, sums, checkpoint)
    messages: list[TidemarkCommitMessage] = []
    if last is not Step.BEGUN:
        messages = write_all(first, range(1 if last is Step.WRITTEN_IN_PART else TASKS))
    if last is Step.COMMITTED:
        first.commit(messages, 0)

    second = micro_batch(cluster, sums, checkpoint)  # started again from the checkpoint, with the same micro-batch
    second.commit(write_all(second), 0)
    assert counted(cluster, sums) == EXPECTED

    with pytest.raises(ProducerFencedError, match="stop one of them"):
        first.commit(messages or [TidemarkCommitMessage(membership=membership_of(first))], 1)
    with pytest.raises(ProducerFencedError):
        first.write_arrow(rows_of(9))
    third = micro_batch(cluster, sums, checkpoint)
    third.commit([*write_all(third, [7]), third.write_arrow(iter(()))], 1)
    assert counted(cluster, sums) == EXPECTED | {f"7-{row}".encode(): 1 for row in range(ROWS)}


def membership_of(writer: TidemarkStreamWriter) -> driver.Membership:
    message = writer.write_arrow(iter(()))
    assert isinstance(message, TidemarkCommitMessage)
    assert message.membership is not None
    return message.membership


def test_rows_of_failed_and_speculative_attempts_never_count(
    cluster: LocalCluster, sums: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(options(cluster, sums), VALUES, overwrite=False)
    with pytest.raises(OSError, match="the executor is lost"):
        writer.write(failing(0))
    unused = writer.write(rows_of(1))
    writer.commit([writer.write(rows_of(task)) for task in range(TASKS)])
    assert counted(cluster, sums) == EXPECTED

    failed = open_writer(options(cluster, sums), VALUES, overwrite=False)
    failed.abort([failed.write(rows_of(0)), None])
    assert counted(cluster, sums) == EXPECTED
    assert_each_offset_is_a_record_or_a_marker(cluster, sums)
    assert "the write failed and is aborted; completed before: 1 tasks wrote 100 records" in caplog.text
    assert isinstance(unused, TidemarkCommitMessage)


def assert_each_offset_is_a_record_or_a_marker(cluster: LocalCluster, name: str) -> None:
    """The count of the audit job: each offset is a record or a marker."""
    with RangeReader(cluster.bootstrap, deadline_s=30.0) as reader:
        bounds = reader.bounds(name, range(3))
        ends = {index: held.latest for index, held in bounds.items()}
        tasks = audit.tasks_of(cluster.bootstrap, name, compacted=False)
        for task in tasks:
            index = task.partition.partition
            marked = {offset for _, _, offset in audit.markers(task, ends)}
            read = [rows.column("offset").to_pylist() for rows in reader.read(name, index, *bounds[index][:2])]
            records = {offset for offsets in read for offset in offsets}
            assert not marked & records
            assert marked | records == set(range(*bounds[index][:2]))
    assert sum(len(list(audit.markers(task, ends))) for task in tasks) > 0


def phase_of(cluster: LocalCluster, transactional_id: str) -> Phase:
    given = parse_write_options(options(cluster, "any"))
    return coordinator._call(given, transactional_id, lambda _, calls: calls.phase(), 30)


def test_an_abort_without_a_completed_task_ends_its_own_transaction_at_once_and_no_later_one(
    cluster: LocalCluster, sums: str, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = query_identity(TransactionSettings(), read_query_id(checkpoint))

    @contextlib.contextmanager
    def process_of(driver: str, module: str) -> Iterator[None]:
        """A process that Spark starts in that driver."""
        with monkeypatch.context() as there:
            there.setattr(SparkFiles, "_is_running_on_worker", True)
            there.setattr(SparkFiles, "_root_directory", str(tmp_path / driver))
            there.setattr(sys, "argv", ["worker", f"pyspark.sql.worker.{module}"])
            yield

    def failed(driver: str) -> None:
        (tmp_path / driver).mkdir(exist_ok=True)
        with process_of(driver, "write_into_data_source"):
            begun = micro_batch(cluster, sums, checkpoint)
        with pytest.raises(OSError, match="the executor is lost"):
            begun.write_arrow(failing(0))

    def aborted(driver: str) -> None:
        with process_of(driver, "python_streaming_sink_runner"):
            micro_batch(cluster, sums, checkpoint).abort([None, None], 0)
        assert list((tmp_path / driver).iterdir()) == []

    failed("first")
    assert phase_of(cluster, name) is Phase.ONGOING
    aborted("first")
    assert phase_of(cluster, name) in (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)
    failed("first")
    failed("second")
    aborted("first")
    assert phase_of(cluster, name) is Phase.ONGOING, "the second driver fences the first one, not the other way round"
    aborted("second")
    assert phase_of(cluster, name) in (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)
    last = micro_batch(cluster, sums, checkpoint)
    last.commit(write_all(last), 0)
    assert counted(cluster, sums) == EXPECTED


def test_spark_aborts_the_micro_batch_of_a_failed_query_at_once(
    spark: SparkSession, cluster: LocalCluster, sums: str, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="20001", numPartitions="1").load()
    query = (
        rows.selectExpr("repeat('x', 500) as value", "if(value = 20000, 99, null) as partition")
        .writeStream.format("tidemark")
        .options(**options(cluster, sums), checkpointLocation=str(tmp_path))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="UNKNOWN_PARTITION"):
        query.awaitTermination(100)
    found = phase_of(cluster, query_identity(TransactionSettings(), query.id))
    assert found in (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)


def test_a_version_of_an_application_is_written_once(cluster: LocalCluster, sums: str) -> None:
    for version in ("1", "1", "2", "1"):
        given = options(cluster, sums, txnAppId=f"nightly-{sums}", txnVersion=version)
        writer = open_writer(given, VALUES, overwrite=False)
        writer.commit([writer.write(rows_of(task)) for task in range(TASKS)])
    assert counted(cluster, sums) == dict.fromkeys(EXPECTED, 2)


def test_a_version_of_an_application_counts_as_written_without_any_row(cluster: LocalCluster, sums: str) -> None:
    given = options(cluster, sums, txnAppId=f"nightly-{sums}", txnVersion="3")
    open_writer(given, VALUES, overwrite=False).commit([])  # of a table without partitions Spark makes no task
    again = open_writer(given, VALUES, overwrite=False)
    again.commit([again.write(rows_of(0))])
    assert counted(cluster, sums) == {}


def recreated(cluster: LocalCluster, name: str) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(name)
        admin.create_topic(name, partitions=3, replication_factor=3)


def test_a_topic_that_is_created_again_during_a_write_gets_no_rows_of_later_tasks(
    cluster: LocalCluster, sums: str
) -> None:
    writer = open_writer(options(cluster, sums, transactional="false"), VALUES, overwrite=False)
    writer.write(rows_of(0))
    recreated(cluster, sums)
    with pytest.raises(TidemarkError, match=r"UNKNOWN_TOPIC_ID: .* was deleted and created again; no records"):
        writer.write(rows_of(1))
    assert counted(cluster, sums) == {}


def test_a_topic_that_is_created_again_during_a_task_gets_no_rows_of_its_rest(
    cluster: LocalCluster, sums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers: list[Producer] = []
    opened = writer_module._producer

    def noted(*given: Any) -> Producer:
        producers.append(opened(*given))
        return producers[-1]

    def topic_id() -> str:
        view = producers[0]._client.cluster.topic_now(sums)
        return "" if view is None else view.topic_id

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["x" * (500 << 10)] * 10, "partition": pa.array([0] * 10, pa.int32())})
        yield pa.record_batch({"value": ["x" * (500 << 10)] * 10, "partition": pa.array([0] * 10, pa.int32())})
        producers[0].flush()
        before = topic_id()
        recreated(cluster, sums)
        until_s = time.monotonic() + 20
        while topic_id() in ("", before) and time.monotonic() < until_s:
            time.sleep(0.05)
        yield pa.record_batch({"value": ["y"], "partition": pa.array([1], pa.int32())})

    monkeypatch.setattr(writer_module, "_producer", noted)
    schema = StructType([StructField("value", StringType()), StructField("partition", IntegerType())])
    writer = open_writer(options(cluster, sums, transactional="false"), schema, overwrite=False)
    with pytest.raises(TidemarkError, match=r"UNKNOWN_TOPIC_ID: .* was deleted and created again; no records"):
        writer.write(rows())
    assert counted(cluster, sums) == {}


def test_a_micro_batch_whose_tasks_wrote_to_two_topics_of_one_name_is_aborted(
    cluster: LocalCluster, sums: str, checkpoint: str
) -> None:
    writer = micro_batch(cluster, sums, checkpoint)
    messages = write_all(writer, [0])
    recreated(cluster, sums)
    messages += write_all(writer, [1])
    with pytest.raises(TidemarkError, match=f"topic {sums} was deleted and created again during the write"):
        writer.commit(messages, 0)
    writer.abort(messages, 0)
    assert counted(cluster, sums) == {}


def test_a_transaction_stays_open_as_long_as_a_task_runs_and_no_longer(
    cluster: LocalCluster, sums: str, checkpoint: str
) -> None:
    limit = {"tidemark.transaction.timeout.ms": "1000"}

    def slowly() -> Iterator[pa.RecordBatch]:
        """A task that computes for three times the timeout before its first row."""
        time.sleep(3)
        yield from rows_of(1)

    writer = micro_batch(cluster, sums, checkpoint, **limit)
    messages = [writer.write_arrow(one) for one in (rows_of(0), slowly(), rows_of(2))]
    writer.commit(messages, 0)
    assert counted(cluster, sums) == EXPECTED

    abandoned = micro_batch(cluster, sums, checkpoint, **limit)
    late = abandoned.write_arrow(rows_of(0))
    assert counted(cluster, sums) == EXPECTED, "waits until the coordinator has aborted the transaction"
    with pytest.raises(TransactionAbortedError, match="raise the option tidemark"):
        abandoned.commit([late], 1)


def test_a_task_and_a_commit_outlast_a_time_without_brokers(
    cluster: LocalCluster, sums: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = coordinator.open_cluster
    refusals: list[str] = []

    def unreachable_at_first(given: WriteOptions) -> Cluster:
        found = real(given)
        start = found.start

        async def again() -> None:
            monkeypatch.setattr(found, "start", start)
            refusals.append(given.bootstrap)
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")

        monkeypatch.setattr(found, "start", again)
        return found

    def slowly() -> Iterator[pa.RecordBatch]:
        time.sleep(3)
        yield from rows_of(0)

    writer = micro_batch(cluster, sums, checkpoint, **{"tidemark.transaction.timeout.ms": "1000"})
    message = writer.write_arrow(rows_of(1))
    for module in (coordinator, task):
        monkeypatch.setattr(module, "open_cluster", unreachable_at_first)
    messages = [message, writer.write_arrow(slowly()), writer.write_arrow(rows_of(2))]
    writer.commit(messages, 0)
    assert len(refusals) == 2
    assert counted(cluster, sums) == EXPECTED


def test_an_old_copy_of_a_checkpoint_writes_nothing(cluster: LocalCluster, sums: str, checkpoint: str) -> None:
    for batch_id in range(2):
        writer = micro_batch(cluster, sums, checkpoint)
        writer.commit(write_all(writer, [batch_id]), batch_id)
    writer = micro_batch(cluster, sums, checkpoint)
    with pytest.raises(StaleCheckpointError, match="Micro-batch 1 of the query was committed before"):
        writer.commit(write_all(writer, [2]), 0)


def test_a_write_that_cannot_be_in_a_transaction_is_refused_or_says_that_it_is_at_least_once(
    cluster: LocalCluster, sums: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver._warn.cache_clear()
    forbidden = {**with_token(cluster), "topic": sums}
    with pytest.raises(ValueError, match="cannot be in a transaction: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        open_writer({**forbidden, "transactional": "true"}, VALUES, overwrite=False)
    with pytest.raises(ValueError, match="has no option checkpointLocation"):
        open_stream_writer(options(cluster, sums), VALUES, overwrite=False)
    with pytest.raises(ValueError, match="cannot be read from its checkpoint"):
        micro_batch(cluster, sums, str(tmp_path / "nowhere"))
    with caplog.at_level(logging.WARNING, "tidemark.spark"):
        writer = open_writer(forbidden, VALUES, overwrite=False)
    assert "the write is at least once, not exactly once: TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in caplog.text
    writer.commit([writer.write(rows_of(task)) for task in range(TASKS)])
    assert counted(cluster, sums) == EXPECTED
