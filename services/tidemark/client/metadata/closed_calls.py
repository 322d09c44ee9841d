# SPDX-License-Identifier: Apache-2.0
"""Calls that are in flight when their client closes.

gRPC cancels such a call, so the task that waits for its answer would get a CancelledError. A task group takes that for
a cancellation of the task, and ignores the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import grpc

_CLOSED: Final = "the client was closed during the call"


class _UnaryCalls:
    """A channel whose unary calls end with an RpcError when the channel is closed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        """Make the method of a stub."""
        method: Any = self._channel.unary_unary(*arguments, **options)

        async def call(*given: Any, **limits: Any) -> Any:
            try:
                return await method(*given, **limits)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                empty = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, empty, empty, _CLOSED) from None

        return call


def unary_calls(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    """The channel for a stub of unary calls, which end with an RpcError when the channel is closed."""
    return cast("grpc.aio.Channel", _UnaryCalls(channel))


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
