# SPDX-License-Identifier: Apache-2.0
"""The readers of format("tidemark") on real brokers, as Spark calls them, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming import range_reader
from tidemark.client.consuming.range_reader import RangeReader, StatedOffset
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark_spark import compat, topics
from tidemark_spark import stream_reader as stream_module
from tidemark_spark.columns import parse_columns
from tidemark_spark.options import parse_options
from tidemark_spark.ranges import OffsetRange
from tidemark_spark.reader import check_schema, read_task
from tidemark_spark.rows import CREATE_TIME
from tidemark_spark.stream_offsets import CheckpointError, DataLossError
from tidemark_spark.stream_reader import PlainStreamReader
from tidemark_spark.topics import Assignment

from tests.spark.harness.reading import (
    at_least,
    at_most,
    batch_reader,
    batches,
    needs_read_limits,
    next_end,
    places,
    planned,
    schema_of,
    stream_reader,
)

MakeTopic = Callable[..., str]


def options_of(cluster: LocalCluster, topic: str, **more: str) -> dict[str, str]:
    return {"tidemark.bootstrap": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **more}


def fill(cluster: LocalCluster, topic: str, counts: dict[int, int], *, value: bytes = b"v") -> None:
    """Send this number of records to each partition."""
    with Producer(cluster.bootstrap) as producer:
        for partition, count in counts.items():
            producer.send_table(topic, pa.table({"value": pa.array([value] * count, pa.binary())}), partition=partition)
        producer.flush(30)


@pytest.fixture(scope="module")
def cut(cluster: LocalCluster) -> str:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("cut", partitions=3, replication_factor=3)
    for counts in ({0: 20, 1: 3}, {0: 7, 1: 30}, {0: 1}):
        fill(cluster, "cut", counts)
    return "cut"


@needs_read_limits
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=st.lists(st.integers(1, 40), min_size=1, max_size=5), least=st.integers(1, 9))
def test_any_cut_of_a_stream_into_micro_batches_gives_the_rows_of_a_batch_read(
    cluster: LocalCluster, cut: str, limits: list[int], least: int
) -> None:
    options = options_of(cluster, cut, minPartitions=str(least), columns="topic, partition, offset, value")
    reader = stream_reader(options)
    found, sizes = [], []
    position = reader.initialOffset()
    while True:
        limit = limits[len(sizes) % len(limits)]
        bounded = stream_reader({**options, "maxOffsetsPerTrigger": str(limit)})
        end = next_end(bounded, position, at_most(limit))
        if end == position:
            break
        rows = places(bounded, bounded.partitions(position, end))
        assert rows == places(reader, stream_reader(options).partitions(position, end)), "a replay after a restart"
        assert 0 < len(rows) <= max(limit, 2), "at least one row of each of two partitions"
        found += rows
        sizes.append(len(rows))
        position = end
        bounded.stop()
    whole = batch_reader(options)
    assert sorted(found) == sorted(places(whole, whole.partitions()))
    assert len(found) == 61
    reader.stop()


def test_a_stream_starts_at_the_end_by_default(cluster: LocalCluster, cut: str) -> None:
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": cut}
    starts = stream_reader(options).initialOffset()["topics"][cut]["partitions"]
    assert {index: entry["offset"] for index, entry in starts.items()} == {"0": 28, "1": 33, "2": 0}
    named = json.dumps({cut: {"0": 5, "1": -2, "2": -1}})
    starts = stream_reader({**options, "startingOffsets": named}).initialOffset()["topics"][cut]["partitions"]
    assert {index: entry["offset"] for index, entry in starts.items()} == {"0": 5, "1": 0, "2": 0}


@needs_read_limits
def test_an_available_now_query_ends_at_the_end_offsets_of_its_start(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("available-now", partitions=2)
    fill(cluster, name, {0: 5})
    reader = stream_reader(options_of(cluster, name, minOffsetsPerTrigger="1000"))
    start = reader.initialOffset()
    assert isinstance(reader, compat.AvailableNow)
    reader.prepareForTriggerAvailableNow()
    fill(cluster, name, {0: 3, 1: 2})
    end = next_end(reader, start, at_least(1000))
    assert places(reader, reader.partitions(start, end)) == [(name, 0, offset) for offset in range(5)]
    assert next_end(reader, end, at_least(1000)) == end
    assert reader.reportLatestOffset()["topics"][name]["partitions"]["0"]["offset"] == 8


@needs_read_limits
def test_an_available_now_query_from_the_end_outlives_records_that_arrive_at_its_start(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("available-then", partitions=2)
    reader = stream_reader(options_of(cluster, name, startingOffsets="latest"))
    reader.prepareForTriggerAvailableNow()
    fill(cluster, name, {0: 5})
    start = reader.initialOffset()
    end = next_end(reader, start, at_most(1000))
    assert (end, places(reader, reader.partitions(start, end))) == (start, [])


@needs_read_limits
@pytest.mark.usefixtures("impatient")
def test_an_available_now_query_continues_without_a_deleted_topic_by_option(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name, other = topic("left-out", partitions=1), topic("left-over", partitions=1)
    options = options_of(cluster, f"{name},{other}", failOnDataLoss="false")
    start = next_end(stream_reader(options), stream_reader(options).initialOffset())
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(name)
    fill(cluster, other, {0: 2})
    reader = stream_reader(options)
    reader.prepareForTriggerAvailableNow()
    assert places(reader, reader.partitions(start, next_end(reader, start))) == [(other, 0, 0), (other, 0, 1)]
    new = stream_reader(options)
    new.prepareForTriggerAvailableNow()
    with pytest.raises(TidemarkError, match="UNKNOWN_TOPIC"):
        new.initialOffset()


@needs_read_limits
def test_a_topic_of_a_pattern_that_stale_brokers_do_not_list_is_not_lost(
    cluster: LocalCluster, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("hidden", partitions=1)
    fill(cluster, name, {0: 5})
    options = {**options_of(cluster, name), "subscribePattern": name, "failOnDataLoss": "false"}
    del options["subscribe"]
    reader = stream_reader(options)
    end = next_end(reader, reader.initialOffset())
    find, hidden = RangeReader.topics, iter([True] * 3)

    def stale(client: RangeReader, names: Sequence[str] | None = None) -> Mapping[str, TopicView]:
        found = find(client, names)
        return {} if names is None and next(hidden, False) else found

    monkeypatch.setattr(RangeReader, "topics", stale)
    monkeypatch.setattr(stream_module, "_PATIENCE_S", 0.0)
    assert next_end(reader, end) == end
    assert next(hidden, None) is None


@needs_read_limits
def test_a_small_micro_batch_waits_for_more_but_not_for_ever(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("patient", partitions=1)
    fill(cluster, name, {0: 5})
    patient = stream_reader(options_of(cluster, name, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="12"))
    assert patient.getDefaultReadLimit() == at_most(12)
    start = patient.initialOffset()
    assert next_end(patient, start, at_most(12)) == start
    hasty = stream_reader(options_of(cluster, name, minOffsetsPerTrigger="10", maxTriggerDelay="0ms"))
    assert next_end(hasty, start, at_least(10)) != start
    fill(cluster, name, {0: 8})
    end = next_end(patient, start, at_most(12))
    assert end["topics"][name]["partitions"]["0"]["offset"] == 12


def test_topics_and_partitions_that_come_under_way_are_read_from_their_beginning(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    first = topic("grows-1", partitions=1)
    fill(cluster, first, {0: 2})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribePattern": "grows-.*"}
    reader = stream_reader(options)
    start = reader.initialOffset()
    second = topic("grows-2", partitions=1)
    topic("shrinks-1", partitions=1)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_partitions(first, 2)
    fill(cluster, second, {0: 3})
    fill(cluster, first, {1: 1})
    end = next_end(reader, start)
    wanted = [(first, 1, 0), (second, 0, 0), (second, 0, 1), (second, 0, 2)]
    assert sorted(places(reader, reader.partitions(start, end))) == wanted
    assert next_end(reader, end) == end


def test_the_start_of_a_stream_names_the_epoch_of_the_leader_that_stated_it(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    """An end below the start, such as a last stable offset, is a truncation only in a later epoch."""
    name = topic("stated", partitions=1)
    fill(cluster, name, {0: 2})
    options = options_of(cluster, name, startingOffsets="latest")
    start = stream_reader({**options, "tidemark.isolation.level": "read_uncommitted"}).initialOffset()
    with RangeReader(cluster.bootstrap, deadline_s=10) as client:
        epoch = client.topics([name])[name].partitions[0].leader_epoch
    position = start["topics"][name]["partitions"]["0"]
    assert position["leaderEpoch"] == epoch
    position["offset"] += 1  # as with a transaction that was open then
    if compat.HAS_READ_LIMITS:
        assert next_end(stream_reader(options), start) == start


def test_a_leader_that_dies_in_mid_task_is_replaced_and_no_row_is_missing_or_twice(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("orphaned", partitions=1)
    for _ in range(12):
        fill(cluster, name, {0: 5000}, value=bytes(100))
    options = options_of(cluster, name, columns="topic, partition, offset")
    reader = batch_reader(options)
    rows = batches(reader, reader.partitions())
    found = next(rows).column("offset").to_pylist()
    with RangeReader(cluster.bootstrap, deadline_s=10) as client:
        leader = broker_name(client.topics([name])[name].partitions[0].leader)
    cluster.kill(leader)
    try:
        for batch in rows:
            found += batch.column("offset").to_pylist()
    finally:
        cluster.restart(leader)
    assert found == list(range(60_000))


@pytest.fixture(scope="module")
def shortened(cluster: LocalCluster) -> str:
    """Topic `shortened`, one partition: offsets 0 to 6 are deleted, and 6 to 10 exist; ends exclusive."""
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("shortened", partitions=1, replication_factor=3)
        fill(cluster, "shortened", {0: 10})
        admin.delete_records("shortened", 0, 6)
    return "shortened"


def start_at(cluster: LocalCluster, topic: str, offset: int) -> dict[str, Any]:
    """An offset of a checkpoint that was written before the fault."""
    start = stream_reader(options_of(cluster, topic)).initialOffset()
    start["topics"][topic]["partitions"]["0"]["offset"] = offset
    return start


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "tidemark.spark" and one.levelname == "WARNING"]


def test_deleted_records_end_a_query_in_planning_with_their_offsets(cluster: LocalCluster, shortened: str) -> None:
    reader = stream_reader(options_of(cluster, shortened))
    start = start_at(cluster, shortened, 2)
    with pytest.raises(DataLossError, match=r"shortened-0: offsets 2 to 6 were deleted .* failOnDataLoss=false"):
        reader.partitions(start, next_end(reader, start))


def test_records_deleted_between_the_plan_and_the_task_end_the_task(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("hurried", partitions=1)
    fill(cluster, name, {0: 10})
    reader = stream_reader(options_of(cluster, name))
    tasks, _ = planned(reader, reader.initialOffset())
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_records(name, 0, 6)
    with pytest.raises(DataLossError, match=r"hurried-0 \[0, 10\): OFFSET_OUT_OF_RANGE: .* failOnDataLoss=false"):
        places(reader, tasks)


def test_deleted_records_are_skipped_by_option_with_one_warning(
    cluster: LocalCluster, shortened: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(options_of(cluster, shortened, failOnDataLoss="false"))
    tasks, _ = planned(reader, start_at(cluster, shortened, 2))
    assert [offset for _, _, offset in places(reader, tasks)] == [6, 7, 8, 9]
    (told,) = warnings_in(caplog)
    assert "shortened-0: offsets 2 to 6 were deleted before they were read" in told


@needs_read_limits
def test_a_loss_is_warned_of_once_while_the_query_waits_for_more(
    cluster: LocalCluster, shortened: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(options_of(cluster, shortened, failOnDataLoss="false", minOffsetsPerTrigger="1000"))
    start = start_at(cluster, shortened, 2)
    for _ in range(2):
        assert next_end(reader, start, at_least(1000)) == start
    assert len(warnings_in(caplog)) == 1


def test_a_pattern_without_a_match_is_warned_of_once(
    cluster: LocalCluster, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic("unmatched-1", partitions=1)
    for broker in cluster.bootstrap.split(","):
        with RangeReader(broker, deadline_s=60) as client:
            while "unmatched-1" not in client.topics():
                time.sleep(0.05)  # a broker learns of a new topic a moment later than the leaders
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribePattern": "unmatched"}
    assert batch_reader(options).partitions() == []
    (told,) = warnings_in(caplog)
    assert told == (
        "subscribePattern 'unmatched' matches no topic; it must match the whole name, and this one matches only a part "
        "of unmatched-1"
    )
    caplog.clear()
    reader = stream_reader(options)
    start = reader.initialOffset()
    for _ in range(2):
        tasks, start = planned(reader, start)
        assert list(tasks) == []
    assert warnings_in(caplog) == [told]


@needs_read_limits
def test_records_that_were_skipped_are_counted_in_the_offsets(
    cluster: LocalCluster, shortened: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(options_of(cluster, shortened, failOnDataLoss="false"))
    end = next_end(reader, start_at(cluster, shortened, 2))
    assert end["topics"][shortened]["partitions"]["0"]["skipped"] == 4
    assert "shortened-0: offsets 2 to 6 were deleted before they were read" in caplog.text


@pytest.fixture
def no_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with an epoch above the leader's does not wait for a new leader; this cluster elects none."""
    monkeypatch.setattr(range_reader, "REPLACED_LEADER_S", 0.0)


