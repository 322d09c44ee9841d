# SPDX-License-Identifier: Apache-2.0
"""Whatever a member says of itself is a record that followers can take: one that they cannot would stop the partition,
and with it every other group that it remembers."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.broker.groups.coordinator_shard import GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets_log import GroupLog, GroupLogs
from tidemark.core.groups.coordinator import GroupCoordinator
from tidemark.core.groups.heartbeat import Heartbeat
from tidemark.core.groups.records import encode
from tidemark.core.groups.state import Change, GroupFacts, GroupKey
from tidemark.model import ErrorCode, LeaderEpoch, TidemarkError
from tidemark.rpc.channel import SPLIT_BYTES
from tidemark.runtime.metrics import Metrics

from tests.unit.broker.groups.test_coordinator_shard import PARTITION, HeldLog, loaded, situation

JOIN = Heartbeat("g", "m", 0, topics=("a",), rebalance_timeout_ms=1)
MORE_THAN_A_NAME = "\x01" * 300


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"client_id": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"protocol": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"assignor": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"topics": ("a" * 250,)}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topics": ("a", MORE_THAN_A_NAME)}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topics": ("a",) * 10_001}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_no_record_could_hold_for_a_member_of_many_is_refused_and_nothing_changes(
    said: dict[str, Any], code: ErrorCode
) -> None:
    coordinator = GroupCoordinator()
    with pytest.raises(TidemarkError) as refused:
        coordinator.heartbeat(replace(JOIN, **said), situation())
    assert refused.value.code is code
    assert len(refused.value.message) < 500, "it goes into the header of an answer"
    assert not coordinator.groups


def test_the_largest_member_there_can_be_is_far_from_the_largest_message() -> None:
    name = "\x01" * 256  # six bytes each in a record
    topics = tuple(f"{number:0249}" for number in range(10_000))
    largest = replace(
        JOIN, member_id=name, instance_id=name, client_id=name, client_host="h" * 64, protocol=name, topics=topics
    )
    changes = GroupCoordinator().heartbeat(largest, situation()).changes
    assert sum(len(key) + len(value or b"") for key, value in map(encode, changes)) < SPLIT_BYTES // 2


async def test_a_record_that_followers_could_not_take_is_refused_before_it_is_in_the_log() -> None:
    appended: list[object] = []

    class Appends:
        async def append(self, *what: object) -> None:
            appended.append(what)

    broker = SimpleNamespace(appends=Appends(), clock=SimpleNamespace(wall_us=lambda: 1))
    log = GroupLog(cast(GroupLogs, broker), PARTITION, LeaderEpoch(1))
    await log.write([Change(GroupKey("g"), GroupFacts())], 1.0)
    assert len(appended) == 1
    with pytest.raises(TidemarkError) as refused:
        await log.write([Change(GroupKey("g"), GroupFacts(protocol="x" * (SPLIT_BYTES + 1)))], 1.0)
    assert refused.value.code is ErrorCode.BATCH_TOO_LARGE
    assert len(appended) == 1


async def test_who_asks_for_news_of_groups_that_there_are_not_leaves_nothing_behind() -> None:
    shard = GroupShard(cast(GroupLog, HeldLog()), situation, 1.0, GroupMetrics(Metrics()))
    await loaded(shard)
    kept = shard.news_of("there")
    for number in range(1000):
        shard.news_of(f"not-there-{number}")
    gc.collect()
    assert len(shard._news) == 1
    shard.close()
    assert kept.is_set()
    await asyncio.sleep(0)
