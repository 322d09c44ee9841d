# SPDX-License-Identifier: Apache-2.0
"""Copy rates of reassignments, and the time since the last progress, from successive samples."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.core.reassignment.progress import ReassignmentPhase, ReassignmentProgress, with_rate
from tidemark.model import BrokerId, TopicPartition

LOOKS_APART_S: Final = 0.5
"""Shortest time between two samples from which a rate is computed."""
_FORGOTTEN_S: Final = 60.0
"""Age at which a sample is discarded."""
_NEW_WEIGHT: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Sample:
    of: tuple[ReassignmentPhase, tuple[BrokerId, ...]]
    at_s: float
    bytes_done: int | None
    grew_at_s: float
    rate_bytes_per_s: float | None = None


class MoveTracker:
    """Keeps the last sample of each reassignment.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._samples: dict[TopicPartition, _Sample] = {}

    def look(
        self, moves: Sequence[ReassignmentProgress], leaders: Mapping[TopicPartition, BrokerId]
    ) -> list[ReassignmentProgress]:
        """Sample all reassignments and return them with their rates; samples of ended reassignments are discarded."""
        now_s = self._now_s()
        there = {moved.partition for moved in moves}
        self._samples = {partition: one for partition, one in self._samples.items() if partition in there}
        for moved in moves:
            self._sample(moved, now_s)
        used: defaultdict[tuple[BrokerId | None, int], float] = defaultdict(float)
        for moved in moves:
            used[leaders.get(moved.partition), moved.throttle_bytes_per_s] += self._rate(moved) or 0.0
        seen = []
        for moved in moves:
            sample, throttle = self._samples.get(moved.partition), moved.throttle_bytes_per_s
            silent_s = 0.0 if sample is None else now_s - sample.grew_at_s
            share = used[leaders.get(moved.partition), throttle] / throttle if throttle > 0 else 0.0
            seen.append(with_rate(moved, self._rate(moved), silent_s, throttle_used=share))
        return seen

    def _rate(self, moved: ReassignmentProgress) -> float | None:
        sample = self._samples.get(moved.partition)
        return None if sample is None or moved.phase is not ReassignmentPhase.COPYING else sample.rate_bytes_per_s

    def _sample(self, moved: ReassignmentProgress, now_s: float) -> None:
        before, of = self._samples.get(moved.partition), (moved.phase, moved.target)
        if before is None or before.of != of or now_s - before.at_s > _FORGOTTEN_S:
            self._samples[moved.partition] = _Sample(of, now_s, moved.bytes_done, now_s)
            return
        if moved.bytes_done is None or before.bytes_done is None:
            self._samples[moved.partition] = replace(before, at_s=now_s, bytes_done=moved.bytes_done)
            return
        elapsed_s = now_s - before.at_s
        if elapsed_s < LOOKS_APART_S:
            return
        grown = max(0, moved.bytes_done - before.bytes_done)
        rate = grown / elapsed_s
        if before.rate_bytes_per_s is not None:
            rate = _NEW_WEIGHT * rate + (1 - _NEW_WEIGHT) * before.rate_bytes_per_s
        grew_at_s = now_s if grown else before.grew_at_s
        self._samples[moved.partition] = _Sample(of, now_s, moved.bytes_done, grew_at_s, rate)
