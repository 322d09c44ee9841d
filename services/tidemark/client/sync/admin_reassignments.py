# SPDX-License-Identifier: Apache-2.0
"""Moves of replicas and the number of a topic's partitions, for the blocking admin client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeVar

from tidemark.client.aio.admin.reassignments import (
    WATCH_INTERVAL_MS,
    AlteredReassignments,
    ReassignmentNews,
    Reassignments,
    RemovedPartitions,
)
from tidemark.client.aio.admin.reassignments import ReassignmentCalls as AsyncReassignmentCalls
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.core.cluster_view import TopicView
from tidemark.model import Move, TopicPartition

T = TypeVar("T")


def iterate(background: BackgroundLoop, news: AsyncIterator[T]) -> Iterator[T]:
    """The same news for a thread; leaving the loop ends the call."""

    waiting: asyncio.Task[T | None] | None = None

    async def next_one() -> T | None:
        nonlocal waiting
        waiting = asyncio.current_task()
        return await anext(news, None)

    async def end() -> None:
        # A thread that was interrupted waits no more; its task still does.
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})
        close = getattr(news, "aclose", None)
        if close is not None:
            await close()

    try:
        while (found := background.call(next_one())) is not None:
            yield found
    finally:
        background.call(end())


class ReassignmentCalls:
    """Part of the blocking `AdminClient`; see the async one for what arguments mean."""

    _client: AsyncReassignmentCalls
    _background: BackgroundLoop

    def alter_partition_reassignments(
        self,
        moves: Sequence[Move] = (),
        *,
        cancel: Sequence[TopicPartition] = (),
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        allow_partial: bool = False,
    ) -> AlteredReassignments:
        """Begin moves of replicas, or give them up; returns when they are written down, not when they are done."""
        return self._background.call(
            self._client.alter_partition_reassignments(
                moves,
                cancel=cancel,
                throttle_bytes_per_s=throttle_bytes_per_s,
                validate_only=validate_only,
                request_id=request_id,
                allow_partial=allow_partial,
            )
        )

    def list_partition_reassignments(self, partitions: Sequence[TopicPartition] = ()) -> Reassignments:
        """Moves that are wanted or under way (none named: all), with progress and what each waits for; refusals."""
        return self._background.call(self._client.list_partition_reassignments(partitions))

    def watch_partition_reassignments(
        self,
        partitions: Sequence[TopicPartition] = (),
        *,
        interval_ms: int = WATCH_INTERVAL_MS,
        request_id: str = "",
    ) -> Iterator[ReassignmentNews]:
        """News until none of these (none named: of those there are now) is wanted or under way any more."""
        news = self._client.watch_partition_reassignments(partitions, interval_ms=interval_ms, request_id=request_id)
        return iterate(self._background, news)

    def create_partitions(
        self,
        topic: str,
        total_count: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> TopicView:
        """Add partitions until the topic has `total_count`, and wait until every one has a leader."""
        return self._background.call(
            self._client.create_partitions(
                topic, total_count, assignments=assignments, validate_only=validate_only, request_id=request_id
            )
        )

    def delete_partitions(
        self,
        topic: str,
        *,
        count: int | None = None,
        total_count: int | None = None,
        partitions: Sequence[int] = (),
        force: bool = False,
        validate_only: bool = False,
        request_id: str = "",
    ) -> RemovedPartitions:
        """Remove the highest-numbered partitions and wait until they are gone; say one of the first three."""
        return self._background.call(
            self._client.delete_partitions(
                topic,
                count=count,
                total_count=total_count,
                partitions=partitions,
                force=force,
                validate_only=validate_only,
                request_id=request_id,
            )
        )