@pytest.mark.usefixtures("no_successor")
def test_a_task_past_the_end_of_a_truncated_log_is_an_error_or_empty_by_option(
    cluster: LocalCluster, shortened: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict = parse_options(options_of(cluster, shortened))
    with topics.open_reader(strict) as client:
        found = topics.find_topics(client, strict)[shortened]
    part = OffsetRange(shortened, 0, 15, 20)
    task = Assignment(part, found.topic_id, found.partitions[0].incarnation, CREATE_TIME, last_epoch=7)
    with pytest.raises(DataLossError, match=r"shortened-0 \[15, 20\): LOG_TRUNCATED"):
        list(topics.read(strict, [task]))
    lenient = parse_options(options_of(cluster, shortened, failOnDataLoss="false"))
    assert list(topics.read(lenient, [task])) == []
    assert "5 offsets are skipped" in caplog.text


def test_a_micro_batch_whose_end_an_unclean_election_removed_is_an_error_or_ends_earlier(
    cluster: LocalCluster, shortened: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver that planned the micro-batch has ended; its tasks would wait for the records until their deadline."""
    strict, lenient = (
        stream_reader(options_of(cluster, shortened, failOnDataLoss=fails)) for fails in ("true", "false")
    )
    start = stream_reader(options_of(cluster, shortened)).initialOffset()
    end = json.loads(json.dumps(start))
    end["topics"][shortened]["partitions"]["0"] |= {"offset": 15, "leaderEpoch": -1}
    sentence = r"shortened-0: the micro-batch ends at offset 15 \(leader epoch -1\), and the log now ends at 10"
    with pytest.raises(DataLossError, match=sentence):
        strict.partitions(start, end)
    assert places(lenient, lenient.partitions(start, end)) == [(shortened, 0, offset) for offset in range(6, 10)]
    assert "skipped: shortened-0" in caplog.text


@pytest.mark.usefixtures("no_successor")
def test_the_epoch_of_a_leader_that_appended_no_record_is_no_truncation(cluster: LocalCluster, shortened: str) -> None:
    strict = parse_options(options_of(cluster, shortened))
    with topics.open_reader(strict) as client:
        found = topics.find_topics(client, strict)[shortened]
    part = OffsetRange(shortened, 0, 7, 10)
    task = Assignment(part, found.topic_id, found.partitions[0].incarnation, CREATE_TIME, last_epoch=7)
    assert sum(rows.num_rows for _, rows in topics.read(strict, [task])) == 3


def test_a_pattern_waits_for_all_partitions_of_new_topics_and_leaves_out_deleted_ones() -> None:
    both = {index: PartitionView(index, 1, 0, (1,), (1,)) for index in range(2)}
    part, whole = {0: both[0]}, TopicView("new", "id", partitions=both, partition_count=2)
    listed = {name: TopicView(name, "id", partitions=part, partition_count=2) for name in ("new", "deleted")}

    def known(names: Sequence[str] | None) -> Mapping[str, TopicView]:
        if names == ["deleted"]:
            raise TidemarkError(ErrorCode.UNKNOWN_TOPIC, "deleted")
        return listed if names is None else {"new": whole}

    options = parse_options({"tidemark.bootstrap": "127.0.0.1:1", "subscribePattern": ".*"})
    client = cast(RangeReader, SimpleNamespace(topics=known))
    assert topics.find_topics(client, options) == {"new": whole}


def test_a_recreated_topic_is_an_error_or_a_fresh_start_by_option(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("reborn", partitions=1)
    fill(cluster, name, {0: 5})
    options = options_of(cluster, name)
    start = next_end(stream_reader(options), stream_reader(options).initialOffset())
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(name)
        admin.create_topic(name, partitions=1, replication_factor=3)
    fill(cluster, name, {0: 2})
    with pytest.raises(DataLossError, match="topic reborn was deleted and created again"):
        planned(stream_reader(options), start)
    lenient = stream_reader({**options, "failOnDataLoss": "false"})
    tasks, _ = planned(lenient, start)
    assert places(lenient, tasks) == [(name, 0, 0), (name, 0, 1)]


@needs_read_limits
@pytest.mark.usefixtures("impatient")
def test_a_deleted_topic_is_an_error_or_skipped_by_option(
    cluster: LocalCluster, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other = topic("departed", partitions=1), topic("remaining", partitions=1)
    options = options_of(cluster, f"{name},{other}")
    start = next_end(stream_reader(options), stream_reader(options).initialOffset())
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(name)
    fill(cluster, other, {0: 2})
    with pytest.raises(DataLossError, match=r"departed.* deleted since the query began"):
        next_end(stream_reader(options), start)
    lenient = stream_reader({**options, "failOnDataLoss": "false"})
    tasks, end = planned(lenient, start)
    assert places(lenient, tasks) == [(other, 0, 0), (other, 0, 1)]
    monkeypatch.setattr(topics, "find_topics", lambda *_: pytest.fail("a deleted topic is waited for once"))
    fill(cluster, other, {0: 1})
    tasks, _ = planned(lenient, end)
    assert places(lenient, tasks) == [(other, 0, 2)]


@needs_read_limits
def test_a_query_that_changes_its_isolation_level_reads_no_record_again(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("isolated", partitions=1)
    options = options_of(cluster, name, failOnDataLoss="false")
    with Producer(cluster.bootstrap, transactional_id="isolated") as producer, producer.transaction():
        producer.send(name, b"pending", partition=0).result(30)
        reader = stream_reader({**options, "tidemark.isolation.level": "read_uncommitted"})
        start = next_end(reader, reader.initialOffset())
        assert places(reader, reader.partitions(reader.initialOffset(), start)) == [(name, 0, 0)]
        committed = stream_reader(options)
        assert next_end(committed, start) == start
        earlier = json.loads(json.dumps(start))
        earlier["topics"][name]["partitions"]["0"]["leaderEpoch"] -= 1  # before the election of the present leader
        assert next_end(stream_reader(options), earlier) == earlier, "this is no truncation"
        again = stream_reader({**options, "failOnDataLoss": "true"}).partitions(reader.initialOffset(), earlier)
        assert [part.end for task in again for part in (one.offsets for one in task.ranges)] == [1]
    strict = stream_reader({**options, "failOnDataLoss": "true"})
    assert places(strict, planned(strict, start)[0]) == [], "only the marker of the transaction came"


@needs_read_limits
def test_an_assigned_partition_that_was_removed_is_an_error_or_skipped_by_option(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("shorter", partitions=3)
    assign = {"tidemark.bootstrap": cluster.bootstrap, "assign": f'{{"{name}": [0, 2]}}', "startingOffsets": "earliest"}
    start = next_end(stream_reader(assign), stream_reader(assign).initialOffset())
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_partitions(name, count=1)
    fill(cluster, name, {0: 2})
    with pytest.raises(ValueError, match=rf"assign names partitions of {name} that do not exist: \[2\]"):
        next_end(stream_reader(assign), start)
    lenient = stream_reader({**assign, "failOnDataLoss": "false"})
    lenient.prepareForTriggerAvailableNow()
    tasks, end = planned(lenient, start)
    assert places(lenient, tasks) == [(name, 0, 0), (name, 0, 1)]
    assert next_end(lenient, end) == end


@needs_read_limits
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_deleted_during_planning_is_an_error_or_skipped_by_option(
    cluster: LocalCluster, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, lenient: bool
) -> None:
    name, other = topic(f"vanishing-{lenient}", partitions=1), topic(f"lasting-{lenient}", partitions=1)
    options = options_of(cluster, f"{name},{other}", failOnDataLoss=str(not lenient))
    start = next_end(stream_reader(options), stream_reader(options).initialOffset())
    fill(cluster, other, {0: 2})
    ask, deleted = topics.find_latest, []

    def deleting_before(client: RangeReader, wanted: list[TopicPartition]) -> dict[TopicPartition, StatedOffset]:
        if not deleted:
            with AdminClient(cluster.admin_address) as admin:
                deleted.append(admin.delete_topic(name))
        return ask(client, wanted)

    monkeypatch.setattr(topics, "find_latest", deleting_before)
    reader = stream_reader(options)
    if lenient:
        tasks, _ = planned(reader, start)
        assert places(reader, tasks) == [(other, 0, 0), (other, 0, 1)]
    else:
        with pytest.raises(DataLossError, match=rf"{name}.* deleted since the query began"):
            next_end(reader, start)


def test_a_checkpoint_of_another_cluster_or_source_is_refused(cluster: LocalCluster, cut: str) -> None:
    start = stream_reader(options_of(cluster, cut)).initialOffset()
    with pytest.raises(CheckpointError, match="the checkpoint is of cluster elsewhere"):
        planned(stream_reader(options_of(cluster, cut)), {**start, "cluster": "elsewhere"})
    with pytest.raises(CheckpointError, match="not an offset of the source tidemark"):
        planned(stream_reader(options_of(cluster, cut)), {cut: {"0": 5}})
    restarted, moved = stream_reader(options_of(cluster, cut)), {**start, "cluster": "elsewhere"}
    with pytest.raises(CheckpointError, match="cluster elsewhere"):
        restarted.partitions(moved, moved)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nowhere"}, "UNKNOWN_TOPIC"),
        ({"tidemark.bootstrap": "127.0.0.1:1", "deadlineMs": "300"}, "127.0.0.1:1: "),
        ({"startingOffsets": '{"cut": {"7": 0}}'}, r"startingOffsets names partitions of cut that do not exist: \[7\]"),
        (
            {"startingOffsets": '{"cut": {"0": 900}}'},
            "startingOffsets names offset 900 of cut-0, which has 0",
        ),
        ({"startingTimestamp": "9999999999999"}, "startingTimestamp names time 9999999999999 ms of cut-"),
        (
            {"subscribePattern": "cu.*", "startingOffsets": '{"cup": {"0": 900}}'},
            "startingOffsets names topic cup, which does not exist",
        ),
    ],
)
def test_a_stream_that_cannot_start_reports_the_cause(
    cluster: LocalCluster, cut: str, options: dict[str, str], sentence: str
) -> None:
    given = {**options_of(cluster, cut), **options}
    if "subscribePattern" in options:
        del given["subscribe"]
    with pytest.raises((ValueError, TidemarkError), match=sentence):
        stream_reader(given).initialOffset()


def test_assigning_an_unknown_partition_is_an_error(cluster: LocalCluster, cut: str) -> None:
    options = {"tidemark.bootstrap": cluster.bootstrap, "assign": '{"cut": [1, 9]}'}
    with pytest.raises(ValueError, match=r"assign names partitions of cut that do not exist: \[9\]; it has 3"):
        stream_reader(options).initialOffset()
    with pytest.raises(ValueError, match=r"assign names partitions of cut that do not exist: \[9\]; it has 3"):
        batch_reader(options).partitions()


def test_the_task_that_spark_makes_up_where_nothing_is_planned_has_no_rows() -> None:
    options = {"tidemark.bootstrap": "127.0.0.1:1", "subscribe": "any"}
    for made_up in (InputPartition(None), None):
        assert list(read_task(parse_options(options), schema_of(options), made_up)) == []


def test_a_schema_given_whole_makes_an_option_for_values_needless() -> None:
    given = StructType([StructField("offset", LongType()), StructField("value", StructType([]))])
    check_schema(given, parse_columns({"valueformat": "json"}))
    with pytest.raises(ValueError, match="the schema has a column 'size'"):
        check_schema(StructType([StructField("size", LongType())]), parse_columns({}))
    with pytest.raises(ValueError, match="the schema states struct<> for the column 'value', which is binary"):
        check_schema(given, parse_columns({}))


def test_before_pyspark_4_2_the_process_remembers_where_the_stream_is(cluster: LocalCluster, cut: str) -> None:
    options = options_of(cluster, cut, maxOffsetsPerTrigger="10")
    reader = PlainStreamReader(parse_options(options, streaming=True), schema_of(options))
    first = reader.latestOffset()
    start = reader.initialOffset()
    assert len(places(reader, reader.partitions(start, first))) == 61
    restarted = PlainStreamReader(parse_options(options, streaming=True), schema_of(options))
    assert restarted.partitions(start, start) == []
    second = restarted.latestOffset()
    assert len(places(restarted, restarted.partitions(start, second))) == 10
    late = PlainStreamReader(
        parse_options({**options, "startingOffsets": "latest"}, streaming=True), schema_of(options)
    )
    late.partitions(start, second)
    assert late.initialOffset()["topics"][cut]["partitions"]["0"]["offset"] <= 10


def test_before_pyspark_4_2_a_query_that_changes_its_isolation_level_reads_no_record_again(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("isolated-before", partitions=1)
    options = options_of(cluster, name)
    uncommitted = {**options, "tidemark.isolation.level": "read_uncommitted"}
    with Producer(cluster.bootstrap, transactional_id="isolated-before") as producer, producer.transaction():
        producer.send(name, b"pending", partition=0).result(30)
        start = PlainStreamReader(parse_options(uncommitted, streaming=True), schema_of(options)).latestOffset()
        reader = PlainStreamReader(parse_options(options, streaming=True), schema_of(options))
        assert reader.partitions(start, start) == [], "so Spark tells a new process the end of the last micro-batch"
        assert reader.latestOffset() == start
