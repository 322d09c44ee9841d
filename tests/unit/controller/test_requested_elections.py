# SPDX-License-Identifier: Apache-2.0
"""Requested elections as the controller core receives them; ZooKeeper is the contract suite's fake."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ElectionRequest,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    UncleanElection,
)
from tidemark.ports import ControllerTerm, StateWrite

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.unit.controller.terms import term_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = TopicDescription("t", "id", dict.fromkeys((0, 1), (BrokerId(0), BrokerId(1))), {0: "i0", 1: "i1"})


class Listening(ControllerCore):
    """The core, and a queue of the election requests that it received."""

    def attach(self) -> Listening:
        self.received: asyncio.Queue[tuple[ElectionKind, ElectionRequest | None]] = asyncio.Queue()
        return self

    def handle(self, event: ev.ControllerEvent, now_ms: int) -> list[fx.ControllerEffect]:
        if isinstance(event, ev.ElectionsRequested):
            self.received.put_nowait((event.kind, event.request))
        return super().handle(event, now_ms)

    async def next_received(self, kind: ElectionKind) -> ElectionRequest | None:
        async with asyncio.timeout(10):
            while True:
                kind_received, request = await self.received.get()
                if kind_received is kind:
                    return request


async def leaderless(store: FakeMetadataStore) -> ControllerTerm:
    """Two partitions without a leader, and no live broker; the first has an unclean election of request r1."""
    await store.start()
    await store.create_topic(TOPIC)
    won = await store.elect_controller(BrokerId(100), "h:1")
    assert won is not None
    report = UncleanElection(T0, "id", 1, BrokerId(0), LeaderEpoch(4), request_id="r1")
    await store.write_states(won, [write_of(T0, -1), write_of(T1, -1)])
    await store.write_states(won, [write_of(T0, 0, report)])
    return won


def write_of(partition: TopicPartition, version: int, report: UncleanElection | None = None) -> StateWrite:
    state = LeaderAndIsr(NO_LEADER, LeaderEpoch(5), ())
    identity = ReplicaIdentity("id", TOPIC.incarnations[partition.partition])
    return StateWrite(partition, identity, state, version, report=report)


@pytest.mark.parametrize(("request_id", "left"), [("r1", (T1,)), ("r2", (T0, T1))])
async def test_a_partition_elected_for_a_request_by_another_controller_is_left_out(
    monkeypatch: pytest.MonkeyPatch, request_id: str, left: Sequence[TopicPartition]
) -> None:
    store = FakeZooKeeper().store()
    won = await leaderless(store)
    await store.request_elections(ElectionKind.LAST_KNOWN, [T0, T1], request_id)
    monkeypatch.setattr("tidemark.controller.assembly.ControllerCore", lambda *given: Listening(*given).attach())
    term = term_of(won, store)
    try:
        await term.start()
        assert isinstance(term.core, Listening)
        request = await term.core.next_received(ElectionKind.LAST_KNOWN)
        assert request is not None
        assert (request.request_id, request.partitions) == (request_id, tuple(left))
    finally:
        await term.stop()


async def test_a_request_without_a_live_replica_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeZooKeeper().store()
    won = await leaderless(store)
    removed = asyncio.Event()
    finish = store.finish_elections

    async def tell_when_removed(term: ControllerTerm, request: ElectionRequest) -> None:
        await finish(term, request)
        removed.set()

    monkeypatch.setattr(store, "finish_elections", tell_when_removed)
    term = term_of(won, store)
    store.listen(term.on_store_event)
    try:
        await term.start()
        await store.request_elections(ElectionKind.LAST_KNOWN, [T0], "r3")
        async with asyncio.timeout(10):
            await removed.wait()
        assert await store.requested_elections(ElectionKind.LAST_KNOWN) is None
        states = await store.states([T0])
        assert states[T0].state.leader == NO_LEADER
    finally:
        await term.stop()
