# SPDX-License-Identifier: Apache-2.0
"""Appends of the broker itself, processed like a producer's with acks=all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from tidemark.core.replication.effects import NoteAppend, ReplyToProduce
from tidemark.core.replication.events import Event, MarkerArrived, ProduceArrived, ProduceExpired
from tidemark.core.replication.leader.produce_validation import ACKS_ALL
from tidemark.model import NO_EPOCH, LeaderEpoch, Offset, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.markers import EndMarker, build_marker

MarkerListener = Callable[[TopicPartition, int, int, bool], None]
"""Called with each committed marker, possibly repeatedly: partition, producer id, epoch of the marker, commit."""

_FIRST_ID: Final = 1 << 62
"""First request id here; producers' requests are numbered from 1."""


class InternalAppends:
    """The broker's own requests, with separate ids.

    Attributes:
        on_marker: see MarkerListener.
    """

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._submit = submit
        self._ids = count(_FIRST_ID)
        self.on_marker: MarkerListener = lambda partition, producer_id, marker_epoch, commit: None
        self._waiting: dict[int, asyncio.Future[Offset]] = {}
        self._appending: dict[int, Callable[[], None]] = {}

    def reply(self, effect: ReplyToProduce) -> bool:
        """Pass the result of a request to the caller of `append`; False for a producer's request."""
        if effect.request_id < _FIRST_ID:
            return False
        waiting = self._waiting.pop(effect.request_id)
        if waiting.done():
            return True
        if effect.result.error is not None:
            waiting.set_exception(effect.result.error)
        else:
            waiting.set_result(effect.result.base_offset)
        return True

    def note_append(self, effect: NoteAppend) -> None:
        """Call `on_appended` of a request."""
        on_appended = self._appending.get(effect.request_id)
        if on_appended is not None:
            on_appended()

    async def append(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        batches: tuple[Batch, ...],
        timeout_s: float,
        *,
        on_appended: Callable[[], None],
        transactional_id: str = "",
    ) -> Offset:
        """Append in that leader epoch; returns the base offset when the high watermark is above all batches.

        Args:
            partition: a partition that this broker leads.
            leader_epoch: leader epoch of the leadership.
            batches: pending batches need the transactional id of their producer (rule X1).
            timeout_s: the call raises REQUEST_TIMED_OUT after that time.
            on_appended: called when the batches are in the log of this broker, which is before the result.
            transactional_id: transactional id of pending batches.

        Raises:
            TidemarkError: as for a produce request. After NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT and the
                end of the leadership, the batches may be in the log.
        """

        def event(request_id: int) -> Event:
            self._appending[request_id] = on_appended
            return ProduceArrived(
                request_id, partition, "", leader_epoch, ACKS_ALL, batches, transactional_id, notes_append=True
            )

        return await self._answer(partition, timeout_s, event)

    async def append_marker(
        self,
        partition: TopicPartition,
        topic_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        marker: EndMarker,
        timestamp_us: int,
        timeout_s: float,
    ) -> Offset:
        """End a producer's transaction; returns the marker's offset when the high watermark covers the marker (X2).

        Repeated calls are safe: -1 if the log had the marker already.

        Args:
            partition: a partition that this broker leads.
            topic_id: id of the topic; empty: any.
            producer_id: producer id of the transaction.
            producer_epoch: epoch of the transaction + 1.
            marker: whether to commit, and the epoch of the coordinator.
            timestamp_us: wall clock, since 1970, UTC.
            timeout_s: the call raises REQUEST_TIMED_OUT after that time.

        Raises:
            TidemarkError: COORDINATOR_FENCED, PRODUCER_FENCED, UNKNOWN_TOPIC_ID, NOT_LEADER; else as `append`.
        """
        data = build_marker(
            producer_id=producer_id, producer_epoch=producer_epoch, marker=marker, timestamp_us=timestamp_us
        )
        batch = Batch(parse_envelope(data), data)
        offset = await self._answer(
            partition,
            timeout_s,
            lambda request_id: MarkerArrived(request_id, partition, topic_id, NO_EPOCH, batch),
        )
        self.on_marker(partition, producer_id, producer_epoch, marker.commit)
        return offset

    async def _answer(self, partition: TopicPartition, timeout_s: float, event: Callable[[int], Event]) -> Offset:
        """Submit the event of a fresh request id, and wait for the answer."""
        request_id = next(self._ids)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Offset] = loop.create_future()
        self._waiting[request_id] = waiting
        timer = loop.call_later(timeout_s, lambda: self._submit(ProduceExpired(request_id, partition)))
        try:
            self._submit(event(request_id))
            return await waiting
        finally:
            timer.cancel()
            self._appending.pop(request_id, None)
