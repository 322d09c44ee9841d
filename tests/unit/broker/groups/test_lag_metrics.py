# SPDX-License-Identifier: Apache-2.0
"""The lag of groups as Prometheus is told of it."""

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
    """Groups, ends and a clock that stands still."""

    def __init__(self, limit: int = 1000) -> None:
        self.now_s = 100.0
        self.groups: dict[str, Group] = {}
        self.ends: dict[TopicPartition, Ends | TidemarkError] = {}
        self.gone: set[TopicPartition] = set()
        self.asked: list[Collection[TopicPartition]] = []
        self.metrics = GroupLagMetrics(
            lambda: self.groups.values(),
            lambda partition, committed: partition not in self.gone,
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
        """A scrape after what an earlier one had computed."""
        await self.scrape()
        await asyncio.sleep(0)
        if self.metrics._task is not None:
            await self.metrics._task
        return await self.scrape()


async def test_a_lag_is_summed_over_the_partitions_of_a_topic_and_the_largest_is_told() -> None:
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
    assert found["tidemark_group_lag_records", "group=g,topic=b"] == 60, "what retention took is not lag"
    assert found["tidemark_group_member_count", "group=g"] == 0
    assert found["tidemark_group_lag_age_seconds", ""] == 0


async def test_a_lag_is_never_negative_and_what_is_not_known_is_counted() -> None:
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


async def test_scrapes_share_what_was_computed_a_moment_ago_and_tell_how_old_it_is() -> None:
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


async def test_series_end_with_the_offsets_and_with_the_partition_they_were_for() -> None:
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


async def test_groups_beyond_the_limit_are_told_together() -> None:
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
    assert found["tidemark_group_lag_records", "group=h,topic=a"] == 3, "there is room for it now"


async def test_switched_off_nothing_is_told_and_nobody_is_asked() -> None:
    world = World()
    world.commits("g", "a", 0, 1)
    world.metrics.groups_shown = False
    assert await world.computed() == {}
    assert world.asked == []


async def test_many_partitions_are_asked_for_in_parts() -> None:
    world = World()
    for index in range(250):
        world.commits("g", "a", index, 0)
        world.ends[TopicPartition("a", index)] = Ends(0, 1)
    found = await world.computed()
    assert [len(part) for part in world.asked] == [100, 100, 50]
    assert found["tidemark_group_lag_records", "group=g,topic=a"] == 250
