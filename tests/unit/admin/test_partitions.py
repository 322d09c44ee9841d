# SPDX-License-Identifier: Apache-2.0
"""Partitions added and removed by the admin service; the tests write what a controller would write."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tidemark.admin.partitions import PartitionAdministration, PartitionsToRemove, count_to_keep
from tidemark.model import BrokerId, ErrorCode, Refusal, TidemarkError, TopicDescription, TopicPartition
from tidemark.ports import StoreEvent

from tests.refusals import code_of, raises_code
from tests.unit.admin.moving import Cluster, ids


@pytest.fixture
async def cluster() -> Cluster:
    cluster = Cluster()
    await cluster.start()
    await cluster.topic("t", (0, 1), (1, 2))
    return cluster


@pytest.fixture
def partitions(cluster: Cluster) -> PartitionAdministration:
    return PartitionAdministration(cluster.store, asyncio.Lock())


async def create(
    partitions: PartitionAdministration,
    total: int,
    assignments: tuple[tuple[BrokerId, ...], ...] = (),
    *,
    validate_only: bool = True,
    timeout_s: float = 0.0,
) -> list[tuple[BrokerId, ...]]:
    view = await partitions.create_partitions("t", total, assignments, validate_only=validate_only, timeout_s=timeout_s)
    return [one.assigned_replicas for one in view.partitions.values()]


async def test_placement_of_new_partitions_starts_at_the_least_preferred_broker(
    partitions: PartitionAdministration,
) -> None:
    assert await create(partitions, 5) == [ids(0, 1), ids(1, 2), ids(2, 0), ids(0, 2), ids(1, 0)]


async def test_draining_broker_gets_no_new_partitions(cluster: Cluster, partitions: PartitionAdministration) -> None:
    await cluster.store.begin_draining(ids(2))
    placed = await create(partitions, 6)
    assert all(BrokerId(2) not in replicas for replicas in placed[2:])
    assert await code_of(create(partitions, 3, (ids(2, 1),))) is ErrorCode.BROKER_NOT_AVAILABLE


async def test_new_partitions_can_have_given_replicas(partitions: PartitionAdministration) -> None:
    assert (await create(partitions, 3, (ids(2, 1, 0),)))[2] == ids(2, 1, 0)


@pytest.mark.parametrize(
    ("total", "assignments", "code"),
    [
        (1, (), ErrorCode.INVALID_PARTITIONS),
        (0, (), ErrorCode.INVALID_PARTITIONS),
        (4, (ids(1),), ErrorCode.INVALID_PARTITIONS),
        (3, ((),), ErrorCode.EMPTY_REPLICAS),
        (3, (ids(1, 1),), ErrorCode.DUPLICATE_REPLICA),
        (3, (ids(1, 9),), ErrorCode.BROKER_NOT_AVAILABLE),
        (100_000, (), ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_invalid_partition_request_is_refused_without_a_write(
    cluster: Cluster,
    partitions: PartitionAdministration,
    total: int,
    assignments: tuple[tuple[BrokerId, ...], ...],
    code: ErrorCode,
) -> None:
    assert await code_of(create(partitions, total, assignments, validate_only=False)) is code
    assert (await cluster.store.partition_requests()).added == {}


async def test_unknown_topic_is_refused(partitions: PartitionAdministration) -> None:
    for name, code in (("nowhere", ErrorCode.UNKNOWN_TOPIC), ("a/b", ErrorCode.INVALID_TOPIC_NAME)):
        work = partitions.create_partitions(name, 3, validate_only=False, timeout_s=0.0)
        assert await code_of(work) is code
        assert await code_of(partitions.counts(name, PartitionsToRemove(count=1))) is code


async def test_topic_with_enough_partitions_stays_unchanged(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    assert len(await create(partitions, 2, validate_only=False, timeout_s=5)) == 2
    assert (await cluster.store.partition_requests()).added == {}


async def test_repeated_addition_is_counted_once_for_the_quota(partitions: PartitionAdministration) -> None:
    counted: list[int] = []
    for total in (4, 4, 5):
        work = partitions.create_partitions("t", total, validate_only=False, timeout_s=0.0, admit=counted.append)
        assert await code_of(work) is ErrorCode.REQUEST_TIMED_OUT
    assert counted == [2, 1]


async def test_repeated_addition_keeps_the_replicas_that_the_first_one_requested(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    """The brokers and topics may have changed since the first call placed the partitions."""
    assert await code_of(create(partitions, 4, validate_only=False)) is ErrorCode.REQUEST_TIMED_OUT
    requested = (await cluster.store.partition_requests()).added
    await cluster.kill_broker(2)
    await cluster.topic("other", (0, 1))
    assert await code_of(create(partitions, 5, validate_only=False)) is ErrorCode.REQUEST_TIMED_OUT
    now = (await cluster.store.partition_requests()).added
    assert {one: now[one] for one in requested} == requested
    assert len(now) == 3
    assert await code_of(create(partitions, 3, (ids(1),), validate_only=False)) is ErrorCode.INVALID_REQUEST


async def add(cluster: Cluster, index: int, *replicas: int) -> TopicDescription:
    topic = (await cluster.store.topics(["t"]))["t"]
    return await cluster.rewrite(
        replace(
            topic,
            partitions={**topic.partitions, index: ids(*replicas)},
            incarnations={**topic.incarnations, index: f"new{index}"},
        )
    )


async def test_create_partitions_waits_until_every_new_partition_has_a_leader(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    assert await code_of(create(partitions, 3, validate_only=False)) is ErrorCode.REQUEST_TIMED_OUT
    assert (await cluster.store.partition_requests()).added == {TopicPartition("t", 2): ids(2, 0)}
    topic = await add(cluster, 2, 2, 0)
    await cluster.lead(topic, 2, 2, 2, 0)
    assert len(await create(partitions, 3, validate_only=False, timeout_s=5)) == 3, "the retry finds the new partitions"


async def requests_of(cluster: Cluster) -> asyncio.Event:
    """Set when a removal of partitions is requested."""
    asked = asyncio.Event()
    watcher = cluster.ensemble.store()
    await watcher.start()
    watcher.listen(lambda event: asked.set() if event is StoreEvent.PARTITION_REQUESTS else None)
    await watcher.partition_requests(watch=True)
    return asked


async def test_refusal_of_the_controller_is_raised(cluster: Cluster, partitions: PartitionAdministration) -> None:
    assert cluster.term is not None
    added, removed = TopicPartition("t", 2), TopicPartition("t", 1)
    asked = await requests_of(cluster)
    why = TidemarkError(ErrorCode.PARTITION_NOT_EMPTY, "it holds 7 records")
    waiting = asyncio.create_task(partitions.delete_partitions("t", 1, force=False, validate_only=False, timeout_s=10))
    await asked.wait()
    assert (await cluster.store.partition_requests()).removed == {removed: False}
    refused = [Refusal("partitions_remove", removed, why), Refusal("partitions_add", added, why)]
    await cluster.store.finish_partition_requests(cluster.term, removed={removed: False}, refused=refused)
    assert await code_of(waiting) is ErrorCode.PARTITION_NOT_EMPTY


async def test_forced_removal_is_not_answered_with_the_refusal_of_the_one_that_it_replaced(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    assert cluster.term is not None
    removed = TopicPartition("t", 1)
    await cluster.store.request_partition_removal({removed: False})
    asked = await requests_of(cluster)
    waiting = asyncio.create_task(partitions.delete_partitions("t", 1, force=True, validate_only=False, timeout_s=10))
    await asked.wait()
    refused = Refusal("partitions_remove", removed, TidemarkError(ErrorCode.PARTITION_NOT_EMPTY, "it holds 7 records"))
    await cluster.store.finish_partition_requests(cluster.term, removed={removed: False}, refused=[refused])
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.rewrite(replace(topic, partitions={0: topic.partitions[0]}, incarnations={0: "t0"}))
    await cluster.store.finish_partition_requests(cluster.term, removed={removed: True})
    assert (await waiting).partitions == (1,)


async def test_delete_partitions_waits_until_they_are_gone(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    asked = await requests_of(cluster)
    waiting = asyncio.create_task(partitions.delete_partitions("t", 1, force=True, validate_only=False, timeout_s=10))
    await asked.wait()
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.rewrite(replace(topic, partitions={0: topic.partitions[0]}, incarnations={0: "t0"}))
    removed = await waiting
    assert (removed.partitions, list(removed.topic.partitions)) == ((1,), [0])


async def test_partition_being_reassigned_is_not_removed(cluster: Cluster, partitions: PartitionAdministration) -> None:
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.rewrite(replace(topic, original={1: ids(1, 2)}))
    work = partitions.delete_partitions("t", 1, force=True, validate_only=False, timeout_s=0.0)
    assert await code_of(work) is ErrorCode.REASSIGNMENT_IN_PROGRESS


async def test_partition_count_of_the_offsets_topic_cannot_change(
    cluster: Cluster, partitions: PartitionAdministration
) -> None:
    name = "__consumer_offsets"
    await cluster.topic(name, (0, 1), (1, 2))
    more = partitions.create_partitions(name, 3, validate_only=False, timeout_s=0.0)
    fewer = partitions.delete_partitions(name, 1, force=True, validate_only=False, timeout_s=0.0)
    for work in (more, fewer):
        assert await code_of(work) is ErrorCode.INVALID_PARTITIONS
    requests = await cluster.store.partition_requests()
    assert (requests.added, requests.removed) == ({}, {})


TOPIC = TopicDescription("t", "id", dict.fromkeys(range(6), ids(0)), {})


@pytest.mark.parametrize(
    "which",
    [PartitionsToRemove(count=2), PartitionsToRemove(total_count=4), PartitionsToRemove(partitions=(5, 4))],
)
def test_partitions_to_remove_can_be_given_in_three_ways(which: PartitionsToRemove) -> None:
    assert count_to_keep(TOPIC, which) == 4


@pytest.mark.parametrize(
    ("which", "code"),
    [
        (PartitionsToRemove(), ErrorCode.INVALID_REQUEST),
        (PartitionsToRemove(count=1, total_count=5), ErrorCode.INVALID_REQUEST),
        (PartitionsToRemove(partitions=(0,)), ErrorCode.NOT_HIGHEST_PARTITION),
        (PartitionsToRemove(partitions=(5, 3)), ErrorCode.NOT_HIGHEST_PARTITION),
        (PartitionsToRemove(partitions=(6,)), ErrorCode.NOT_HIGHEST_PARTITION),
        (PartitionsToRemove(count=0), ErrorCode.INVALID_PARTITIONS),
        (PartitionsToRemove(count=-1), ErrorCode.INVALID_PARTITIONS),
        (PartitionsToRemove(count=6), ErrorCode.INVALID_PARTITIONS),
        (PartitionsToRemove(total_count=0), ErrorCode.INVALID_PARTITIONS),
        (PartitionsToRemove(total_count=7), ErrorCode.INVALID_PARTITIONS),
        (PartitionsToRemove(partitions=tuple(range(6))), ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_invalid_choice_of_partitions_is_refused(which: PartitionsToRemove, code: ErrorCode) -> None:
    with raises_code(code):
        count_to_keep(TOPIC, which)


async def test_request_for_a_recreated_topic_fails_at_once(
    cluster: Cluster,
    partitions: PartitionAdministration,
) -> None:
    assert cluster.term is not None
    asked = await requests_of(cluster)
    waiting = asyncio.create_task(create(partitions, 5, validate_only=False, timeout_s=60))
    await asked.wait()
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.store.delete_topic(cluster.term, topic)
    await cluster.store.create_topic(replace(topic, topic_id="another"))
    added = [TopicPartition("t", index) for index in (2, 3, 4)]
    await cluster.store.finish_partition_requests(cluster.term, added=added)
    async with asyncio.timeout(10):
        assert await code_of(waiting) is ErrorCode.UNKNOWN_TOPIC
