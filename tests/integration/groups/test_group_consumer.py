# SPDX-License-Identifier: Apache-2.0
"""Consumers that share topics: each record goes to one of them, and is committed after the application processed it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import client
from tidemark.client import InvalidRecordError
from tidemark.client.aio import AdminClient, Consumer, Groups, Producer
from tidemark.client.group.offset_commits import GroupPosition
from tidemark.client.records import ConsumerRecord
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.integration.harness import warm_command
from tests.refusals import code_of

_DEADLINE_S = 40.0


@pytest.fixture
async def topic(cluster: LocalCluster) -> str:
    return await filled(cluster, 200)


async def filled(cluster: LocalCluster, records: int) -> str:
    """A topic of four partitions; each record has its own number, in turn."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(name, partitions=4, replication_factor=3)
    await produce(cluster, name, range(records))
    return name


async def produce(cluster: LocalCluster, topic: str, numbers: range) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for number in numbers:
            await producer.send(topic, str(number).encode(), partition=number % 4)
        await producer.flush()


async def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(_DEADLINE_S):
        async for record in consumer:
            found.append(number_of(record))
            if len(found) == count:
                break
    return found


def number_of(record: ConsumerRecord) -> int:
    assert record.value is not None
    return int(record.value)


async def until_reading(consumer: Consumer, count: int) -> None:
    """Poll until the consumer has this number of partitions; drop the records of these polls."""
    async with asyncio.timeout(_DEADLINE_S):
        while len(consumer.assignment) != count:
            await consumer.poll(0.05)


async def test_the_next_member_continues_at_the_committed_offset(cluster: LocalCluster, topic: str, group: str) -> None:
    async with Consumer(cluster.bootstrap, group=group) as first:
        await first.subscribe([topic])
        before = await read(first, 70)
    async with Consumer(cluster.bootstrap, group=group) as second:
        await second.subscribe([topic])
        after = await read(second, 130)
        assert await second.poll(0.2) is None
    assert sorted(before + after) == list(range(200))


