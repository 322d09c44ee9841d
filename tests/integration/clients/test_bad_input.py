# SPDX-License-Identifier: Apache-2.0
"""Errors of applications, on a real cluster: each has its class and code immediately, blocking and async."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import pickle
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from tidemark import client
from tidemark.client import (
    AdminClient,
    BatchTooLargeError,
    BrokerNotAvailableError,
    ClientClosedError,
    ErrorCode,
    FencedMemberError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicNameError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PartitionNotAssignedError,
    Producer,
    TidemarkError,
    TopicPartition,
    TopicRecreatedError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedAssignorError,
    aio,
)
from tidemark.local.cluster import LocalCluster

from tests.integration.harness import warm_command

IN_TIME_S = 15.0


class Blocking:
    """The clients as threads use them."""

    classes: Any = client

    def __init__(self) -> None:
        self._open: list[Any] = []

    def make(self, name: str, *args: Any, **settings: Any) -> Any:
        made = getattr(client, name)(*args, **settings)
        self._open.append(made)
        return made

    def do(self, call: Callable[[], Any]) -> Any:
        return call()

    def acknowledged(self, handle: Any) -> Any:
        return handle.result(IN_TIME_S)

    def close(self) -> None:
        for made in self._open:
            made.close()


class OnALoop(Blocking):
    """The same calls of the async clients, on one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()

    def make(self, name: str, *args: Any, **settings: Any) -> Any:
        async def started() -> Any:
            made = getattr(aio, name)(*args, **settings)
            self._open.append(made)
            await made.start()
            return made

        return self._runner.run(started())

    def do(self, call: Callable[[], Any]) -> Any:
        async def done() -> Any:
            made = call()
            return await made if isinstance(made, Awaitable) else made

        return self._runner.run(done())

    def acknowledged(self, handle: Any) -> Any:
        return self.do(lambda: handle)

    def close(self) -> None:
        for made in self._open:
            self.do(made.close)
        self._runner.close()


