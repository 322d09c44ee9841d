# SPDX-License-Identifier: Apache-2.0
"""When a restarted broker is ready: registered, and its replicas back in their ISRs in this broker epoch (rule R8).

What counts is what lies on the disks, and what the controller says is to lie there: a disk may have been replaced. A
rolling restart waits for it between brokers, so it must come as soon as it is true, and may not wait for what nobody is
going to bring about: a whole cluster that starts at once would wait for itself. What does not count is therefore
  - a replica that is no longer this broker's, or that a move is only adding (KIP-352);
  - a replica whose log has failed: it lies in a directory that is offline;
  - a partition that nobody leads, once the controller had `LEADERLESS_GRACE_S` to find it a leader.
A leader that is away is no exception: the controller finds another one, or none. A broker that is ready stays so,
whatever its followers do, until its session expires.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.own_epoch import UNREGISTERED
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import MetadataStore

LEADERLESS_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.25
_SAY_S: Final = 10.0
_NAMED_MAX: Final = 3

_log = logging.getLogger(__name__)


class Standing(Enum):
    """What a replica that lay here at the registration has come to."""

    GONE = "not this broker's any more, or not to be waited for"
    BEHIND = "not in the ISR"
    LEADERLESS = "nobody leads it"
    TOLD_IN_SYNC = "in the ISR, as the controller tells"


class Readiness:
    """Says whether this broker is ready.

    Args:
        replicas: what lies on the disks.
        replica: how the core sees one.
        show: tells whoever watches the health.
        fail: ends the broker; called for our own mistakes alone.
        now_s: a monotonic clock.
        pause: lets a little time pass before everything is looked at again.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: MetadataStore,
        metadata: MetadataCache,
        replicas: Callable[[], Mapping[TopicPartition, ReplicaIdentity]],
        replica: Callable[[TopicPartition], ReplicaView | None],
        show: Callable[[bool], Awaitable[None]],
        fail: Callable[[BaseException], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(_LOOK_S),
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._metadata = metadata
        self._replicas = replicas
        self._replica = replica
        self._show = show
        self._fail = fail
        self._now_s = now_s
        self._pause = pause
        self._epoch = UNREGISTERED
        self._leaderless_since_s: dict[TopicPartition, float] = {}
        self._news = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def on_epoch(self, epoch: BrokerEpoch) -> None:
        """Registered in this epoch; -1: the session has expired."""
        self._epoch = epoch
        self._news.set()

    def start(self) -> None:
        """Look from now on."""
        self._keeper = asyncio.create_task(self._keep(), name="readiness")
        self._keeper.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """Not ready; again is fine."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await self._show(False)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _keep(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._show(False)
            if self._epoch != UNREGISTERED and await self._wait_until_back(self._epoch):
                await self._show(True)

    async def _wait_until_back(self, epoch: BrokerEpoch) -> bool:
        """Whether they are; not when the session has expired meanwhile."""
        began_s = said_s = self._now_s()
        waiting = dict(self._replicas())
        told = False
        self._leaderless_since_s.clear()
        while waiting or not told:
            heard = self._is_heard(epoch)
            if heard and not told:
                waiting, told = self._assigned() | waiting, True
            if heard:
                waiting = await self._still_behind(waiting, epoch)
            elif not waiting and self._now_s() - began_s >= LEADERLESS_GRACE_S:
                told = True  # there may be no controller, and nothing to tell
            if self._epoch != epoch:
                return False
            if waiting or not told:
                if self._now_s() - said_s >= _SAY_S:
                    said_s = self._now_s()
                    _log.info("not ready yet", extra=_why(waiting, heard=heard))
                await self._pause()
                if self._epoch != epoch:
                    return False
        waited_ms = round((self._now_s() - began_s) * 1000)
        _log.info("ready: the replicas are back in their ISRs", extra={"waited_ms": waited_ms, "broker_epoch": epoch})
        return True

    def _assigned(self) -> dict[TopicPartition, ReplicaIdentity]:
        """What this broker is to hold: on a disk that was replaced nothing of it lies."""
        return {
            TopicPartition(name, number): ReplicaIdentity(topic.topic_id, told.incarnation)
            for name, topic in self._metadata.view.topics.items()
            for number, told in topic.partitions.items()
            if self._broker_id in told.assigned_replicas
        }

    def _is_heard(self, epoch: BrokerEpoch) -> bool:
        """Whether a controller has told everything since this registration: it knows of it."""
        view = self._metadata.view
        me = view.brokers.get(self._broker_id)
        return view.complete and me is not None and me.broker_epoch == epoch

    async def _still_behind(
        self, waiting: Mapping[TopicPartition, ReplicaIdentity], epoch: BrokerEpoch
    ) -> dict[TopicPartition, ReplicaIdentity]:
        found: dict[Standing, list[TopicPartition]] = {standing: [] for standing in Standing}
        for partition, identity in waiting.items():
            found[self._standing(partition, identity)].append(partition)
        told = found[Standing.TOLD_IN_SYNC]
        behind = {*found[Standing.BEHIND], *self._lately_leaderless(found[Standing.LEADERLESS])}
        behind |= set(told) - await self._confirmed(told, epoch)
        return {partition: identity for partition, identity in waiting.items() if partition in behind}

    def _lately_leaderless(self, leaderless: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those for which the controller may yet find a leader."""
        before, now_s = self._leaderless_since_s, self._now_s()
        self._leaderless_since_s = since_s = {partition: before.get(partition, now_s) for partition in leaderless}
        return [partition for partition, began_s in since_s.items() if now_s - began_s < LEADERLESS_GRACE_S]

    def _standing(self, partition: TopicPartition, identity: ReplicaIdentity) -> Standing:
        topic = self._metadata.view.topics.get(partition.topic)
        told = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or told is None or self._broker_id not in told.assigned_replicas:
            return Standing.GONE
        if identity != ReplicaIdentity(topic.topic_id, told.incarnation):
            return Standing.GONE
        replica = self._replica(partition)
        if replica is not None and (replica.adding or replica.role == "offline"):
            return Standing.GONE
        if told.leader == NO_LEADER:
            return Standing.LEADERLESS
        if replica is None or replica.role not in ("leader", "follower"):
            return Standing.BEHIND  # its log is being recovered, or it has not been told its role
        return Standing.TOLD_IN_SYNC if self._broker_id in told.in_sync_replicas else Standing.BEHIND

    async def _confirmed(self, partitions: list[TopicPartition], epoch: BrokerEpoch) -> set[TopicPartition]:
        """Those whose nodes name this registration: what is told may be of the one before the restart."""
        if not partitions:
            return set()
        try:
            states = await self._store.states(partitions)
        except TidemarkError as error:
            _log.info("not ready yet: ZooKeeper does not answer", extra={"why": error.message})
            return set()
        me = IsrEntry(self._broker_id, epoch)
        return {partition for partition, versioned in states.items() if me in versioned.state.isr}


def _why(waiting: Iterable[TopicPartition], *, heard: bool) -> dict[str, object]:
    if not heard:
        return {"why": "no controller has spoken to this broker yet"}
    partitions = sorted(waiting)
    named = ", ".join(str(partition) for partition in partitions[:_NAMED_MAX])
    more = ", ..." if len(partitions) > _NAMED_MAX else ""
    return {"why": "replicas are not in their ISRs", "partition_count": len(partitions), "partitions": named + more}
