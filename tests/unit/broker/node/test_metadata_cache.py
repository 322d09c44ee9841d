# SPDX-License-Identifier: Apache-2.0
"""The metadata cache of a broker, and its watchers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from dataclasses import replace
from typing import cast

from tidemark.broker.node.metadata_cache import _BEHIND_MAX, MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, merge_topic
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
)

BROKERS = {BrokerId(0): BrokerRegistration(BrokerId(0), "here", 1)}


VIEW = PartitionView(0, BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), incarnation="i")


def topic(name: str, leader: int = 0, epoch: int = 0) -> TopicView:
    members = (BrokerId(0),)
    view = PartitionView(0, BrokerId(leader), LeaderEpoch(epoch), members, members, incarnation="i")
    return TopicView(name, f"id of {name}", 1, 1, {0: view})


def update(*topics: TopicView, complete: bool = False, deleted: tuple[str, ...] = ()) -> ClusterView:
    return ClusterView(
        "", BrokerId(100), ControllerEpoch(1), "", BROKERS, {one.topic: one for one in topics}, deleted, complete
    )


def cache(*topics: TopicView) -> MetadataCache:
    made = MetadataCache("admin:1")
    made.set_cluster_id("c")
    made.update(update(*topics, complete=True))
    return made


async def test_a_watch_that_waits_holds_no_view() -> None:
    watch = cache(topic("a")).watch(["unknown"])
    view = await anext(watch)
    error = weakref.ref(cast(TidemarkError, view.topics["unknown"].error))
    following = asyncio.ensure_future(cast("Coroutine[None, None, ClusterView]", anext(watch)))
    await asyncio.sleep(0)
    del view
    gc.collect()
    assert error() is None
    following.cancel()


async def test_a_watcher_gets_the_whole_view_first_and_then_each_change() -> None:
    known = cache(topic("a"), topic("b"))
    watch = known.watch([])
    first = await anext(watch)
    assert (first.complete, set(first.topics), first.cluster_id, first.admin_address) == (
        True,
        {"a", "b"},
        "c",
        "admin:1",
    )
    known.update(update(topic("a", epoch=1)))
    known.update(update(topic("c"), deleted=("b",)))
    second, third = await anext(watch), await anext(watch)
    assert (second.complete, set(second.topics), second.topics["a"].partitions[0].leader_epoch) == (False, {"a"}, 1)
    assert (set(third.topics), third.deleted_topics) == ({"c"}, ("b",))


async def test_a_watcher_of_some_topics_gets_only_their_changes() -> None:
    known = cache(topic("a"), topic("b"))
    watch = known.watch(["a", "later"])
    first = await anext(watch)
    assert {name: view.error.code if view.error else None for name, view in first.topics.items()} == {
        "a": None,
        "later": ErrorCode.UNKNOWN_TOPIC,
    }
    known.update(update(topic("b", epoch=1), deleted=("a",)))
    change = await anext(watch)
    assert (set(change.topics), change.deleted_topics, set(change.brokers)) == (set(), ("a",), set(BROKERS))


async def test_a_watcher_gets_only_the_partitions_that_changed() -> None:
    wide = replace(topic("a"), partitions={index: replace(VIEW, partition=index) for index in range(3)})
    known = cache(wide)
    watch = known.watch(["a"])
    assert set((await anext(watch)).topics["a"].partitions) == {0, 1, 2}
    changed = replace(VIEW, partition=1, leader_epoch=LeaderEpoch(4))
    known.update(update(replace(wide, partitions={1: changed})))
    change = (await anext(watch)).topics["a"]
    assert change.partitions == {1: changed}
    assert merge_topic(wide, change).partitions == {**wide.partitions, 1: changed}


async def test_a_slow_watcher_gets_the_whole_view_instead_of_changes() -> None:
    known = cache(topic("a"))
    watch = known.watch([])
    await anext(watch)
    for epoch in range(1, _BEHIND_MAX + 3):
        known.update(update(topic("a", epoch=epoch)))
    whole = await anext(watch)
    assert whole.complete
    assert whole.topics["a"].partitions[0].leader_epoch == _BEHIND_MAX + 2


async def test_outdated_metadata_does_not_take_a_watcher_back() -> None:
    known = cache(topic("a", epoch=5))
    watch = known.watch([])
    await anext(watch)
    known.update(update(topic("a", epoch=3)))
    assert (await anext(watch)).topics["a"].partitions[0].leader_epoch == 5


async def test_watches_end_when_the_cache_closes() -> None:
    known = cache(topic("a"))
    watch = known.watch([])
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    known.close()
    assert await waiting is None


def test_a_missing_topic_may_exist_before_complete_metadata_and_not_afterwards() -> None:
    fresh = MetadataCache("")
    assert fresh.unknown("a").code is ErrorCode.LEADER_NOT_AVAILABLE
    fresh.update(replace(update(topic("b"), complete=True), hidden_topics=("a",)))
    assert fresh.unknown("a").code is ErrorCode.LEADER_NOT_AVAILABLE, "it exists, but its node does not parse"
    assert fresh.unknown("c").code is ErrorCode.UNKNOWN_TOPIC
    assert cache().unknown("a").code is ErrorCode.UNKNOWN_TOPIC


def test_a_refusal_carries_the_metadata_of_the_partition() -> None:
    known = cache(topic("a", leader=2, epoch=7))

    def explain(partition: TopicPartition, epoch: int = -1) -> TidemarkError:
        refusal = TidemarkError(ErrorCode.NOT_LEADER, "not here", {"leader": "-1", "leader_epoch": str(epoch)})
        return known.explain(refusal, partition)

    ids = {"topic_id": "id of a", "incarnation": "i"}
    assert explain(TopicPartition("a", 0)).metadata == {"leader": "2", "leader_epoch": "7", **ids}
    assert explain(TopicPartition("a", 0), epoch=8).metadata["leader_epoch"] == "8", "this broker's epoch is later"
    expired = known.explain(TidemarkError(ErrorCode.NOT_LEADER, "the lease has expired"), TopicPartition("a", 0))
    assert expired.message == "the lease has expired", "this broker may be the leader"
    assert expired.metadata["leader"] == "2"
    assert explain(TopicPartition("a", 1)).code is ErrorCode.UNKNOWN_PARTITION
    assert explain(TopicPartition("a", 1)).metadata["partitions"] == "1"
    assert explain(TopicPartition("b", 0)).code is ErrorCode.UNKNOWN_TOPIC


async def test_metadata_in_parts_becomes_visible_with_the_last_part() -> None:
    """A new controller sends complete metadata in parts: meanwhile no topic is unknown or lacks partitions."""
    known = cache(topic("a"), topic("b"), topic("gone"))
    watch = known.watch([])
    await anext(watch)
    known.update(replace(update(topic("a", epoch=1), complete=True), more_parts=True, sequence=1))
    assert (set(known.view.topics), known.view.topics["a"].partitions[0].leader_epoch) == ({"a", "b", "gone"}, 0)
    known.update(replace(update(topic("b", epoch=1)), part=1, sequence=2))
    assert (known.view.complete, set(known.view.topics)) == (True, {"a", "b"})
    changed = await anext(watch)
    assert (changed.complete, changed.part, changed.sequence, set(changed.topics)) == (True, 0, 1, {"a", "b"})
    assert {one.partitions[0].leader_epoch for one in changed.topics.values()} == {1}


async def test_answers_name_a_controller_only_while_it_pings_this_broker() -> None:
    """Without a controller, a missing topic may be a new one."""
    now_s = 100.0
    known = MetadataCache("", now_s=lambda: now_s)
    known.update(update(topic("a"), complete=True))

    async def named() -> set[int]:
        whole, some = known.describe((), all_topics=True), known.describe(["a"], all_topics=False)
        return {one.controller_id for one in (whole, some, await known.describe_in_slices(["a"]))}

    now_s += 2
    assert await named() == {100}
    now_s += 1
    assert await named() == {NO_LEADER}
    known.pinged(ControllerEpoch(2))
    assert await named() == {NO_LEADER}, "the metadata of the new controller have not arrived"
    known.pinged(ControllerEpoch(1))
    assert await named() == {100}


def test_a_controller_with_rare_pings_is_named_between_them() -> None:
    now_s = 100.0
    known = MetadataCache("", now_s=lambda: now_s)
    known.update(update(topic("a"), complete=True))
    known.pinged(ControllerEpoch(1), interval_ms=5000)
    now_s += 15
    assert known.unknown("b").code is ErrorCode.UNKNOWN_TOPIC
    now_s += 10
    assert known.unknown("b").code is ErrorCode.LEADER_NOT_AVAILABLE


def test_a_missing_name_may_be_a_new_one_while_no_controller_pings_this_broker() -> None:
    now_s = 100.0
    known = MetadataCache("", now_s=lambda: now_s)
    known.update(update(topic("a"), complete=True))

    def codes() -> tuple[ErrorCode, ErrorCode]:
        return known.unknown("b").code, known.unknown_partition(TopicPartition("a", 1)).code

    assert codes() == (ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION)
    now_s += 3
    assert codes() == (ErrorCode.LEADER_NOT_AVAILABLE,) * 2
