# SPDX-License-Identifier: Apache-2.0
"""Results of a benchmark: rates, and latencies in histograms that workers fill and the parent process merges. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_GROWTH: Final = 1.01
"""Width of a bin relative to the bin before; the error of a percentile is at most 1 percent."""
_LOG_GROWTH: Final = math.log(_GROWTH)
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


@dataclass(slots=True)
class Histogram:
    """Latencies in microseconds, in bins whose width grows by a constant factor."""

    bins: Counter[int] = field(default_factory=Counter)
    count: int = 0
    total_us: float = 0.0
    max_us: float = 0.0

    def add(self, latency_us: float, count: int = 1) -> None:
        """Add `count` records of this latency; below 1 us (the clock went back) counts as 1 us."""
        latency_us = max(latency_us, 1.0)
        self.bins[int(math.log(latency_us) / _LOG_GROWTH)] += count
        self.count += count
        self.total_us += latency_us * count
        self.max_us = max(self.max_us, latency_us)

    def merge(self, other: Histogram) -> None:
        """Add the latencies of another worker."""
        self.bins.update(other.bins)
        self.count += other.count
        self.total_us += other.total_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, percent: float) -> float:
        """The latency that `percent` of the records did not exceed; 0 without records."""
        left = math.ceil(self.count * percent / 100)
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left <= 0:
                return min(_GROWTH ** (number + 1), self.max_us)
        return self.max_us

    def summary_ms(self) -> Mapping[str, float]:
        """Mean, percentiles and maximum, in milliseconds."""
        mean = self.total_us / self.count if self.count else 0.0
        found = {"mean": mean, **{f"p{percent:g}": self.percentile_us(percent) for percent in PERCENTILES}}
        return {name: round(value / 1000, 3) for name, value in {**found, "max": self.max_us}.items()}


@dataclass(slots=True)
class Measured:
    """Result of one worker, or of all workers of a kind, in the measured time.

    Attributes:
        records, size_bytes: acknowledged or read in the measured time.
        whole: records from the start of the warm-up to the end of the worker.
        seconds: length of the measured time; of several workers, the longest.
        failed: records that were refused or not acknowledged in time.
        first_error: error of the first failed record.
        latencies: latencies of records that were due in the measured time.
    """

    records: int = 0
    size_bytes: int = 0
    whole: int = 0
    seconds: float = 0.0
    failed: int = 0
    first_error: str = ""
    latencies: Histogram = field(default_factory=Histogram)

    def merge(self, other: Measured) -> None:
        """Add the result of another worker."""
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.whole += other.whole
        self.seconds = max(self.seconds, other.seconds)
        self.failed += other.failed
        self.first_error = self.first_error or other.first_error
        self.latencies.merge(other.latencies)

    @property
    def records_per_s(self) -> float:
        """Records per second of all workers together."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of keys and values per second, of all workers together."""
        return self.size_bytes / self.seconds if self.seconds else 0.0


def together(parts: Iterable[Measured]) -> Measured:
    """Merged result of all workers of a kind."""
    whole = Measured()
    for part in parts:
        whole.merge(part)
    return whole


def share(total: int, workers: int, number: int) -> int:
    """Share of worker `number` (from 0) in `total`, divided evenly."""
    return total // workers + (number < total % workers)
