# SPDX-License-Identifier: Apache-2.0
"""Streams that end when their caller's token expires."""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import Any, Final

import grpc

from tidemark.errors import TOKEN_EXPIRED
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.errors import abort_with
from tidemark.runtime.clock import timeout


def expired() -> TidemarkError:
    """The error for a token that has expired: a call with a new token may succeed."""
    sentence = "the token of the caller has expired: call again with a new one"
    return TidemarkError(ErrorCode.AUTHENTICATION_FAILED, sentence, _FACTS)


_FACTS: Final = {"reason": TOKEN_EXPIRED}


def ending_at(expires_s: float, handler: Any) -> Any:
    """The handler of a call; a stream ends with AUTHENTICATION_FAILED at that time (seconds since 1970).

    Unary calls have other limits, so their handlers are returned unchanged.
    """
    if not (handler.request_streaming or handler.response_streaming):
        return handler
    inner = handler.stream_stream or handler.unary_stream or handler.stream_unary
    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.request_streaming and handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
        if handler.request_streaming
        else grpc.unary_stream_rpc_method_handler
    )
    bounded = _generator if inspect.isasyncgenfunction(inner) else _coroutine
    return make(bounded(inner, expires_s), handler.request_deserializer, handler.response_serializer)


def _left_s(expires_s: float) -> float:
    return max(0.0, expires_s - time.time())


def _coroutine(inner: Any, expires_s: float) -> Any:
    async def run(request: Any, context: Any) -> Any:
        try:
            async with timeout(_left_s(expires_s)) as bound:
                return await inner(request, context)
        except TimeoutError:
            if not bound.expired():
                raise
        return await abort_with(context, expired())

    return run


def _generator(inner: Any, expires_s: float) -> Any:
    """A coroutine that writes the messages itself: its time limit also holds while a client reads no message."""

    async def write_all(request: Any, context: Any) -> None:
        async with contextlib.aclosing(inner(request, context)) as responses:
            async for response in responses:
                if not _left_s(expires_s):  # the timer of a loop that never waits does not fire
                    await abort_with(context, expired())
                await context.write(response)
                del response  # the next one may come late

    return _coroutine(write_all, expires_s)
