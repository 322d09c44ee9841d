# SPDX-License-Identifier: Apache-2.0
"""A consumer whose position was deleted continues at an offset that the log has (`out_of_range`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tidemark.client.consuming.offset_lookup import move_into_range
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

REFUSAL = TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, "the log starts at 40")
LATE = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no offset within 30 s")
DELETED = TidemarkError(ErrorCode.UNKNOWN_TOPIC, "the topic was deleted")


@dataclass
class FakeFetcher:
    """Notes its calls."""

    calls: list[str] = field(default_factory=list)

    def moved(self, _: Cursor) -> None:
        self.calls.append("moved")

    def wake(self) -> None:
        self.calls.append("wake")

    def look_again(self) -> None:
        self.calls.append("look_again")


async def found(answer: int | TidemarkError) -> int:
    if isinstance(answer, TidemarkError):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("answer", "position", "error", "calls"),
    [
        (40, 40, None, ["moved"]),
        (20, 20, None, ["look_again"]),  # of another leader, whose log starts earlier
        (10, 20, None, ["look_again"]),
        (LATE, 20, None, ["look_again"]),
        (DELETED, 20, DELETED, ["wake"]),
    ],
)
async def test_a_cursor_moves_forward_only_and_only_a_final_error_ends_the_partition(
    answer: int | TidemarkError, position: int, error: TidemarkError | None, calls: list[str]
) -> None:
    cursor, fetcher = Cursor(TopicPartition("orders", 0), 20, topic_id="t", incarnation="i"), FakeFetcher()
    cursor.retry_s = float("inf")
    fetches: Any = fetcher
    await move_into_range(fetches, cursor, found(answer), REFUSAL)
    assert (cursor.position, cursor.error, fetcher.calls) == (position, error, calls)
    if calls == ["look_again"]:
        assert cursor.retry_s == 0.0, "the next fetch is due"


async def test_a_late_answer_moves_no_cursor_that_the_application_moved_meanwhile() -> None:
    cursor, fetcher = Cursor(TopicPartition("orders", 0), 20, topic_id="t", incarnation="i"), FakeFetcher()
    fetches: Any = fetcher

    async def found_after_a_seek() -> int:
        cursor.seek(30)
        return 40

    await move_into_range(fetches, cursor, found_after_a_seek(), REFUSAL)
    assert (cursor.position, fetcher.calls) == (30, ["look_again"])