@pytest.mark.parametrize("epoch", [-1, 1_000_000])
async def test_a_member_continues_behind_a_leader_epoch_that_is_unknown_or_an_upper_bound(
    cluster: LocalCluster, topic: str, group: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark commits the epoch of a leader that may have no record."""
    monkeypatch.setattr("tidemark.client.consuming.fetcher.REPLACED_LEADER_S", 0.5)
    async with Consumer(cluster.bootstrap, group=group, auto_commit_interval_ms=0) as simple:
        commits = simple.reading_group._commits
        positions = [GroupPosition(TopicPartition(topic, index), 45, epoch, "", "") for index in range(4)]
        request = commits.request(positions, "", -1)
        await simple.reading_group._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=_DEADLINE_S)
    async with Consumer(cluster.bootstrap, group=group) as consumer:
        await consumer.subscribe([topic])
        assert sorted(await read(consumer, 20)) == list(range(180, 200))
        await produce(cluster, topic, range(200, 204))
        assert sorted(await read(consumer, 4)) == list(range(200, 204))


async def test_a_member_reads_a_topic_that_is_created_again_immediately(cluster: LocalCluster, group: str) -> None:
    """Regression: reads raised UNKNOWN_TOPIC_ID until the coordinator knew the new topic."""
    names = [f"topic-{uuid.uuid4().hex[:12]}" for _ in range(3)]
    async with AdminClient(cluster.admin_address) as admin, Consumer(cluster.bootstrap, group=group) as consumer:
        for name in names:
            await admin.create_topic(name, partitions=2, replication_factor=3)
            await produce(cluster, name, range(0, 8, 4))
        await consumer.subscribe(names)
        assert await read(consumer, 6)
        for name in names:
            await admin.delete_topic(name)
            await admin.create_topic(name, partitions=2, replication_factor=3)
            reading = asyncio.create_task(read(consumer, 2))
            await produce(cluster, name, range(100, 108, 4))
            assert await reading == [100, 104]


async def test_members_share_a_topic_and_no_record_is_read_by_two(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    found: list[int] = []
    reading = [asyncio.create_task(_work(cluster, topic, group, found)) for _ in range(2)]
    await _until(lambda: len(found) > 20)
    reading.append(asyncio.create_task(_work(cluster, topic, group, found)))
    await produce(cluster, topic, range(200, 1200))
    await _until(lambda: len(found) > 600)
    reading.pop(0).cancel()  # the consumer leaves in the middle of its work
    await produce(cluster, topic, range(1200, 1400))
    await _until(lambda: set(found) == set(range(1400)))
    for one in reading:
        one.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    twice = len(found) - len(set(found))
    assert twice <= 1, "only the one record that a cancelled member was given and had not said it was done with"


async def _work(cluster: LocalCluster, topic: str, group: str, found: list[int]) -> None:
    async with Consumer(cluster.bootstrap, group=group, max_bytes=2000, max_partition_bytes=500) as consumer:
        await consumer.subscribe([topic])
        async for record in consumer:
            await asyncio.sleep(0)
            found.append(number_of(record))


async def _until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        await asyncio.sleep(0.02)


async def test_a_record_that_the_application_failed_on_is_read_again_and_none_before_it(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    read_before: list[int] = []

    async def fail_on_the_sixth() -> None:
        async with Consumer(cluster.bootstrap, group=group) as consumer:
            await consumer.subscribe([topic])
            async for record in consumer:
                if len(read_before) == 5:
                    raise ZeroDivisionError
                read_before.append(number_of(record))

    with pytest.raises(ZeroDivisionError):
        await fail_on_the_sixth()
    async with Consumer(cluster.bootstrap, group=group) as consumer:
        await consumer.subscribe([topic])
        rest = await read(consumer, 195)
    assert sorted(read_before + rest) == list(range(200))


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("returned", [0, 7])
async def test_a_record_that_the_deserializer_cannot_read_is_read_again_and_none_is_skipped(
    cluster: LocalCluster, topic: str, group: str, returned: int, blocking: bool
) -> None:
    """The record that fails may be the first of its batch: then no record of the batch was returned."""
    found: list[int] = []

    def fails(value: bytes) -> int:
        if len(found) == returned:
            raise ZeroDivisionError
        return int(value)

    def read_until_it_fails() -> None:
        with client.Consumer(cluster.bootstrap, group=group, value_deserializer=fails) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                assert isinstance(record.value, int)
                found.append(record.value)

    async def read_on_a_loop() -> None:
        async with Consumer(cluster.bootstrap, group=group, value_deserializer=fails) as consumer:
            await consumer.subscribe([topic])
            async for record in consumer:
                assert isinstance(record.value, int)
                found.append(record.value)

    with pytest.raises(InvalidRecordError):
        await (asyncio.to_thread(read_until_it_fails) if blocking else read_on_a_loop())
    async with Consumer(cluster.bootstrap, group=group) as consumer:
        await consumer.subscribe([topic])
        rest = await read(consumer, 200 - returned)
    assert sorted(found + rest) == list(range(200))


def test_threads_share_a_topic_and_return_unprocessed_partitions(cluster: LocalCluster, group: str) -> None:
    topic = asyncio.run(filled(cluster, 400))
    found: list[int] = []
    failed: list[BaseException] = []

    def work(count: int) -> None:
        try:
            with client.Consumer(cluster.bootstrap, group=group) as consumer:
                consumer.subscribe([topic])
                for record in consumer:
                    found.append(number_of(record))
                    if len(found) >= count:
                        break
                    time.sleep(0.001)  # leaves records for the others
        except BaseException as error:  # noqa: BLE001 - the test reports the error
            failed.append(error)

    threads = [threading.Thread(target=work, args=(400,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _DEADLINE_S
    while len(found) < 400 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    asyncio.run(produce(cluster, topic, range(400, 404)))  # a member that waits for one more record gets it
    for thread in threads:
        thread.join(_DEADLINE_S)
    assert not failed
    assert sorted(found[:400]) == list(range(400))


async def test_manual_commits_include_delivered_and_named_records(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    async with Consumer(cluster.bootstrap, group=group, auto_commit_interval_ms=0) as consumer:
        await consumer.subscribe([topic])
        await read(consumer, 10)
        assert await consumer.committed() == {}
        await consumer.commit()
        assert sum((await consumer.committed()).values()) == 10
        await consumer.commit({(topic, 0): 3})
        assert (await consumer.committed([(topic, 0)])) == {TopicPartition(topic, 0): 3}
    async with Consumer(cluster.bootstrap, group=group) as by_hand:
        await by_hand.assign(topic, [0])
        await by_hand.commit({(topic, 0): 7})
        assert (await by_hand.committed())[TopicPartition(topic, 0)] == 7


@pytest.mark.parametrize("leaves", ["closes", "subscribes to nothing"])
async def test_a_member_with_manual_commits_can_commit_in_the_revocation_callback(
    cluster: LocalCluster, topic: str, group: str, leaves: str
) -> None:
    failed: list[TidemarkError] = []

    async def went(partitions: list[TopicPartition]) -> None:
        try:
            await consumer.commit()
        except TidemarkError as error:
            failed.append(error)

    async with Consumer(cluster.bootstrap, group=group, auto_commit_interval_ms=0) as consumer:
        await consumer.subscribe([topic], on_revoked=went)
        await read(consumer, 10)
        if leaves != "closes":
            await consumer.subscribe([])
    assert failed == []
    async with Consumer(cluster.bootstrap, group=group) as other:
        assert sum((await other.committed()).values()) == 10


async def test_a_member_that_exceeds_the_poll_interval_is_evicted_informed_and_rejoins(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    lost: list[TopicPartition] = []

    async def on_lost(partitions: list[TopicPartition]) -> None:
        lost.extend(partitions)

    async with Consumer(cluster.bootstrap, group=group, max_poll_interval_ms=300) as slow:
        await slow.subscribe([topic], on_lost=on_lost)
        await read(slow, 3)
        await _until(lambda: len(lost) == 4)  # the application works on the third record
        async with Consumer(cluster.bootstrap, group=group) as other:
            await other.subscribe([topic])
            await until_reading(other, 4)
            with pytest.raises(TidemarkError) as refused:
                await slow.commit({(topic, 0): 1})
            assert refused.value.code in {ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH}
        await until_reading(slow, 4)


def test_a_member_may_take_longer_for_a_polled_batch_than_the_poll_interval(cluster: LocalCluster, group: str) -> None:
    """It asks for one record after another. It would leave the group, and read the batch again, without end."""
    topic = asyncio.run(filled(cluster, 0))
    with client.Producer(cluster.bootstrap) as producer:
        producer.send_many(topic, [(b"key", str(number).encode()) for number in range(30)])
    settings = {"max_poll_interval_ms": 500, "auto_commit_interval_ms": 100}
    with client.Consumer(cluster.bootstrap, group=group, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic])
        found = []
        while len(found) < 30:
            found.append(number_of(next(consumer)))
            time.sleep(0.05)
        assert found == list(range(30))
        assert sum(consumer.committed().values()) > 15, "automatic commits keep up within a batch"


async def test_callbacks_report_assigned_and_revoked_partitions(cluster: LocalCluster, topic: str, group: str) -> None:
    told: list[tuple[str, int]] = []

    async def came(partitions: list[TopicPartition]) -> None:
        told.append(("came", len(partitions)))

    async def went(partitions: list[TopicPartition]) -> None:
        told.append(("went", len(partitions)))

    async with Consumer(cluster.bootstrap, group=group) as first:
        await first.subscribe([topic], on_assigned=came, on_revoked=went)
        await until_reading(first, 4)
        async with Consumer(cluster.bootstrap, group=group) as second:
            await second.subscribe([topic])
            await until_reading(first, 2)
            await until_reading(second, 2)
    assert told == [("came", 4), ("went", 2), ("went", 2)] or told == [
        ("came", 4),
        ("went", 2),
        ("came", 2),
        ("went", 4),
    ]


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked", "on_revoked, while it closes"])
async def test_a_callback_may_close_its_consumer(cluster: LocalCluster, group: str, when: str) -> None:
    topic = await filled(cluster, 0)
    async with (
        asyncio.timeout(_DEADLINE_S),
        Consumer(cluster.bootstrap, group=group) as closing,
        Consumer(cluster.bootstrap, group=group) as other,
    ):
        closed = asyncio.Event()

        async def close(_: list[TopicPartition]) -> None:
            await closing.close()
            closed.set()

        if when == "on_assigned":
            await closing.subscribe([topic], on_assigned=close)
        else:
            await closing.subscribe([topic], on_revoked=close)
            await until_reading(closing, 4)
        if when == "on_revoked, while it closes":
            await closing.close()
        await other.subscribe([topic])
        await until_reading(other, 4)
        await closed.wait()


def test_a_callback_on_a_thread_may_close_its_consumer(cluster: LocalCluster, topic: str, group: str) -> None:
    with client.Consumer(cluster.bootstrap, group=group) as consumer:
        errors: list[TidemarkError | None] = []

        def close(_: list[TopicPartition]) -> None:
            try:
                consumer.close()
                errors.append(None)
            except TidemarkError as error:
                errors.append(error)

        consumer.subscribe([topic], on_assigned=close)
        with pytest.raises(TidemarkError, match="closed"):
            for _ in consumer:
                pass
        deadline_s = time.monotonic() + _DEADLINE_S
        while not errors and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert errors == [None]


def test_a_consumer_that_closes_lets_a_running_on_revoked_commit(cluster: LocalCluster, topic: str, group: str) -> None:
    began, closed = threading.Event(), threading.Event()
    errors: list[TidemarkError | None] = []
    with client.Consumer(cluster.bootstrap, group=group, auto_commit_interval_ms=0) as consumer:

        def commit(partitions: list[TopicPartition]) -> None:
            if began.is_set():
                return  # the callback of the close
            began.set()
            closed.wait(1.0)
            try:
                consumer.commit({partitions[0]: 1})
                errors.append(None)
            except TidemarkError as error:
                errors.append(error)

        consumer.subscribe([topic], on_revoked=commit)
        deadline_s = time.monotonic() + _DEADLINE_S
        while len(consumer.assignment) < 4 and time.monotonic() < deadline_s:
            consumer.poll(0.05)
        with client.Consumer(cluster.bootstrap, group=group) as other:
            other.subscribe([topic])
            while not began.is_set() and time.monotonic() < deadline_s:
                consumer.poll(0.05)
            consumer.close()
            closed.set()
    assert errors == [None]


async def test_a_static_member_that_restarts_keeps_its_partitions(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    async with Consumer(cluster.bootstrap, group=group, instance_id="one") as first:
        await first.subscribe([topic])
        await until_reading(first, 4)
    async with Consumer(cluster.bootstrap, group=group) as other, Groups(cluster.bootstrap) as groups:
        await other.subscribe([topic])
        await _until_members(groups, group, 2)
        async with Consumer(cluster.bootstrap, group=group, instance_id="one") as again:
            await again.subscribe([topic])
            await until_reading(again, 2)
            await until_reading(other, 2)


async def _until_members(groups: Groups, group: str, count: int) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while len((await groups.describe_groups([group]))[0].members) != count:
        assert time.monotonic() < deadline_s, "the members did not come"
        await asyncio.sleep(0.05)


@pytest.mark.usefixtures("impatient")
async def test_impossible_requests_have_their_error_codes(cluster: LocalCluster, topic: str, group: str) -> None:
    async with Consumer(cluster.bootstrap) as alone:
        for refused in (alone.subscribe([topic]), alone.commit(), alone.committed()):
            assert await code_of(refused) is ErrorCode.INVALID_REQUEST
    async with Consumer(cluster.bootstrap, group=group) as consumer:
        await consumer.assign(topic, [0])
        assert await code_of(consumer.subscribe([topic])) is ErrorCode.INVALID_REQUEST
        assert await code_of(consumer.commit({(topic, 0): -1})) is ErrorCode.INVALID_REQUEST
        assert await code_of(consumer.commit({("nothing", 0): 1})) is ErrorCode.UNKNOWN_TOPIC
    async with Consumer(cluster.bootstrap, group=group, assignor="by-luck") as consumer:
        await consumer.subscribe([topic])
        assert await code_of(consumer.poll(_DEADLINE_S)) is ErrorCode.UNSUPPORTED_ASSIGNOR
        await consumer.subscribe([])  # the consumer continues
        await consumer.assign(topic, [0])
        assert await consumer.poll(_DEADLINE_S) is not None
    async with Consumer(cluster.bootstrap, group=group, offset_reset="fail") as consumer:
        await consumer.subscribe([topic])
        assert await code_of(consumer.poll(_DEADLINE_S)) is ErrorCode.OFFSET_OUT_OF_RANGE
    for wrong in ({"group": ""}, {"group": "x", "offset_reset": "never"}, {"group": "x", "max_poll_interval_ms": 0}):
        with pytest.raises(TidemarkError):
            Consumer(cluster.bootstrap, **wrong)  # type: ignore[arg-type]


async def test_records_deleted_before_they_were_read_are_an_error_or_passed_over(
    cluster: LocalCluster, topic: str
) -> None:
    async with AdminClient(cluster.admin_address) as admin:
        await admin.delete_records(topic, 0, 10)
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(topic, [0], start=2)
        assert await code_of(consumer.poll(_DEADLINE_S)) is ErrorCode.OFFSET_OUT_OF_RANGE
    for policy, first in (("earliest", 40), ("latest", 200)):
        async with Consumer(cluster.bootstrap, out_of_range=policy) as consumer:
            await consumer.assign(topic, [0], start=2)
            reading = asyncio.create_task(read(consumer, 1))
            await _until(lambda consumer=consumer: consumer.position((topic, 0)) >= 10)
            await produce(cluster, topic, range(200, 201))
            assert await reading == [first]


async def test_a_paused_partition_gives_nothing_until_it_is_resumed(cluster: LocalCluster, topic: str) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(topic, [0, 1])
        consumer.pause([(topic, 0)])
        found = await read(consumer, 50)
        assert {number % 4 for number in found} == {1}
        assert await consumer.poll(0.1) is None
        consumer.resume([(topic, 0)])
        assert {number % 4 for number in await read(consumer, 50)} == {0}


async def test_while_coordinators_are_killed_members_read_everything(tmp_path: Path, group: str) -> None:
    with LocalCluster(tmp_path, brokers=3) as own:
        topic = await filled(own, 200)
        found: list[int] = []
        reading = [asyncio.create_task(_work(own, topic, group, found)) for _ in range(2)]
        await _until(lambda: len(found) > 20)
        async with Groups(own.bootstrap) as groups:
            coordinator = (await groups.describe_groups([group]))[0].coordinator_id
        own.kill(broker_name(coordinator))
        await produce(own, topic, range(200, 600))
        await _until(lambda: set(found) == set(range(600)))
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_the_command_lists_describes_resets_and_deletes_groups(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    async with Consumer(cluster.bootstrap, group=group, client_id="reader") as consumer:
        await consumer.subscribe([topic])
        await read(consumer, 200)
        await consumer.commit()
        assert group in {one["group"] for one in (await said(cluster, "list"))["groups"]}
        (described,) = await said(cluster, "describe", group)
        assert (described["state"], described["lag"]) == ("STABLE", 0)
        assert described["members"][0]["client_id"] == "reader"
        assert "GROUP_NOT_EMPTY" in await refused(cluster, "delete", group, "--yes")
        busy = ("reset-offsets", group, "--topic", topic, "--to", "earliest", "--yes")
        assert "GROUP_NOT_EMPTY" in await refused(cluster, *busy)
    shown = await said(cluster, "reset-offsets", group, "--topic", f"{topic}:1", "--to", "offset:7", "--dry-run")
    assert [(one["before"], one["offset"]) for one in shown["partitions"]] == [(50, 7)]
    assert (await said(cluster, "describe", group))[0]["lag"] == 0, "nothing was changed"
    await said(cluster, "reset-offsets", group, "--topic", f"{topic}:1", "--to", "offset:7", "--yes")
    assert (await said(cluster, "describe", group))[0]["lag"] == 43
    await said(cluster, "delete", group, "--yes")
    assert "GROUP_NOT_FOUND" in await refused(cluster, "describe", group)
    assert "stdin is not a terminal" in await refused(cluster, *busy[:-1], output="text")


async def said(cluster: LocalCluster, *words: str) -> object:
    done = await _tidemark(cluster, *words, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def refused(cluster: LocalCluster, *words: str, output: str = "json") -> str:
    done = await _tidemark(cluster, *words, "--output", output)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


async def _tidemark(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        command = [*warm_command.command(), "group", *words, "--bootstrap", cluster.bootstrap]
        return subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
        )

    return await asyncio.to_thread(run)
