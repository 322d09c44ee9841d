# SPDX-License-Identifier: Apache-2.0
"""Creates and deletes topics through the metadata store.

The admin service writes the topic's znode. The controller elects leaders and carries out deletions (rule C4); the
admin service waits for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemark.admin.planning import (
    MIN_ISR_DEFAULT,
    TopicRequest,
    already_exists,
    check_may_go,
    new_topic_id,
    plan_topic,
)
from tidemark.admin.polling import poll, why_late
from tidemark.admin.views import existing_topic, partitions_of, partitions_without_leader, some_of, topic_view
from tidemark.core.cluster_view import TopicView
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, TopicDescription
from tidemark.zookeeper.store import MetadataStore


class TopicAdministration:
    """Creates and deletes topics.

    Args:
        store: started.
        default_replication_factor: of topics created with replication factor 0.
        default_min_insync_replicas: of topics created without min.insync.replicas.
        writing: held during replica placement: topics planned concurrently would start at the same broker (rule C4).
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        default_replication_factor: int,
        default_min_insync_replicas: int = MIN_ISR_DEFAULT,
        writing: asyncio.Lock | None = None,
    ) -> None:
        self._store = store
        self._default_replication_factor = default_replication_factor
        self._default_min_insync_replicas = default_min_insync_replicas
        self._writing = writing or asyncio.Lock()

    async def create_topic(
        self,
        request: TopicRequest,
        *,
        validate_only: bool,
        timeout_s: float,
        admit: Callable[[int], None] = lambda count: None,
    ) -> TopicView:
        """Create a topic and return it when every partition has a leader; with `validate_only` return the plan.

        A retry with the topic id of the first attempt finds the topic of that attempt and waits for its leaders.

        Args:
            request: the topic.
            validate_only: create nothing.
            timeout_s: time limit of the wait for leaders, in seconds.
            admit: called with the number of partitions before they are created; may raise.

        Raises:
            TidemarkError: errors of `plan_topic` and `admit`; TOPIC_ALREADY_EXISTS; REQUEST_TIMED_OUT with the number
                of partitions without leader: the topic exists, and the controller continues.
        """
        check_topic_name(request.topic)
        topic_id = request.topic_id or new_topic_id()
        if validate_only:
            return topic_view(await self._planned(request, topic_id), {})
        async with self._writing:
            topic = await self._planned(request, topic_id)
            if topic.version < 0:
                admit(len(topic.partitions))
                topic = await self._write(topic)
        return await self._wait_for_leaders(topic, timeout_s)

    async def _planned(self, request: TopicRequest, topic_id: str) -> TopicDescription:
        """Plan the topic; return the existing one if an earlier attempt, with the same topic id, has written it."""
        topics, brokers, draining = await asyncio.gather(
            self._store.topics(), self._store.live_brokers(), self._store.draining_brokers()
        )
        found = topics.get(request.topic)
        if found is not None and found.topic_id != topic_id:
            raise already_exists(request.topic)
        return found or plan_topic(
            request,
            brokers,
            topics.values(),
            topic_id=topic_id,
            default_replication_factor=self._default_replication_factor,
            default_min_insync_replicas=self._default_min_insync_replicas,
            draining=draining,
        )

    async def _write(self, topic: TopicDescription) -> TopicDescription:
        try:
            return await self._store.create_topic(topic)
        except TidemarkError as error:
            if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            # The response was lost. A topic with this id shows that the write succeeded.
            found = (await self._store.topics([topic.topic])).get(topic.topic)
            if found is None:
                raise
            if found.topic_id != topic.topic_id:
                raise already_exists(topic.topic) from error
            return found

    async def _wait_for_leaders(self, topic: TopicDescription, timeout_s: float) -> TopicView:
        missing = sorted(topic.partitions)

        async def all_lead() -> TopicView | None:
            nonlocal missing
            found = (await self._store.topics([topic.topic])).get(topic.topic)
            if found is None or found.topic_id != topic.topic_id:
                raise TidemarkError(
                    ErrorCode.UNKNOWN_TOPIC,
                    f"the topic {topic.topic} was created, but was deleted before its partitions had leaders",
                    {"topic": topic.topic},
                )
            states = await self._store.states(partitions_of([found]))
            missing = partitions_without_leader(found, states)
            return None if missing else topic_view(found, states)

        view = await poll(all_lead, timeout_s)
        if view is None:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the topic {topic.topic} is created, but after {timeout_s:.1f} s {len(missing)} of "
                f"{len(topic.partitions)} partitions have no leader yet ({some_of(missing)}); "
                f"{await why_late(self._store)}",
                {"topic": topic.topic, "partitions_missing": str(len(missing))},
            )
        return view

    async def topic_id(self, name: str) -> str:
        """Return the id of a topic that may be deleted.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC; INVALID_REQUEST for an internal topic.
        """
        check_topic_name(name)
        check_may_go(name)
        return (await existing_topic(self._store, name)).topic_id

    async def delete_topic(self, name: str, topic_id: str, *, timeout_s: float) -> None:
        """Request the deletion of the topic with this id and return when its znodes are deleted.

        Raises:
            TidemarkError: REQUEST_TIMED_OUT; the controller continues.
        """
        topic = (await self._store.topics([name])).get(name)
        if topic is None or topic.topic_id != topic_id:
            return
        try:
            await self._store.request_topic_deletion(name, topic_id)
        except TidemarkError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC:
                raise
            return

        async def is_gone() -> bool | None:
            found = (await self._store.topics([name])).get(name)
            return True if found is None or found.topic_id != topic_id else None

        if await poll(is_gone, timeout_s) is None:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the deletion of topic {name} is requested, but after {timeout_s:.1f} s it is still there; "
                f"{await why_late(self._store)}",
                {"topic": name},
            )
