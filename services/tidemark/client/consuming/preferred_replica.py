# SPDX-License-Identifier: Apache-2.0
"""Whom a consumer reads each partition from: its leader, or a replica in its rack that the leader named (rule K1).

A named replica is left, and the leader asked, when it refuses or fails, is away, out of sync or gives damaged records,
when another leads, and when it has given nothing for a while. Who was left for a fault of its own is left alone for a
time that doubles: the leader would only name it again. No event loop, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tidemark.client.metadata.cluster import Leader
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, TopicPartition
from tidemark.v1 import broker_service_pb2 as pb

QUIET_S: Final = 4.5
"""After so long without a record the leader is asked whether there is one, once the replica has answered."""
SILENT_S: Final = 7.0
"""After so long it is not waited for that any more."""
NAMED_S_MAX: Final = 60.0
"""So long what a leader said is gone by; a little longer it tells whom it named of high watermarks at once."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0


@dataclass(slots=True)
class _Named:
    """A replica that the leader named, in that leadership; since when it has been asked without giving a record, None
    while it is not asked."""

    broker_id: BrokerId
    leader: Leader
    since_s: float
    asked_since_s: float | None = None


@dataclass(slots=True)
class _Left:
    """A partition whose replica was left: read from the leader until then."""

    until_s: float
    pause_s: float


class NearestReplicas:
    """All partitions of one consumer; times are of time.monotonic().

    Args:
        rack: the consumer's; "" for none: every partition is read from its leader.
        view: the cluster as the consumer knows it now.
    """

    def __init__(self, rack: str, view: Callable[[], ClusterView]) -> None:
        self.rack = rack
        self._view = view
        self._named: dict[TopicPartition, _Named] = {}
        self._left: dict[TopicPartition, _Left] = {}
        self._doubted: dict[TopicPartition, BrokerId] = {}
        """Gave nothing for `QUIET_S`; what the leader says next tells whether there was something to give."""

    def replica(self, partition: TopicPartition) -> BrokerId | None:
        """Who is read from though it does not lead; None: the leader is."""
        named = self._named.get(partition)
        return None if named is None else named.broker_id

    def address(self, partition: TopicPartition, leader: Leader) -> str:
        """Where to fetch a partition that has this leader."""
        named = self._named.get(partition)
        broker = None if named is None else self._view().brokers.get(named.broker_id)
        return leader.address if broker is None else f"{broker.host}:{broker.port}"

    def read_from(self, partition: TopicPartition, now_s: float) -> pb.ReadFrom.ValueType:
        """What to say to whoever is at `address`."""
        if not self.rack:
            return pb.READ_FROM_UNSPECIFIED
        if partition in self._named:
            return pb.READ_FROM_FOLLOWER
        left = self._left.get(partition)
        return pb.READ_FROM_NEAREST if left is None or left.until_s <= now_s else pb.READ_FROM_LEADER

    def told(self, partition: TopicPartition, leader: Leader, broker_id: int, *, has_more: bool, now_s: float) -> bool:
        """The leader named a replica; whether to go there. `has_more`: there is something for the consumer to read."""
        doubted = self._doubted.pop(partition, None)
        self._named[partition] = _Named(BrokerId(broker_id), leader, now_s)
        if not self._is_there(partition) or (doubted == broker_id and has_more):
            self.leave(partition, now_s)
        return partition in self._named

    def asks(self, partition: TopicPartition, now_s: float, *, wanted: bool) -> None:
        """It is asked now, or there is no room for what it has (not `wanted`)."""
        named = self._named.get(partition)
        if named is not None and (named.asked_since_s is None or not wanted):
            named.asked_since_s = now_s if wanted else None

    def gave(self, partition: TopicPartition) -> None:
        """Records came."""
        self._doubted.pop(partition, None)
        named = self._named.get(partition)
        if named is not None:
            named.asked_since_s = None
            self._left.pop(partition, None)

    def leave(self, partition: TopicPartition, now_s: float) -> None:
        """It refused, failed, or is not what it should be: the leader is read from for a while."""
        if self._named.pop(partition, None) is None:
            return
        before = self._left.get(partition)
        pause_s = PAUSE_S if before is None else min(2 * before.pause_s, PAUSE_S_MAX)
        self._left[partition] = _Left(now_s + pause_s, pause_s)

    def look(self, partition: TopicPartition, leader: Leader | None, now_s: float) -> None:
        """News of the cluster: what was named is left where it does not hold any more."""
        named = self._named.get(partition)
        if named is None:
            return
        if leader != named.leader:  # the next one decides anew
            del self._named[partition]
            self._left.pop(partition, None)
        elif not self._is_there(partition):
            self.leave(partition, now_s)

    def doubt_the_silent(self, now_s: float) -> bool:
        """Ask the leaders of those that do not answer, and, without doubt, of those that were named long ago; whether
        there are some."""
        old = [partition for partition, named in self._named.items() if now_s - named.since_s >= NAMED_S_MAX]
        for partition in old:
            del self._named[partition]
        silent = [partition for partition in self._named if self._was_asked_in_vain(partition, now_s, SILENT_S)]
        self._doubt(silent)
        return bool(silent or old)

    def doubt_the_quiet(self, answered: Iterable[TopicPartition], now_s: float) -> bool:
        """Ask the leaders of those that have answered just now, and have given nothing for long; whether there are
        some. No fetch of theirs is broken off for it."""
        quiet = [partition for partition in answered if self._was_asked_in_vain(partition, now_s, QUIET_S)]
        self._doubt(quiet)
        return bool(quiet)

    def _was_asked_in_vain(self, partition: TopicPartition, now_s: float, for_s: float) -> bool:
        named = self._named.get(partition)
        return named is not None and named.asked_since_s is not None and now_s - named.asked_since_s >= for_s

    def _doubt(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._doubted[partition] = self._named.pop(partition).broker_id

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """The others are not read any more."""
        for known in (self._named, self._left, self._doubted):
            for partition in [one for one in known if one not in partitions]:
                del known[partition]

    def _is_there(self, partition: TopicPartition) -> bool:
        """As far as the metadata tell it lives and is in sync."""
        broker_id = self._named[partition].broker_id
        view = self._view()
        topic = view.topics.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        return known is not None and broker_id in known.in_sync_replicas and broker_id in view.brokers
