# SPDX-License-Identifier: Apache-2.0
"""Brokers that accept every request and answer none: each public call returns or raises in its stated time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tidemark import client
from tidemark.client import ConfigKind, ConfigResource, ReplicaLogDir, TidemarkError, Timestamp, TopicPartition, aio
from tidemark.model import BrokerId, ElectionKind

from tests.integration.harness.fake_broker import TOPIC, FakeCluster

CALL_S = 0.5
"""Time limit of each call."""
SLACK_S = 1.5
"""A busy machine; a late request is sent once more."""
WHERE = TopicPartition(TOPIC, 0)
ELSEWHERE = TopicPartition("elsewhere", 0)
TIMEOUTS = {"request_timeout_ms": int(CALL_S * 1000)}

Call = Callable[[Any], Any]

PRODUCER: dict[str, Call] = {
    "send to a topic that is known": lambda one: one.send(TOPIC, b"x", partition=0),
    "send to one that is not": lambda one: one.send("elsewhere", b"x"),
    "send beyond the last partition": lambda one: one.send(TOPIC, b"x", partition=9),
    "send many": lambda one: one.send_many("elsewhere", [(b"k", b"v")]),
    "flush": lambda one: one.flush(),
}
CONSUMER: dict[str, Call] = {
    "assign a topic that is known": lambda one: one.assign(TOPIC, [0], "latest"),
    "assign one that is not": lambda one: one.assign("elsewhere"),
    "assign beyond the last partition": lambda one: one.assign(TOPIC, [9]),
    "seek to the end": lambda one: one.seek(WHERE, "latest"),
    "seek to a time": lambda one: one.seek(WHERE, Timestamp(5)),
    "end_offsets": lambda one: one.end_offsets(),
    "end_offsets of an unknown partition": lambda one: one.end_offsets([ELSEWHERE]),
    "offset_for_timestamp": lambda one: one.offset_for_timestamp(WHERE, 5),
    "poll": lambda one: one.poll(timeout_s=CALL_S),
}
MEMBER: dict[str, Call] = {
    "commit": lambda one: one.commit({WHERE: 1}),
    "commit the position": lambda one: one.commit(),
    "committed": lambda one: one.committed(),
    "committed of one": lambda one: one.committed([WHERE]),
    "poll": lambda one: one.poll(timeout_s=CALL_S),
}
GROUPS: dict[str, Call] = {
    "list_groups": lambda one: one.list_groups(),
    "describe_groups": lambda one: one.describe_groups(["g", "h"]),
    "set_offsets": lambda one: one.set_offsets("g", {WHERE: 1}),
    "set_offsets of an unknown partition": lambda one: one.set_offsets("g", {ELSEWHERE: 1}),
    "plan_reset": lambda one: one.plan_reset("g", "earliest", partitions=[WHERE]),
    "plan_reset of an unknown topic": lambda one: one.plan_reset("g", "latest", topics=[ELSEWHERE.topic]),
    "delete": lambda one: one.delete("g"),
    "delete_offsets": lambda one: one.delete_offsets("g", [WHERE]),
}
ADMIN: dict[str, Call] = {
    "create_topic": lambda one: one.create_topic("new"),
    "delete_topic": lambda one: one.delete_topic(TOPIC),
    "list_topics": lambda one: one.list_topics(),
    "describe_topics": lambda one: one.describe_topics(),
    "create_partitions": lambda one: one.create_partitions(TOPIC, 3),
    "delete_partitions": lambda one: one.delete_partitions(TOPIC, count=1),
    "delete_records": lambda one: one.delete_records(TOPIC, 0, 1),
    "alter_configs": lambda one: one.alter_configs(ConfigResource(ConfigKind.TOPIC, TOPIC), {"retention.ms": "1"}),
    "describe_configs": lambda one: one.describe_configs([ConfigResource(ConfigKind.TOPIC, TOPIC)]),
    "describe_cluster": lambda one: one.describe_cluster(),
    "elect_leaders": lambda one: one.elect_leaders(ElectionKind.PREFERRED),
    "list_unclean_elections": lambda one: one.list_unclean_elections(),
    "alter_partition_reassignments": lambda one: one.alter_partition_reassignments(cancel=[WHERE]),
    "list_partition_reassignments": lambda one: one.list_partition_reassignments(),
    "watch_partition_reassignments": lambda one: one.watch_partition_reassignments(interval_ms=100),
    "describe_log_dirs": lambda one: one.describe_log_dirs(),
    "alter_replica_log_dirs": lambda one: one.alter_replica_log_dirs([ReplicaLogDir(BrokerId(0), WHERE, "/x")]),
    "plan_brokers": lambda one: one.plan_brokers(remove=[1]),
    "add_brokers": lambda one: one.add_brokers([1]),
    "remove_brokers": lambda one: one.remove_brokers([1], interval_ms=100),
    "obstacles_to_restart": lambda one: one.obstacles_to_restart(1),
}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started
        started.speaking.set()


@asynccontextmanager
async def of_one_kind(cluster: FakeCluster, kind: str, classes: Any) -> AsyncIterator[Any]:
    """A client that knew the cluster before the brokers stopped answering; the client is closed in time, too."""

    async def do(call: Callable[[], Any]) -> Any:
        return await call() if classes is aio else await asyncio.to_thread(call)

    async def at_last(call: Callable[[], Any]) -> Any:
        """While brokers answer: the timeout of a call may be too short on a busy machine."""
        until_s = time.monotonic() + 30
        while True:
            try:
                return await do(call)
            except TidemarkError:
                if time.monotonic() > until_s:
                    raise

    made = await at_last(partial(_made, cluster.bootstrap, kind, classes))
    if kind == "producer":
        await at_last(lambda: made.send(TOPIC, b"before", partition=0))
        await do(made.flush)
    if kind in ("consumer", "member"):
        await at_last(lambda: made.assign(TOPIC, [0]))
    cluster.speaking.clear()
    try:
        yield made
    finally:
        began_s = time.monotonic()
        await do(made.close)
        assert time.monotonic() - began_s < CALL_S + SLACK_S


def _made(bootstrap: str, kind: str, classes: Any) -> Any:
    if kind == "producer":
        made = classes.Producer(bootstrap, delivery_timeout_ms=int(CALL_S * 1000), **TIMEOUTS)
    elif kind == "groups":
        made = classes.Groups(bootstrap, timeout_s=CALL_S)
    elif kind == "admin":
        made = classes.AdminClient(bootstrap=bootstrap, timeout_s=CALL_S)
    else:
        made = classes.Consumer(bootstrap, group="g" if kind == "member" else None, **TIMEOUTS)
    return _started(made) if classes is aio else made


async def _started(made: Any) -> Any:
    try:
        await made.start()
    except TidemarkError:
        await made.close()
        raise
    return made


async def on_this_loop(call: Callable[[], Any]) -> float:
    began_s = time.monotonic()
    with contextlib.suppress(TidemarkError):
        made = call()
        if hasattr(made, "__anext__"):
            assert [one async for one in made] == []
        elif isinstance(made, Awaitable):
            await made
    return time.monotonic() - began_s


async def on_a_thread(call: Callable[[], Any]) -> float:
    def all_of_it() -> float:
        began_s = time.monotonic()
        with contextlib.suppress(TidemarkError):
            made = call()
            if isinstance(made, Iterator):
                assert list(made) == []
        return time.monotonic() - began_s

    return await asyncio.to_thread(all_of_it)


KINDS = {"producer": PRODUCER, "consumer": CONSUMER, "member": MEMBER, "groups": GROUPS, "admin": ADMIN}


@pytest.mark.parametrize("classes", [aio, client], ids=["async", "sync"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_ends_in_time_when_no_broker_answers(cluster: FakeCluster, kind: str, classes: Any) -> None:
    run = on_this_loop if classes is aio else on_a_thread
    async with asyncio.timeout(60), of_one_kind(cluster, kind, classes) as made:
        calls = [partial(call, made) for call in KINDS[kind].values()]
        if kind in ("groups", "admin"):
            took_s = await asyncio.gather(*map(run, calls))
        else:
            took_s = [await run(call) for call in calls]
        late = [name for name, one_s in zip(KINDS[kind], took_s, strict=True) if one_s > CALL_S + SLACK_S]
        again_s = {name: await run(partial(KINDS[kind][name], made)) for name in late}
    assert [name for name in late if again_s[name] > CALL_S + SLACK_S] == []


async def test_silent_brokers_never_make_a_partition_unknown(cluster: FakeCluster) -> None:
    async with of_one_kind(cluster, "producer", aio) as producer:
        with pytest.raises(client.BrokerNotAvailableError):
            await producer.send(TOPIC, b"x", partition=9)


async def test_a_consumer_reports_missing_answers_and_logs_this_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.Consumer(cluster.bootstrap, **TIMEOUTS) as consumer, asyncio.timeout(30):
        await consumer.assign(TOPIC, [0])
        assert await consumer.poll(0.1) is None
        for broker in cluster.brokers:
            await cluster.stop_broker(broker)
        while consumer.health()[WHERE].state != "not answered":
            assert await consumer.poll(0.05) is None
        assert "the fetch is retried" in consumer.health()[WHERE].detail
        while not caplog.records:
            await consumer.poll(0.05)
        for _ in range(30):
            await consumer.poll(0.05)
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert [one.startswith("no broker answers: ") for one in said] == [True]
        for broker in cluster.brokers.values():
            await broker.start()
        while consumer.health()[WHERE].state != "caught up":
            await consumer.poll(0.05)


async def test_batches_end_where_their_loop_is_left(cluster: FakeCluster) -> None:
    async with aio.Producer(cluster.bootstrap) as producer, aio.Consumer(cluster.bootstrap) as consumer:
        await (await producer.send(TOPIC, b"x", partition=0))
        await consumer.assign(TOPIC, [0])
        async with contextlib.aclosing(consumer.batches()) as batches:
            async for batch in batches:
                assert batch.rows.num_rows == 1
                break
