# SPDX-License-Identifier: Apache-2.0
"""A request that was answered while the controller read it is not answered twice; ZooKeeper is the suite's fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tidemark.core.controller import events as ev
from tidemark.model import BrokerId, TopicDescription, TopicPartition

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.unit.controller.terms import term_of

TOPIC = TopicDescription("t", "id", {0: (BrokerId(0),)}, {0: "i0"})
SEVENTH, EIGHTH = TopicPartition("t", 7), TopicPartition("t", 8)


class Gate:
    """A call of the store that waits where a test wants it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: FakeMetadataStore, name: str) -> None:
        self._call: Callable[..., Any] = getattr(store, name)
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = asyncio.Event()
        self.done: asyncio.Queue[None] = asyncio.Queue()
        monkeypatch.setattr(store, name, self._wait)

    async def _wait(self, *arguments: Any, **named: Any) -> Any:
        if not self._open.is_set():
            self.waiting.set()
            await self._open.wait()
        answer = await self._call(*arguments, **named)
        self.done.put_nowait(None)
        return answer

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


async def test_a_request_that_was_read_before_it_was_answered_is_not_refused_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FakeZooKeeper().store()
    await store.start()
    await store.create_topic(TOPIC)
    won = await store.elect_controller(BrokerId(100), "h:1")
    assert won is not None
    finish, topics = Gate(monkeypatch, store, "finish_partition_requests"), Gate(monkeypatch, store, "topics")
    term = term_of(won, store)
    store.listen(term.on_store_event)
    everything_read = asyncio.Event()
    submit = term.submit

    def submit_and_note(event: ev.ControllerEvent) -> None:
        submit(event)
        if isinstance(event, ev.PartitionsRequested):
            everything_read.set()

    monkeypatch.setattr(term, "submit", submit_and_note)
    async with asyncio.timeout(10):
        await term.start()
        await everything_read.wait()
        finish.shut()
        await store.request_partition_removal({SEVENTH: False})  # no partition has that number
        await finish.waiting.wait()
        topics.shut()
        await store.request_partition_removal({EIGHTH: False})
        await topics.waiting.wait()  # both requests have been read
        finish.open()
        await finish.done.get()
        topics.open()
        await finish.done.get()
    refused = [one.partition for one in await store.refusals()]
    assert refused == [SEVENTH, EIGHTH]
    await term.stop()
    await store.stop()
