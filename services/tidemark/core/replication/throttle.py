# SPDX-License-Identifier: Apache-2.0
"""Limits the replication traffic to replicas that a reassignment adds (rule M2): one token bucket for each limit.

Only reads for such replicas take tokens, and wait while the bucket is empty. No task sleeps: waiting reads continue
with each tick, and whenever a read returns tokens that it did not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ThrottledSender(Protocol):
    """The interface of `PartitionSender` towards its throttle."""

    def send_more(self) -> None:
        """Start the next read, which calls `Throttle.reserve`."""


class Throttle:
    """One limit, shared by all partitions whose reassignments name it.

    Invariants: over any t seconds at most (t + 1) * `bytes_per_s` are sent, plus the excess of batches that are larger
    than the tokens left. The next read waits until that debt is paid. Waiting senders are served in order.

    Attributes:
        leader_count: leaderships that use the throttle; `Throttles` drops a throttle without any.
        waiting: senders that have something to send and wait for tokens, in the order of their arrival.
        _served: the sender that `serve` calls now; the one sender that may pass those in `waiting`.
        _left_bytes: tokens in the bucket, at most `bytes_per_s`; below 0 is a debt.
        _at_ms: time up to which `_left_bytes` counts the tokens that were added.
    """

    __slots__ = ("_at_ms", "_left_bytes", "_served", "bytes_per_s", "leader_count", "waiting")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        assert bytes_per_s > 0, "a throttle has a limit"
        self.bytes_per_s = bytes_per_s
        self.leader_count = 0
        self.waiting: dict[ThrottledSender, None] = {}
        self._served: ThrottledSender | None = None
        self._left_bytes: float = bytes_per_s
        self._at_ms = now_ms

    def reserve(self, sender: ThrottledSender, max_bytes: int, now_ms: int) -> int:
        """Bytes that the sender may read now; 0: the sender waits. `settle` returns the bytes that the read did not
        use."""
        if (self.waiting and sender is not self._served) or not self._open(now_ms):
            self.waiting[sender] = None
            return 0
        granted = min(max_bytes, max(1, int(self._left_bytes)))
        self._left_bytes -= granted
        return granted

    def settle(self, reserved_bytes: int, sent_bytes: int) -> None:
        """Replace the reservation of a read that is done, or was dropped, by the bytes sent."""
        self._left_bytes = min(self._left_bytes + reserved_bytes - sent_bytes, self.bytes_per_s)

    def serve(self, now_ms: int) -> None:
        """Continue the waiting senders, the longest-waiting first, until the bucket is empty."""
        while self.waiting and self._open(now_ms):
            self._served = sender = next(iter(self.waiting))
            del self.waiting[sender]
            sender.send_more()
        self._served = None

    def _open(self, now_ms: int) -> bool:
        """Whether the bucket holds a tenth of a second's tokens; smaller reads are not worth their cost."""
        if now_ms > self._at_ms:
            brought = (now_ms - self._at_ms) * self.bytes_per_s / 1000
            self._left_bytes = min(self._left_bytes + brought, self.bytes_per_s)
            self._at_ms = now_ms
        return self._left_bytes * 10 >= self.bytes_per_s


class Throttles:
    """The throttles of one broker, by limit.

    Invariant: a throttle exists exactly while a leadership uses it.
    """

    __slots__ = ("_by_limit",)

    def __init__(self) -> None:
        self._by_limit: dict[int, Throttle] = {}

    def __iter__(self) -> Iterator[Throttle]:
        return iter(self._by_limit.values())

    @property
    def lowest_bytes_per_s(self) -> int:
        """The lowest limit in use; 0 without any."""
        return min(self._by_limit, default=0)

    def join(self, bytes_per_s: int, now_ms: int) -> Throttle | None:
        """Return the throttle of this limit to a new user, a leadership; None for no limit (0 or below).

        Each throttle is returned with `leave`.
        """
        if bytes_per_s <= 0:
            return None
        throttle = self._by_limit.get(bytes_per_s)
        if throttle is None:
            throttle = self._by_limit[bytes_per_s] = Throttle(bytes_per_s, now_ms)
        throttle.leader_count += 1
        return throttle

    def leave(self, throttle: Throttle | None) -> None:
        """Note that a leadership no longer uses the throttle."""
        if throttle is not None:
            throttle.leader_count -= 1
            if throttle.leader_count == 0:
                del self._by_limit[throttle.bytes_per_s]
