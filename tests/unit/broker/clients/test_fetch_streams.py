# SPDX-License-Identifier: Apache-2.0
"""Fetches on a stream: in order; a stopping broker ends streams after their answers."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, NoReturn

import grpc
import pytest
from tidemark.broker.clients.fetch_streams import FetchStreams
from tidemark.model import ErrorCode, TidemarkError

from tests.turns import turns


class Fetches:
    """Answers a request with the request itself, when the test permits."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def fetch_next(self, request: Any, access: object = None, quotas: object = None) -> Any:
        await self.may_answer.wait()
        return request


class Watched:
    """A request or an answer whose end a test notes."""


class Refusing:
    """Refuses each request."""

    async def fetch_next(self, request: Any, access: object = None, quotas: object = None) -> Any:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, "max_wait_ms is -1")


class Context:
    """A client's end of a stream."""

    def __init__(self) -> None:
        self.aborted: tuple[grpc.StatusCode, str] | None = None
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[Any] = []

    async def read(self) -> Any:
        return await self.asked.get()

    async def write(self, answer: Any) -> None:
        self.answers.append(answer)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any = ()) -> NoReturn:
        self.aborted = (code, details)
        raise grpc.aio.AbortError(details)


async def test_each_request_is_answered_before_the_next_until_the_client_ends_the_stream() -> None:
    fetches, context = Fetches(), Context()
    fetches.may_answer.set()
    for request in ("first", "second", grpc.aio.EOF):
        context.asked.put_nowait(request)
    await FetchStreams(fetches).serve(context)  # type: ignore[arg-type]
    assert context.answers == ["first", "second"]


async def test_a_refused_request_ends_its_stream_with_the_error() -> None:
    fetches, context = Refusing(), Context()
    context.asked.put_nowait("first")
    with pytest.raises(grpc.aio.AbortError):
        await FetchStreams(fetches).serve(context)  # type: ignore[arg-type]
    assert context.aborted == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST: max_wait_ms is -1")


async def test_stopping_ends_an_idle_stream_at_once_and_a_busy_one_after_its_answer() -> None:
    fetches, idle, waiting = Fetches(), Context(), Context()
    streams = FetchStreams(fetches)  # type: ignore[arg-type]
    waiting.asked.put_nowait("asked")
    served = [asyncio.create_task(streams.serve(context)) for context in (idle, waiting)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    streams.stop()
    await served[0]
    assert not served[1].done()
    fetches.may_answer.set()
    await served[1]
    assert (idle.answers, waiting.answers) == ([], ["asked"])


async def test_a_stream_holds_neither_an_answer_that_it_sends_nor_the_last_answer_and_request() -> None:
    """Regression: each idle stream held the batches of its last answer, up to 7 MiB that no limit counted."""
    taken, seen = asyncio.Event(), list[weakref.ref[Watched]]()

    class Answering:
        async def fetch_next(self, request: Watched, access: object = None, quotas: object = None) -> Watched:
            seen.append(weakref.ref(request))
            return Watched()

    class Sending(Context):
        async def write(self, answer: Watched) -> None:
            seen.append(weakref.ref(answer))
            del answer
            await taken.wait()

    context = Sending()
    context.asked.put_nowait(Watched())
    served = asyncio.create_task(FetchStreams(Answering()).serve(context))  # type: ignore[arg-type]
    await turns()
    assert seen[1]() is None
    taken.set()
    await turns()
    assert [one() for one in seen] == [None, None]
    served.cancel()


async def test_a_call_that_the_client_cancels_is_cancelled() -> None:
    served = asyncio.create_task(FetchStreams(Fetches()).serve(Context()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    served.cancel()
    await asyncio.wait({served})
    assert served.cancelled()
