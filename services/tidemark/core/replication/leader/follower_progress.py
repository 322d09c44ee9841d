# SPDX-License-Identifier: Apache-2.0
"""A leader's record of one follower: its offsets, and the last time it was caught up (rules R1, R7)."""

from __future__ import annotations

from collections.abc import Collection

from tidemark.core.isr_change_reasons import DISCONNECTED, FLUSH_HANGS, LAGGING, REASSIGNED, SILENT
from tidemark.core.replication.context import LONG_AGO_MS
from tidemark.core.replication.leader.follower_session import PartitionSender
from tidemark.model import BrokerId, Offset


class FollowerProgress:
    """The progress of one follower in one leadership (rule R1).

    Attributes:
        acknowledged: the follower has fetched in this leader epoch. Invariant: never becomes False again; before,
            `log_end_offset` and `flushed_offset` are -1.
        log_end_offset: log end offset reported last, exclusive. Invariant: at most the leader's log end.
        flushed_offset: flushed offset reported last, exclusive; meaningful only where flushes count.
        caught_up_ms: the last time the follower was caught up, as far as noted; see `last_caught_up_ms`. Never falls.
        end_then, end_then_ms: the leader's log end at the time of the follower's previous report, and that time.
        far_since_ms: time since which the follower has been more than `replica.lag.max.bytes` behind, None while it
            is not. Kept by `AppendBacklog`.
        flush_due_since_ms: time since which the follower has had unflushed records and reported no flush, None if there
            are no unflushed records.
        sender: the sender of this partition on the follower's stream, None while the stream does not carry it.
    """

    __slots__ = (
        "acknowledged",
        "broker_id",
        "caught_up_ms",
        "end_then",
        "end_then_ms",
        "far_since_ms",
        "flush_due_since_ms",
        "flushed_offset",
        "log_end_offset",
        "sender",
    )

    def __init__(self, broker_id: BrokerId, caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.acknowledged = False
        self.log_end_offset = Offset(-1)
        self.flushed_offset = Offset(-1)
        self.far_since_ms: int | None = None
        self.flush_due_since_ms: int | None = None
        self.caught_up_ms = caught_up_ms
        self.end_then = Offset(1 << 62)
        self.end_then_ms = LONG_AGO_MS
        self.sender: PartitionSender | None = None

    @property
    def is_read_for(self) -> bool:
        """Whether a read of records for the follower is in flight."""
        return self.sender is not None and self.sender.reading_since_ms is not None

    def last_caught_up_ms(self, leader_end: Offset) -> int:
        """The last time the follower was caught up (rule R7); an idle follower is caught up at each message (rule
        R6).
        """
        if self.sender is not None and self.log_end_offset >= leader_end:
            return max(self.caught_up_ms, self.sender.session.last_message_ms)
        return self.caught_up_ms

    def leave_reason(
        self, assigned: Collection[BrokerId], leader_end: Offset, now_ms: int, replica_lag_time_max_ms: int
    ) -> str:
        """The reason for an ISR shrink without this follower: one of `OF_LEAVING`."""
        if self.broker_id not in assigned:
            return REASSIGNED
        if self.sender is None:
            return DISCONNECTED
        if now_ms - self.sender.session.last_message_ms > replica_lag_time_max_ms:
            return SILENT
        if self.far_since_ms is not None or now_ms - self.last_caught_up_ms(leader_end) > replica_lag_time_max_ms:
            return LAGGING
        return FLUSH_HANGS

    def late_ms(self, leader_end: Offset, now_ms: int) -> int:
        """Time since the follower was caught up; at most the present clock time if the follower never was."""
        return min(now_ms - self.last_caught_up_ms(leader_end), now_ms)

    def confirmed_since(self, since_ms: int) -> bool:
        """Whether the follower was in this leader epoch after `since_ms`, by this broker's clock (rule F2)."""
        return self.acknowledged and self.sender is not None and self.sender.session.confirmed_ms > since_ms

    def flushed(self, flushed_offset: Offset, log_end_offset: Offset, now_ms: int) -> None:
        """Note the flushed offset of a report or fetch; call before `reported` (rule R3)."""
        if flushed_offset >= log_end_offset:
            self.flush_due_since_ms = None
        elif flushed_offset != self.flushed_offset or self.flush_due_since_ms is None:
            self.flush_due_since_ms = now_ms
        self.flushed_offset = flushed_offset

    def reported(self, log_end_offset: Offset, leader_end: Offset, now_ms: int) -> None:
        """Note the log end of a report that arrived now."""
        self.log_end_offset = log_end_offset
        if log_end_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif log_end_offset >= self.end_then and self.end_then_ms > self.caught_up_ms:
            self.caught_up_ms = self.end_then_ms
        self.end_then = leader_end
        self.end_then_ms = now_ms

    def leader_end_moves(self, leader_end: Offset) -> None:
        """The leader's log end is about to pass `leader_end`: note that an idle follower was caught up until now."""
        if self.sender is not None and self.log_end_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.sender.session.last_message_ms)
            self.end_then = leader_end
            self.end_then_ms = self.caught_up_ms
