# SPDX-License-Identifier: Apache-2.0
"""The shards of one internal topic on this broker: it coordinates exactly the keys of the partitions that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.lookup import Coordinator, CoordinatorLookup
from tidemark.broker.coordination.shard import Shard
from tidemark.broker.coordination.state_log import StateLogs
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView
from tidemark.core.replication.effects import LeadershipChanged
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition

_SUSPENDED_MS: Final = 1000

_Shard = TypeVar("_Shard", bound=Shard[Any, Any, Any])
_T = TypeVar("_T")


class Coordinators(Generic[_Shard]):
    """The shards, and their periodic tasks.

    Args:
        noun: the word for a key in errors, such as "group".
        check: raises an error for a text that is not a key.
        make: a shard for a partition that this broker leads in an epoch.
        fail: called with an unexpected error of a task.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: StateLogs,
        metadata: MetadataCache,
        topic: InternalTopic,
        noun: str,
        check: Callable[[str], None],
        make: Callable[[TopicPartition, LeaderEpoch], _Shard],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.broker_id = broker_id
        self.metadata = metadata
        self._logs = logs
        self._topic = topic
        self._check = check
        self._make = make
        self._fail = fail
        self._lookup = CoordinatorLookup(broker_id, metadata, topic, noun, self._coordinates)
        self._shards: dict[int, _Shard] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task that ends with `stop`."""
        self._tasks.append(asyncio.create_task(self._guarded(work), name=name))

    def stop(self) -> None:
        """Stop coordinating; waiting requests are refused with NOT_COORDINATOR."""
        for task in self._tasks:
            task.cancel()
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def on_leadership(self, effect: LeadershipChanged) -> None:
        """Load or close the shard of a partition whose leadership changed."""
        if effect.partition.topic != self._topic.name:
            return
        index = effect.partition.partition
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()
        view = self._logs.queries.replica(effect.partition) if effect.leading else None
        if view is not None:
            self._shards[index] = self._make(effect.partition, view.leader_epoch)

    async def read_each(self, read: Callable[[_Shard], Awaitable[Iterable[_T]]]) -> tuple[list[_T], list[int]]:
        """The answers of all shards, and the partitions whose keys are not among the answers now."""
        found: list[_T] = []
        missing = set(self.missing())
        for shard in tuple(self._shards.values()):
            try:
                found += await read(shard)
            except TidemarkError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    missing.add(shard.log.partition.partition)
        return found, sorted(missing)

    def shard_of(self, key: str) -> _Shard:
        """The shard of a key that this broker coordinates.

        Raises:
            TidemarkError: for an invalid key; NOT_COORDINATOR with {"coordinator", "host", "port", "partition"} when
                they are known; COORDINATOR_NOT_AVAILABLE.
        """
        self._check(key)
        shard = self._shards.get(self._lookup.index_of(key))
        if shard is None:
            raise self._lookup.elsewhere(key)
        return shard

    async def find(self, key: str) -> Coordinator:
        """The coordinator of a key; creates the topic first if there is none.

        Raises:
            TidemarkError: for a text that is not a key; COORDINATOR_NOT_AVAILABLE.
        """
        self._check(key)
        return await self._lookup.find(key)

    def located(self, key: str) -> Coordinator:
        """Like `find`, without waiting and without creating the topic."""
        self._check(key)
        return self._lookup.located(key)

    def missing(self) -> list[int]:
        """The partitions that no broker coordinates now, as far as this broker knows."""
        return self._lookup.missing()

    async def wait_for(self, holds: Callable[[ClusterView], bool], timeout_s: float) -> bool:
        """Wait until the condition holds for this broker's metadata; False after the timeout."""
        return await self._lookup.wait_for(holds, timeout_s)

    def _coordinates(self, index: int) -> bool:
        shard = self._shards.get(index)
        if shard is None:
            return False
        try:
            shard.log.check()
        except TidemarkError:
            return False
        return True

    async def _sweep_each(self, interval_ms: int) -> None:
        """Check the timeouts of the shards periodically, and extend timeouts by the time for which this process was
        suspended.
        """
        clock = self._logs.clock
        due_ms = clock.now_ms()
        while True:
            due_ms += interval_ms
            await asyncio.sleep(interval_ms / 1000)
            late_ms = clock.now_ms() - due_ms
            due_ms = clock.now_ms()
            for shard in tuple(self._shards.values()):
                if late_ms > _SUSPENDED_MS:  # a suspended laptop or SIGSTOP: requests of clients could not arrive
                    shard.excuse(late_ms)
                shard.sweep()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - passed to `fail`
            self._fail(error)
