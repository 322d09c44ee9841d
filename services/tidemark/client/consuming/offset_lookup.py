# SPDX-License-Identifier: Apache-2.0
"""Looks offsets up at the leaders of partitions: log start, high watermark, and offsets by time (rules E6, K2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc

from tidemark.client.argument_types import integer
from tidemark.client.consuming.fetcher import MISPLACED, Fetcher
from tidemark.client.consuming.isolation import level_of
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.metadata.backoff import AttemptTimeout, Backoff
from tidemark.client.metadata.cluster import Cluster, Leader
from tidemark.client.records import OffsetAndTimestamp, Timestamp
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2 as pb

_log = logging.getLogger("tidemark.client")

_ATTEMPT_S: Final = 2.0
"""Timeout of the first attempt; the timeout doubles after an attempt that timed out."""
_AT_ONCE: Final = 1_000
"""Largest number of partitions in one request."""
_SOON_S: Final = 1.0
"""Time after which `find_soon` makes no further attempt."""

Start = str | int | Timestamp
"""A start: "earliest", "latest", an offset, or a Timestamp (the end, if no record is at or after that time)."""


def check_start(start: Start) -> None:
    """Raise TypeError for a start of a wrong type, INVALID_REQUEST for a wrong value."""
    if isinstance(start, Timestamp):
        _check_int64("the time of start", integer("the time of start", start.us), -1 << 63)
    elif isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise invalid_request(f"start is {start!r}: expected earliest, latest, an offset or a Timestamp")
    else:
        _check_int64("start", integer("start", start), 0)


def _check_int64(name: str, number: int, smallest: int) -> None:
    if not smallest <= number < 1 << 63:
        raise invalid_request(
            f"{name} is {number}, not an offset: expected earliest, latest, an offset from 0 or a Timestamp"
        )


class _Answers(NamedTuple):
    """Answers and refusals of leaders, by partition."""

    found: dict[TopicPartition, OffsetAndTimestamp]
    refusals: dict[TopicPartition, TidemarkError]


class OffsetLookup:
    """Sends ListOffsets to leaders; used on one event loop.

    Args:
        cluster: metadata and channels.
        timeout_s: timeout of a lookup with its retries.
        isolation_level: "read_committed": `latest` is the last stable offset.
    """

    def __init__(self, cluster: Cluster, timeout_s: float, isolation_level: str = "read_uncommitted") -> None:
        self._isolation_level = level_of(isolation_level)
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def find(self, where: TopicPartition, start: Start) -> int:
        """Return the offset of a start; raises INVALID_REQUEST, and the errors of `look_up`."""
        check_start(start)
        if isinstance(start, Timestamp):
            # Look up the end first, so that records appended between the two lookups are read.
            end = await self.look_up(where, latest=True)
            found = await self.look_up(where, timestamp_us=start.us)
            return end.offset if found.offset < 0 else found.offset
        if not isinstance(start, str):
            return integer("start", start)
        return (await self.look_up(where, **{start: True})).offset

    async def find_each(self, wanted: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        """`find` for many partitions, with one request to each leader."""
        check_start(start)
        if isinstance(start, Timestamp):
            ends = await self._look_up_each(wanted, latest=True)
            found = await self._look_up_each(wanted, timestamp_us=start.us)
            return {where: (ends if found[where].offset < 0 else found)[where].offset for where in wanted}
        if not isinstance(start, str):
            return dict.fromkeys(wanted, integer("start", start))
        return {where: one.offset for where, one in (await self._look_up_each(wanted, **{start: True})).items()}

    async def find_soon(self, wanted: Sequence[TopicPartition], position: str) -> dict[TopicPartition, int]:
        """`find_each` of "earliest" or "latest", without the partitions whose leader does not answer within seconds.

        Raises:
            TidemarkError: the first permanent refusal of a leader.
        """
        found: dict[TopicPartition, int] = {}
        backoff, until_s = Backoff(), time.monotonic() + _SOON_S
        while rest := [where for where in wanted if where not in found]:
            answers, refusals = await self._look_up_together(rest, {position: True}, _ATTEMPT_S)
            found |= {where: one.offset for where, one in answers.items()}
            for where, error in refusals.items():
                if not error.retriable and error.code not in MISPLACED:
                    raise error
                self._cluster.note_refusal(where, error)
            if len(found) == len(wanted) or time.monotonic() >= until_s:
                break
            self._cluster.refresh()
            await self._cluster.wait_for_update(backoff.next_s())
        return found

    async def _look_up_each(
        self, wanted: Sequence[TopicPartition], **position: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """`look_up` for many partitions: first together, then separately for the partitions that a leader has
        refused.

        Partitions whose leader does not answer in time are looked up together again, for half the timeout: another
        broker may lead them by then.
        """
        deadline_s = time.monotonic() + self._timeout_s
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        backoff, attempt = Backoff(), AttemptTimeout(_ATTEMPT_S)
        many, left_s = wanted if len(wanted) > 1 else (), self._timeout_s / 2
        while many and left_s > 0:
            answers, refusals = await self._look_up_together(many, position, attempt.within(left_s))
            found |= answers
            attempt.note(refusals.values())
            many = [where for where, error in refusals.items() if error.code is ErrorCode.REQUEST_TIMED_OUT]
            if many:
                self._cluster.refresh()
                await self._cluster.wait_for_update(backoff.next_s())
                left_s = deadline_s - self._timeout_s / 2 - time.monotonic()
        rest = [where for where in wanted if where not in found]
        alone = await asyncio.gather(*(self.look_up(where, deadline_s=deadline_s, **position) for where in rest))
        return found | dict(zip(rest, alone, strict=True))

    async def _look_up_together(
        self, wanted: Sequence[TopicPartition], position: Mapping[str, Any], timeout_s: float
    ) -> _Answers:
        """One request to each leader that is known: its answers and refusals by partition."""
        by_address: defaultdict[str, list[tuple[TopicPartition, Leader]]] = defaultdict(list)
        for where in wanted:
            leader = self._cluster.leader(where)
            if leader is not None:
                by_address[leader.address].append((where, leader))
        answers = await asyncio.gather(
            *(
                self._look_up_some(address, led[first : first + _AT_ONCE], position, timeout_s)
                for address, led in by_address.items()
                for first in range(0, len(led), _AT_ONCE)
            )
        )
        together = _Answers({}, {})
        for found, refusals in answers:
            together.found.update(found)
            together.refusals.update(refusals)
        return together

    async def _look_up_some(
        self, address: str, led: Sequence[tuple[TopicPartition, Leader]], position: Mapping[str, Any], timeout_s: float
    ) -> _Answers:
        """The answers of a leader; without any, the error of the call for each partition."""
        try:
            results = await self._ask(address, led, position, timeout_s)
        except TidemarkError as error:
            return _Answers({}, {where: error for where, _ in led})
        answers = _Answers({}, {})
        for (where, _), result in zip(led, results, strict=True):
            if (refusal := errors.error_in(result)) is not None:
                answers.refusals[where] = refusal
            else:
                answers.found[where] = OffsetAndTimestamp(result.offset, result.timestamp_us)
        return answers

    async def look_up(
        self, where: TopicPartition, *, deadline_s: float | None = None, **position: Any
    ) -> OffsetAndTimestamp:
        """Ask the leader for an offset; retries until the timeout.

        Args:
            where: the partition.
            deadline_s: end of the retries, of time.monotonic; None: after the timeout.
            position: a field of `PartitionListOffsets`: `earliest`, `latest` or `timestamp_us`.

        Raises:
            TidemarkError: refusals of the leader; REQUEST_TIMED_OUT with the last one.
        """
        deadline_s = time.monotonic() + self._timeout_s if deadline_s is None else deadline_s
        backoff, attempt = Backoff(), AttemptTimeout(_ATTEMPT_S)
        while True:
            leader = None
            try:
                leader = await self._cluster.leader_in_time(where, deadline_s=deadline_s)
                return await self._look_up_once(where, leader, position, attempt.within(deadline_s - time.monotonic()))
            except TidemarkError as error:
                attempt.note([error])
                left_s = deadline_s - time.monotonic()
                misplaced = leader is not None and error.code in MISPLACED  # the leader may get its metadata late
                if not error.retriable and not misplaced:
                    raise
                if left_s <= 0:
                    raise TidemarkError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"{where}: no offset within {self._timeout_s} s; the last refusal: {error}",
                    ) from error
                self._cluster.note_refusal(where, error)
                await self._cluster.wait_for_update(min(backoff.next_s(), left_s))

    async def _look_up_once(
        self, where: TopicPartition, leader: Leader, position: Mapping[str, Any], timeout_s: float
    ) -> OffsetAndTimestamp:
        (result,) = await self._ask(leader.address, [(where, leader)], position, timeout_s)
        errors.raise_error_in(result)
        return OffsetAndTimestamp(result.offset, result.timestamp_us)

    async def _ask(
        self,
        address: str,
        led: Sequence[tuple[TopicPartition, Leader]],
        position: Mapping[str, Any],
        timeout_s: float,
    ) -> Sequence[pb.PartitionListOffsetsResult]:
        """The results of one request, in its order."""
        parts = [
            pb.PartitionListOffsets(
                topic=where.topic,
                partition=where.partition,
                current_leader_epoch=leader.leader_epoch,
                topic_id=leader.topic_id,
                **position,
            )
            for where, leader in led
        ]
        request = pb.ListOffsetsRequest(partitions=parts, isolation_level=self._isolation_level)
        try:
            response = await self._cluster.stub(address).ListOffsets(
                request, timeout=timeout_s, metadata=self._cluster.headers
            )
        except grpc.aio.AioRpcError as failure:
            raise errors.from_rpc_error(failure, address=address) from None
        results: Sequence[pb.PartitionListOffsetsResult] = response.partitions
        return results


async def move_into_range(fetcher: Fetcher, cursor: Cursor, found: Awaitable[int], error: TidemarkError) -> None:
    """Move the position to an offset that the log has, unless the application seeks meanwhile.

    Args:
        fetcher: fetches for the cursor.
        cursor: its position is out of range.
        found: the offset to continue at. An error becomes the cursor's error, unless the error is retriable: the next
            fetch is refused again and starts the next lookup.
        error: the refusal of the fetch.
    """
    generation = cursor.generation
    try:
        offset = await found
    except TidemarkError as failure:
        if cursor.generation == generation:
            if failure.retriable:
                _fetch_again(fetcher, cursor, failure)
            else:
                cursor.error = failure
                fetcher.wake()
        return
    if cursor.generation == generation and offset > cursor.position:
        missed = offset - cursor.position
        _log.warning("%s: %d offsets were deleted before they were read: %s", cursor.partition, missed, error)
        cursor.seek(offset)
        fetcher.moved(cursor)
    else:
        _fetch_again(fetcher, cursor, error)


def _fetch_again(fetcher: Fetcher, cursor: Cursor, refusal: TidemarkError) -> None:
    cursor.refusal, cursor.retry_s = refusal, 0.0
    fetcher.look_again()
