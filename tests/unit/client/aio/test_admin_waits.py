# SPDX-License-Identifier: Apache-2.0
"""A call of the admin client beyond a quota is repeated after its wait, within the timeout of the client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.model import ErrorCode, TidemarkError


class Refused(grpc.RpcError):
    """A refusal of the service, with the wait."""

    def __init__(self, wait_ms: int | str) -> None:
        self.error = TidemarkError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many partitions", {"throttle_time_ms": str(wait_ms)}
        )


class Connection(AdminConnection):
    """A connection whose calls are refused with these waits, and then answered."""

    def __init__(self, waits_ms: Sequence[int | str], timeout_s: float) -> None:
        super().__init__(None, "127.0.0.1:1", timeout_s, client_id="ops")
        self.headers: list[Any] = []
        self._waits_ms = list(waits_ms)

    def _stub(self) -> Any:
        return self

    async def _answer(self, request: Any, *, metadata: Any, **_: Any) -> Any:
        self.headers.append(metadata)
        if self._waits_ms:
            raise Refused(self._waits_ms.pop(0))
        return request

    def _error_of(self, error: grpc.RpcError) -> TidemarkError:
        assert isinstance(error, Refused)
        return error.error


async def test_a_call_beyond_a_quota_is_repeated_after_its_wait() -> None:
    connection, began_s = Connection([30, 20], 10), time.monotonic()
    assert await connection.call(lambda stub: stub._answer, 7) == 7  # type: ignore[attr-defined]
    assert time.monotonic() - began_s >= 0.05
    assert connection.headers == [(("client-id", "ops"),)] * 3


async def test_a_wait_of_a_faulty_service_is_no_wait_and_prolongs_no_timeout() -> None:
    assert await Connection(["soon", -7], 10).call(lambda stub: stub._answer, 7) == 7  # type: ignore[attr-defined]
    for wait in ("9" * 400, 1 << 62):
        with pytest.raises(TidemarkError):
            await Connection([wait], 10).call(lambda stub: stub._answer, 7)  # type: ignore[attr-defined]
    endless = Connection([-1_000_000] * 1_000, 0.2)
    with pytest.raises(TidemarkError):
        await endless.call(lambda stub: stub._answer, 7)  # type: ignore[attr-defined]
    assert len(endless.headers) < 100


async def test_a_wait_beyond_the_timeout_is_an_error_at_once() -> None:
    connection, began_s = Connection([20_000], 10), time.monotonic()
    with pytest.raises(TidemarkError) as refused:
        await connection.call(lambda stub: stub._answer, 7)  # type: ignore[attr-defined]
    assert refused.value.metadata["throttle_time_ms"] == "20000"
    assert time.monotonic() - began_s < 5
