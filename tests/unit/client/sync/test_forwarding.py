# SPDX-License-Identifier: Apache-2.0
"""Methods of sync clients are those of the async clients, run on the event-loop thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from tidemark import client
from tidemark.client import aio
from tidemark.client.aio.transaction import Transaction as AsyncTransaction
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.sync.forwarding import SyncClient, blocking, iterating, on_loop
from tidemark.client.sync.transaction import Transaction
from tidemark.errors import ErrorCode, TidemarkError

from tests.refusals import raises_code

ASYNC_ONLY = {"start", "leader_of"}


class AsyncCounter(Lifecycle):
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.closed = 0
        self.waiting, self.ended = threading.Event(), threading.Event()

    async def start(self) -> None:
        if self.fails:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")

    async def close(self) -> None:
        self.closed += 1

    async def add(self, number: int, *, to: int = 0) -> int:
        """Return the number, plus `to`."""
        await asyncio.sleep(0)
        return number + to

    async def wait(self) -> None:
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended.set()

    async def late(self, paused_s: float) -> int:
        """A call of a paused process: the timeout has passed when the process continues, and the call completes."""
        time.sleep(paused_s)  # noqa: ASYNC251
        return 7

    async def own_timeout(self) -> None:
        raise TimeoutError("of the call itself")

    def thread(self) -> str:
        return threading.current_thread().name

    async def count(self, limit: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(limit):
                yield number
        finally:
            self.ended.set()


class Counter(SyncClient[AsyncCounter]):
    def __init__(self, counter: AsyncCounter, *, call_s: float | None = None) -> None:
        super().__init__(counter, call_s=call_s)

    add = blocking(AsyncCounter.add)
    wait = blocking(AsyncCounter.wait)
    late = blocking(AsyncCounter.late)
    own_timeout = blocking(AsyncCounter.own_timeout)
    thread = on_loop(AsyncCounter.thread)
    count = iterating(AsyncCounter.count)


def public(kind: type) -> set[str]:
    return {name for name, part in inspect.getmembers(kind) if not name.startswith("_") and callable(part)}


def without_example(method: Callable[..., Any]) -> str:
    """The docstring up to its example, which awaits in the async client only."""
    return (method.__doc__ or "").partition("Example:")[0]


@pytest.mark.parametrize("name", ["AdminClient", "Groups"])
def test_a_sync_client_forwards_every_method_of_the_async_one(name: str) -> None:
    assert public(getattr(client, name)) == public(getattr(aio, name)) - ASYNC_ONLY


@pytest.mark.parametrize("name", ["AdminClient", "Groups"])
def test_a_forwarded_method_has_signature_and_docstring_of_the_async_one(name: str) -> None:
    sync, coroutines = getattr(client, name), getattr(aio, name)
    for method in public(sync) - {"close"}:
        forwarded, origin = getattr(sync, method), getattr(coroutines, method)
        assert without_example(forwarded) == without_example(origin), method
        assert inspect.signature(forwarded).parameters == inspect.signature(origin).parameters
        assert not inspect.iscoroutinefunction(forwarded)


OWN_WORDS = {"Producer": {"send", "transaction", "close"}, "Consumer": {"close"}, "Transaction": set[str]()}
"""Methods whose docstrings differ: examples and ends of the sync clients are other ones."""


@pytest.mark.parametrize("sync", [client.Producer, client.Consumer, Transaction])
def test_a_sync_method_has_arguments_and_docstring_of_the_async_one(sync: type) -> None:
    coroutines = {"Producer": aio.Producer, "Consumer": aio.Consumer, "Transaction": AsyncTransaction}[sync.__name__]
    for method in public(sync):
        own, origin = getattr(sync, method), getattr(coroutines, method)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(origin).parameters)
        if method not in OWN_WORDS[sync.__name__]:
            assert without_example(own) == without_example(origin), method


def test_send_of_both_producers_explains_arguments_and_errors_in_the_same_words() -> None:
    docs = [inspect.getdoc(kind.send) or "" for kind in (client.Producer, aio.Producer)]
    explained = {doc.partition("Args:")[2].partition("Example:")[0] for doc in docs}
    assert len(explained) == 1
    assert "SCHEMA_MISMATCH" in explained.pop()


def test_a_forwarded_generator_returns_an_iterator_by_its_signature() -> None:
    assert inspect.signature(Counter.count).return_annotation == "Iterator[int]"
    signature = inspect.signature(client.AdminClient.remove_brokers)
    assert signature.return_annotation == "Iterator[RemovalProgress]"


def test_a_blocking_method_passes_arguments_on_and_returns_the_result() -> None:
    with Counter(AsyncCounter()) as counter:
        assert counter.add(2, to=3) == 5


def test_a_method_on_the_loop_runs_on_the_event_loop_thread() -> None:
    with Counter(AsyncCounter()) as counter:
        assert counter.thread() == "tidemark-client"


def test_a_call_that_exceeds_the_clients_timeout_is_refused() -> None:
    with Counter(AsyncCounter(), call_s=0.01) as counter, raises_code(ErrorCode.REQUEST_TIMED_OUT):
        counter.wait()


def test_a_call_that_is_refused_for_its_time_is_cancelled() -> None:
    origin = AsyncCounter()
    with Counter(origin, call_s=0.01) as counter:
        with pytest.raises(TidemarkError, match=r"not completed within 0\.01 s"):
            counter.wait()
        assert not origin.waiting.is_set() or origin.ended.wait(5)


def test_a_result_that_comes_as_the_time_ends_is_not_lost() -> None:
    """A poll that was dropped with its records would count them as processed."""
    with Counter(AsyncCounter(), call_s=0.05) as counter:
        assert counter.late(0.3) == 7


def test_a_timeout_of_the_call_itself_is_its_error() -> None:
    with Counter(AsyncCounter(), call_s=5) as counter, pytest.raises(TimeoutError, match="of the call itself"):
        counter.own_timeout()


def test_an_iterator_yields_every_item() -> None:
    with Counter(AsyncCounter()) as counter:
        assert list(counter.count(3)) == [0, 1, 2]


def test_closing_an_iterator_closes_the_async_generator() -> None:
    origin = AsyncCounter()
    with Counter(origin) as counter:
        items = counter.count(3)
        assert next(items) == 0
        assert not origin.ended.is_set()
        items.close()  # type: ignore[attr-defined]
        assert origin.ended.is_set()


def test_a_client_that_fails_to_start_is_closed() -> None:
    origin = AsyncCounter(fails=True)
    with pytest.raises(TidemarkError):
        Counter(origin)
    assert origin.closed == 1


def test_a_client_is_closed_once() -> None:
    origin = AsyncCounter()
    with Counter(origin) as counter:
        counter.close()
    assert origin.closed == 1
