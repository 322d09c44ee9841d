# SPDX-License-Identifier: Apache-2.0
"""Refusals with an error code."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator

import pytest
from tidemark.model import ErrorCode, TidemarkError


@contextlib.contextmanager
def raises_code(code: ErrorCode, match: str | None = None) -> Iterator[pytest.ExceptionInfo[TidemarkError]]:
    """`pytest.raises` for a TidemarkError with this code, and a text that matches the regular expression."""
    __tracebackhide__ = True
    with pytest.raises(TidemarkError, match=match) as raised:
        yield raised
    assert raised.value.code is code, str(raised.value)


async def code_of(work: Awaitable[object]) -> ErrorCode:
    """The error code of a refused request."""
    with pytest.raises(TidemarkError) as refused:
        await work
    return refused.value.code
