# SPDX-License-Identifier: Apache-2.0
"""Counters of a broker's traffic, and of its core's observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.metrics.state import BrokerState
from tidemark.broker.metrics.streams import OpenStreams
from tidemark.broker.metrics.topics import TopicMetrics
from tidemark.core.replication.effects import AppendToLog, Observed
from tidemark.model import ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.runtime.metrics import Metrics

from tests.unit.broker.scraped import scraped
from tests.unit.core.replication.stage import P
from tests.unit.record.samples import sample


def test_isr_changes_count_each_replica_under_its_reason() -> None:
    shown = Metrics()
    metrics = BrokerMetrics(shown)
    before = scraped(shown.render())
    assert before["tidemark_replica_isr_shrinks_total", "reason=silent"] == 0, "a rate needs a first value"
    metrics.observe(Observed("isr_shrunk", P, {"reasons": "2:lagging,3:disconnected"}))
    metrics.observe(Observed("isr_shrunk", P, {"reasons": "2:lagging"}))
    metrics.observe(Observed("isr_expanded", P, {"reasons": "2:caught_up"}))
    found = scraped(shown.render())
    assert found["tidemark_replica_isr_shrinks_total", "reason=lagging"] == 2
    assert found["tidemark_replica_isr_shrinks_total", "reason=disconnected"] == 1
    assert found["tidemark_replica_isr_expands_total", "reason=caught_up"] == 1
    assert found["tidemark_replica_isr_expands_total", "reason=reassigned"] == 0
    assert found["tidemark_replica_observed_total", "kind=isr_shrunk"] == 2
    assert found["tidemark_replica_observed_total", "kind=isr_write_failed"] == 0


def test_requests_records_bytes_and_refusals_are_counted() -> None:
    shown = Metrics()
    metrics = BrokerMetrics(shown)
    metrics.produce_requested()
    metrics.produce_refused(ErrorCode.NOT_LEADER)
    metrics.fetched(0.003)
    metrics.fetch_refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    metrics.follower_read_seconds.observe(0.25)
    found = scraped(shown.render())
    assert found["tidemark_broker_produce_requests_total", ""] == found["tidemark_broker_fetch_requests_total", ""] == 1
    assert found["tidemark_broker_produce_errors_total", "code=NOT_LEADER"] == 1
    assert found["tidemark_broker_fetch_errors_total", "code=OFFSET_OUT_OF_RANGE"] == 1
    assert found["tidemark_broker_fetch_seconds_sum", "kind=consumer"] == 0.003
    assert found["tidemark_broker_fetch_seconds_sum", "kind=follower"] == 0.25


def test_only_appends_of_producers_by_a_leader_are_counted() -> None:
    shown = Metrics()
    metrics = BrokerMetrics(shown)
    batch = Batch(parse_envelope(sample()), sample())
    led = AppendToLog(P, ReplicaIdentity("id", "first"), Offset(0), LeaderEpoch(1), (batch, batch), stamp=True)
    metrics.appended(led)
    metrics.appended(replace(led, stamp=False))
    metrics.appended(replace(led, partition=TopicPartition("__consumer_offsets", 0)))
    found = scraped(shown.render())
    names = ("produced_batches", "produced_records", "produced_bytes")
    assert [found[f"tidemark_broker_{name}_total", ""] for name in names] == [2, 6, 2 * len(sample())]
    of_topics = scraped(metrics.topics.render())
    assert of_topics["tidemark_topic_produced_records_total", f"topic={P.topic}"] == 6
    assert of_topics["tidemark_topic_produced_bytes_total", f"topic={P.topic}"] == 2 * len(sample())
    assert {labels for _, labels in of_topics} == {f"topic={P.topic}"}


def test_topics_beyond_the_limit_share_a_label_and_a_removed_topic_makes_room() -> None:
    topics = TopicMetrics(limit=2)
    for number, topic in enumerate(("a", "b", "c", "d")):
        topics.produced(topic, 100 << number, 1 << number)
    topics.fetched("a", 5)
    topics.fetched("d", 6)
    found = scraped(topics.render())
    assert {labels for _, labels in found} == {"topic=a", "topic=b", "topic=_other"}
    assert found["tidemark_topic_produced_bytes_total", "topic=_other"] == 400 + 800
    assert found["tidemark_topic_produced_records_total", "topic=b"] == 2
    assert found["tidemark_topic_fetched_bytes_total", "topic=a"] == 5
    assert found["tidemark_topic_fetched_bytes_total", "topic=_other"] == 6
    topics.keep([TopicPartition("a", 0), TopicPartition("c", 3)])
    topics.produced("c", 1, 1)
    found = scraped(topics.render())
    assert ("tidemark_topic_produced_bytes_total", "topic=b") not in found
    assert found["tidemark_topic_produced_bytes_total", "topic=c"] == 1


class _Context:
    def __init__(self, peer: str) -> None:
        self.peer = lambda: peer


def test_streams_are_counted_by_kind_and_each_connection_once() -> None:
    shown, followers = Metrics(), ["a follower"]
    streams = OpenStreams(shown, lambda: len(followers))
    one: Any = _Context("ipv4:10.0.0.1:5")
    other: Any = _Context("ipv4:10.0.0.2:5")
    with streams.open("produce", one), streams.open("metadata", one), streams.open("produce", other):
        found = scraped(shown.render())
        assert found["tidemark_broker_connections", ""] == 2
        assert found["tidemark_broker_streams", "kind=produce"] == 2
        assert found["tidemark_broker_streams", "kind=metadata"] == 1
        assert found["tidemark_broker_streams", "kind=replica"] == 1
    found = scraped(shown.render())
    assert found["tidemark_broker_connections", ""] == 0
    assert found["tidemark_broker_streams", "kind=produce"] == 0


def test_a_broker_is_in_one_state_and_recovers_while_logs_are_opened() -> None:
    broker, left = BrokerState(), [3]
    broker.remaining_logs = lambda: left[0]

    def now() -> list[str]:
        return [labels for (_, labels), value in scraped(broker.render()).items() if value == 1]

    assert now() == ["state=recovering"]
    left[0] = 0
    assert now() == ["state=starting"]
    broker.state = "running"
    assert now() == ["state=running"]
    broker.state = "stopping"
    left[0] = 1
    assert now() == ["state=stopping"]
