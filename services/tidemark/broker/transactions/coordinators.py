# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinators of this broker: one for each partition of `__transaction_state` that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidemark.broker.coordination.coordinators import Coordinators
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.state_log import StateLog, StateLogs
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.transactions.marker_sender import MarkerSender
from tidemark.broker.transactions.metrics import Figures, TransactionMetrics
from tidemark.broker.transactions.transaction_shard import TRANSACTION_RECORDS, TransactionShard
from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.refusals import check_transactional_id
from tidemark.core.transactions.requests import Situation, TransactionSettings
from tidemark.model import BrokerId, LeaderEpoch, TopicPartition
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.slices import Pace
from tidemark.runtime.wall_bounds import WallBounds

_WRITE_TIMEOUT_S: Final = 5.0
_COUNT_S: Final = 5.0
_ANY_AGE_MS: Final = 1


class TransactionCoordinators(Coordinators[TransactionShard]):
    """The shards of this broker, and their periodic tasks.

    Args:
        broker_id: id of this broker.
        fail: called with an unexpected error.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: StateLogs,
        metadata: MetadataCache,
        topic: InternalTopic,
        metrics: TransactionMetrics,
        sender: MarkerSender,
        fail: Callable[[BaseException], None],
    ) -> None:
        make, check = self._make_shard, check_transactional_id
        super().__init__(broker_id, logs, metadata, topic, "transactional id", check, make, fail)
        self.metrics = metrics
        self._sender = sender
        self._settings = TransactionSettings(
            timeout_ms_max=settings.transaction_max_timeout_ms, expiration_ms=settings.transactional_id_expiration_ms
        )
        self._sweep_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._expire_s = settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000

    def start(self) -> None:
        """Start the periodic tasks."""
        for name, work in (("sweep", self._sweep), ("expire", self._expire), ("count", self._count)):
            self.run(f"transactions: {name}", work)

    def situation(self) -> Situation:
        """Time and settings, as of now."""
        clock = self._logs.clock
        return Situation(clock.now_ms(), clock.wall_us() // 1000, self._settings)

    def _make_shard(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> TransactionShard:
        log = StateLog(self._logs, TRANSACTION_RECORDS, partition, leader_epoch)
        return TransactionShard(log, self.situation, _WRITE_TIMEOUT_S, self.metrics, self._sender.send)

    async def _sweep(self) -> None:
        await self._sweep_each(self._sweep_ms)

    async def _expire(self) -> None:
        wall = WallBounds(self._logs.clock)
        while True:
            await asyncio.sleep(self._expire_s)
            pace = Pace()
            for shard in tuple(self._shards.values()):
                while shard.expire(wall.earliest_us() // 1000):
                    await pace.give_way()

    async def _count(self) -> None:
        while True:
            self.metrics.show(self.figures())
            await asyncio.sleep(_COUNT_S)

    def figures(self) -> Figures:
        """Sums of the figures of all shards."""
        loading = sum(shard.is_loading for shard in self._shards.values())
        states = [shard.state for shard in self._shards.values() if shard.state is not None]
        now = self.situation()
        open_ones = [metadata for state in states for _, metadata in state.summaries(now, (), _ANY_AGE_MS)]
        begun_ms = [one.started_ms for one in open_ones if one.phase is Phase.ONGOING]
        decided_ms = [one.updated_ms for one in open_ones if one.phase is not Phase.ONGOING]
        return Figures(
            ids=sum(map(len, states)),
            ongoing=len(begun_ms),
            completing=len(decided_ms),
            loading=loading,
            oldest_s=max(0, now.wall_ms - min(begun_ms, default=now.wall_ms)) / 1000,
            completing_s=max(0, now.wall_ms - min(decided_ms, default=now.wall_ms)) / 1000,
        )
