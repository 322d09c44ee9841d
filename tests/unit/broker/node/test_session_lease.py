# SPDX-License-Identifier: Apache-2.0
"""The session lease (rules F1, F2)."""

from __future__ import annotations

import pytest
from tidemark.broker.node.session_lease import Lease
from tidemark.model import ErrorCode, TopicPartition

from tests.fakes.metadata_store import ManualClock
from tests.refusals import raises_code

P = TopicPartition("flights", 0)
LEASE_MS = 5_000


class Session:
    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms

    def lease_valid_until_ms(self) -> int:
        return self.until_ms

    def lease_length_ms(self) -> int:
        return LEASE_MS


@pytest.mark.parametrize(
    ("past_ms", "same_session", "held_by_all", "covered"),
    [
        (-1, True, False, True),
        (0, True, False, False),
        (0, True, True, True),
        (-1, False, False, False),
        (-1, False, True, True),
    ],
    ids=[
        "within",
        "expired",
        "expired, no other candidate",
        "of a new session",
        "of a new session, no other candidate",
    ],
)
def test_a_lease_covers_leaderships_of_its_session_and_those_without_another_candidate(
    past_ms: int, same_session: bool, held_by_all: bool, covered: bool
) -> None:
    clock = ManualClock(now_ms=20_000 + past_ms)
    asked: list[int] = []

    def holds_epoch_since(partition: TopicPartition, since_ms: int) -> bool:
        asked.append(since_ms)
        return held_by_all

    lease = Lease(clock, Session(20_000), holds_epoch_since, lambda: same_session)
    assert lease.covers(P) is covered
    assert set(asked) <= {clock.now_ms() - LEASE_MS}
    if not covered:
        with raises_code(ErrorCode.NOT_LEADER):
            lease.check(P)
