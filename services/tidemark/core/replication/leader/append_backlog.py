# SPDX-License-Identifier: Apache-2.0
"""What a leader's producers append: how much a second, and who is too many bytes behind it (rules M2, R7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.leader.byte_rate import ByteRate
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.model import Offset
from tidemark.record.envelope import Batch


class AppendBacklog:
    """Of one leadership, from its first append on.

    Invariant: `_under_way` has (bytes, where the log will end) of the appends that are not in the log yet. `_ends` has
    (bytes appended until then, log end) of those that end within the last `replica.lag.max.bytes`, so who has not
    reached the first of them is further behind; empty while that is off.
    """

    __slots__ = ("_ctx", "_ends", "_limit_bytes", "_rate", "_total_bytes", "_under_way")

    def __init__(self, ctx: BrokerContext) -> None:
        self._ctx = ctx
        self._rate = ByteRate(ctx.now_ms)
        self._under_way: deque[tuple[int, Offset]] = deque()
        self._ends: deque[tuple[int, Offset]] = deque()
        self._limit_bytes = 0
        self._total_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        """As of now."""
        return self._rate.per_s(self._ctx.now_ms)

    def add(self, batches: Iterable[Batch], next_offset: Offset) -> None:
        """They are being appended; the log will end there (exclusive)."""
        size_bytes = sum(batch.envelope.batch_length for batch in batches)
        self._rate.add(size_bytes, self._ctx.now_ms)
        if self._is_limited():
            self._under_way.append((size_bytes, next_offset))

    def appended(self, log_end_offset: Offset) -> None:
        """The log ends there now; no follower can have had the last of it before."""
        while self._under_way and self._under_way[0][1] <= log_end_offset:
            size_bytes, end_offset = self._under_way.popleft()
            self._total_bytes += size_bytes
            self._ends.append((self._total_bytes, end_offset))
        while self._ends and self._ends[0][0] < self._total_bytes - self._limit_bytes:
            self._ends.popleft()

    def drop_under_way(self) -> None:
        """There was no space for it."""
        self._under_way.clear()

    def holds_up(self, progress: FollowerProgress) -> bool:
        """Whether it has been too far behind for half of the time that a follower may lag, without a break.

        To be asked at each report of it, and beside them as often as time is looked at.
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
        """With another limit everything begins anew: of what was appended before nothing is known."""
        limit_bytes = self._ctx.config.replica_lag_max_bytes
        if limit_bytes != self._limit_bytes:
            self._limit_bytes, self._total_bytes = limit_bytes, 0
            self._ends.clear()
            self._under_way.clear()
        return limit_bytes > 0
