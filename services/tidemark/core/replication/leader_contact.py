# SPDX-License-Identifier: Apache-2.0
"""When a stream's other end said what was heard of it last, by the clock of who listens (rules K1, F2).

That a message arrives proves nothing of when it was sent: it may have waited while this process stood still. Each says
the sender's clock; how far the two clocks lie apart is bounded by the message that was under way for the shortest time.
"""

from __future__ import annotations

from typing import Final

_CREEP: Final = 1 / 1000
"""So much faster than the other clock ours may run: what was least is believed a little less with time."""


class Touch:
    """One stream, from its beginning on.

    Attributes:
        heard_ms: not before the latest message was sent, by our clock, but for the time that the quickest one took;
            None before the first.
    """

    __slots__ = ("_apart_ms", "_at_ms", "heard_ms")

    def __init__(self) -> None:
        self.heard_ms: float | None = None
        self._apart_ms = 0.0
        self._at_ms = 0

    def hear(self, sent_clock_ms: int, now_ms: int) -> None:
        """A message has come, which was sent when the sender's clock said so."""
        apart_ms: float = now_ms - sent_clock_ms
        if self.heard_ms is None:
            self._apart_ms = apart_ms
        else:
            self._apart_ms = min(apart_ms, self._apart_ms + (now_ms - self._at_ms) * _CREEP)
        self._at_ms = now_ms
        self.heard_ms = sent_clock_ms + self._apart_ms

    def within(self, silence_ms: int, now_ms: int) -> bool:
        """Whether something was said in so much time before now."""
        return self.heard_ms is not None and now_ms - self.heard_ms <= silence_ms
