# SPDX-License-Identifier: Apache-2.0
"""Metrics of the lag of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from tidemark.broker.groups.lag_metrics import GroupLagMetrics
from tidemark.broker.groups.partition_ends import Ends
from tidemark.core.groups.group import Group
from tidemark.core.groups.state import Committed
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.unit.broker.scraped import scraped


class World:
    """Groups, ends, and a clock that the test sets."""

    def __init__(self, limit: int = 1000) -> None:
        self.now_s = 100.0
        self.groups: dict[str, Group] = {}
        self.ends: dict[TopicPartition, Ends | TidemarkError] = {}
        self.gone: set[TopicPartition] = set()
        self.asked: list[Collection[TopicPartition]] = []
        self.metrics = GroupLagMetrics(
            lambda: self.groups.values(),
            lambda group: ((where, one.offset) for where, one in group.offsets.items() if where not in self.gone),
            self._ask,
            now_s=lambda: self.now_s,
            limit=limit,
        )

    async def _ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Ends | TidemarkError]:
        self.asked.append(partitions)
        return {one: self.ends[one] for one in partitions}

    def commits(self, group_id: str, topic: str, index: int, offset: int) -> None:
        group = self.groups.setdefault(group_id, Group(group_id))
        group.offsets[TopicPartition(topic, index)] = Committed(offset, -1, "", "", "", 0)

    async def scrape(self) -> dict[tuple[str, str], float]:
        return scraped(await asyncio.to_thread(self.metrics.render))

    async def computed(self) -> dict[tuple[str, str], float]:
        """A scrape that has the result of an earlier one's computation."""
        await self.scrape()
        await asyncio.sleep(0)
        if self.metrics._task is not None:
            await self.metrics._task
        return await self.scrape()


async def test_lag_is_summed_over_the_partitions_of_a_topic_with_its_maximum() -> None:
    world = World()
    world.commits("g", "a", 0, 10)
    world.commits("g", "a", 1, 3)
    world.commits("g", "b", 0, 0)
    world.ends = {
        TopicPartition("a", 0): Ends(0, 15),
        TopicPartition("a", 1): Ends(0, 5),
        TopicPartition("b", 0): Ends(40, 100),
    }
    found = await world.computed()
    assert found["tidemark_group_lag_records", "group=g,topic=a"] == 7
    assert found["tidemark_group_lag_records_max", "group=g,topic=a"] == 5
    assert found["tidemark_group_lag_records", "group=g,topic=b"] == 60, "records that retention deleted are not lag"
    assert found["tidemark_group_member_count", "group=g"] == 0
    assert found["tidemark_group_lag_age_seconds", ""] == 0


async def test_lag_is_never_negative_and_unknown_lag_is_counted() -> None:
    world = World()
    world.commits("g", "a", 0, 10)
    world.commits("g", "a", 1, 10)
    world.ends = {
        TopicPartition("a", 0): Ends(0, 8),
        TopicPartition("a", 1): TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "none"),
    }
    found = await world.computed()
    assert found["tidemark_group_lag_records", "group=g,topic=a"] == 0
    assert found["tidemark_group_lag_unknown_partitions", "group=g,topic=a"] == 1


async def test_a_partition_without_a_commit_counts_from_its_log_start_offset() -> None:
    world = World()
    world.commits("g", "a", 0, -1)
    world.ends = {TopicPartition("a", 0): Ends(40, 100)}
    assert (await world.computed())["tidemark_group_lag_records", "group=g,topic=a"] == 60


async def test_scrapes_share_a_recent_computation_and_report_its_age() -> None:
    world = World()
    world.commits("g", "a", 0, 1)
    world.ends = {TopicPartition("a", 0): Ends(0, 2)}
    await world.computed()
    world.now_s += 4.0
    found = await world.computed()
    assert found["tidemark_group_lag_age_seconds", ""] == 4.0
    assert len(world.asked) == 1
    world.now_s += 2.0
    await world.computed()
    assert len(world.asked) == 2


async def test_series_end_with_their_offsets_and_with_their_partition() -> None:
    world = World()
    world.commits("g", "a", 0, 1)
    world.commits("h", "a", 0, 1)
    world.ends = {TopicPartition("a", 0): Ends(0, 2)}
    assert ("tidemark_group_lag_records", "group=h,topic=a") in await world.computed()
    del world.groups["h"]
    world.now_s += 6
    found = await world.computed()
    assert ("tidemark_group_lag_records", "group=h,topic=a") not in found
    assert ("tidemark_group_member_count", "group=h") not in found
    world.gone = {TopicPartition("a", 0)}
    world.now_s += 6
    assert ("tidemark_group_lag_records", "group=g,topic=a") not in await world.computed()


async def test_groups_beyond_the_limit_share_one_label() -> None:
    world = World(limit=1)
    for name in ("g", "h", "i"):
        world.commits(name, "a", 0, 1)
    world.ends = {TopicPartition("a", 0): Ends(0, 4)}
    found = await world.computed()
    assert found["tidemark_group_lag_records", "group=g,topic=a"] == 3
    assert found["tidemark_group_lag_records", "group=_other,topic=_other"] == 6
    assert found["tidemark_group_member_count", "group=_other"] == 0
    del world.groups["g"]
    world.now_s += 6
    found = await world.computed()
    assert found["tidemark_group_lag_records", "group=h,topic=a"] == 3, "the limit has room for it now"


async def test_with_metrics_groups_off_nothing_is_written_or_computed() -> None:
    world = World()
    world.commits("g", "a", 0, 1)
    world.metrics.groups_shown = False
    assert await world.computed() == {}
    assert world.asked == []


async def test_many_partitions_are_requested_in_parts() -> None:
    world = World()
    for index in range(250):
        world.commits("g", "a", index, 0)
        world.ends[TopicPartition("a", index)] = Ends(0, 1)
    found = await world.computed()
    assert [len(part) for part in world.asked] == [100, 100, 50]
    assert found["tidemark_group_lag_records", "group=g,topic=a"] == 250
