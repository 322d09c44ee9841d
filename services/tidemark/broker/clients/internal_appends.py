# SPDX-License-Identifier: Apache-2.0
"""Appends of the broker itself, processed like a producer's with acks=all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from tidemark.core.replication.effects import ReplyToProduce
from tidemark.core.replication.events import Event, ProduceArrived, ProduceExpired
from tidemark.core.replication.leader.produce_validation import ACKS_ALL
from tidemark.model import LeaderEpoch, Offset, TopicPartition
from tidemark.record.envelope import Batch

_FIRST_ID: Final = 1 << 62
"""First request id here; producers' requests are numbered from 1."""


class InternalAppends:
    """`reply` completes the requests of `append`, and passes on all other replies."""

    def __init__(self, submit: Callable[[Event], None], others: Callable[[ReplyToProduce], None]) -> None:
        self._submit = submit
        self._others = others
        self._ids = count(_FIRST_ID)
        self._waiting: dict[int, asyncio.Future[Offset]] = {}

    def reply(self, effect: ReplyToProduce) -> None:
        """Pass the result of a produce request to the caller of `append`, or to `others`."""
        if effect.request_id < _FIRST_ID:
            self._others(effect)
            return
        waiting = self._waiting.pop(effect.request_id)
        if waiting.done():
            return
        if effect.result.error is not None:
            waiting.set_exception(effect.result.error)
        else:
            waiting.set_result(effect.result.base_offset)

    async def append(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, batches: tuple[Batch, ...], timeout_s: float
    ) -> Offset:
        """Append in that leader epoch; returns the base offset when the high watermark covers all batches.

        Raises:
            TidemarkError: as for a produce request. After NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT and the
                end of the leadership, the batches may be in the log.
        """
        request_id = next(self._ids)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Offset] = loop.create_future()
        self._waiting[request_id] = waiting
        timer = loop.call_later(timeout_s, lambda: self._submit(ProduceExpired(request_id, partition)))
        try:
            self._submit(ProduceArrived(request_id, partition, "", leader_epoch, ACKS_ALL, batches))
            return await waiting
        finally:
            timer.cancel()
