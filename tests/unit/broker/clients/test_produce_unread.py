# SPDX-License-Identifier: Apache-2.0
"""A client that sends and does not read: its unread answers are bounded, and its stream continues once it reads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from tidemark.broker.clients.produce import STREAM_UNREAD_MAX
from tidemark.v1 import broker_service_pb2 as pb

from tests.turns import turns
from tests.unit.broker.clients.test_produce import FakeContext, Harness

RESULTS = 1000


class Unread(FakeContext):
    """A context whose writes end only while the client reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()

    async def write(self, response: pb.ProduceResponse) -> None:
        await self.reading.wait()
        await super().write(response)


@pytest.fixture
async def unread() -> AsyncIterator[tuple[Harness, Unread]]:
    harness = Harness()
    harness.stream.cancel()
    await asyncio.wait({harness.stream})
    context = Unread()
    harness.context, harness.stream = context, asyncio.create_task(harness.service.serve(context))
    yield harness, context
    harness.stream.cancel()
    await asyncio.wait({harness.stream})


async def test_a_stream_is_not_read_while_its_client_reads_no_answers(unread: tuple[Harness, Unread]) -> None:
    harness, context = unread
    sent = 3 * STREAM_UNREAD_MAX // RESULTS
    for number in range(sent):
        context.send(number, b"no batch", partitions=RESULTS)
    await turns(200)
    taken = sent - context.requests.qsize()
    assert 0 < taken <= STREAM_UNREAD_MAX // RESULTS + 1
    context.reading.set()
    answered = [(await harness.response()).correlation_id for _ in range(sent)]
    assert answered == list(range(sent))


async def test_a_stream_that_waits_holds_no_answer(unread: tuple[Harness, Unread]) -> None:
    harness, context = unread
    context.reading.set()
    context.send(0, b"no batch", partitions=RESULTS)
    response = await harness.response()
    await turns()
    assert sys.getrefcount(response) == 2, "of this function, and of the call"


async def test_a_stream_ends_though_its_client_reads_nothing(unread: tuple[Harness, Unread]) -> None:
    harness, context = unread
    for number in range(20):
        context.send(number, b"no batch", partitions=RESULTS)
    await turns(200)
    harness.stream.cancel()
    await asyncio.wait({harness.stream}, timeout=5)
    assert harness.stream.cancelled()
