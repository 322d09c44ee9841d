# SPDX-License-Identifier: Apache-2.0
"""The average of bytes per second."""

from __future__ import annotations

import pytest
from tidemark.core.replication import events as ev
from tidemark.core.replication.leader.byte_rate import AVERAGED_MS, ByteRate
from tidemark.model import TopicPartition

from tests.unit.core.replication.stage import P, Stage


def fed(bytes_per_s: int, seconds: int, now_ms: int = 5_000) -> tuple[ByteRate, int]:
    rate = ByteRate(now_ms)
    for _ in range(seconds * 10):
        rate.add(bytes_per_s // 10, now_ms)
        now_ms += 100
    return rate, now_ms


@pytest.mark.parametrize("seconds", [3, 30, 300])
def test_a_steady_stream_has_its_rate_from_its_first_seconds_on(seconds: int) -> None:
    rate, now_ms = fed(1_000_000, seconds)
    assert rate.per_s(now_ms) == pytest.approx(1_000_000, rel=0.05)


def test_a_single_batch_counts_as_no_more_than_itself_in_a_second() -> None:
    rate = ByteRate(0)
    rate.add(4_000, 0)
    assert rate.per_s(0) == pytest.approx(4_000, rel=0.05)


def test_old_bytes_lose_their_weight() -> None:
    rate, now_ms = fed(1_000_000, 300)
    assert rate.per_s(now_ms + AVERAGED_MS) == pytest.approx(1_000_000 / 2.718, rel=0.05)
    assert rate.per_s(now_ms + 20 * AVERAGED_MS) < 1


def test_a_leader_reports_its_append_rate_and_a_follower_its_lag() -> None:
    leader = Stage().leads((1,))
    for _ in range(10):
        leader.write()
    (view,) = leader.core.queries.replicas()
    assert view.bytes_in_per_s == pytest.approx(10 * 100, rel=0.05)
    assert view.offset_lag == 0
    leader.feed(ev.Tick(), after_ms=20 * AVERAGED_MS)
    (view,) = leader.core.queries.replicas()
    assert view.bytes_in_per_s < 1

    follower = Stage().follows(end=0)
    follower.chunk(0, high_watermark=7)
    assert follower.core.queries.partitions() == (P,)
    found = follower.core.queries.replica(P)
    assert found is not None
    assert (found.offset_lag, found.bytes_in_per_s) == (7, 0.0)
    assert follower.core.queries.replica(TopicPartition("another", 0)) is None
