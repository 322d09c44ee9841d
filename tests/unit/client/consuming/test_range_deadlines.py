# SPDX-License-Identifier: Apache-2.0
"""Deadlines of range reads; the clock advances only while the reader waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata import blocking_cluster, silence
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.metadata.no_answer import none_answers
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, TidemarkError
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.v1.broker_service_pb2 import GetMetadataRequest
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

from tests.refusals import raises_code

CALL_S = 0.15
"""Time that a broker needs for a response."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(blocking_cluster, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=made.sleep))
    return made


def asks(reader: RangeReader, clock: Clock, *, answers: bool) -> Callable[..., None]:
    """Brokers with metadata without topics, which answer requests with enough time."""
    reader._cluster.view = ClusterView(controller_id=BrokerId(100))

    def refresh(names: object) -> None:
        left_s = reader._cluster.left_s()
        clock.sleep(min(CALL_S, left_s))
        if not answers or left_s < CALL_S:
            raise none_answers({"broker": TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "deadline exceeded")})

    return refresh


@pytest.mark.parametrize("deadline_s", [0.3 + step / 50 for step in range(40)])
def test_unknown_topic_is_reported_instead_of_a_timeout(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, deadline_s: float
) -> None:
    with RangeReader("127.0.0.1:1", deadline_s=deadline_s) as reader:
        monkeypatch.setattr(reader._cluster, "refresh", asks(reader, clock, answers=True))
        with pytest.raises(TidemarkError) as refused:
            reader.topics(["nope"])
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC
    assert clock.now_s <= 100.0 + deadline_s + 0.05


def test_without_answers_the_deadline_raises_the_last_error(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with RangeReader("127.0.0.1:1", deadline_s=2.0) as reader:
        monkeypatch.setattr(reader._cluster, "refresh", asks(reader, clock, answers=False))
        with pytest.raises(TidemarkError, match="no broker answers") as refused:
            reader.topics(["nope"])
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert 101.0 < clock.now_s <= 102.1


def test_broker_without_metadata_makes_the_reader_ask_another(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), "h", 9000 + one, BrokerEpoch(0)) for one in range(2)}
    unheard = TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "this broker has received no topic yet")

    def call(cluster: BlockingCluster, address: str, *_: object, **__: object) -> Any:
        found = TopicView("t", "", error=unheard) if address.endswith("9000") else TopicView("t", "id", created_zxid=1)
        view = ClusterView(brokers=brokers, controller_epoch=ControllerEpoch(1), topics={"t": found})
        return SimpleNamespace(metadata=view_to_proto(view))

    monkeypatch.setattr(BlockingCluster, "call", call)
    with RangeReader("h:9000,h:9001", deadline_s=30.0) as reader:
        assert reader.topics(["t"])["t"].topic_id == "id"


def test_a_topic_of_which_a_broker_knows_a_part_is_asked_for_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = {BrokerId(0): BrokerRegistration(BrokerId(0), "h", 9000, BrokerEpoch(0))}
    parts = iter([2, 2, 4])

    def call(cluster: BlockingCluster, address: str, *_: object, **__: object) -> Any:
        known = {index: PartitionView(index, 0, 1, (0,), (0,)) for index in range(next(parts))}
        topic = TopicView("t", "id", created_zxid=1, partitions=known, partition_count=4)
        view = ClusterView(brokers=brokers, controller_epoch=ControllerEpoch(1), topics={"t": topic})
        return SimpleNamespace(metadata=view_to_proto(view))

    monkeypatch.setattr(BlockingCluster, "call", call)
    with RangeReader("h:9000", deadline_s=30.0) as reader:
        assert sorted(reader.topics(["t"])["t"].partitions) == [0, 1, 2, 3]
    assert next(parts, None) is None


def test_an_address_that_is_no_broker_is_refused_without_retries() -> None:
    """No broker listens at the address: it may be the address of the admin service."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    reader = RangeReader(f"127.0.0.1:{port}", deadline_s=60)
    try:
        with pytest.raises(TidemarkError, match="is not a broker: give the address of a broker") as refused:
            reader.topics(["t"])
    finally:
        reader.close()
        server.stop(None)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_closed_reader_refuses_calls_without_retries(clock: Clock) -> None:
    began_s, closed = clock.now_s, RangeReader("127.0.0.1:1", deadline_s=60.0)
    closed.close()
    for call in (lambda: closed.topics(["t"]), lambda: closed.schemas("t"), lambda: closed.bounds("t", [0])):
        with raises_code(ErrorCode.CLIENT_CLOSED):
            call()
    assert clock.now_s == began_s


def test_a_call_whose_channel_another_thread_closes_before_its_start_raises_client_closed() -> None:
    with BlockingCluster("127.0.0.1:1", deadline_s=60.0) as cluster:

        def method(channel: grpc.Channel) -> Any:
            cluster.close()
            return BrokerServiceStub(channel).GetMetadata

        cluster.begin(60.0)
        with raises_code(ErrorCode.CLIENT_CLOSED):
            cluster.call("127.0.0.1:1", method, GetMetadataRequest())


@pytest.mark.parametrize("name", ["", "a b", ".."])
def test_a_name_that_no_topic_can_have_is_refused_without_a_call(clock: Clock, name: str) -> None:
    with RangeReader("127.0.0.1:1", deadline_s=30.0) as reader:
        for ask in (lambda: reader.topics([name]), lambda: reader.schemas(name)):
            with raises_code(ErrorCode.INVALID_TOPIC_NAME):
                ask()
    assert clock.now_s == 100.0


def test_a_reader_that_no_broker_has_answered_says_so_once_in_the_log(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silence, "SHOWN_AFTER_S", 0.0)
    with RangeReader("127.0.0.1:1", deadline_s=30.0, connect_timeout_s=10.0) as reader:
        monkeypatch.setattr(reader._cluster, "refresh", asks(reader, clock, answers=False))
        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers"):
            reader.topics(["t"])
    (line,) = [one.message for one in caplog.records if one.name == silence.LOGGER]
    assert line.startswith("no broker answers (broker: ")
    assert line.endswith("; trying again for 10 s")


@pytest.mark.parametrize("call_s", [CALL_S, 4.0])
def test_a_reader_that_no_broker_ever_answered_gives_up_after_the_connect_timeout(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, call_s: float
) -> None:
    monkeypatch.setitem(globals(), "CALL_S", call_s)
    with RangeReader("127.0.0.1:1", deadline_s=30.0, connect_timeout_s=10.0) as reader:
        monkeypatch.setattr(reader._cluster, "refresh", asks(reader, clock, answers=False))
        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers"):
            reader.topics(["t"])
        assert 108.0 < clock.now_s <= 110.0 + 0.05
        reader._cluster.view = ClusterView(cluster_id="c", controller_id=BrokerId(100))
        with raises_code(ErrorCode.REQUEST_TIMED_OUT, "no broker answers"):
            reader.topics(["t"])
        assert clock.now_s > 130.0
