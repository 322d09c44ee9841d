# SPDX-License-Identifier: Apache-2.0
"""Clients that are closed, cancelled or interrupted at any call end in time and leave no task or connection."""

from __future__ import annotations

import asyncio
import signal
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tidemark import client
from tidemark.client import ClientClosedError, InvalidRequestError, SendHandle
from tidemark.client.aio import AdminClient, Consumer, Groups, Producer

from tests.integration.harness import warm_command, warm_script
from tests.integration.harness.fake_broker import DROP_AFTER, DROP_BEFORE, FINE, HOLD, TOPIC, FakeCluster, Fault
from tests.turns import turns

IN_TIME_S = 12.0
"""Far below the clients' own timeouts: 120 s to deliver, 30 s for a request."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started
        started.speaking.set()


def left_behind() -> list[str]:
    """Tasks of the clients that still run."""
    return [
        task.get_name()
        for task in asyncio.all_tasks()
        if "tidemark" in getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "")
        and "tests" not in getattr(task.get_coro(), "cr_code").co_filename  # noqa: B009
    ]


async def cancelled_in_time(work: Awaitable[object], once: Callable[[], Awaitable[object]]) -> None:
    task = asyncio.ensure_future(work)
    await once()
    began_s = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began_s < IN_TIME_S


async def silenced(cluster: FakeCluster, producer: Producer) -> SendHandle:
    """A record in flight that will not be acknowledged."""
    await (await producer.send(TOPIC, b"before", partition=0))
    cluster.speaking.clear()
    cluster.produce_faults.extend([HOLD] * 10)
    return await producer.send(TOPIC, b"x", partition=0)


async def test_a_producer_whose_body_is_cancelled_does_not_wait_for_brokers_that_are_silent(
    cluster: FakeCluster,
) -> None:
    handles: list[SendHandle] = []
    sent = asyncio.Event()

    async def body() -> None:
        async with Producer(cluster.bootstrap) as producer:
            handles.append(await silenced(cluster, producer))
            sent.set()
            await asyncio.Event().wait()

    await cancelled_in_time(body(), sent.wait)
    with pytest.raises(ClientClosedError):
        await handles[0]
    assert left_behind() == []


async def test_a_close_that_is_cancelled_leaves_nothing_behind(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap)
    await producer.start()
    handle = await silenced(cluster, producer)
    await cancelled_in_time(producer.close(), lambda: cluster.until(lambda: len(cluster.produced) > 1))
    with pytest.raises(ClientClosedError):
        await handle
    assert left_behind() == []


@pytest.mark.parametrize("later", range(1, 8))
@pytest.mark.parametrize("kind", [Consumer, Producer])
async def test_a_close_that_is_cancelled_at_any_wait_closes_everything(
    cluster: FakeCluster, kind: type[Consumer | Producer], later: int
) -> None:
    """Regression: the metadata stream went on, and its connection stayed open."""
    one = kind(cluster.bootstrap)
    await one.start()
    await one.cluster.topic(TOPIC, timeout_s=IN_TIME_S)
    await cluster.until(lambda: bool(cluster.watchers))
    closing = asyncio.ensure_future(one.close())
    await turns(later)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await turns()
    assert left_behind() == []
    assert one.cluster._channels._channels == {}


@pytest.mark.parametrize("later", range(8))
async def test_a_close_that_is_cancelled_twice_can_be_repeated(cluster: FakeCluster, later: int) -> None:
    """The second cancellation comes while the first one stops the sender."""
    producer = Producer(cluster.bootstrap)
    await producer.start()
    await silenced(cluster, producer)
    closing = asyncio.ensure_future(producer.close())
    await turns()
    closing.cancel()
    await turns(later)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await producer.close()
    assert left_behind() == []


async def test_a_close_has_the_time_that_it_is_given(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap)
    await producer.start()
    handle = await silenced(cluster, producer)
    began_s = time.monotonic()
    await producer.close(timeout_s=0.1)
    assert time.monotonic() - began_s < IN_TIME_S
    with pytest.raises(ClientClosedError):
        await handle


async def test_a_blocking_consumer_that_closes_waits_as_long_as_its_requests_may_take(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a member takes up to `request_timeout_ms`, which a user may raise above the default."""
    monkeypatch.setattr("tidemark.client.sync.producer_consumer._CLOSE_SLACK_S", 0.1)
    ended: list[str] = []
    close = Consumer.close

    async def slow_close(consumer: Consumer) -> None:
        await asyncio.sleep(0.4)
        await close(consumer)
        ended.append("closed")

    monkeypatch.setattr(Consumer, "close", slow_close)

    def blocking() -> None:
        with client.Consumer(cluster.bootstrap, request_timeout_ms=5000):
            pass

    await asyncio.to_thread(blocking)
    assert ended == ["closed"]


