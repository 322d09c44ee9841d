# SPDX-License-Identifier: Apache-2.0
"""The option groupId: a stream's progress in a consumer group of real brokers, as Spark calls the reader."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tidemark.client import Consumer, Groups, Producer
from tidemark.client.group.external_commits import ExternalCommits
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark_spark.options import parse_options
from tidemark_spark.stream_reader import PlainStreamReader
from tidemark_spark.streams import group_progress

from tests.spark.harness.reading import needs_read_limits, next_end, schema_of, stream_reader

MakeTopic = Callable[..., str]


def options_of(cluster: LocalCluster, topic: str, group: str, **more: str) -> dict[str, str]:
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return {**options, "groupId": group, **more}


def fill(cluster: LocalCluster, topic: str, counts: dict[int, int]) -> None:
    with Producer(cluster.bootstrap) as producer:
        for partition, count in counts.items():
            rows = pa.table({"value": pa.array([b"v"] * count, pa.binary())})
            producer.send_table(topic, rows, partition=partition).result(30)


def committed(cluster: LocalCluster, group: str) -> list[int]:
    with Groups(cluster.bootstrap) as groups:
        (found,) = groups.describe_groups([group])
    return [one.committed for one in sorted(found.partitions)]


def until(call: Callable[[], Any], wanted: Any) -> None:
    """A commit runs concurrently with the query."""
    until_s = time.monotonic() + 20
    while (found := call()) != wanted:
        assert time.monotonic() < until_s, f"{found}, not {wanted}"
        time.sleep(0.05)


@needs_read_limits
def test_a_group_has_the_start_of_a_query_and_then_each_processed_micro_batch(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("grouped", partitions=2)
    fill(cluster, name, {0: 5, 1: 3})
    reader = stream_reader(options_of(cluster, name, "grouped"))
    start = reader.initialOffset()
    end = next_end(reader, start)
    until(lambda: committed(cluster, "grouped"), [0, 0])
    reader.partitions(start, end)
    fill(cluster, name, {1: 4})
    later = next_end(reader, end)
    reader.commit(end)
    until(lambda: committed(cluster, "grouped"), [5, 3])
    assert next_end(reader, later) == later
    assert committed(cluster, "grouped") == [5, 7], "without new records, the call waits for the commit"
    reader.stop()


def test_before_pyspark_4_2_a_micro_batch_is_committed_when_the_next_end_is_asked_for(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("grouped-plain", partitions=1)
    fill(cluster, name, {0: 5})
    options = options_of(cluster, name, "grouped-plain")
    reader = PlainStreamReader(parse_options(options, streaming=True), schema_of(options))
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)
    assert reader.latestOffset() == end
    assert committed(cluster, "grouped-plain") == [5]
    reader.stop()


def test_a_group_with_members_is_refused_at_the_start(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("grouped-members", partitions=1)
    fill(cluster, name, {0: 1})
    with Consumer(cluster.bootstrap, group="grouped-members") as consumer:
        consumer.subscribe([name])
        next(consumer)
        reader = stream_reader(options_of(cluster, name, "grouped-members"))
        for call in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
            with pytest.raises(TidemarkError, match="option 'groupId': the group 'grouped-members' has members"):
                call()
        reader.stop()


@needs_read_limits
def test_a_failed_commit_is_logged_once_and_repeated_while_the_query_continues(
    cluster: LocalCluster, topic: MakeTopic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("grouped-later", partitions=1)
    fill(cluster, name, {0: 2})
    monkeypatch.setattr(group_progress, "_PAUSE_S", 0.2)
    reader = stream_reader(options_of(cluster, name, "grouped-later"))
    end = next_end(reader, reader.initialOffset())
    until(lambda: committed(cluster, "grouped-later"), [0])
    with Consumer(cluster.bootstrap, group="grouped-later", auto_commit_interval_ms=0) as consumer:
        consumer.subscribe([name])
        next(consumer)
        assert next_end(reader, end) == end
        until(lambda: "is not committed to the group grouped-later: INCONSISTENT_GROUP_PROTOCOL" in caplog.text, True)
        fill(cluster, name, {0: 1})
        later = next_end(reader, end)
        assert later != end
    until(lambda: committed(cluster, "grouped-later"), [2])
    assert next_end(reader, later) == later
    assert committed(cluster, "grouped-later") == [3]
    assert caplog.text.count("is not committed to the group grouped-later") == 1
    reader.stop()


@needs_read_limits
def test_a_deleted_topic_does_not_keep_other_topics_from_being_committed(
    cluster: LocalCluster, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark.spark")
    names = [topic("grouped-kept", partitions=1), topic("grouped-replaced", partitions=1)]
    for name in names:
        fill(cluster, name, {0: 2})
    reader = stream_reader(options_of(cluster, ",".join(names), "grouped-two"))
    end = next_end(reader, reader.initialOffset())
    end["topics"]["grouped-replaced"]["id"] = "0" * 32
    reader.commit(end)
    until(lambda: committed(cluster, "grouped-two")[0], 2)
    until(lambda: "grouped-replaced-0: UNKNOWN_TOPIC_ID" in caplog.text, True)
    reader.stop()


def test_an_unreachable_coordinator_does_not_keep_a_query_from_its_start(
    cluster: LocalCluster, topic: MakeTopic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: ExternalCommits) -> None:
        raise TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it moves")

    monkeypatch.setattr(ExternalCommits, "check", refuse)
    name = topic("grouped-early", partitions=1)
    reader = stream_reader(options_of(cluster, name, "grouped-early"))
    reader.initialOffset()
    assert "not committed to the group grouped-early: COORDINATOR_NOT_AVAILABLE: it moves" in caplog.text
    reader.stop()


def test_a_group_is_for_streams_and_has_an_id(cluster: LocalCluster) -> None:
    options = options_of(cluster, "any", "g")
    assert parse_options(options, streaming=True).group_id == "g"
    with pytest.raises(ValueError, match="option 'groupId' is for streams; this is a batch read"):
        parse_options(options)
    with pytest.raises(ValueError, match="option 'groupId' is ' '; expected the id of a group, 1 to 249 characters"):
        parse_options(options_of(cluster, "any", " "), streaming=True)
