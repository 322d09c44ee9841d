# SPDX-License-Identifier: Apache-2.0
"""The gate: applies the table of rights (`core.security.rights`) to every call of a server.

Without rights a call does not reach its service. Items of some calls are refused separately, and items of some answers
are omitted. Calls of some rows are checked by their service, for each batch or topic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from tidemark.core.security.acls import Operation, Resource
from tidemark.core.security.rights import OPEN_SERVICES, RIGHTS, Hidden, Right
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.errors import Continuation, abort_with, handler_refusing
from tidemark.rpc.security.access import CURRENT, Access, Accesses, check_names, values_at
from tidemark.runtime.slices import Pace
from tidemark.v1 import record_pb2


class Gate(grpc.aio.ServerInterceptor):
    """Placed next to the handlers, so that the gate's errors are mapped like those of the handlers."""

    def __init__(self, accesses: Accesses) -> None:
        self._accesses = accesses

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler of a call in the checks of its row of rights."""
        path: str = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or path.startswith(OPEN_SERVICES):
            return handler
        right = RIGHTS.get(path)
        if right is None:
            return _NO_ROW
        if right.by_service or (handler.request_streaming and not right.internal):
            return handler  # no service but these takes streams; the other handlers refuse calls at the start
        if handler.request_streaming:
            return self._internal_stream(right, handler)
        return self._streamed(right, handler) if handler.response_streaming else self._unary(right, handler)

    def _internal_stream(self, right: Right, handler: Any) -> Any:
        inner = handler.stream_stream

        async def checked(requests: Any, context: Any) -> Any:
            try:
                await self._enter(right, None, context)
            except TidemarkError as error:
                await abort_with(context, error)
            return await inner(requests, context)

        return grpc.stream_stream_rpc_method_handler(checked, handler.request_deserializer, handler.response_serializer)

    def _streamed(self, right: Right, handler: Any) -> Any:
        inner = handler.unary_stream

        async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
            access = await self._enter(right, request, context)
            async with aclosing(inner(request, context)) as responses:
                async for response in responses:
                    if access is not None:
                        access.decisions.clear()
                        await access.check_call(right, request)  # checked again, since the rules may have changed
                        await _hide(right, response, access)
                    yield response
                    del response  # the next one may come late

        return grpc.unary_stream_rpc_method_handler(checked, handler.request_deserializer, handler.response_serializer)

    def _unary(self, right: Right, handler: Any) -> Any:
        inner = handler.unary_unary

        async def checked(request: Any, context: Any) -> Any:
            access = await self._enter(right, request, context)
            if access is None:
                return await inner(request, context)
            refused = await _take_refused(right, request, access)
            response = await inner(request, context)
            if right.held:
                access.decisions.clear()
                await access.check_call(right, request)
            if refused:
                await _put_refused(right, response, refused)
            await _hide(right, response, access)
            return response

        return grpc.unary_unary_rpc_method_handler(checked, handler.request_deserializer, handler.response_serializer)

    async def _enter(self, right: Right, request: Any, context: Any) -> Access | None:
        """Check the call; None for a service of the cluster that needs no rule."""
        access = self._accesses.of(context)
        CURRENT.set(access)
        if access.role is not None and access.role in right.roles:
            return None
        check_names(right, request)
        await access.check_call(right, request)
        return access


async def _take_refused(right: Right, request: Any, access: Access) -> list[tuple[int, Any, record_pb2.Error]]:
    """Remove the items that are denied from the request: position, item and denial of each."""
    if right.items is None:
        return []
    need, asked = right.needs[-1], getattr(request, right.items.asked)
    assert need.type is not None, "items name their resources"
    within = need.field.split(".")[1:]
    refused, allowed, known = [], [], dict[str, record_pb2.Error | None]()
    pace = Pace()
    for position, item in enumerate(list(asked)):
        if pace.is_due:
            await pace.give_way()
        name = next(values_at(item, within)) if within else item
        if name not in known:
            denied = access.refusal(need.operation, Resource(need.type, name))
            known[name] = None if denied is None else errors.to_proto(denied)
        error = known[name]
        if error is None:
            allowed.append(item)
        else:
            refused.append((position, item, error))
    if refused:
        del asked[:]
        asked.extend(allowed)
    return refused


async def _put_refused(right: Right, response: Any, refused: list[tuple[int, Any, record_pb2.Error]]) -> None:
    """Answer the refused items, each at its position in the request."""
    assert right.items is not None
    answers = getattr(response, right.items.answers)
    given = iter(list(answers))
    del answers[:]
    pace = Pace()
    for position, item, error in refused:
        while len(answers) < position and (one := next(given, None)) is not None:
            answers.append(one)
        if pace.is_due:
            await pace.give_way()
        answer = answers.add(error=error)
        for key in right.items.key:
            setattr(answer, key, item if isinstance(item, str) else getattr(item, key))
    answers.extend(given)


async def _hide(right: Right, response: Any, access: Access) -> None:
    """Omit the items that the caller may not see."""
    pace = Pace()
    for hidden in right.hides:
        await _hide_at(response, hidden.items.split("."), hidden, access, pace)


async def _hide_at(message: Any, path: list[str], hidden: Hidden, access: Access, pace: Pace) -> None:
    if path[1:]:
        for one in values_at(message, path[:1]):
            await _hide_at(one, path[1:], hidden, access, pace)
        return
    items = getattr(message, path[0])
    shown = []
    for one in items:
        if pace.is_due:
            await pace.give_way()
        if access.may(Operation.DESCRIBE, Resource(hidden.type, _name(one, hidden))):
            shown.append(one)
    if len(shown) < len(items):
        del items[:]
        items.extend(shown)


def _name(item: Any, hidden: Hidden) -> str:
    name: str = next(values_at(item, hidden.name.split("."))) if hidden.name else item
    return name


_NO_ROW: Final = handler_refusing(
    TidemarkError(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this call has no row in the table of rights, so no caller may make it"
    )
)
