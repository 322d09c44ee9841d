# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures: rates, and latencies in a histogram that workers fill and their parent adds up. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_GROWTH: Final = 1.01
"""Each bin is so much wider than the one before: a percentile is off by a percent at most."""
_LOG_GROWTH: Final = math.log(_GROWTH)
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


@dataclass(slots=True)
class Histogram:
    """Latencies in microseconds, by bins that grow with them."""

    bins: Counter[int] = field(default_factory=Counter)
    count: int = 0
    total_us: float = 0.0
    max_us: float = 0.0

    def add(self, latency_us: float, count: int = 1) -> None:
        """So many records took so long; a clock that went back counts as nothing."""
        latency_us = max(latency_us, 1.0)
        self.bins[int(math.log(latency_us) / _LOG_GROWTH)] += count
        self.count += count
        self.total_us += latency_us * count
        self.max_us = max(self.max_us, latency_us)

    def merge(self, other: Histogram) -> None:
        """Take over what another worker measured."""
        self.bins.update(other.bins)
        self.count += other.count
        self.total_us += other.total_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, percent: float) -> float:
        """What that share of all records took at most; 0 where there are none."""
        left = math.ceil(self.count * percent / 100)
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left <= 0:
                return min(_GROWTH ** (number + 1), self.max_us)
        return self.max_us

    def summary_ms(self) -> Mapping[str, float]:
        """Mean, percentiles and maximum in milliseconds."""
        mean = self.total_us / self.count if self.count else 0.0
        found = {"mean": mean, **{f"p{percent:g}": self.percentile_us(percent) for percent in PERCENTILES}}
        return {name: round(value / 1000, 3) for name, value in {**found, "max": self.max_us}.items()}


@dataclass(slots=True)
class Measured:
    """What one worker, or all of a kind together, did in the measured time.

    Attributes:
        records, size_bytes: acknowledged, or read.
        whole: records from the start of the warm-up to the very end.
        seconds: of the measured time; of several workers the longest.
        failed: records that were refused or not acknowledged in time.
        first_error: why, of the first of them.
        latencies: of records whose time fell into the measured time.
    """

    records: int = 0
    size_bytes: int = 0
    whole: int = 0
    seconds: float = 0.0
    failed: int = 0
    first_error: str = ""
    latencies: Histogram = field(default_factory=Histogram)

    def merge(self, other: Measured) -> None:
        """Take over what another worker did."""
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.whole += other.whole
        self.seconds = max(self.seconds, other.seconds)
        self.failed += other.failed
        self.first_error = self.first_error or other.first_error
        self.latencies.merge(other.latencies)

    @property
    def records_per_s(self) -> float:
        """Of all workers together."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Of all workers together; keys and values."""
        return self.size_bytes / self.seconds if self.seconds else 0.0


def together(parts: Iterable[Measured]) -> Measured:
    """All of a kind."""
    whole = Measured()
    for part in parts:
        whole.merge(part)
    return whole


def share(total: int, workers: int, number: int) -> int:
    """What worker `number` (from 0) does of `total` things that are dealt out evenly."""
    return total // workers + (number < total % workers)
