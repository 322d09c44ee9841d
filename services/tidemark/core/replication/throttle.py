# SPDX-License-Identifier: Apache-2.0
"""What a leader may send in a second to replicas that are being added (rule M2): a token bucket for each figure.

Only reads for such replicas take from it, and wait in it when it is empty; nothing sleeps: it is looked at with each
tick and whenever a read gives back what it did not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.core.replication.stream_ends import Sending


class Throttle:
    """One figure, for all the partitions whose moves name it.

    Invariants: over any t seconds no more than (t + 1) * `bytes_per_s` is sent, but for what batches are larger than
    what was left (that debt is worked off before the next read); who waits is served in turn.

    Attributes:
        leader_count: of leaderships that go by it; without any it is dropped.
        waiting: partitions on their way to followers that have something to send and must not yet.
    """

    __slots__ = ("_at_ms", "_left_bytes", "_served", "bytes_per_s", "leader_count", "waiting")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        assert bytes_per_s > 0, "no limit is no throttle"
        self.bytes_per_s = bytes_per_s
        self.leader_count = 0
        self.waiting: dict[Sending, None] = {}
        self._served: Sending | None = None
        self._left_bytes: float = bytes_per_s
        self._at_ms = now_ms

    def reserve(self, sending: Sending, max_bytes: int, now_ms: int) -> int:
        """How many bytes may be read for it now; 0: it waits. What is reserved is given back by `settle`."""
        if (self.waiting and sending is not self._served) or not self._open(now_ms):
            self.waiting[sending] = None
            return 0
        granted = min(max_bytes, max(1, int(self._left_bytes)))
        self._left_bytes -= granted
        return granted

    def settle(self, reserved_bytes: int, sent_bytes: int) -> None:
        """A read came back, or was given up."""
        self._left_bytes = min(self._left_bytes + reserved_bytes - sent_bytes, self.bytes_per_s)

    def serve(self, now_ms: int) -> None:
        """Let those go on who waited longest, as far as it goes."""
        while self.waiting and self._open(now_ms):
            self._served = sending = next(iter(self.waiting))
            del self.waiting[sending]
            sending.session.send_more(sending)
        self._served = None

    def _open(self, now_ms: int) -> bool:
        """Whether there is enough for a read that is worth it: what a tenth of a second brings."""
        if now_ms > self._at_ms:
            brought = (now_ms - self._at_ms) * self.bytes_per_s / 1000
            self._left_bytes = min(self._left_bytes + brought, self.bytes_per_s)
            self._at_ms = now_ms
        return self._left_bytes * 10 >= self.bytes_per_s