async def test_a_second_close_waits_for_the_first(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, linger_ms=100)
    await producer.start()
    handle = await producer.send(TOPIC, b"x", partition=0)
    await asyncio.gather(producer.close(), producer.close())
    assert (await handle).offset == 0
    assert left_behind() == []


async def test_a_with_block_that_raises_sends_its_records(cluster: FakeCluster) -> None:
    handles: list[SendHandle] = []

    async def body() -> None:
        async with Producer(cluster.bootstrap, linger_ms=100) as producer:
            handles.append(await producer.send(TOPIC, b"x", partition=0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    assert (await handles[0]).offset == 0
    assert left_behind() == []


async def test_a_flush_or_a_send_that_is_cancelled_harms_nothing(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, buffer_bytes=1) as producer:
        cluster.produce_faults.append(HOLD)
        first = await producer.send(TOPIC, b"0", partition=0)
        held = partial_until(cluster, lambda: cluster.held)
        await cancelled_in_time(producer.flush(), held)
        await cancelled_in_time(producer.send(TOPIC, b"never", partition=0), held)
        await cluster.release()
        second = await producer.send(TOPIC, b"1", partition=0)
        assert [(await first).offset, (await second).offset] == [0, 1]
    assert left_behind() == []


def partial_until(cluster: FakeCluster, condition: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
    return lambda: cluster.until(condition)


async def test_a_poll_that_is_cancelled_loses_nothing(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        await cancelled_in_time(consumer.poll(), lambda: cluster.until(lambda: cluster.fetched))
        await cancelled_in_time(anext(consumer), lambda: cluster.until(lambda: cluster.fetched))
        await (await producer.send(TOPIC, b"x"))
        found = await consumer.poll(10)
        assert found is not None
        assert found.rows.column("value").to_pylist() == [b"x"]
    assert left_behind() == []


async def test_a_start_that_is_cancelled_leaves_nothing_behind(cluster: FakeCluster) -> None:
    cluster.speaking.clear()
    for kind in (Producer, Consumer):

        async def body(kind: Any = kind) -> None:
            async with kind(cluster.bootstrap):
                raise AssertionError("no broker answers")

        await cancelled_in_time(body(), turns)
        assert left_behind() == []


async def watched(admin: AdminClient) -> None:
    async for _ in admin.watch_partition_reassignments():
        raise AssertionError("no service answers")


@pytest.mark.parametrize(
    ("make", "ask", "method"),
    [
        (Consumer, lambda one: one.end_offsets([(TOPIC, 0)]), "GetMetadata"),
        (lambda bootstrap: Consumer(bootstrap, group="g"), lambda one: one.committed(), "FindCoordinator"),
        (
            lambda bootstrap: Producer(bootstrap, transactional_id="t"),
            lambda one: one.transaction().begin(),
            "FindTransactionCoordinator",
        ),
        (Groups, lambda one: one.describe_groups(["g"]), "FindCoordinator"),
        (lambda bootstrap: AdminClient(admin=bootstrap), lambda one: one.list_topics(), "ListTopics"),
        (lambda bootstrap: AdminClient(admin=bootstrap), watched, "WatchPartitionReassignments"),
    ],
    ids=["offsets", "committed", "begin", "groups", "admin", "stream"],
)
async def test_a_call_in_flight_ends_with_client_closed_as_another_task_closes_the_client(
    cluster: FakeCluster, make: Any, ask: Any, method: str
) -> None:
    """A CancelledError would seem to be the cancellation of the task that called."""
    one = make(cluster.bootstrap.split(",")[0])
    await one.start()
    cluster.speaking.clear()
    calling = asyncio.ensure_future(ask(one))
    await cluster.until(lambda: any(silenced.endswith(method) for silenced in cluster.silenced))
    await one.close()
    with pytest.raises(ClientClosedError):
        await calling
    assert left_behind() == []


async def test_a_blocking_call_on_the_clients_own_event_loop_is_refused(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, linger_ms=100) as producer:
        handle = await producer.send(TOPIC, b"x", partition=0)
        with pytest.raises(InvalidRequestError, match="await the handle"):
            handle.result()
        assert (await handle).offset == 0
        assert handle.result().offset == 0

    def blocking() -> None:
        told: list[BaseException | None] = []
        with client.Producer(cluster.bootstrap) as one:

            def callback(_: object) -> None:
                try:
                    one.flush()
                except InvalidRequestError as error:
                    told.append(error)

            one.send(TOPIC, b"y", partition=0).add_done_callback(callback)
        assert len(told) == 1

    await asyncio.to_thread(blocking)


# Calls that Ctrl-C interrupts. Each has printed "now" before.
INTERRUPTED = {
    "start": "producer(); now(); Consumer(silent)",
    "result": "one = producer(); hush(); handle = one.send(topic, b'x', partition=0); now(); handle.result()",
    "flush": "one = producer(); hush(); one.send(topic, b'x', partition=0); now(); one.flush()",
    "full buffer": "one = producer(buffer_bytes=1); hush(); one.send(topic, b'x', partition=0); now(); "
    "one.send(topic, b'y', partition=0)",
    "body": "one = producer()\nwith one:\n hush(); one.send(topic, b'x', partition=0); now(); time.sleep(60)",
    "close": "one = producer(); hush(); one.send(topic, b'x', partition=0); now(); one.close()",
    "poll": "one = consumer(); hush(); now(); one.poll(60)",
    "next": "one = consumer()\nwith one:\n hush(); now(); next(one)",
    "end_offsets": "one = consumer(); hush(); now(); one.end_offsets()",
    "commit": "one = Consumer(bootstrap, group='g')\nwith one:\n hush(); now(); one.commit({(topic, 0): 1})",
    "groups": "one = Groups(bootstrap); hush(); now(); one.describe_groups(['g'])",
    "admin": "one = AdminClient(bootstrap=bootstrap); hush(); now(); one.list_topics()",
    "watch": "one = AdminClient(bootstrap=bootstrap); hush(); now(); list(one.watch_partition_reassignments())",
}
SCRIPT = textwrap.dedent(
    """
    import sys, time
    from tidemark.client import AdminClient, Consumer, Groups, Producer
    bootstrap, topic, code = sys.argv[1:]
    silent = bootstrap

    def say(word):
        print(word, flush=True)
        sys.stdin.readline()

    def now():
        say("now")

    def hush():
        say("hush")

    def producer(**settings):
        one = Producer(bootstrap, **settings)
        one.send(topic, b"before", partition=0).result(10)
        return one

    def consumer():
        one = Consumer(bootstrap)
        one.assign(topic)
        one.poll(0.1)
        return one

    exec(code)
    """
)


@pytest.mark.parametrize("where", INTERRUPTED)
async def test_ctrl_c_ends_a_blocking_client_at_once(cluster: FakeCluster, where: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*warm_script.command(fresh=where == "start"), SCRIPT, cluster.bootstrap, TOPIC, INTERRUPTED[where]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(60):
            while (word := await process.stdout.readline()) == b"hush\n":
                cluster.speaking.clear()
                cluster.produce_faults.extend([HOLD] * 10)
                process.stdin.write(b"\n")
            assert word == b"now\n", await process.communicate()
            cluster.speaking.clear()
            process.stdin.write(b"\n")
            try:
                async with asyncio.timeout(0.3):  # the interrupt may come before the wait, too
                    await process.wait()
            except TimeoutError:
                process.send_signal(signal.SIGINT)
            began_s = time.monotonic()
            _, said = await process.communicate()
            took_s = time.monotonic() - began_s
    finally:
        if process.returncode is None:
            process.kill()
    assert b"KeyboardInterrupt" in said, said.decode()
    assert took_s < IN_TIME_S


async def test_ctrl_c_ends_the_produce_command_though_brokers_are_silent(cluster: FakeCluster) -> None:
    cluster.produce_faults.extend([HOLD] * 10)
    process = await asyncio.create_subprocess_exec(
        *(*warm_command.command(), "produce", TOPIC, "--bootstrap", cluster.bootstrap),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.close()
        await cluster.until(lambda: cluster.held)
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        async with asyncio.timeout(60):
            _, said = await process.communicate()
        assert time.monotonic() - began_s < IN_TIME_S
    finally:
        if process.returncode is None:
            process.kill()
    assert said.startswith(b"error CLIENT_CLOSED: 2 records were not acknowledged, 0 were: "), said


UNCLOSED = textwrap.dedent(
    """
    import logging, sys, warnings
    from tidemark.client import Producer

    warnings.simplefilter("always")

    bootstrap, topic, action = sys.argv[1:]
    logging.basicConfig(format="%(levelname)s %(message)s")
    producer = Producer(bootstrap, linger_ms=60_000)
    producer.send(topic, b"one", partition=0)
    producer.send(topic, b"two", partition=0)
    exec(action)
    """
)


UNCLOSED_ASYNC = textwrap.dedent(
    """
    import asyncio, logging, sys, threading, warnings
    from tidemark.client.aio import Producer

    warnings.simplefilter("always")

    bootstrap, topic, action = sys.argv[1:]
    logging.basicConfig(format="%(levelname)s %(message)s")

    async def main(linger_ms=60_000):
        global producer
        producer = Producer(bootstrap, linger_ms=linger_ms)
        await producer.start()
        await producer.send(topic, b"one", partition=0)
        await producer.send(topic, b"two", partition=0)

    async def dropped():
        global producer
        await main()
        del producer
        await asyncio.sleep(0.3 if action.endswith("# later") else 0)

    async def streaming():
        await main(linger_ms=0)
        await producer.flush()
        await producer.send(topic, b"three", partition=0)

    async def in_a_task():
        async def body():
            async with Producer(bootstrap, linger_ms=0) as one:
                await (await one.send(topic, b"one", partition=0))
                await one.send(topic, b"two", partition=0)
                sent.set()
                await asyncio.Event().wait()

        global task
        sent = asyncio.Event()
        task = asyncio.create_task(body())
        await sent.wait()

    def on_daemon_thread():
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(main(), loop).result()

    exec(action)
    """
)


FRESH = ("", "asyncio.run(main())", "on_daemon_thread()")
"""Actions whose processes import the client themselves, as users' processes do."""


async def without_close(cluster: FakeCluster, action: str, script: str = UNCLOSED) -> tuple[int | None, str, float]:
    """Exit status and stderr of a process that sends records and ends without a close; its seconds."""
    began_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(*warm_script.command(fresh=action in FRESH), script, cluster.bootstrap, TOPIC, action),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            _, printed = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, printed.decode(), time.monotonic() - began_s


@pytest.mark.parametrize("action", ["", "sys.exit(0)", "del producer"])
async def test_a_process_that_ends_without_close_sends_its_records_first(cluster: FakeCluster, action: str) -> None:
    status, printed, _ = await without_close(cluster, action)
    assert (status, cluster.values()) == (0, [b"one", b"two"]), printed
    assert ("a Producer was dropped without close()" in printed) == (action == "del producer")


async def test_a_process_that_ends_while_brokers_are_silent_logs_the_number_of_lost_records(
    cluster: FakeCluster,
) -> None:
    cluster.produce_faults.extend([HOLD] * 10)
    status, printed, took_s = await without_close(cluster, "")
    assert status == 0
    assert "ERROR 2 records were lost: their producer was not closed, and could not send them in time" in printed
    assert took_s < IN_TIME_S


ASYNC_DROPPED = "an asyncio Producer was dropped without close()"


@pytest.mark.parametrize(
    ("action", "warned"),
    [
        ("asyncio.run(main())", False),
        ("asyncio.run(main()); del producer", True),
        ("asyncio.run(dropped())", True),
        ("asyncio.run(dropped())  # later", True),
        ("asyncio.run(in_a_task())", False),
        ("on_daemon_thread()", False),
        ("on_daemon_thread(); del producer", True),
    ],
)
async def test_an_asyncio_producer_without_close_sends_its_records_before_its_loop_ends(
    cluster: FakeCluster, action: str, warned: bool
) -> None:
    status, printed, took_s = await without_close(cluster, action, UNCLOSED_ASYNC)
    assert (status, cluster.values()) == (0, [b"one", b"two"]), printed
    assert "were lost" not in printed
    assert (ASYNC_DROPPED in printed) == warned, printed
    assert took_s < IN_TIME_S


@pytest.mark.parametrize("fault", [[], [DROP_AFTER], [DROP_BEFORE]], ids=["fine", "answer lost", "request lost"])
async def test_an_asyncio_producer_with_a_stream_sends_the_rest_once_as_its_loop_ends(
    cluster: FakeCluster, fault: list[Fault]
) -> None:
    cluster.produce_faults.extend([FINE, *fault])
    status, printed, _ = await without_close(cluster, "asyncio.run(streaming())", UNCLOSED_ASYNC)
    assert (status, cluster.values()) == (0, [b"one", b"two", b"three"]), printed


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("asyncio.run(main())", "it could not send them in time"),
        ("on_daemon_thread()", "it could not send them in time"),
        ("asyncio.new_event_loop().run_until_complete(main())", "its event loop did not run"),
        ("asyncio.new_event_loop().run_until_complete(main()); del producer", "its event loop did not run"),
    ],
)
async def test_an_asyncio_producer_without_close_logs_the_number_of_lost_records(
    cluster: FakeCluster, action: str, why: str
) -> None:
    cluster.produce_faults.extend([HOLD] * 10)
    status, printed, took_s = await without_close(cluster, action, UNCLOSED_ASYNC)
    assert status == 0
    assert f"ERROR 2 records were lost: their asyncio Producer was not closed, and {why}" in printed
    assert took_s < IN_TIME_S


async def test_an_asyncio_producer_that_is_dropped_is_closed_on_its_loop(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, linger_ms=60_000)
    await producer.start()
    handle = await producer.send(TOPIC, b"x", partition=0)
    ends = next(task for task in asyncio.all_tasks() if task.get_name() == "producer tick")
    with pytest.warns(ResourceWarning, match="asyncio Producer was dropped"):
        del producer
    assert (await handle).offset == 0
    async with asyncio.timeout(IN_TIME_S):
        await ends
    assert left_behind() == []
