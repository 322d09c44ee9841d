# SPDX-License-Identifier: Apache-2.0
"""Calls that come as the server stops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc._cython import cygrpc
from tidemark.rpc.limits.metering import Metering
from tidemark.rpc.server import _Refusals


async def test_a_call_whose_request_is_read_after_the_stop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    abandoned: list[bool] = []

    async def request(_: object) -> object:
        raise cygrpc._ServerStoppedError("Server already stopped.")

    async def handler(_: object, __: object) -> object:
        raise AssertionError("the request was not read")

    async def find(_: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(handler)

    call = SimpleNamespace(
        began=lambda _: None, request=request, abandoned=lambda: abandoned.append(True), encode=lambda _: b""
    )
    details = cast(grpc.HandlerCallDetails, SimpleNamespace(method="/grpc.health.v1.Health/Check"))
    refusals = _Refusals(cast(Metering, SimpleNamespace(call=lambda *_: call)))
    served = await refusals.intercept_service(find, details)
    with pytest.raises(asyncio.CancelledError):
        await served.stream_unary(None, None)
    assert (abandoned, caplog.messages) == ([True], [])
