# SPDX-License-Identifier: Apache-2.0
"""A seek whose offset a leader has to look up, while the group takes the partition away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.aio.consumer import Consumer
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.model import ErrorCode, TopicPartition

from tests.refusals import raises_code

ZERO = TopicPartition("orders", 0)


def cursor() -> Cursor:
    return Cursor(ZERO, 3, topic_id="t", incarnation="i")


@pytest.mark.parametrize("returns", [True, False])
async def test_a_seek_moves_the_cursor_that_has_the_partition_after_the_lookup(
    monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    moved: list[Cursor] = []
    fetcher: Any = SimpleNamespace(cursors={ZERO: cursor()}, moved=moved.append)
    consumer = Consumer("127.0.0.1:1")
    consumer._read(fetcher, None, SimpleNamespace())  # type: ignore[arg-type]

    async def find(where: TopicPartition, start: str) -> int:
        del fetcher.cursors[ZERO]
        if returns:
            fetcher.cursors[ZERO] = cursor()
        return 7

    monkeypatch.setattr(consumer._offsets, "find", find)
    if not returns:
        with raises_code(ErrorCode.INVALID_REQUEST, "orders-0 is not assigned"):
            await consumer.seek(ZERO, "latest")
        return
    await consumer.seek(ZERO, "latest")
    assert moved == [fetcher.cursors[ZERO]]
    assert consumer.position(ZERO) == 7
