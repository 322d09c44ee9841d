# SPDX-License-Identifier: Apache-2.0
"""Registrations after a stop, a kill and an expired session: the clean and the unclean ones (rules T1, Z3, E5)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.broker.lifecycle.registration import Registration, identity_of
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.own_epoch import UNREGISTERED
from tidemark.core.config import ReplicationConfig
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.effects import Effect
from tidemark.core.replication.events import BrokerRegistered, Event, SessionExpired
from tidemark.model import NO_EPOCH, BrokerEpoch, BrokerId, ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.zookeeper import codecs, paths

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper, ManualClock
from tests.refusals import raises_code

ID = BrokerId(3)
PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("t" * 32, "a" * 32)


class RecordingCore(BrokerCore):
    def __init__(self) -> None:
        super().__init__(ID, ReplicationConfig())
        self.seen: list[Event] = []
        self.registered = asyncio.Event()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.seen.append(event)
        if isinstance(event, BrokerRegistered):
            self.registered.set()
        return []


class Process:
    """One start of a broker, reduced to its registration."""

    def __init__(
        self,
        store: FakeMetadataStore,
        cluster_id: str,
        directory: Path,
        *,
        trust_boot_id: bool = True,
        check_ms: int = 5000,
    ) -> None:
        self.store = store
        self.core = RecordingCore()
        self.epochs: list[BrokerEpoch] = []
        self.logs: LogManager = open_logs([directory], cluster_id="c", broker_id=ID)
        self.failures: list[BaseException] = []
        self.driver = BrokerDriver(self.core, ManualClock(), AsyncioScheduler(), self.failures.append)
        self.registration = Registration(
            identity_of(ID, "here", 1, ""),
            cluster_id,
            store,
            self.logs,
            self.driver,
            AsyncioScheduler(),
            self.epochs.append,
            trust_boot_id=trust_boot_id,
            check_ms=check_ms,
        )

    async def would_have_registered_again(self) -> None:
        """Wait many times longer than a registration takes to begin."""
        for _ in range(50):
            await asyncio.to_thread(self.logs.sync)

    async def kill(self) -> None:
        await self.registration.stop()
        await self.store.stop()
        self.logs.close()

    async def stop(self) -> None:
        await self.registration.stop()
        await self.store.stop()
        self.logs.close_clean(self.registration.broker_epoch, {})


class Machine:
    """Starts processes on one disk and one ZooKeeper."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = FakeZooKeeper()
        self.cluster_id = ""
        self.directory = directory
        self._processes: list[Process] = []

    async def prepare(self) -> None:
        """Create the id of the cluster."""
        store = self.zookeeper.store()
        await store.start()
        self.cluster_id = await store.create_cluster_id()
        await store.stop()

    async def start(self, *, trust_boot_id: bool = True, check_ms: int = 5000) -> Process:
        store = self.zookeeper.store()
        await store.start()
        process = self.process(store, trust_boot_id=trust_boot_id, check_ms=check_ms)
        await process.registration.start()
        return process

    def process(self, store: FakeMetadataStore, *, trust_boot_id: bool = True, check_ms: int = 5000) -> Process:
        """A process that has not registered yet."""
        process = Process(store, self.cluster_id, self.directory, trust_boot_id=trust_boot_id, check_ms=check_ms)
        self._processes.append(process)
        return process

    async def unclean_at(self) -> int:
        store = self.zookeeper.store()
        await store.start()
        try:
            return (await store.broker_epochs())[ID].unclean_at
        finally:
            await store.stop()

    async def end(self) -> None:
        for process in self._processes:
            await process.kill()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    await machine.prepare()
    yield machine
    await machine.end()


async def test_a_session_that_expired_before_the_listener_was_added_is_replaced(machine: Machine) -> None:
    store = machine.zookeeper.store()
    await store.start()
    store.session.expire()
    await asyncio.sleep(0.05)  # listeners are called on the next turn; none is registered yet
    process = machine.process(store)
    async with asyncio.timeout(5):
        await process.registration.start()
    assert process.epochs == [0]