@pytest.fixture(params=[Blocking, OnALoop], ids=["blocking", "async"])
def style(request: pytest.FixtureRequest) -> Iterator[Blocking]:
    made: Blocking = request.param()
    yield made
    made.close()


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of two partitions, with ten records in the first."""
    name = "bad-" + str(abs(hash(request.node.name)))
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(name, partitions=2)
        with Producer(cluster.bootstrap) as producer:
            for number in range(10):
                producer.send(name, b"%d" % number, partition=0)
        yield name
        if name in admin.list_topics():
            admin.delete_topic(name)


def refused(kind: type[TidemarkError], code: ErrorCode, call: Callable[[], object]) -> TidemarkError:
    """The error of a call: it is raised in time, has that class, and can be pickled."""
    began_s = time.monotonic()
    with pytest.raises(kind) as refusal:
        call()
    assert time.monotonic() - began_s < IN_TIME_S
    assert refusal.value.code is code
    assert type(pickle.loads(pickle.dumps(refusal.value))) is kind
    return refusal.value


def recreate(cluster: LocalCluster, topic: str, *, again: bool) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(topic)
        if again:
            admin.create_topic(topic, partitions=2)


def test_records_for_a_topic_that_is_deleted(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer = style.make("Producer", cluster.bootstrap)
    style.acknowledged(style.do(lambda: producer.send(topic, b"x", partition=0)))
    recreate(cluster, topic, again=False)
    refused(
        UnknownTopicError,
        ErrorCode.UNKNOWN_TOPIC,
        lambda: style.acknowledged(style.do(lambda: producer.send(topic, b"y", partition=0))),
    )


def test_records_for_a_recreated_topic(
    cluster: LocalCluster, style: Blocking, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tidemark.client.producing.deleted_topics._GONE_S", 60.0
    )  # busy brokers learn of the new one late
    producer = style.make("Producer", cluster.bootstrap)
    style.acknowledged(style.do(lambda: producer.send(topic, b"x", partition=0)))
    recreate(cluster, topic, again=True)
    first = style.do(lambda: producer.send(topic, b"y", partition=0))
    with contextlib.suppress(TopicRecreatedError):
        assert style.acknowledged(first).offset == 0  # the broker knew the new topic before
    second = style.acknowledged(style.do(lambda: producer.send(topic, b"z", partition=0)))
    assert second.offset in (0, 1)


def test_a_producer_that_is_closed(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer = style.make("Producer", cluster.bootstrap)
    style.do(producer.close)
    for call in (
        lambda: producer.send(topic, b"x"),
        lambda: producer.send("elsewhere", b"x"),
        lambda: producer.send_table(topic, []),
        lambda: producer.flush(),
        lambda: producer.metrics(),
    ):
        error = refused(ClientClosedError, ErrorCode.CLIENT_CLOSED, lambda call=call: style.do(call))  # type: ignore[misc]
        assert not error.retriable


def test_records_that_are_too_large(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer = style.make("Producer", cluster.bootstrap)
    refused(
        BatchTooLargeError,
        ErrorCode.BATCH_TOO_LARGE,
        lambda: style.do(lambda: producer.send(topic, bytes(9 << 20), partition=0)),
    )
    large = style.do(lambda: producer.send(topic, bytes(2 << 20), partition=0))  # max.message.bytes is 1 MiB
    after = style.do(lambda: producer.send(topic, b"small", partition=0))
    refused(BatchTooLargeError, ErrorCode.BATCH_TOO_LARGE, lambda: style.acknowledged(large))
    assert style.acknowledged(after).offset == 10


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_that_the_broker_refuses_fails_alone_and_its_error_names_it(
    cluster: LocalCluster, style: Blocking, codec: str
) -> None:
    """The topic is compacted, with small batches and a limit of timestamps; good records keep their order."""
    rules = {"cleanup.policy": "compact", "max.message.bytes": 4000, "message.timestamp.after.max.ms": 60_000}
    name = f"strict-{codec}-{type(style).__name__}".lower()
    with AdminClient(cluster.bootstrap) as admin:
        admin.create_topic(name, configs=rules)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    producer = style.make("Producer", cluster.bootstrap, linger_ms=600, codec=codec)
    bad = {3: {"key": None}, 10: {"value": random.Random(1).randbytes(6000)}, 40: {"timestamp_us": tomorrow}}
    handles = [
        style.do(lambda number=number: producer.send(
            name, **{"value": b"%d" % number * 50, "key": b"%d" % number, **bad.get(number, {})}  # type: ignore[arg-type]
        ))
        for number in range(60)
    ]  # fmt: skip
    errors: list[tuple[type[TidemarkError], ErrorCode]] = [
        (InvalidRecordError, ErrorCode.NULL_KEY),
        (BatchTooLargeError, ErrorCode.BATCH_TOO_LARGE),
        (InvalidRecordError, ErrorCode.INVALID_TIMESTAMP),
    ]
    for number, (kind, code) in zip(bad, errors, strict=True):
        error = refused(kind, code, lambda number=number: style.acknowledged(handles[number]))
        assert f"record {number} of a batch of 60: " in error.message
        assert error.metadata["records"] == str(number)
    good = [style.acknowledged(handle).offset for number, handle in enumerate(handles) if number not in bad]
    assert good == list(range(57))
    consumer = style.make("Consumer", cluster.bootstrap)
    style.do(lambda: consumer.assign(name, start="earliest"))
    read: list[bytes] = []
    while len(read) < 57:
        found = style.do(lambda: consumer.poll(IN_TIME_S))
        read += found.rows.column("key").to_pylist()
    assert [int(key) for key in read] == [number for number in range(60) if number not in bad]


@pytest.mark.usefixtures("impatient_with_brokers")
def test_addresses_that_lead_nowhere_each_with_its_cause(style: Blocking) -> None:
    error = refused(
        BrokerNotAvailableError,
        ErrorCode.BROKER_NOT_AVAILABLE,
        lambda: style.make("Producer", "nowhere.invalid:9192,127.0.0.1:1"),
    )
    assert set(error.metadata) == {"nowhere.invalid:9192", "127.0.0.1:1"}
    assert "Domain name not found" in error.metadata["nowhere.invalid:9192"]
    assert "refused" in error.metadata["127.0.0.1:1"]


@pytest.mark.parametrize("bootstrap", ["", "  ,", "host", "host:", ":9192", "host:0", "host:99999", "host:port"])
def test_addresses_that_are_none(style: Blocking, bootstrap: str) -> None:
    refused(InvalidConfigError, ErrorCode.INVALID_CONFIG, lambda: style.make("Consumer", bootstrap))


def test_a_consumer_below_the_log_start_by_its_policy(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_records(topic, 0, 6)
    fails = style.make("Consumer", cluster.bootstrap)
    style.do(lambda: fails.assign(topic, [0], 2))
    for _ in range(2):  # until the consumer seeks another offset
        error = refused(
            OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE, lambda: style.do(lambda: fails.poll(timeout_s=10))
        )
        assert error.metadata["log_start_offset"] == "6"
    assert style.do(lambda: fails.health())[TopicPartition(topic, 0)].state == "failed"
    style.do(lambda: fails.seek((topic, 0), 6))
    assert first_offset(style, fails) == 6
    earliest = style.make("Consumer", cluster.bootstrap, out_of_range="earliest")
    style.do(lambda: earliest.assign(topic, [0], 2))
    assert first_offset(style, earliest) == 6
    latest = style.make("Consumer", cluster.bootstrap, out_of_range="latest")
    style.do(lambda: latest.assign(topic, [0], 2))
    until_s = time.monotonic() + IN_TIME_S
    while style.do(lambda: latest.position((topic, 0))) != 10:  # the consumer first looks for the end
        assert time.monotonic() < until_s
        assert style.do(lambda: latest.poll(timeout_s=0.1)) is None
    assert style.do(lambda: latest.poll(timeout_s=0.5)) is None
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"new", partition=0)
    assert first_offset(style, latest) == 10


def first_offset(style: Blocking, consumer: Any) -> int:
    batch = style.do(lambda: consumer.poll(timeout_s=10))
    assert batch is not None
    offset: int = batch.rows.column("offset")[0].as_py()
    return offset


def test_a_consumer_above_the_log_end(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    consumer = style.make("Consumer", cluster.bootstrap)
    style.do(lambda: consumer.assign(topic, [0], 10))  # the end itself: the consumer waits
    assert style.do(lambda: consumer.poll(timeout_s=0.3)) is None
    style.do(lambda: consumer.seek((topic, 0), 11))
    error = refused(LogTruncatedError, ErrorCode.LOG_TRUNCATED, lambda: style.do(lambda: consumer.poll(timeout_s=10)))
    assert error.metadata["diverging_end_offset"] == "10"


def test_a_consumer_of_a_topic_that_was_recreated_or_deleted(
    cluster: LocalCluster, style: Blocking, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = style.make("Consumer", cluster.bootstrap)
    style.do(lambda: consumer.assign(topic, [0], "latest"))
    with monkeypatch.context() as patient:
        patient.setattr("tidemark.client.consuming.fetcher._GONE_S", 60.0)  # busy brokers learn of the new one late
        recreate(cluster, topic, again=True)
        refused(TopicRecreatedError, ErrorCode.UNKNOWN_TOPIC_ID, lambda: style.do(lambda: consumer.poll(timeout_s=10)))
    style.do(lambda: consumer.assign(topic, [0]))
    assert style.do(lambda: consumer.poll(timeout_s=0.3)) is None
    recreate(cluster, topic, again=False)
    refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda: style.do(lambda: consumer.poll(timeout_s=10)))


@pytest.mark.usefixtures("impatient")
def test_missing_names_and_impossible_requests(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer, consumer = style.make("Producer", cluster.bootstrap), style.make("Consumer", cluster.bootstrap)
    refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda: style.do(lambda: producer.send("no-such", b"x")))
    refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda: style.do(lambda: consumer.assign("no-such")))
    bad = "no/such topic"
    refused(InvalidTopicNameError, ErrorCode.INVALID_TOPIC_NAME, lambda: style.do(lambda: producer.send(bad, b"x")))
    refused(InvalidTopicNameError, ErrorCode.INVALID_TOPIC_NAME, lambda: style.do(lambda: consumer.assign(bad)))
    for index in (2, -1):
        refused(
            UnknownPartitionError,
            ErrorCode.UNKNOWN_PARTITION,
            lambda index=index: style.do(lambda: producer.send(topic, b"x", partition=index)),  # type: ignore[misc]
        )
        refused(
            UnknownPartitionError,
            ErrorCode.UNKNOWN_PARTITION,
            lambda index=index: style.do(lambda: consumer.assign(topic, [index])),  # type: ignore[misc]
        )
    refused(InvalidRequestError, ErrorCode.INVALID_REQUEST, lambda: style.do(lambda: consumer.assign(topic, [0], -5)))
    refused(InvalidRequestError, ErrorCode.INVALID_REQUEST, lambda: style.do(lambda: consumer.seek((topic, 0), 1)))
    refused(InvalidRequestError, ErrorCode.INVALID_REQUEST, lambda: style.do(consumer.commit))


def test_a_commit_of_a_former_member(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    group = f"out-{topic}"
    slow = style.make("Consumer", cluster.bootstrap, group=group, max_poll_interval_ms=1000, auto_commit_interval_ms=0)
    style.do(lambda: slow.subscribe([topic]))
    assert first_offset(style, slow) == 0
    other = style.make("Consumer", cluster.bootstrap, group=group)
    style.do(lambda: other.subscribe([topic]))
    until_s = time.monotonic() + IN_TIME_S
    while len(other.assignment) < 2:  # the other member does not poll for longer than allowed
        assert time.monotonic() < until_s
        style.do(lambda: other.poll(timeout_s=0.1))
    error = refused(FencedMemberError, ErrorCode.UNKNOWN_MEMBER, lambda: style.do(lambda: slow.commit({(topic, 0): 1})))
    assert not error.retriable


def test_a_topic_that_is_no_text_harms_no_client(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer, consumer = style.make("Producer", cluster.bootstrap), style.make("Consumer", cluster.bootstrap)
    for wrong in (None, b"orders", 7):
        for call in (lambda w=wrong: producer.send(w, b"x"), lambda w=wrong: consumer.assign(w)):
            with pytest.raises(TypeError, match="a topic is named by a str"):
                style.do(call)
    assert style.acknowledged(style.do(lambda: producer.send(topic, b"x", partition=0))).offset == 10
    style.do(lambda: consumer.assign(topic, [0], 10))
    assert first_offset(style, consumer) == 10


def test_one_topic_may_be_subscribed_to_by_its_name_alone(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    member = style.make("Consumer", cluster.bootstrap, group=f"g-{topic}")
    refused(InvalidTopicNameError, ErrorCode.INVALID_TOPIC_NAME, lambda: style.do(lambda: member.subscribe(["a b"])))
    style.do(lambda: member.subscribe(topic))
    assert first_offset(style, member) == 0


def test_groups_that_cannot_be(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    refused(
        InvalidGroupIdError, ErrorCode.INVALID_GROUP_ID, lambda: style.make("Consumer", cluster.bootstrap, group="")
    )
    strange = style.make("Consumer", cluster.bootstrap, group=f"strange-{topic}", assignor="by-mood")
    style.do(lambda: strange.subscribe([topic]))
    refused(
        UnsupportedAssignorError,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        lambda: style.do(lambda: strange.poll(timeout_s=10)),
    )
    member = style.make("Consumer", cluster.bootstrap, group=f"g-{topic}")
    style.do(lambda: member.subscribe([topic]))
    assert style.do(lambda: member.poll(timeout_s=IN_TIME_S)) is not None
    refused(
        UnknownPartitionError,
        ErrorCode.UNKNOWN_PARTITION,
        lambda: style.do(lambda: member.commit({(topic, 7): 1})),
    )
    other = style.make("Consumer", cluster.bootstrap, group=f"g-{topic}")
    style.do(lambda: other.subscribe([topic]))
    while len(member.assignment) > 1 or not other.assignment:
        style.do(lambda: member.poll(timeout_s=0.1))
        style.do(lambda: other.poll(timeout_s=0.1))
    (theirs,) = other.assignment
    refused(
        PartitionNotAssignedError,
        ErrorCode.PARTITION_NOT_ASSIGNED,
        lambda: style.do(lambda: member.commit({theirs: 1})),
    )


@pytest.mark.usefixtures("impatient")
def test_the_command_line_prints_the_code_in_one_line(cluster: LocalCluster) -> None:
    for command, code in (
        (["topic", "describe", "no-such"], "UNKNOWN_TOPIC"),
        (["consume", "no-such", "--timeout", "5"], "UNKNOWN_TOPIC"),
        (["group", "describe", "no-such-group"], "GROUP_NOT_FOUND"),
    ):
        ended = subprocess.run(
            [*warm_command.command(), *command, "--bootstrap", cluster.bootstrap],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1, ended
        assert ended.stderr.startswith(f"error {code}: "), ended
        assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": 0.0},
        {"partition": "0"},
        {"partition": math.nan},
        {"timestamp_us": "x"},
        {"timestamp_us": math.nan},
        {"timestamp_us": 1.9},
        {"timestamp_us": 1 << 63},
        {"timestamp_us": datetime(2026, 11, 23)},  # noqa: DTZ001 - a time without a zone is the error
        {"key": 7},
        {"headers": [("name", 7)]},
    ],
    ids=str,
)
def test_send_refuses_a_wrong_argument_at_the_call_and_its_neighbours_are_written(
    style: Blocking, cluster: LocalCluster, topic: str, wrong: dict[str, Any]
) -> None:
    producer = style.make("Producer", cluster.bootstrap, linger_ms=100)
    before = style.do(lambda: producer.send(topic, b"before", partition=0))
    with pytest.raises((TypeError, TidemarkError)) as refused:
        style.do(lambda: producer.send(topic, b"wrong", **{"partition": 0, **wrong}))
    assert next(iter(wrong)).removesuffix("s") in str(refused.value) or "time zone" in str(refused.value)
    after = style.do(lambda: producer.send(topic, b"after", partition=0))
    assert [style.acknowledged(before).offset, style.acknowledged(after).offset] == [10, 11]


def test_send_accepts_integers_of_any_type_and_times_with_a_zone(
    style: Blocking, cluster: LocalCluster, topic: str
) -> None:
    producer = style.make("Producer", cluster.bootstrap)
    when = datetime(2026, 11, 23, 12, tzinfo=timezone(timedelta(hours=2)))
    for timestamp_us in (when, np.int64(1_795_428_000_000_000)):
        sent = style.do(lambda given=timestamp_us: producer.send(topic, b"x", partition=np.int8(0), timestamp_us=given))
        assert style.acknowledged(sent).timestamp_us == 1_795_428_000_000_000


def test_a_partitioner_that_returns_no_integer_is_refused_at_the_call(
    style: Blocking, cluster: LocalCluster, topic: str
) -> None:
    producer = style.make("Producer", cluster.bootstrap, partitioner=lambda *_: 0.5)
    with pytest.raises(TypeError, match=r"the partitioner's result is 0\.5, a float, not an integer"):
        style.do(lambda: producer.send(topic, b"x"))


@pytest.mark.parametrize("poll", [False, True], ids=["iterate", "poll"])
def test_a_value_that_the_deserializer_cannot_read_has_its_offset_and_stays_until_a_seek(
    cluster: LocalCluster, style: Blocking, topic: str, poll: bool
) -> None:
    producer = style.make("Producer", cluster.bootstrap, value_serializer="json")
    with pytest.raises(TypeError, match="a object cannot be written as JSON"):
        style.do(lambda: producer.send(topic, object(), partition=1))
    for value in ({"n": 1}, None, {"n": 2}):
        style.acknowledged(style.do(lambda value=value: producer.send(topic, value, partition=1)))
    consumer = style.make("Consumer", cluster.bootstrap, value_deserializer=as_object)
    style.do(lambda: consumer.assign(topic, [1], 0))
    if poll:
        assert first_offset(style, consumer) == 0
        return
    assert read(style, consumer).value == {"n": 1}
    assert read(style, consumer).value is None
    assert read(style, consumer).value == {"n": 2}
    style.do(lambda: consumer.unassign([(topic, 1)]))
    style.do(lambda: consumer.assign(topic, [0], 3))  # the records there are numbers, not objects
    for _ in range(2):
        with pytest.raises(
            InvalidRecordError, match="value_deserializer cannot read the value at offset 3"
        ) as refused_:
            read(style, consumer)
        assert refused_.value.metadata == {"topic": topic, "partition": "0", "offset": "3"}
        assert style.do(lambda: consumer.position((topic, 0))) == 3


def as_object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError(f"{found!r} is not an object")
    return found


def read(style: Blocking, consumer: Any) -> Any:
    return style.do(lambda: consumer.__anext__() if hasattr(consumer, "__anext__") else next(consumer))


AT_ONCE_S = 0.5
"""A request or two on a busy machine; the first lookup of a missing topic is retried for a second here."""


@pytest.mark.usefixtures("impatient")
def test_a_missing_topic_costs_its_patience_once_and_the_error_suggests_a_name(
    cluster: LocalCluster, style: Blocking, topic: str
) -> None:
    producer, consumer = style.make("Producer", cluster.bootstrap), style.make("Consumer", cluster.bootstrap)
    wrong = topic.removesuffix(topic[-1])
    for call in (lambda: producer.send(wrong, b"x"), lambda: consumer.assign(wrong)):
        error = refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda call=call: style.do(call))  # type: ignore[misc]
        assert error.message.endswith(f"did you mean {topic!r}?")
        assert error.metadata["did_you_mean"] == topic
        began_s = time.monotonic()
        for _ in range(3):
            again = refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda call=call: style.do(call))  # type: ignore[misc]
            assert again.message == error.message
        assert time.monotonic() - began_s < AT_ONCE_S


@pytest.mark.usefixtures("impatient")
def test_a_missing_partition_costs_its_patience_once(cluster: LocalCluster, style: Blocking, topic: str) -> None:
    producer = style.make("Producer", cluster.bootstrap)
    wrong = lambda: style.do(lambda: producer.send(topic, b"x", partition=7))  # noqa: E731
    refused(UnknownPartitionError, ErrorCode.UNKNOWN_PARTITION, wrong)
    began_s = time.monotonic()
    for _ in range(3):
        refused(UnknownPartitionError, ErrorCode.UNKNOWN_PARTITION, wrong)
    assert time.monotonic() - began_s < AT_ONCE_S


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_is_created_after_an_error_is_written_to_at_once(
    cluster: LocalCluster, style: Blocking, topic: str
) -> None:
    producer, late = style.make("Producer", cluster.bootstrap), f"{topic}-late"
    refused(UnknownTopicError, ErrorCode.UNKNOWN_TOPIC, lambda: style.do(lambda: producer.send(late, b"x")))
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(late)
        try:
            assert style.acknowledged(style.do(lambda: producer.send(late, b"x"))).offset == 0
        finally:
            admin.delete_topic(late)


@pytest.mark.usefixtures("impatient")
def test_health_shows_a_subscribed_topic_that_does_not_exist(
    cluster: LocalCluster, style: Blocking, topic: str
) -> None:
    missing = f"{topic}-nope"
    member = style.make("Consumer", cluster.bootstrap, group=f"health-{topic}")
    style.do(lambda: member.subscribe([topic, missing]))
    until_s = time.monotonic() + IN_TIME_S
    while "did you mean" not in (found := style.do(member.health).get((missing, -1), ("", "")))[1]:
        assert time.monotonic() < until_s, found
        style.do(lambda: member.poll(timeout_s=0.1))
    assert (found.state, found.position, found.lag) == ("unknown topic", -1, -1)
    assert f"there is no topic {missing!r}" in found.detail
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(missing, partitions=1)
        try:
            while (missing, -1) in style.do(member.health):
                assert time.monotonic() < until_s
                style.do(lambda: member.poll(timeout_s=0.1))
        finally:
            style.do(lambda: member.subscribe([]))
            admin.delete_topic(missing)


def test_an_admin_client_takes_brokers_first_and_finds_the_admin_service(
    cluster: LocalCluster, style: Blocking, topic: str
) -> None:
    for made in (
        style.make("AdminClient", cluster.bootstrap),
        style.make("AdminClient", cluster.bootstrap.split(",")),
        style.make("AdminClient", cluster.admin_address),
        style.make("AdminClient", f"{cluster.admin_address},{cluster.bootstrap}"),
        style.make("AdminClient", admin=cluster.admin_address),
    ):
        assert topic in style.do(made.list_topics)


def test_a_client_of_brokers_is_refused_at_once_at_the_port_of_the_admin_service(
    cluster: LocalCluster, style: Blocking
) -> None:
    began_s = time.monotonic()
    for name in ("Producer", "Consumer", "Groups"):
        error = refused(
            InvalidConfigError, ErrorCode.INVALID_CONFIG, lambda name=name: style.make(name, cluster.admin_address)
        )
        assert error.message.startswith(f"bootstrap: {cluster.admin_address} is not a broker: give the address of a")
    assert time.monotonic() - began_s < 3 * AT_ONCE_S
