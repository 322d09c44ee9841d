# SPDX-License-Identifier: Apache-2.0
"""The send time of a leader's last message, by this broker's clock (rules K1, F2).

The arrival of a message does not prove when the leader sent it: the message may have waited while this process was
stopped. Each message carries the leader's clock. The fastest message bounds the difference between the two clocks.
"""

from __future__ import annotations

from typing import Final

_DRIFT: Final = 1 / 1000
"""Bound on the drift between the two clocks: the smallest clock difference grows by this share of the time passed."""


class LeaderContact:
    """Contact with one leader on one stream.

    Attributes:
        sent_ms: upper bound of the send time of the latest message, by this broker's clock; above it by at most the
            delay of the fastest message. None before the first message.
        _clock_difference_ms: this broker's clock less the leader's, too large by at most the delay of the fastest
            message. Invariant: falls with a faster message, and otherwise grows only by `_DRIFT`.
        _heard_ms: arrival time of the latest message.
    """

    __slots__ = ("_clock_difference_ms", "_heard_ms", "sent_ms")

    def __init__(self) -> None:
        self.sent_ms: float | None = None
        self._clock_difference_ms = 0.0
        self._heard_ms = 0

    def on_message(self, sent_clock_ms: int, now_ms: int) -> None:
        """Note the leader's clock, `sent_clock_ms`, of a message that arrived now."""
        difference_ms: float = now_ms - sent_clock_ms
        if self.sent_ms is not None:
            drifted_ms = self._clock_difference_ms + (now_ms - self._heard_ms) * _DRIFT
            difference_ms = min(difference_ms, drifted_ms)
        self._clock_difference_ms = difference_ms
        self._heard_ms = now_ms
        self.sent_ms = sent_clock_ms + self._clock_difference_ms

    def within(self, silence_ms: int, now_ms: int) -> bool:
        """Whether the leader sent the latest message at most `silence_ms` ago."""
        return self.sent_ms is not None and now_ms - self.sent_ms <= silence_ms
