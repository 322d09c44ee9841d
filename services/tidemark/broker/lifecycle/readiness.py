# SPDX-License-Identifier: Apache-2.0
"""When a restarted broker is ready: registered, and its replicas back in their ISRs in this broker epoch (rule R8).

The counted replicas are on the broker's disks, or assigned to the broker by the controller: a disk may have been
replaced. A rolling restart waits for readiness between brokers. Readiness therefore ignores replicas that cannot rejoin
without an operator. Otherwise brokers that all start at the same time would wait for each other. Readiness ignores:
  - a replica that is no longer assigned to this broker, or that a reassignment is only adding (KIP-352);
  - a replica whose log has failed, since its log directory is offline;
  - a partition without a leader, once the controller had `LEADERLESS_GRACE_S` to elect one.
A leader that is down is not an exception: the controller elects another one, or reports none. A ready broker stays
ready, even when its replicas leave their ISRs, until its session expires.
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
from tidemark.core.replication.replica import ReplicaRole
from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.runtime.scheduler import BackgroundTask
from tidemark.zookeeper.store import MetadataStore

LEADERLESS_GRACE_S: Final = 5.0
_CHECK_S: Final = 0.25
_CHECK_MAX_S: Final = 1.0
_PAUSES: Final = 4
"""Length of a pause in checks: on a slow machine, checks would delay the replicas."""
_BEHIND_MAX: Final = 100
"""Replicas out of the ISR that end a check: one keeps the broker unready, and a check of thousands delays them."""
_LOG_S: Final = 10.0
_NAMED_MAX: Final = 3

_log = logging.getLogger(__name__)


class Standing(Enum):
    """State of a replica that readiness waits for."""

    GONE = "not assigned to this broker any more, or ignored"
    BEHIND = "not in the ISR"
    LEADERLESS = "without a leader"
    REPORTED_IN_SYNC = "in the ISR, according to the controller's metadata"


class Readiness:
    """Reports whether this broker is ready.

    Args:
        replicas: the replicas on the disks.
        replica: the role of a replica in the core.
        show: reports readiness to the health watchers.
        fail: ends the broker; called for programming errors only.
        now_s: a monotonic clock.
        pause: waits between two checks, given the seconds that the last check took.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: MetadataStore,
        metadata: MetadataCache,
        replicas: Callable[[], Mapping[TopicPartition, ReplicaIdentity]],
        replica: Callable[[TopicPartition], ReplicaRole | None],
        show: Callable[[bool], Awaitable[None]],
        fail: Callable[[BaseException], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = lambda took_s: asyncio.sleep(pause_s(took_s)),
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._metadata = metadata
        self._replicas = replicas
        self._replica = replica
        self._show = show
        self._now_s = now_s
        self._pause = pause
        self._epoch = UNREGISTERED
        self._leaderless_since_s: dict[TopicPartition, float] = {}
        self._changed = asyncio.Event()
        self._keeper = BackgroundTask(fail)

    def on_epoch(self, epoch: BrokerEpoch) -> None:
        """Note the epoch of a registration; UNREGISTERED: the session has expired."""
        self._epoch = epoch
        self._changed.set()

    def start(self) -> None:
        """Start to check whether the replicas are in sync."""
        self._keeper.start(self._keep(), "readiness")

    async def stop(self) -> None:
        """Report not ready, and stop checking."""
        await self._keeper.stop()
        await self._show(False)

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._show(False)
            if self._epoch != UNREGISTERED and await self._wait_until_back(self._epoch):
                await self._show(True)

    async def _wait_until_back(self, epoch: BrokerEpoch) -> bool:
        """Wait until all replicas that count are in sync; False when the session expired meanwhile."""
        began_s = logged_s = self._now_s()
        waiting = dict(self._replicas())
        reported = False
        self._leaderless_since_s.clear()
        while waiting or not reported:
            checked_s = self._now_s()
            is_known = self._is_in_metadata(epoch)
            if is_known and not reported:
                waiting, reported = self._assigned() | waiting, True
            if is_known:
                waiting = await self._still_behind(waiting, epoch)
            elif not waiting and self._now_s() - began_s >= LEADERLESS_GRACE_S:
                reported = True  # there may be no controller, and no assignment to wait for
            if self._epoch != epoch:
                return False
            if waiting or not reported:
                if self._now_s() - logged_s >= _LOG_S:
                    logged_s = self._now_s()
                    _log.info("not ready yet", extra=_why(waiting, known=is_known))
                await self._pause(self._now_s() - checked_s)
                if self._epoch != epoch:
                    return False
        waited_ms = round((self._now_s() - began_s) * 1000)
        _log.info("ready: the replicas are back in their ISRs", extra={"waited_ms": waited_ms, "broker_epoch": epoch})
        return True

    def _assigned(self) -> dict[TopicPartition, ReplicaIdentity]:
        """Replicas assigned to this broker: a replaced disk does not list them."""
        return {
            TopicPartition(name, number): ReplicaIdentity(topic.topic_id, reported.incarnation)
            for name, topic in self._metadata.view.topics.items()
            for number, reported in topic.partitions.items()
            if self._broker_id in reported.assigned_replicas
        }

    def _is_in_metadata(self, epoch: BrokerEpoch) -> bool:
        """Whether a controller has sent complete metadata that has this registration."""
        view = self._metadata.view
        me = view.brokers.get(self._broker_id)
        return view.complete and me is not None and me.broker_epoch == epoch

    async def _still_behind(
        self, waiting: Mapping[TopicPartition, ReplicaIdentity], epoch: BrokerEpoch
    ) -> dict[TopicPartition, ReplicaIdentity]:
        """The replicas of `waiting` that keep the broker unready, and the replicas that this check did not read."""
        found: dict[Standing, list[TopicPartition]] = {standing: [] for standing in Standing}
        left = iter(waiting.items())
        for partition, identity in left:
            found[self._standing(partition, identity)].append(partition)
            if len(found[Standing.BEHIND]) == _BEHIND_MAX:
                break
        reported = found[Standing.REPORTED_IN_SYNC]
        # Partitions without a leader come first: each check reads them, so their grace period continues.
        behind = [*self._lately_leaderless(found[Standing.LEADERLESS]), *found[Standing.BEHIND]]
        confirmed = await self._confirmed(reported, epoch)
        behind += [partition for partition in reported if partition not in confirmed]
        return {partition: waiting[partition] for partition in behind} | dict(left)

    def _lately_leaderless(self, leaderless: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions for which the controller may still elect a leader."""
        before, now_s = self._leaderless_since_s, self._now_s()
        self._leaderless_since_s = since_s = {partition: before.get(partition, now_s) for partition in leaderless}
        return [partition for partition, began_s in since_s.items() if now_s - began_s < LEADERLESS_GRACE_S]

    def _standing(self, partition: TopicPartition, identity: ReplicaIdentity) -> Standing:
        topic = self._metadata.view.topics.get(partition.topic)
        reported = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or reported is None or self._broker_id not in reported.assigned_replicas:
            return Standing.GONE
        if identity != ReplicaIdentity(topic.topic_id, reported.incarnation):
            return Standing.GONE
        replica = self._replica(partition)
        if replica is not None and (replica.adding or replica.role == "offline"):
            return Standing.GONE
        if reported.leader == NO_LEADER:
            return Standing.LEADERLESS
        if replica is None or replica.role not in ("leader", "follower"):
            return Standing.BEHIND  # the log is being recovered, or LeaderAndIsr has not arrived
        return Standing.REPORTED_IN_SYNC if self._broker_id in reported.in_sync_replicas else Standing.BEHIND

    async def _confirmed(self, partitions: list[TopicPartition], epoch: BrokerEpoch) -> set[TopicPartition]:
        """Partitions whose ISR in ZooKeeper has this broker epoch: the metadata may be older than the restart."""
        if not partitions:
            return set()
        try:
            states = await self._store.states(partitions)
        except TidemarkError as error:
            _log.info("not ready yet: ZooKeeper does not answer", extra={"why": error.message})
            return set()
        me = IsrEntry(self._broker_id, epoch)
        return {partition for partition, versioned in states.items() if me in versioned.state.isr}


def pause_s(took_s: float) -> float:
    """Pause after a check that took `took_s` seconds."""
    return min(max(_CHECK_S, _PAUSES * took_s), _CHECK_MAX_S)


def _why(waiting: Iterable[TopicPartition], *, known: bool) -> dict[str, object]:
    if not known:
        return {"why": "no controller has connected to this broker yet"}
    partitions = sorted(waiting)
    named = ", ".join(str(partition) for partition in partitions[:_NAMED_MAX])
    more = ", ..." if len(partitions) > _NAMED_MAX else ""
    return {"why": "replicas are not in their ISRs", "partition_count": len(partitions), "partitions": named + more}
