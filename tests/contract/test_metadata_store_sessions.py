# SPDX-License-Identifier: Apache-2.0
"""The real session: its lease (rule F1), its deadlines; ZooKeeper as a process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import StoreEvent, WriteOutcome
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.children import resume, suspend
from tests.contract.conftest import Ear
from tests.contract.test_metadata_store import elected, read_isr, topic_of, write_isr, write_of
from tests.fakes.metadata_store import ManualClock

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_with_no_server_the_start_fails_in_time_and_names_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    store = ZooKeeperMetadataStore(address, 1000, SystemClock())
    async with asyncio.timeout(5):
        with pytest.raises(TidemarkError, match=address) as refusal:
            await store.start()
    assert refusal.value.code is ErrorCode.COORDINATION_UNAVAILABLE
    assert store.lease_valid_until_ms() == 0
    await store.stop()


async def test_the_lease_counts_from_the_sending_of_the_answered_request(zookeeper: ZooKeeperProcess) -> None:
    clock = ManualClock(now_ms=1_000_000)
    store = ZooKeeperMetadataStore(zookeeper.connect + "/lease", 6000, clock)
    await store.start()
    assert store.lease_valid_until_ms() == 1_000_000 + 6000 - 1000
    clock.advance(100)
    asking = asyncio.create_task(store.controller())
    await asyncio.sleep(0)  # the request is sent now
    clock.advance(300)
    await asking
    assert store.lease_valid_until_ms() == 1_000_100 + 6000 - 1000
    await store.stop()
    assert store.lease_valid_until_ms() == 0


async def test_the_lease_uses_the_timeout_that_the_server_granted(zookeeper: ZooKeeperProcess) -> None:
    clock = ManualClock(now_ms=1_000_000)
    store = ZooKeeperMetadataStore(zookeeper.connect + "/granted", 100, clock)
    await store.start()
    assert store.lease_valid_until_ms() == 1_000_000 + 500 - 500 // 6, "the least it grants is 500 ms"
    await store.stop()


async def test_an_idle_session_keeps_its_lease(zookeeper: ZooKeeperProcess) -> None:
    clock = SystemClock()
    store = ZooKeeperMetadataStore(zookeeper.connect + "/idle", 600, clock)
    await store.start()
    first = store.lease_valid_until_ms()
    async with asyncio.timeout(10):
        while store.lease_valid_until_ms() < first + 1000:
            await asyncio.sleep(0.02)
            assert store.lease_valid_until_ms() > clock.now_ms() - 300
    await store.stop()


async def test_a_server_that_is_silent_holds_up_neither_calls_nor_the_stop(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path) as process:
        store = ZooKeeperMetadataStore(process.connect, 1000, SystemClock())
        ear = Ear(store)
        await store.start()
        suspend(process.pid)
        try:
            async with asyncio.timeout(5):
                with pytest.raises(TidemarkError) as refusal:
                    await store.next_producer_ids(1)
            assert refusal.value.code is ErrorCode.COORDINATION_UNAVAILABLE
            await ear.hears(StoreEvent.SESSION_SUSPENDED)
            async with asyncio.timeout(5):
                await store.stop()
        finally:
            resume(process.pid)


@pytest.mark.parametrize("takes_connections", [True, False], ids=["hung", "cut off"])
async def test_a_session_outlives_the_silence_of_its_server_while_another_one_answers(
    zookeeper: ZooKeeperProcess, takes_connections: bool
) -> None:
    async with (
        SilencedServer(zookeeper.port, takes_connections) as one,
        SilencedServer(zookeeper.port, takes_connections) as other,
    ):
        clock = SystemClock()
        store = ZooKeeperMetadataStore(f"127.0.0.1:{one.port},127.0.0.1:{other.port}/silent", 3000, clock)
        await store.start()
        try:
            for server in (one, other, one):  # the store is connected to one of them
                asked: list[asyncio.Task[object]] = []
                async with server.silence():
                    while not any(question.done() for question in asked):
                        asked.append(asyncio.create_task(store.controller()))
                        await asyncio.sleep(0.1)
                        assert store.lease_valid_until_ms() > clock.now_ms()
                await asyncio.gather(*asked)
        finally:
            await store.stop()


async def test_a_session_outlives_a_connection_that_its_only_server_takes_and_forgets(
    zookeeper: ZooKeeperProcess,
) -> None:
    async with SilencedServer(zookeeper.port, takes_connections=True) as server:
        clock = SystemClock()
        store = ZooKeeperMetadataStore(f"127.0.0.1:{server.port}/forgotten", 3000, clock)
        ear = Ear(store)
        await store.start()
        while store.lease_valid_until_ms() - store.lease_length_ms() > clock.now_ms() - 300:
            assert store.lease_valid_until_ms() > clock.now_ms()
            await asyncio.sleep(0.01)  # a whole session timeout from now would be too long
        server.forget_the_next()
        await ear.hears(StoreEvent.SESSION_SUSPENDED)
        await ear.hears(StoreEvent.SESSION_RESTORED)
        await store.stop()


async def test_a_process_suspended_past_its_session_has_no_lease_before_the_event(
    zookeeper: ZooKeeperProcess,
) -> None:
    clock = ManualClock(now_ms=1_000_000)
    store = ZooKeeperMetadataStore(zookeeper.connect + "/slept", 4000, clock)
    await store.start()
    clock.advance(60_000)  # SIGSTOP, SIGCONT: no callback has run yet
    assert store.lease_valid_until_ms() < clock.now_ms()
    await store.stop()


def test_a_second_start_finds_data_and_port_and_a_second_stop_is_fine(tmp_path: Path) -> None:
    process = ZooKeeperProcess(tmp_path / "with a space")

    async def first() -> str:
        store = ZooKeeperMetadataStore(process.connect, 4000, SystemClock())
        await store.start()
        found = await store.create_cluster_id()
        await store.stop()
        return found

    process.start()
    port = process.port
    cluster_id = asyncio.run(first())
    process.kill()
    assert not process.running
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # Linux assigns a held port to no other socket
    process.start()
    assert process.port == port
    assert asyncio.run(first()) == cluster_id
    process.stop()
    process.stop()
    assert not process.running


def test_without_java_the_error_names_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(TidemarkError, match="install a JDK"):
        ZooKeeperProcess(tmp_path).start()


def test_a_taken_port_is_an_error_that_names_the_log(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = ZooKeeperProcess(tmp_path, port=int(taken.getsockname()[1]))
        with pytest.raises(TidemarkError, match=r"zookeeper\.log"):
            process.start(timeout_s=20)
    assert not process.running


async def test_results_of_writes_are_true_while_the_server_is_killed_repeatedly(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path) as process:
        store = ZooKeeperMetadataStore(process.connect, 30_000, SystemClock())  # longer than each start of the server
        await store.start()
        topic = await store.create_topic(topic_of())
        await store.write_states(await elected(store), [write_of(topic, 0, -1)])
        partition, identity = TopicPartition(topic.topic, 0), ReplicaIdentity(topic.topic_id, topic.incarnations[0])
        version, unknown, rounds = 0, 0, 1
        killing = asyncio.create_task(kill_and_start(process, times=4))
        while not killing.done() or (unknown == 0 and rounds < 5):
            if killing.done():  # no kill met a write in flight, as on a busy machine
                killing, rounds = asyncio.create_task(kill_and_start(process, times=4)), rounds + 1
            try:
                result = await write_isr(store, write_of(topic, 0, version))
            except TidemarkError as error:
                if error.metadata["sent"] != "false":  # a write that was sent is answered or unknown
                    raise
                await asyncio.sleep(0.01)
                continue
            if result.outcome is WriteOutcome.WRITTEN:
                assert result.version == version + 1
                version = result.version
                continue
            assert result.outcome is WriteOutcome.UNKNOWN, "no other session writes"
            unknown += 1
            found = await once_it_answers(lambda: read_isr(store, partition, identity))
            assert found is not None
            assert found.version in (version, version + 1)
            version = found.version
        await killing
        assert version > 0
        assert unknown > 0
        await store.stop()


class SilencedServer:
    """An address of a server that can stop answering: packets are lost, connections stay open, and new ones time out.

    Args:
        takes_connections: new connections are made, and the server sends nothing on them.
    """

    def __init__(self, target: int, takes_connections: bool) -> None:
        self._target = target
        self._takes_connections = takes_connections
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._carried: set[socket.socket] = set()
        self._forgets = False

    async def __aenter__(self) -> SilencedServer:
        self._spawn(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Servers do not answer while the block lasts."""
        self._speaks.clear()
        with contextlib.ExitStack() as waiting:
            for _ in range(0 if self._takes_connections else 3):  # they fill the queue; the kernel drops more
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", self.port))
            yield
        self._speaks.set()

    def forget_the_next(self) -> None:
        """End the connections, and accept the next one without an answer, as a server that is about to start."""
        self._forgets = True
        for near in self._carried:
            near.shutdown(socket.SHUT_RDWR)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._takes_connections:
                await self._speaks.wait()
            self._spawn(self._carry((await loop.sock_accept(self._listener))[0]))

    async def _carry(self, near: socket.socket) -> None:
        with near, socket.socket() as far:
            if self._forgets:
                self._forgets = False
                await asyncio.Event().wait()
            self._carried.add(near)
            far.setblocking(False)
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", self._target))
            both = [asyncio.create_task(self._pump(*way)) for way in ((near, far), (far, near))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._carried.discard(near)
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, 65536):
            await self._speaks.wait()
            await loop.sock_sendall(sink, data)


async def once_it_answers(read: Callable[[], Awaitable[T]]) -> T:
    """The content of a node; on a busy machine a server's start may take longer than the timeout of a call."""
    while True:
        try:
            return await read()
        except TidemarkError as error:
            if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            await asyncio.sleep(0.01)  # a store that refuses immediately has not yielded to other tasks


async def kill_and_start(process: ZooKeeperProcess, *, times: int) -> None:
    for _ in range(times):
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.start)
        await asyncio.sleep(0.5)
