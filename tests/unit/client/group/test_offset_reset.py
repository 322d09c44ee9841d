# SPDX-License-Identifier: Apache-2.0
"""The offsets that a reset of a group sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.client.consuming.offset_lookup import Start
from tidemark.client.group import offset_reset
from tidemark.client.group.offset_reset import ResetOffsets, start_of
from tidemark.client.outputs.record_format import parse_start
from tidemark.client.records import Timestamp
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TopicPartition

from tests.refusals import raises_code

FIRST, END = 10, 50
FOUND_BY_TIME = 30


class FakeCluster:
    """Knows one topic of `count` partitions, and the first `known` of them."""

    def __init__(self, count: int, known: int) -> None:
        one = PartitionView(0, BrokerId(0), LeaderEpoch(1), (BrokerId(0),), (BrokerId(0),))
        self._view = TopicView("flights", "t", partitions=dict.fromkeys(range(known), one), partition_count=count)

    async def topic(self, topic: str, *, timeout_s: float) -> TopicView:
        return self._view

    async def partition_count(self, topic: str, *, timeout_s: float, beyond: int) -> int:
        return len(self._view.partitions)


class FakeLookup:
    """Each partition has the records FIRST to END."""

    def __init__(self, cluster: Any, timeout_s: float) -> None:
        pass

    async def find_each(self, wanted: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        if isinstance(start, Timestamp):
            return dict.fromkeys(wanted, FOUND_BY_TIME)
        return dict.fromkeys(wanted, {"earliest": FIRST, "latest": END}[start] if isinstance(start, str) else start)


@pytest.fixture(autouse=True)
def lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_reset, "OffsetLookup", FakeLookup)


def reset(count: int = 2, known: int = 2) -> ResetOffsets:
    cluster: Any = FakeCluster(count, known)
    return ResetOffsets(cluster, 1.0)


def flights(*indexes: int) -> list[TopicPartition]:
    return [TopicPartition("flights", index) for index in indexes]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", FIRST),
        ("latest", END),
        ("offset:42", 42),
        ("offset:3", FIRST),
        ("offset:99", END),
        ("timestamp:2013-01-01", FOUND_BY_TIME),
    ],
)
async def test_a_reset_stays_within_the_log(text: str, offset: int) -> None:
    found = await reset().find(["flights"], [], start_of(parse_start(text)))
    assert found == dict.fromkeys(flights(0, 1), offset)


async def test_a_reset_of_a_new_topic_includes_partitions_without_a_known_leader() -> None:
    assert list(await reset(count=4, known=2).find(["flights"], [], "latest")) == flights(0, 1, 2, 3)


async def test_a_reset_of_named_partitions_leaves_the_others_out() -> None:
    assert list(await reset().find([], flights(1), "latest")) == flights(1)


async def test_a_reset_of_an_unknown_partition_is_refused() -> None:
    with raises_code(ErrorCode.UNKNOWN_PARTITION):
        await reset().find([], flights(2), "latest")
