# SPDX-License-Identifier: Apache-2.0
"""The groups of one partition of `__consumer_offsets`, while this broker leads the partition in one epoch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tidemark.broker.coordination.shard import Shard
from tidemark.broker.coordination.state_log import InTransaction, RecordFormat, Records, StateLog
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome, Swept
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.offsets import Commit, Refusals
from tidemark.core.groups.records import decode, encode
from tidemark.core.groups.state import Change, Committed, OffsetKey

GROUP_RECORDS: Final = RecordFormat(encode, decode, "groups")

_SLICE: Final = 500
_HANGS_S: Final = 0.5

_log = logging.getLogger(__name__)


class GroupShard(Shard[GroupCoordinator, Change, Situation]):
    """A `Shard` whose state is the group coordinator of one partition.

    The event of a group is set at the next change of its members or assignments.
    """

    noun = GROUP_RECORDS.noun

    def __init__(
        self,
        log: StateLog[Change],
        situation: Callable[[], Situation],
        write_timeout_s: float,
        metrics: GroupMetrics,
    ) -> None:
        self._metrics = metrics
        self._markers: list[tuple[int, int, bool]] = []
        """Markers that arrived while the state was being loaded."""
        super().__init__(log, _replay, situation, write_timeout_s, metrics)

    def sweep(self) -> None:
        """Evict members whose session timed out; called periodically.

        Sessions are not checked during a hanging write: heartbeats wait for that write, so members cannot prove that
        they live.
        """
        if self.is_changeable and not self.hangs_for(_HANGS_S):
            self._swept(lambda coordinator, now: coordinator.remove_overdue(now), "timed_out")

    def refresh_topics(self) -> None:
        """Pass topics that were created, deleted or extended to the coordinator."""
        if self.is_changeable:
            self._swept(lambda coordinator, now: coordinator.refresh_topics(now), "topics")

    async def expire(self, wall_ms: int) -> None:
        """Delete expired offsets and groups, some groups at a time, since there may be very many.

        Args:
            wall_ms: milliseconds since 1970 that have passed even if the wall clock has jumped ahead.
        """
        coordinator = self._state
        group_ids = [] if coordinator is None else [group.group_id for group in coordinator.groups]
        for first in range(0, len(group_ids), _SLICE):
            await asyncio.sleep(0)
            if coordinator is not self._state or not self.is_changeable:
                return
            some = group_ids[first : first + _SLICE]
            self._swept(partial(_expire, group_ids=some, wall_ms=wall_ms), "expired")

    async def commit_in_transaction(self, asked: Commit, transaction: InTransaction) -> Refusals:
        """Commit offsets that take effect after the transaction's commit marker; returns the refused offsets."""
        pending = await self.change_in_transaction(
            lambda coordinator, now: coordinator.commit_in_transaction(asked, transaction.writer, now),
            lambda coordinator, commit: coordinator.take_back(commit),
            transaction,
        )
        return pending.refused

    def on_marker(self, producer_id: int, marker_epoch: int, *, commit: bool) -> None:
        """A marker in this partition is committed; repeated calls change nothing."""
        if self._state is None:
            # the state may contain the log only up to this marker
            self._markers.append((producer_id, marker_epoch, commit))
            return
        applied = self._state.end_transaction(producer_id, marker_epoch, commit=commit)
        if applied:
            self._changed(applied)

    def touch(self, group_id: str, member_id: str) -> None:
        """Renew a member's session, even if its request fails."""
        if self._state is not None:
            self._state.touch(group_id, member_id, self._situation().now_ms)

    def _swept(self, sweep: Callable[[GroupCoordinator, Situation], Outcome[Swept]], why: str) -> None:
        swept = self.change_unasked(sweep)
        for group_id, member_id in () if swept is None else swept.removed:
            _log.info("a member was evicted from its group", extra={"group": group_id, "member": member_id, "why": why})
            self._metrics.removed_members.inc()

    def _changed(self, changes: Sequence[Change]) -> None:
        self._metrics.note(changes)
        for group_id in dict.fromkeys(one.key.group_id for one in changes if not isinstance(one.key, OffsetKey)):
            self._wake(group_id)

    def _loaded(self) -> None:
        markers, self._markers = self._markers, []
        for producer_id, marker_epoch, commit in markers:
            self.on_marker(producer_id, marker_epoch, commit=commit)
        self.refresh_topics()


def _replay(changes: Records[Change], now: Situation) -> GroupCoordinator:
    pending = ((writer, map(_offset_of, some)) for writer, some in changes.pending)
    return GroupCoordinator.replay(changes, now.now_ms, pending)


def _offset_of(change: Change) -> tuple[OffsetKey, Committed]:
    assert isinstance(change.key, OffsetKey), "transactions write offsets only"
    assert isinstance(change.value, Committed), "transactions delete no offsets"
    return change.key, change.value


def _expire(coordinator: GroupCoordinator, now: Situation, *, group_ids: Sequence[str], wall_ms: int) -> Outcome[Swept]:
    return coordinator.expire(now._replace(wall_ms=wall_ms), group_ids)