async def test_the_core_gets_the_registration_and_the_leader_epochs_of_replicas_on_disk(machine: Machine) -> None:
    first = await machine.start()
    first.logs.open(PARTITION, IDENTITY, {})
    assert first.core.seen == [BrokerRegistered(BrokerEpoch(0), {})]
    await first.stop()
    second = await machine.start()
    assert second.core.seen == [BrokerRegistered(BrokerEpoch(1), {PARTITION: (IDENTITY, NO_EPOCH)})]
    assert second.epochs == [1]
    assert (await second.store.live_brokers())[ID].directory_ids == second.logs.directory_ids


@pytest.mark.parametrize("trust_boot_id", [True, False])
async def test_a_clean_shutdown_makes_the_next_registration_clean(machine: Machine, trust_boot_id: bool) -> None:
    await (await machine.start(trust_boot_id=trust_boot_id)).stop()
    await machine.start(trust_boot_id=trust_boot_id)
    assert await machine.unclean_at() == -1


async def test_a_kill_is_clean_while_the_boot_id_is_the_same(machine: Machine) -> None:
    await (await machine.start()).kill()
    await machine.start()
    assert await machine.unclean_at() == -1


@pytest.mark.parametrize(("removed", "unclean_at"), [(False, -1), (True, 1)])
async def test_a_restored_snapshot_of_the_same_registration_is_unclean_only_without_incarnation_json(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory, removed: bool, unclean_at: int
) -> None:
    """A snapshot of the volume has all marks of its moment, so docs/backup.md has the file deleted."""
    running = await machine.start()
    snapshot = tmp_path_factory.mktemp("snapshots") / "first"
    shutil.copytree(machine.directory, snapshot)
    await running.kill()
    shutil.rmtree(machine.directory)
    shutil.copytree(snapshot, machine.directory)
    if removed:
        (machine.directory / "incarnation.json").unlink()
    await machine.start()
    assert await machine.unclean_at() == unclean_at


async def test_a_kill_is_unclean_where_the_boot_id_proves_nothing(machine: Machine) -> None:
    await (await machine.start(trust_boot_id=False)).kill()
    await machine.start(trust_boot_id=False)
    assert await machine.unclean_at() == 1


async def test_a_clean_shutdown_file_of_an_earlier_epoch_proves_nothing(machine: Machine, tmp_path: Path) -> None:
    await (await machine.start(trust_boot_id=False)).stop()
    mark = (tmp_path / "clean-shutdown.json").read_bytes()
    await (await machine.start(trust_boot_id=False)).kill()
    (tmp_path / "clean-shutdown.json").write_bytes(mark)
    await machine.start(trust_boot_id=False)
    assert await machine.unclean_at() == 2


async def test_after_an_expired_session_leaderships_end_before_a_clean_new_registration(
    machine: Machine,
) -> None:
    process = await machine.start(trust_boot_id=False)
    process.core.registered.clear()
    process.store.session.expire()
    async with asyncio.timeout(5):
        await process.core.registered.wait()
    assert process.epochs == [0, UNREGISTERED, 1]
    assert process.core.seen[1:] == [SessionExpired(), BrokerRegistered(BrokerEpoch(1), {})]
    assert await machine.unclean_at() == -1


async def test_a_broker_whose_tree_was_emptied_ends_and_writes_no_other_cluster_id(machine: Machine) -> None:
    """An operator restores the tree, or the node from meta.json of any log directory."""
    process = await machine.start()
    del machine.zookeeper.nodes[paths.CLUSTER_ID]
    process.store.session.expire()
    async with asyncio.timeout(5):
        while not process.failures and len(process.epochs) < 3:  # noqa: ASYNC110 - either is the end
            await asyncio.sleep(0.01)
    (failure,) = process.failures
    assert isinstance(failure, TidemarkError)
    assert failure.code is ErrorCode.INVALID_CONFIG
    assert machine.cluster_id in failure.message
    assert paths.CLUSTER_ID not in machine.zookeeper.nodes


async def test_a_broker_does_not_register_in_the_tree_of_another_cluster(machine: Machine) -> None:
    """Otherwise a broker of that cluster could not start, and its next registration would count as unclean."""
    process = await machine.start()
    machine.zookeeper.corrupt(paths.CLUSTER_ID, codecs.encode_cluster_id("other"))
    process.store.session.expire()
    async with asyncio.timeout(5):
        while not process.failures and len(process.epochs) < 3:  # noqa: ASYNC110 - either is the end
            await asyncio.sleep(0.01)
    (failure,) = process.failures
    assert isinstance(failure, TidemarkError)
    assert failure.code is ErrorCode.INVALID_CONFIG
    assert "is of cluster other" in failure.message
    assert process.epochs == [0, UNREGISTERED]


