# SPDX-License-Identifier: Apache-2.0
"""The appends of one leadership: their byte rate, and which followers are too many bytes behind (rules M2, R7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.leader.byte_rate import ByteRate
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.model import Offset
from tidemark.record.envelope import Batch


class AppendBacklog:
    """The appends of one leadership, from its first append on.

    `replica.lag.max.bytes` is the limit of this class; 0 switches the limit off.

    Attributes:
        _rate: rate of the appended bytes.
        _in_flight: (bytes, log end after the append) of the appends that are not in the log yet; empty if there is no
            limit.
        _ends: (bytes appended so far, log end) of the appends within the last `_limit_bytes`. Invariant: a follower
            below the first of these log ends is further behind than the limit; empty without a limit.
        _limit_bytes: the limit that `_ends`, `_in_flight` and `_total_bytes` follow.
        _total_bytes: bytes appended since the limit was set; never falls under one limit.
    """

    __slots__ = ("_ctx", "_ends", "_in_flight", "_limit_bytes", "_rate", "_total_bytes")

    def __init__(self, ctx: BrokerContext) -> None:
        self._ctx = ctx
        self._rate = ByteRate(ctx.now_ms)
        self._in_flight: deque[tuple[int, Offset]] = deque()
        self._ends: deque[tuple[int, Offset]] = deque()
        self._limit_bytes = 0
        self._total_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        """Bytes appended per second, as of now."""
        return self._rate.per_s(self._ctx.now_ms)

    def add(self, batches: Iterable[Batch], next_offset: Offset) -> None:
        """Count batches that are being appended; the log will end at `next_offset` (exclusive)."""
        size_bytes = sum(batch.envelope.batch_length for batch in batches)
        self._rate.add(size_bytes, self._ctx.now_ms)
        if self._is_limited():
            self._in_flight.append((size_bytes, next_offset))

    def appended(self, log_end_offset: Offset) -> None:
        """Note the new log end, of records that no follower can have fetched before."""
        while self._in_flight and self._in_flight[0][1] <= log_end_offset:
            size_bytes, end_offset = self._in_flight.popleft()
            self._total_bytes += size_bytes
            self._ends.append((self._total_bytes, end_offset))
        while self._ends and self._ends[0][0] < self._total_bytes - self._limit_bytes:
            self._ends.popleft()

    def drop_in_flight(self) -> None:
        """The appends in flight failed for lack of disk space."""
        self._in_flight.clear()

    def is_too_far_behind(self, progress: FollowerProgress) -> bool:
        """Whether a follower has been behind by more than the limit throughout half of the lag time.

        The leader calls this at each report of the follower, and at each lag check.
        """
        behind = (
            self._is_limited()
            and progress.acknowledged
            and self._total_bytes > self._limit_bytes
            and progress.log_end_offset < self._ends[0][1]
        )
        if not behind:
            progress.far_since_ms = None
        elif progress.far_since_ms is None:
            progress.far_since_ms = self._ctx.now_ms
        since_ms = progress.far_since_ms
        return since_ms is not None and (self._ctx.now_ms - since_ms) * 2 >= self._ctx.config.replica_lag_time_max_ms

    def _is_limited(self) -> bool:
        """Whether there is a limit; a changed limit starts the counts again, as the earlier appends are unknown."""
        limit_bytes = self._ctx.config.replica_lag_max_bytes
        if limit_bytes != self._limit_bytes:
            self._limit_bytes, self._total_bytes = limit_bytes, 0
            self._ends.clear()
            self._in_flight.clear()
        return limit_bytes > 0
