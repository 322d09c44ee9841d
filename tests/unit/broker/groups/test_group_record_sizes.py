# SPDX-License-Identifier: Apache-2.0
"""Every record of a member fits into a message that followers accept.

A larger record would stop replication of the partition, and with it all its other groups.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.broker.coordination.state_log import StateLog, StateLogs
from tidemark.broker.groups.group_shard import GROUP_RECORDS, GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.core.groups.coordinator import GroupCoordinator
from tidemark.core.groups.heartbeat import Heartbeat
from tidemark.core.groups.records import encode
from tidemark.core.groups.state import Change, GroupKey, GroupMetadata
from tidemark.model import ErrorCode, LeaderEpoch
from tidemark.rpc.channel import SPLIT_BYTES
from tidemark.runtime.metrics import Metrics

from tests.refusals import raises_code
from tests.unit.broker.groups.test_coordinator_shard import PARTITION, HeldLog, loaded, situation

JOIN = Heartbeat("g", "m", 0, topics=("a",), rebalance_timeout_ms=1)
MORE_THAN_A_NAME = "\x01" * 300


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"client_id": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"protocol": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"assignor": MORE_THAN_A_NAME}, ErrorCode.INVALID_REQUEST),
        ({"topics": ("a" * 250,)}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topics": ("a", MORE_THAN_A_NAME)}, ErrorCode.INVALID_TOPIC_NAME),
        ({"topics": ("a",) * 10_001}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_member_of_many_that_no_record_could_hold_is_refused_and_nothing_changes(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    coordinator = GroupCoordinator()
    with raises_code(code) as refused:
        coordinator.heartbeat(replace(JOIN, **changes), situation())
    assert len(refused.value.message) < 500, "the message is sent in a header of the answer"
    assert not coordinator.groups


def test_the_largest_possible_member_is_far_smaller_than_the_largest_message() -> None:
    name = "\x01" * 256  # six bytes each in a record
    topics = tuple(f"{number:0249}" for number in range(10_000))
    largest = replace(
        JOIN, member_id=name, instance_id=name, client_id=name, client_host="h" * 64, protocol=name, topics=topics
    )
    changes = GroupCoordinator().heartbeat(largest, situation()).changes
    assert sum(len(key) + len(value or b"") for key, value in map(encode, changes)) < SPLIT_BYTES // 2


async def test_a_record_too_large_for_followers_is_refused_before_its_append() -> None:
    appended: list[object] = []

    class Appends:
        async def append(self, *what: object, **_: Any) -> None:
            appended.append(what)

    broker = SimpleNamespace(appends=Appends(), clock=SimpleNamespace(wall_us=lambda: 1))
    log = StateLog(cast(StateLogs, broker), GROUP_RECORDS, PARTITION, LeaderEpoch(1))
    await log.write([Change(GroupKey("g"), GroupMetadata())], 1.0, None, lambda: None)
    assert len(appended) == 1
    with raises_code(ErrorCode.BATCH_TOO_LARGE):
        await log.write(
            [Change(GroupKey("g"), GroupMetadata(protocol="x" * (SPLIT_BYTES + 1)))], 1.0, None, lambda: None
        )
    assert len(appended) == 1


async def test_waiting_for_changes_of_unknown_groups_leaves_no_state_behind() -> None:
    shard = GroupShard(cast(StateLog[Change], HeldLog(PARTITION)), situation, 1.0, GroupMetrics(Metrics()))
    await loaded(shard)
    kept = shard.event_of("there")
    for number in range(1000):
        shard.event_of(f"not-there-{number}")
    gc.collect()
    assert len(shard._events) == 1
    shard.close()
    assert kept.is_set()
    await asyncio.sleep(0)
