# SPDX-License-Identifier: Apache-2.0
"""Appends of a coordinator: appended when the leader's log has the records, answered when they are committed."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.core.replication.effects import NoteAppend, ProduceResult, ReplyToProduce
from tidemark.core.replication.events import Event, ProduceArrived
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError

from tests.unit.storage.batches import PARTITION, make_batch

BATCH = make_batch(["a"])


class Broker:
    """The core of a broker, as the test has it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.appends = InternalAppends(self.events.append)

    async def append(self, name: str) -> tuple[ProduceArrived, asyncio.Task[Offset]]:
        """Begin an append; returns its event too."""
        work = self.appends.append(
            PARTITION, LeaderEpoch(1), (BATCH,), 10.0, on_appended=lambda: self.notes.append(name)
        )
        waiting = asyncio.create_task(work)
        await asyncio.sleep(0)
        event = self.events[-1]
        assert isinstance(event, ProduceArrived)
        assert event.notes_append
        return event, waiting

    def reply(self, event: ProduceArrived, error: TidemarkError | None = None) -> None:
        reply = ReplyToProduce(event.request_id, PARTITION, ProduceResult(Offset(7), Offset(0), error))
        assert self.appends.reply(reply)


async def test_an_append_is_noted_and_then_answered() -> None:
    broker = Broker()
    (first, one), (second, two) = await broker.append("first"), await broker.append("second")
    broker.appends.note_append(NoteAppend(first.request_id))
    assert broker.notes == ["first"]
    broker.reply(first)
    assert await one == 7
    assert not two.done()
    broker.appends.note_append(NoteAppend(second.request_id))
    broker.reply(second, TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "late"))
    with pytest.raises(TidemarkError, match="late"):
        await two
    assert broker.notes == ["first", "second"]


def test_the_reply_to_a_producers_request_is_left_to_others() -> None:
    appends = InternalAppends(lambda event: None)
    assert not appends.reply(ReplyToProduce(1, PARTITION, ProduceResult(Offset(7), Offset(0))))


async def test_an_append_without_a_caller_is_not_noted() -> None:
    broker = Broker()
    event, waiting = await broker.append("gone")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    broker.appends.note_append(NoteAppend(event.request_id))
    broker.reply(event)
    assert broker.notes == []
