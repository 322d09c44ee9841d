# SPDX-License-Identifier: Apache-2.0
"""Metrics of the lag of the groups that this broker coordinates, by group and topic.

The high watermarks are fetched from the leaders, and no scrape waits for them: a scrape writes the last result and
starts a new computation. Committed offsets are read first, so no lag is negative (docs/groups.md, step G10).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.broker.groups.partition_ends import Ends
from tidemark.core.groups.group import Group
from tidemark.model import TidemarkError, TopicPartition
from tidemark.runtime.metrics import LABEL_SETS_MAX, LabelLimit
from tidemark.runtime.metrics_text import family, gauge, labels
from tidemark.runtime.slices import InSlices, Pace

_AGE_MIN_S: Final = 5.0
"""Shortest time between two computations, however often metrics are scraped."""
_ASKED_AT_ONCE: Final = 100

_log = logging.getLogger(__name__)

Pair = tuple[str, ...]


class _Lag:
    __slots__ = ("records", "records_max", "unknown")

    def __init__(self) -> None:
        self.records = self.records_max = self.unknown = 0

    def add(self, lag: int | None) -> None:
        if lag is None:
            self.unknown += 1
        else:
            self.records += lag
            self.records_max = max(self.records_max, lag)


class _Result(NamedTuple):
    """The result of a computation; `members` by group."""

    lags: Mapping[Pair, _Lag]
    members: Mapping[Pair, int]
    at_s: float


class GroupLagMetrics:
    """A source of metrics as text; made on the event loop of the groups.

    Args:
        groups: returns the groups of this broker.
        progress: returns each partition that a group reads, with its committed offset; -1: none.
        ask: returns the ends of partitions, or the errors.

    Attributes:
        groups_shown: whether metrics of groups are written (`metrics.groups`).
    """

    def __init__(
        self,
        groups: Callable[[], Iterable[Group]],
        progress: Callable[[Group], Iterable[tuple[TopicPartition, int]]],
        ask: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Ends | TidemarkError]]],
        *,
        now_s: Callable[[], float] = time.monotonic,
        limit: int = LABEL_SETS_MAX,
    ) -> None:
        self.groups_shown = True
        self._groups = groups
        self._progress = progress
        self._ask = ask
        self._now_s = now_s
        self._pairs, self._ids = LabelLimit(limit), LabelLimit(limit)
        self._loop = asyncio.get_running_loop()
        self._result: _Result | None = None
        self._task: asyncio.Task[None] | None = None

    def render(self, names: Collection[str] = ()) -> str:
        """The result of the last computation; starts the next one."""
        if not self.groups_shown:
            return ""
        try:
            self._loop.call_soon_threadsafe(self.want)
        except RuntimeError:  # the event loop has ended
            return ""
        result = self._result
        if result is None:
            return ""
        of = {labels(group=group, topic=topic): lag for (group, topic), lag in result.lags.items()}
        name, doc = (
            "tidemark_group_lag_records",
            "Records from committed offset (none: log start offset) to high watermark",
        )
        unknown = "Partitions that the group reads whose high watermark is unknown"
        return (
            family(name, "gauge", f"{doc}, of all partitions", {label: lag.records for label, lag in of.items()})
            + family(f"{name}_max", "gauge", doc, {label: lag.records_max for label, lag in of.items()})
            + family(
                "tidemark_group_lag_unknown_partitions",
                "gauge",
                unknown,
                {label: lag.unknown for label, lag in of.items()},
            )
            + family(
                "tidemark_group_member_count",
                "gauge",
                "Members of the group",
                {labels(group=group): count for (group,), count in result.members.items()},
            )
            + gauge("tidemark_group_lag_age_seconds", "Age of these lags", max(0.0, self._now_s() - result.at_s))
        )

    def want(self) -> None:
        """Start a computation, unless one is running or has just ended."""
        fresh = self._result is not None and self._now_s() - self._result.at_s < _AGE_MIN_S
        if not fresh and self._task is None:
            self._task = asyncio.create_task(self.compute(), name="group lag")
            self._task.add_done_callback(self._done)

    async def stop(self) -> None:
        """Stop computing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def compute(self) -> None:
        """Read committed offsets, then the ends of their partitions."""
        pace, committed, members = Pace(), list[tuple[str, TopicPartition, int]](), dict[str, int]()
        for group in tuple(self._groups()):
            members[group.group_id] = len(group.members)
            for partition, offset in self._progress(group):
                committed.append((group.group_id, partition, offset))
                if pace.is_due:
                    await pace.give_way()
        at_s = self._now_s()
        ends = await self._ends({partition for _, partition, _ in committed})
        pairs, lags = {(group_id, partition.topic) for group_id, partition, _ in committed}, dict[Pair, _Lag]()
        _forget_all_but(pairs, self._pairs, self._result.lags if self._result is not None else ())
        async for group_id, partition, offset in InSlices(committed, pace):
            label = self._pairs.admit(group_id, partition.topic)
            lags.setdefault(label, _Lag()).add(_lag(offset, ends.get(partition)))
        _forget_all_but(
            {(one,) for one in members}, self._ids, self._result.members if self._result is not None else ()
        )
        counts: dict[Pair, int] = {}
        for group_id, count in members.items():
            shown = self._ids.admit(group_id)
            counts[shown] = counts.get(shown, 0) + count
        self._result = _Result(lags, counts, at_s)

    async def _ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Ends | TidemarkError]:
        found: dict[TopicPartition, Ends | TidemarkError] = {}
        wanted = sorted(partitions)
        for start in range(0, len(wanted), _ASKED_AT_ONCE):
            found.update(await self._ask(wanted[start : start + _ASKED_AT_ONCE]))
        return found

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("cannot compute the lag of groups", exc_info=task.exception())


def _lag(offset: int, ends: Ends | TidemarkError | None) -> int | None:
    """The lag as in `tidemark group describe`; None: unknown."""
    if not isinstance(ends, Ends):
        return None
    return max(0, ends.high_watermark - max(offset, ends.log_start_offset))


def _forget_all_but(there: Collection[Pair], limit: LabelLimit, before: Iterable[Pair]) -> None:
    for gone in [pair for pair in before if pair not in there]:
        limit.forget(*gone)
