# SPDX-License-Identifier: Apache-2.0
"""Chooses the replica to fetch from: the leader, or a replica in the consumer's rack that the leader named (rule K1).

The consumer returns to the leader when the named replica refuses, fails, is offline, leaves the ISR or returns damaged
records. The consumer also returns when leadership changes, and when the replica has returned no records for a while.
After a failure the consumer reads from the leader for a time that doubles, because the leader would name the same
replica again. No event loop, no clock.
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
"""Time without records after which, when the replica answers, the leader is asked whether there are any."""
SILENT_S: Final = 7.0
"""Time without records after which the leader is asked without waiting for the replica's answer."""
NAMED_S_MAX: Final = 60.0
"""Time after which the consumer requests the leader's choice again; a little less than the leader remembers it."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0


@dataclass(slots=True)
class _Named:
    """A replica that the leader named.

    Attributes:
        broker_id: id of the broker with the replica.
        leader: the leadership that named it.
        since_s: time at which the leader named the replica.
        asked_since_s: start of the fetches that returned no records; None if no fetch is sent.
    """

    broker_id: BrokerId
    leader: Leader
    since_s: float
    asked_since_s: float | None = None


@dataclass(slots=True)
class _Left:
    """A partition that is read from the leader until `until_s`, after a failure of the named replica."""

    until_s: float
    pause_s: float


class PreferredReplicas:
    """The choices for all partitions of one consumer; times are of time.monotonic().

    Args:
        rack: the consumer's rack; "": every partition is read from its leader.
        view: returns the current metadata.
    """

    def __init__(self, rack: str, view: Callable[[], ClusterView]) -> None:
        self.rack = rack
        self._view = view
        self._named: dict[TopicPartition, _Named] = {}
        self._left: dict[TopicPartition, _Left] = {}
        self._doubted: dict[TopicPartition, BrokerId] = {}
        """Replicas without records for `QUIET_S`; the leader's next answer shows whether there were records."""

    def replica(self, partition: TopicPartition) -> BrokerId | None:
        """Return the follower to read from; None: the leader."""
        named = self._named.get(partition)
        return None if named is None else named.broker_id

    def address(self, partition: TopicPartition, leader: Leader) -> str:
        """Return the address to fetch a partition from, given its leader."""
        named = self._named.get(partition)
        broker = None if named is None else self._view().brokers.get(named.broker_id)
        return leader.address if broker is None else broker.address

    def read_from(self, partition: TopicPartition, now_s: float) -> pb.ReadFrom.ValueType:
        """Return the value of `read_from` for a fetch sent to `address`."""
        if not self.rack:
            return pb.READ_FROM_UNSPECIFIED
        if partition in self._named:
            return pb.READ_FROM_FOLLOWER
        left = self._left.get(partition)
        return pb.READ_FROM_NEAREST if left is None or left.until_s <= now_s else pb.READ_FROM_LEADER

    def prefer(
        self, partition: TopicPartition, leader: Leader, broker_id: int, *, has_more: bool, now_s: float
    ) -> bool:
        """Note that the leader named a replica; returns whether to use it. `has_more`: records exist to read."""
        doubted = self._doubted.pop(partition, None)
        self._named[partition] = _Named(BrokerId(broker_id), leader, now_s)
        if not self._is_there(partition) or (doubted == broker_id and has_more):
            self.leave(partition, now_s)
        return partition in self._named

    def asked(self, partition: TopicPartition, now_s: float, *, wanted: bool) -> None:
        """Note the time of a fetch, or that no fetch is sent since the buffer is full (not `wanted`)."""
        named = self._named.get(partition)
        if named is not None and (named.asked_since_s is None or not wanted):
            named.asked_since_s = now_s if wanted else None

    def returned_records(self, partition: TopicPartition) -> None:
        """Note that records arrived from the named replica."""
        self._doubted.pop(partition, None)
        named = self._named.get(partition)
        if named is not None:
            named.asked_since_s = None
            self._left.pop(partition, None)

    def leave(self, partition: TopicPartition, now_s: float) -> None:
        """Read from the leader for a while, after a failure or refusal of the named replica."""
        if self._named.pop(partition, None) is None:
            return
        before = self._left.get(partition)
        pause_s = PAUSE_S if before is None else min(2 * before.pause_s, PAUSE_S_MAX)
        self._left[partition] = _Left(now_s + pause_s, pause_s)

    def revalidate(self, partition: TopicPartition, leader: Leader | None, now_s: float) -> None:
        """Drop the named replica if the current metadata excludes it."""
        named = self._named.get(partition)
        if named is None:
            return
        if leader != named.leader:  # the new leader chooses again
            del self._named[partition]
            self._left.pop(partition, None)
        elif not self._is_there(partition):
            self.leave(partition, now_s)

    def drop_silent(self, now_s: float) -> bool:
        """Return to the leader for replicas without records for `SILENT_S`, or named before `NAMED_S_MAX`; whether
        there are some."""
        old = [partition for partition, named in self._named.items() if now_s - named.since_s >= NAMED_S_MAX]
        for partition in old:
            del self._named[partition]
        silent = [partition for partition in self._named if self._was_asked_in_vain(partition, now_s, SILENT_S)]
        self._doubt(silent)
        return bool(silent or old)

    def drop_quiet(self, answered: Iterable[TopicPartition], now_s: float) -> bool:
        """Return to the leader for replicas that have just answered, without records for `QUIET_S`; whether there are
        some. Interrupts no fetch."""
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
        """Discard the choices for all other partitions."""
        for known in (self._named, self._left, self._doubted):
            for partition in [one for one in known if one not in partitions]:
                del known[partition]

    def _is_there(self, partition: TopicPartition) -> bool:
        """Whether the named replica is live and in sync by the current metadata."""
        broker_id = self._named[partition].broker_id
        view = self._view()
        topic = view.topics.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        return known is not None and broker_id in known.in_sync_replicas and broker_id in view.brokers
