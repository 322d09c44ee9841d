# SPDX-License-Identifier: Apache-2.0
"""The audit line of a change says what became of it, also where it is a stream that its caller leaves."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.admin.auditing import observed
from tidemark.model import ErrorCode, TidemarkError


class Context:
    """As gRPC's, which must not be asked once the call is over."""

    over = False

    def peer(self) -> str:
        assert not self.over, "gRPC would end the process"
        return "ipv4:127.0.0.1:1"


async def stream(error: Exception | None = None) -> AsyncIterator[int]:
    context: Any = Context()
    async with observed("Stream", context, {"topic": "t"}):
        context.over = True
        yield 1
        if error is not None:
            raise error


async def outcome_of(caplog: pytest.LogCaptureFixture, news: AsyncIterator[int], *, leave: bool) -> str:
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        async for _ in news:
            if leave:
                await news.aclose()  # type: ignore[attr-defined]
    return str(caplog.records[-1].__dict__["outcome"])


async def test_a_stream_that_ends_is_ok_and_one_that_is_left_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    assert await outcome_of(caplog, stream(), leave=False) == "OK"
    assert await outcome_of(caplog, stream(), leave=True) == "CANCELLED"


async def test_a_stream_that_is_refused_says_with_which_code(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TidemarkError):
        await outcome_of(caplog, stream(TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "raise it")), leave=False)
    assert caplog.records[-1].__dict__["outcome"] == "THROTTLE_TOO_LOW"