async def test_a_session_that_expires_during_the_first_registration_leads_to_one_registration(
    machine: Machine,
) -> None:
    store = machine.zookeeper.store()
    await store.start()
    process = machine.process(store)

    async def expire() -> None:
        store.session.expire()

    store.session.before_commit(expire)
    await process.registration.start()
    await process.would_have_registered_again()
    assert process.epochs == [UNREGISTERED, 0]
    assert process.core.seen == [SessionExpired(), BrokerRegistered(BrokerEpoch(0), {})]


async def test_a_registration_whose_answer_was_lost_is_retried_and_stays_clean(machine: Machine) -> None:
    await (await machine.start(trust_boot_id=False)).stop()
    store = machine.zookeeper.store()
    await store.start()
    store.session.lose_answers(1, applied=True)
    process = machine.process(store, trust_boot_id=False)
    await process.registration.start()
    assert (await store.live_brokers())[ID].broker_epoch == process.registration.broker_epoch
    assert await machine.unclean_at() == -1


async def test_a_broker_id_in_use_ends_the_start_and_leaves_the_clean_shutdown_files(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await machine.start()
    elsewhere = machine.zookeeper.store()
    await elsewhere.start()
    other = Process(elsewhere, machine.cluster_id, tmp_path_factory.mktemp("other"))
    with raises_code(ErrorCode.BROKER_ID_TAKEN):
        await other.registration.start()
    assert other.core.seen == []
    await other.kill()


async def test_a_directory_that_fails_during_a_registration_counts_as_present(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the registration would be clean without the directory, and the next start would not miss it."""
    await (await machine.start()).kill()
    store = machine.zookeeper.store()
    await store.start()
    process = machine.process(store)
    failing = process.logs._directories[0]
    asked = store.states

    async def meanwhile(*arguments: Any, **named: Any) -> Any:
        failing.fail("it broke")
        return await asked(*arguments, **named)

    monkeypatch.setattr(store, "states", meanwhile)
    await process.registration.start()
    registered = (await store.broker_epochs())[ID]
    assert not registered.directory_ids
    assert registered.unclean_at == process.registration.broker_epoch


async def test_a_failed_directory_makes_the_registration_unclean_though_the_boot_id_is_the_same(
    machine: Machine,
) -> None:
    """The kernel reports a writeback error once, and has reported it to the process that ended."""
    first = await machine.start()
    first.logs._directories[0].fail("syncfs: Input/output error")
    await first.kill()
    second = await machine.start()
    registered = (await second.store.broker_epochs())[ID]
    assert registered.unclean_at == second.registration.broker_epoch
    assert registered.lost_at == -1, "the flushed records are there"


async def test_a_broker_registers_on_a_full_disk_and_notes_the_registration_later(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.zookeeper.store()
    await store.start()
    process = machine.process(store, check_ms=1)
    written = asyncio.Event()
    loop = asyncio.get_running_loop()

    refusals = iter(range(3))

    def confirm(broker_epoch: BrokerEpoch, boot_id: str) -> None:
        if next(refusals, None) is not None:
            raise TidemarkError(ErrorCode.DISK_FULL, "no space")
        LogManager.confirm_registration(process.logs, broker_epoch, boot_id)
        loop.call_soon_threadsafe(written.set)

    monkeypatch.setattr(process.logs, "confirm_registration", confirm)
    await process.registration.start()
    assert process.core.registered.is_set()
    async with asyncio.timeout(30):
        await written.wait()
    await process.would_have_registered_again()
    assert process.epochs == [0]
    await process.kill()
    await machine.start()
    assert await machine.unclean_at() == -1
    assert process.failures == []


async def test_a_kill_is_unclean_if_a_full_disk_refused_the_registration(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TidemarkError(ErrorCode.DISK_FULL, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(LogManager, "confirm_registration", refuse)
        process = await machine.start()
    await process.kill()
    await machine.start()
    assert await machine.unclean_at() == 1
