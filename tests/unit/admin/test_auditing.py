# SPDX-License-Identifier: Apache-2.0
"""The audit log line of a change has its outcome, also for a stream that its caller cancels."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.admin.auditing import observed
from tidemark.model import ErrorCode, TidemarkError

from tests.fakes.contexts import PlainContext


class Context(PlainContext):
    """A gRPC context, whose peer must not be read after the call."""

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


async def outcome_of(caplog: pytest.LogCaptureFixture, update: AsyncIterator[int], *, leave: bool) -> str:
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        async for _ in update:
            if leave:
                await update.aclose()  # type: ignore[attr-defined]
    return str(caplog.records[-1].__dict__["outcome"])


async def test_completed_stream_is_logged_ok_and_abandoned_stream_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    assert await outcome_of(caplog, stream(), leave=False) == "OK"
    assert await outcome_of(caplog, stream(), leave=True) == "CANCELLED"


async def test_refused_stream_is_logged_with_its_error_code(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TidemarkError):
        await outcome_of(caplog, stream(TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "raise it")), leave=False)
    assert caplog.records[-1].__dict__["outcome"] == "THROTTLE_TOO_LOW"
