# SPDX-License-Identifier: Apache-2.0
"""The base of the sync clients, and their methods: an async client's, run on the event-loop thread of the process.

A sync class names the async method; signature, types and docstring are that method's, with an example for threads::

    class AdminClient(SyncClient[aio.AdminClient]):
        create_topic = blocking(aio.AdminClient.create_topic)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from tidemark.client.lifecycle import Lifecycle
from tidemark.client.sync.event_loop_thread import BackgroundLoop, background_loop

START_S: Final = 30.0
"""Timeout of the start of an async client."""

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
Client = TypeVar("Client", bound=Lifecycle)


class SyncClient(Generic[Client]):
    """An async client that runs on the event-loop thread of the process.

    Args:
        client: a client that is not started; `client` is started here, and closed if its start fails.
        call_s: timeout of each forwarded call; None: the async client's own timeouts are enough.
    """

    def __init__(self, client: Client, *, call_s: float | None = None) -> None:
        self._client = client
        self._call_s = call_s
        self._closed = False
        self._background: BackgroundLoop = background_loop()
        try:
            self._background.call(client.start(), START_S)
        except BaseException:
            self._background.call(client.close())
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; repeated calls have no effect."""
        if self._closes_now():
            self._background.call(self._client.close())

    def _closes_now(self) -> bool:
        """Whether this is the first call of `close`, in the process that made the client."""
        first = not self._closed and not self._background.forked
        self._closed = True
        return first


def _document(run: Callable[..., Any], method: Callable[..., Any]) -> None:
    """Give `run` the docstring of an async method, without `await` and `async` in its example."""
    told, mark, example = (method.__doc__ or "").partition("Example:")
    example = re.sub(r"\(await ([\w.]+\([^()]*\))\)", r"\1", example)
    run.__doc__ = told + mark + re.sub(r"\b(?:await|async) ", "", example)


def documented_as(method: Callable[..., Any]) -> Callable[[F], F]:
    """Give a method the docstring of the async method that it runs.

    For a method of a sync client that does more than `blocking`; both have the same arguments and errors.
    """

    def document(run: F) -> F:
        _document(run, method)
        return run

    return document


class Method(Protocol[P, R_co]):
    """A method of a SyncClient, for type checkers: a function whose `self` is bound."""

    def __get__(self, client: object, owner: type | None = None, /) -> Callable[P, R_co]:
        """The method, bound to `client`."""


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, bounded: bool = True) -> Method[P, T]:
    """Run a coroutine method to its end and return its result.

    The method raises the errors of the coroutine, and REQUEST_TIMED_OUT after the client's `call_s` if it is `bounded`.
    """

    @functools.wraps(method)
    def run(self: SyncClient[Any], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._background.call(method(self._client, *args, **kwargs), self._call_s if bounded else None)

    _document(run, method)
    return cast(Method[P, T], run)


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """Run a plain method on the event-loop thread, which owns the state of the async client."""

    @functools.wraps(method)
    def run(self: SyncClient[Any], *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            return method(self._client, *args, **kwargs)

        return self._background.call(work(), self._call_s)

    return cast(Method[P, T], run)


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
    *,
    not_given: Callable[[Any, T], object] = lambda client, item: None,
) -> Method[P, Iterator[T]]:
    """Iterate an async generator; leaving the loop closes the generator.

    Args:
        method: makes the generator.
        not_given: called with the client and an item that came with an interrupt of the calling thread.
    """

    @functools.wraps(method)
    def run(self: SyncClient[Any], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterate(self, method(self._client, *args, **kwargs), not_given)

    _document(run, method)
    signature = inspect.signature(method)
    item = str(signature.return_annotation).removeprefix("AsyncGenerator[").removesuffix(", None]")
    run.__signature__ = signature.replace(return_annotation=f"Iterator[{item}]")  # type: ignore[attr-defined]
    return cast(Method[P, Iterator[T]], run)


def _iterate(
    client: SyncClient[Any], items: AsyncGenerator[T, None], not_given: Callable[[Any, T], object]
) -> Iterator[T]:
    """Keeps the client, which the application may hold no longer."""
    background = client._background
    waiting: asyncio.Task[T | None] | None = None
    taken: list[T] = []

    async def next_item() -> T | None:
        nonlocal waiting
        waiting = asyncio.current_task()
        item = await anext(items, None)
        taken[:] = () if item is None else (item,)
        return item

    async def end() -> None:
        # After an interrupt of the calling thread, the task still waits for the next item.
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})
        await items.aclose()

    try:
        while (item := background.call(next_item())) is not None:
            taken.clear()
            yield item
    finally:
        background.call(end())
        for item in taken:
            not_given(client, item)
