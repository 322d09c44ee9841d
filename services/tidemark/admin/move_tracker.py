# SPDX-License-Identifier: Apache-2.0
"""Copy rates of reassignments, and the time since the last progress, from successive samples."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

from tidemark.core.reassignment.copy_rates import CopyRates
from tidemark.core.reassignment.progress import ReassignmentPhase, ReassignmentProgress, with_rate
from tidemark.model import BrokerId, TopicPartition


class MoveTracker:
    """Keeps the last sample of each reassignment.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._rates = CopyRates()

    def look(
        self, moves: Sequence[ReassignmentProgress], leaders: Mapping[TopicPartition, BrokerId]
    ) -> list[ReassignmentProgress]:
        """Sample all reassignments and return them with their rates; samples of ended reassignments are discarded."""
        self._rates.look({_key(moved): moved.bytes_done for moved in moves}, self._now_s())
        used: defaultdict[tuple[BrokerId | None, int], float] = defaultdict(float)
        for moved in moves:
            used[leaders.get(moved.partition), moved.throttle_bytes_per_s] += self._rate(moved) or 0.0
        seen = []
        for moved in moves:
            throttle = moved.throttle_bytes_per_s
            share = used[leaders.get(moved.partition), throttle] / throttle if throttle > 0 else 0.0
            silent_s = self._rates.silent_s(_key(moved))
            seen.append(with_rate(moved, self._rate(moved), silent_s, throttle_used=share))
        return seen

    def _rate(self, moved: ReassignmentProgress) -> float | None:
        return self._rates.rate_bytes_per_s(_key(moved)) if moved.phase is ReassignmentPhase.COPYING else None


def _key(moved: ReassignmentProgress) -> Hashable:
    """A reassignment that enters another phase, or gets another target, begins again."""
    return moved.partition, moved.phase, moved.target
