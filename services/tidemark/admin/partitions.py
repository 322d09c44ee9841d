# SPDX-License-Identifier: Apache-2.0
"""Plans and requests added and removed partitions; the controller carries them out (rules C4, C7).

A request is a znode for each partition. The controller changes the topic, or writes a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidemark.admin.planning import check_count_may_change, plan_partitions
from tidemark.admin.polling import poll, why_late
from tidemark.admin.views import existing_topic, partitions_of, partitions_without_leader, some_of, topic_view
from tidemark.core.cluster_view import TopicView
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    BrokerId,
    ErrorCode,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
    unknown_topic,
)
from tidemark.zookeeper.store import MetadataStore


@dataclass(frozen=True, slots=True)
class PartitionsToRemove:
    """The partitions to remove, by exactly one of: how many to remove, how many to keep, their indexes."""

    count: int | None = None
    total_count: int | None = None
    partitions: tuple[int, ...] = ()


class Removed(NamedTuple):
    """The topic without the removed partitions, and their indexes."""

    topic: TopicView
    partitions: tuple[int, ...]


class TopicCounts(NamedTuple):
    """A topic before a removal of partitions: its id, its partition count, and the count after the removal."""

    topic_id: str
    partition_count: int
    total_count: int


class PartitionAdministration:
    """Adds partitions to topics and removes partitions from them.

    Args:
        store: started.
        writing: held during replica placement: concurrent plans would start at the same broker.
    """

    def __init__(self, store: MetadataStore, writing: asyncio.Lock) -> None:
        self._store = store
        self._writing = writing

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[tuple[BrokerId, ...]] = (),
        *,
        validate_only: bool,
        timeout_s: float,
        admit: Callable[[int], None] = lambda count: None,
    ) -> TopicView:
        """Add partitions and return the topic when each has a leader; with `validate_only` return the plan.

        A topic that already has `total_count` partitions does not change, so a retry is safe. `admit` is called with
        the number of partitions before they are requested, and may raise.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC; errors of `plan_partitions`; refusals of the controller;
                REQUEST_TIMED_OUT, while the controller continues.
        """
        async with self._writing:
            planned, added, requested = await self._planned(name, total_count, assignments)
            if validate_only:
                return topic_view(planned, await self._store.states(partitions_of([planned])))
            known = {one.key for one in await self._store.refusals()}
            if added.keys() - requested:  # a retry is not counted again
                admit(len(added.keys() - requested))
            if added:
                await self._store.request_partitions(added, {name: planned.topic_id})

        async def all_lead() -> TopicView | None:
            refusal = await self._refusal("partitions_add", added, known)
            if refusal is not None:
                raise refusal.error
            topic = await existing_topic(self._store, name)
            if topic.topic_id != planned.topic_id:
                raise _recreated(name)
            if len(topic.partitions) < total_count:
                return None
            states = await self._store.states(partitions_of([topic]))
            without = set(partitions_without_leader(topic, states))
            return None if without & {one.partition for one in added} else topic_view(topic, states)

        view = await poll(all_lead, timeout_s)
        if view is None:
            raise await self._late(name, f"{len(added)} partitions are requested, but not all exist", timeout_s)
        return view

    async def counts(self, name: str, which: PartitionsToRemove) -> TopicCounts:
        """Return the number of partitions that the topic keeps, with the topic as it is before the removal.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC, INVALID_REQUEST, INVALID_PARTITIONS or
                NOT_HIGHEST_PARTITION.
        """
        topic = await existing_topic(self._store, name)
        return TopicCounts(topic.topic_id, len(topic.partitions), count_to_keep(topic, which))

    async def delete_partitions(
        self,
        name: str,
        total_count: int,
        *,
        force: bool,
        validate_only: bool,
        timeout_s: float,
        before: TopicCounts | None = None,
    ) -> Removed:
        """Remove all partitions except the first `total_count`; with `validate_only` only report these partitions.

        Args:
            name: name of the topic.
            total_count: partitions that stay.
            force: remove partitions with records, too.
            validate_only: change nothing.
            timeout_s: time limit of the wait for the removal, in seconds.
            before: the topic as the first attempt found it; None: as it is now.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, also for another topic than before; PARTITION_NOT_EMPTY unless forced;
                REASSIGNMENT_IN_PROGRESS; REQUEST_TIMED_OUT, while the controller continues.
        """
        topic = await existing_topic(self._store, name)
        before = before or TopicCounts(topic.topic_id, len(topic.partitions), total_count)
        if topic.topic_id != before.topic_id:
            raise _recreated(name)
        indexes = [index for index in sorted(topic.partitions) if index >= total_count]
        moving = [index for index in indexes if index in topic.original]
        if indexes:
            check_count_may_change(name)
        if moving:
            raise TidemarkError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"partitions {some_of(moving)} of {name} are being reassigned: wait, or run tidemark reassign cancel",
                {"topic": name},
            )
        if not validate_only and indexes:
            known = {one.key for one in await self._store.refusals()}
            removed = {TopicPartition(name, index): force for index in indexes}
            await self._store.request_partition_removal(removed, {name: before.topic_id})

            async def are_gone() -> bool | None:
                refusal = await self._refusal("partitions_remove", removed, known)
                requested = (await self._store.partition_requests()).removed if refusal is not None else {}
                now = (await self._store.topics([name])).get(name)
                if now is None or now.topic_id != topic.topic_id or not set(indexes) & set(now.partitions):
                    return True
                # A refusal removes its request. So while this request exists, the refusal belongs to a request that
                # this one replaced.
                if refusal is not None and not any(requested.get(one) == force for one in removed):
                    raise refusal.error
                return None

            if await poll(are_gone, timeout_s) is None:
                raise await self._late(
                    name, f"the removal of {len(indexes)} partitions is requested, but not all are deleted", timeout_s
                )
        now = await existing_topic(self._store, name)
        view = topic_view(now, await self._store.states(partitions_of([now])))
        return Removed(view, tuple(sorted({*indexes, *range(total_count, before.partition_count)})))

    async def _planned(
        self, name: str, total_count: int, assignments: Sequence[tuple[BrokerId, ...]]
    ) -> tuple[TopicDescription, Mapping[TopicPartition, tuple[BrokerId, ...]], Collection[TopicPartition]]:
        """The topic after the addition, the partitions to add, and partitions that an earlier call requested."""
        check_topic_name(name)
        topics, live, draining, requests = await asyncio.gather(
            self._store.topics(),
            self._store.live_brokers(),
            self._store.draining_brokers(),
            self._store.partition_requests(),
        )
        topic = topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        planned = plan_partitions(topic, total_count, assignments, live, topics.values(), draining=draining)
        if not assignments:  # an earlier call, whose answer was late, may have requested some of these partitions
            requested = {one.partition: added for one, added in requests.added.items() if one.topic == name}
            kept = {index: requested[index] for index in planned.partitions.keys() & requested.keys()}
            planned = replace(planned, partitions={**planned.partitions, **kept, **topic.partitions})
        added = {
            TopicPartition(name, index): replicas
            for index, replicas in planned.partitions.items()
            if index not in topic.partitions
        }
        return planned, added, set(requests.added)

    async def _refusal(
        self, kind: str, asked: Collection[TopicPartition], known: Collection[tuple[object, ...]]
    ) -> Refusal | None:
        """The first new refusal of the controller."""
        for refusal in await self._store.refusals():
            if refusal.kind == kind and refusal.partition in asked and refusal.key not in known:
                return refusal
        return None

    async def _late(self, name: str, state: str, timeout_s: float) -> TidemarkError:
        sentence = f"topic {name}: {state} after {timeout_s:.1f} s; {await why_late(self._store)}"
        return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence, {"topic": name})


def count_to_keep(topic: TopicDescription, which: PartitionsToRemove) -> int:
    """Return the number of partitions that the topic keeps, which are its first ones (rule C7).

    Raises:
        TidemarkError: INVALID_REQUEST, INVALID_PARTITIONS or NOT_HIGHEST_PARTITION.
    """
    there = len(topic.partitions)
    if (which.count is not None) + (which.total_count is not None) + bool(which.partitions) != 1:
        raise invalid_request("give exactly one of count, total_count and partitions")
    if which.partitions:
        wanted = sorted(set(which.partitions))
        highest = list(range(there - len(wanted), there))
        if wanted != highest:
            raise TidemarkError(
                ErrorCode.NOT_HIGHEST_PARTITION,
                f"only the highest-numbered partitions of {topic.topic} can be removed: to remove {len(wanted)} of "
                f"its {there} name {some_of(highest) if len(wanted) < there else 'fewer'}",
                {"topic": topic.topic, "partition_count": str(there)},
            )
        keep = there - len(wanted)
    else:
        keep = which.total_count if which.total_count is not None else there - (which.count or 0)
    if keep > there or (which.count is not None and which.count < 1):
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.topic} has {there} partitions, fewer than {keep}: add some with tidemark topic add-partitions"
            if keep > there
            else f"remove 1 partition or more, not {which.count}",
            {"topic": topic.topic, "partition_count": str(there)},
        )
    if keep < 1:
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.topic} would have {keep} partitions: a topic keeps at least 1; delete the topic instead",
            {"topic": topic.topic, "partition_count": str(there)},
        )
    return keep


def _recreated(topic: str) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_TOPIC,
        f"{topic} was recreated during this request: describe the new topic, and retry if it has the wrong count",
        {"topic": topic},
    )
