# SPDX-License-Identifier: Apache-2.0
"""A controller that may have been replaced accepts no change that its successor would never learn of (Z1, R9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tidemark.controller.assembly import new_loop
from tidemark.controller.loop import ControllerLoop
from tidemark.controller.service import ControllerServicer
from tidemark.model import BrokerId, ErrorCode, ReplicaIdentity
from tidemark.ports import ControllerTerm, Signal
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.host_port import Listeners
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.record_pb2 import PartitionRef
from tidemark.zookeeper import paths

from tests.fakes.contexts import PlainContext
from tests.fakes.metadata_store import FakeZooKeeper
from tests.refusals import raises_code

LEASE_ENDS_MS = 5_000


class Office:
    """A controller in its term, whose lease of the session ends at LEASE_ENDS_MS."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.submitted: list[Any] = []
        settings: Any = SimpleNamespace(
            controller_id=100, advertised_listeners=Listeners.parse("127.0.0.1:1"), leader_election_wait_ms=5_000
        )
        store: Any = SimpleNamespace(lease_valid_until_ms=lambda: LEASE_ENDS_MS, listen=lambda listener: None)
        clock: Any = SimpleNamespace(now_ms=lambda: self.now_ms)
        metrics: Any = None
        self.loop = new_loop(settings, store, clock, metrics, ReceiverCheck())
        self.term: Any = SimpleNamespace(submit=self.submitted.append, has_begun=True)
        self.loop.term = self.term
        self.servicer = ControllerServicer(self.loop, BrokerId(100))

    async def hint(self) -> None:
        request = pb.ReportIsrChangesRequest(broker_id=1, partitions=[PartitionRef(topic="flights", partition=0)])
        await self.servicer.ReportIsrChanges(request, PlainContext())


async def test_a_controller_accepts_hints_only_after_its_first_read() -> None:
    """The controller's state may be older than the hint, which comes again until the controller accepts it."""
    office = Office()
    office.term.has_begun = False
    with raises_code(ErrorCode.CONTROLLER_NOT_ACTIVE):
        await office.hint()
    assert not office.submitted
    office.term.has_begun = True
    await office.hint()
    assert len(office.submitted) == 1


async def test_within_its_lease_a_controller_takes_hints_and_past_it_it_refuses_them() -> None:
    office = Office()
    await office.hint()
    assert len(office.submitted) == 1
    office.now_ms = LEASE_ENDS_MS
    with raises_code(ErrorCode.CONTROLLER_NOT_ACTIVE):
        await office.hint()
    assert len(office.submitted) == 1


async def test_a_report_has_the_identity_of_its_replica_unless_the_broker_is_of_an_earlier_version() -> None:
    office, partition = Office(), PartitionRef(topic="flights", partition=0)
    ids = {"topic_id": "id", "incarnation": "i"}
    await office.servicer.ReportIsrChanges(
        pb.ReportIsrChangesRequest(
            broker_id=1,
            gives_up=[pb.GivenUpLeadership(partition=partition, **ids), pb.GivenUpLeadership(partition=partition)],
            failed=[pb.FailedReplica(partition=partition, **ids), pb.FailedReplica(partition=partition)],
        ),
        PlainContext(),
    )
    assert [one.identity for one in office.submitted] == [ReplicaIdentity("id", "i"), None] * 2


async def test_a_controller_leads_no_tree_whose_cluster_id_was_deleted_until_it_is_back() -> None:
    zookeeper = FakeZooKeeper()
    store = zookeeper.store()
    await store.start()
    loop, begun = loop_of(store)
    running = asyncio.create_task(loop.run())
    await until(lambda: len(begun) == 1)
    known = zookeeper.nodes[paths.CLUSTER_ID]
    del zookeeper.nodes[paths.CLUSTER_ID]
    store.session.expire()
    await until(lambda: loop.stands_back)
    assert (paths.CLUSTER_ID in zookeeper.nodes, paths.CONTROLLER in zookeeper.nodes, len(begun)) == (False, False, 1)
    zookeeper.nodes[paths.CLUSTER_ID] = known
    await until(lambda: len(begun) == 2)
    assert begun[0] == begun[1]
    running.cancel()
    await asyncio.wait({running})
    await store.stop()


async def test_a_standby_of_a_new_cluster_writes_no_other_id_once_the_tree_was_emptied() -> None:
    """The services of a new cluster start in any order: the standby may find a tree without an id."""
    zookeeper = FakeZooKeeper()
    active, standby = zookeeper.store(), zookeeper.store()
    for store in (active, standby):
        await store.start()
    assert await active.elect_controller(BrokerId(101), "127.0.0.1:2")
    loop, begun = loop_of(standby)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    known = await active.create_cluster_id()
    await until(lambda: loop.cluster_id == known)
    del zookeeper.nodes[paths.CLUSTER_ID]
    active.session.expire()
    await until(lambda: loop.stands_back)
    assert (paths.CLUSTER_ID in zookeeper.nodes, begun) == (False, [])
    running.cancel()
    await asyncio.wait({running})
    for store in (active, standby):
        await store.stop()


def loop_of(store: Any) -> tuple[ControllerLoop, list[str]]:
    """The loop of controller 100, and the cluster ids of the terms that begin."""
    begun: list[str] = []

    def new_term(won: ControllerTerm, cluster_id: str) -> Any:
        begun.append(cluster_id)
        ended = asyncio.Event()
        term: Any = SimpleNamespace(term=won, ended=ended, queue_size=0, start=_nothing, stop=_nothing)
        term.on_store_event = lambda event: None
        return term

    observer: Any = SimpleNamespace(term_begins=lambda *_: None, term_ends=lambda: None)
    loop = ControllerLoop(
        BrokerId(100),
        "127.0.0.1:1",
        store=store,
        clock=SystemClock(),
        scheduler=ImpatientScheduler(),
        observer=observer,
        new_term=new_term,
    )
    return loop, begun


async def _nothing() -> None:
    return None


class ImpatientScheduler(AsyncioScheduler):
    async def sleep_ms(self, duration_ms: int) -> None:
        await super().sleep_ms(duration_ms // 100)

    async def wait(self, signal: Signal, timeout_ms: int) -> None:
        await super().wait(signal, timeout_ms // 100)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the loop runs beside the test
            await asyncio.sleep(0.001)


async def test_a_session_that_expires_before_the_first_round_is_replaced() -> None:
    zookeeper = FakeZooKeeper()
    active, standby = zookeeper.store(), zookeeper.store()
    for store in (active, standby):
        await store.start()
    assert await active.elect_controller(BrokerId(101), "127.0.0.1:2")
    settings: Any = SimpleNamespace(
        controller_id=100, advertised_listeners=Listeners.parse("127.0.0.1:1"), leader_election_wait_ms=5_000
    )
    anything: Any = None
    loop = new_loop(settings, standby, anything, anything, ReceiverCheck())
    standby.session.expire()
    await asyncio.sleep(0.05)  # the listener runs in the next iteration of the event loop
    assert not standby.lease_valid_until_ms()
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(5):
        while not standby.lease_valid_until_ms():  # noqa: ASYNC110 - no event marks the lease
            await asyncio.sleep(0.01)
    running.cancel()
    for store in (active, standby):
        await store.stop()
