# SPDX-License-Identifier: Apache-2.0
"""What the parts of one broker's core share: the effects of the present event and a few facts about the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidemark.core.config import ReplicationConfig
from tidemark.core.replication.effects import Effect, Observed
from tidemark.core.replication.events import SettingsChanged
from tidemark.core.replication.leader_contact import Touch
from tidemark.core.replication.throttle import Throttle
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, TopicPartition

if TYPE_CHECKING:
    from tidemark.core.replication.follower import PartitionFollower
    from tidemark.core.replication.leader import PartitionLeader
    from tidemark.core.replication.stream_ends import FollowerSession, LeaderLink

UNREGISTERED = BrokerEpoch(-1)


class MoveTraffic(NamedTuple):
    """Bytes sent to and taken in by replicas that are being added, and how many partitions wait for a throttle.

    `throttle_bytes_per_s`: the lowest figure that a move of a partition led here names; 0: none does.
    `replicated_bytes_in`: taken in by all replicas that follow here.
    """

    bytes_out: int
    bytes_in: int
    throttled: int
    throttle_bytes_per_s: int = 0
    replicated_bytes_in: int = 0


class BrokerContext:
    """One per broker; only `BrokerCore` and the parts it made write here.

    Attributes:
        effects: what the present event has brought about so far, in order.
        now_ms: the time of the present event.
        broker_epoch: of the confirmed registration, -1 while there is none.
        suspected: brokers that no leader takes into an ISR (rule C6).
        isr_answers_due: partitions with a `WriteIsr` or `ReadIsr` that was not answered yet. One at a time, even
            across leaderships, so that an answer is never taken for that of another question (rule R9).
        paused: followers that try again later.
        throttles: by their figure, those that moves of partitions led here name (rule M2).
        added_bytes_in, added_bytes_out: what replicas that are being added were sent, to here and from here.
        replicated_bytes_in: what replicas here were sent by their leaders.
        touches: when each leader that is followed was heard of last, on its present stream.
        watched: led partitions whose followers are not all provably in sync, or that were appended to; the others
            cost nothing (rule R6).
    """

    __slots__ = (
        "added_bytes_in",
        "added_bytes_out",
        "broker_epoch",
        "broker_id",
        "config",
        "effects",
        "isr_answers_due",
        "now_ms",
        "paused",
        "registrations",
        "replicated_bytes_in",
        "suspected",
        "talking_links",
        "talking_sessions",
        "throttles",
        "touches",
        "watched",
    )

    def __init__(self, broker_id: BrokerId, config: ReplicationConfig) -> None:
        self.broker_id = broker_id
        self.config = config
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.broker_epoch = UNREGISTERED
        self.suspected: frozenset[BrokerId] = frozenset()
        self.registrations: dict[BrokerId, BrokerRegistration] = {}
        self.isr_answers_due: set[TopicPartition] = set()
        self.watched: dict[TopicPartition, PartitionLeader] = {}
        self.paused: dict[PartitionFollower, None] = {}
        self.throttles: dict[int, Throttle] = {}
        self.touches: dict[BrokerId, Touch] = {}
        self.added_bytes_in = 0
        self.added_bytes_out = 0
        self.replicated_bytes_in = 0
        # insertion-ordered: what is sent, and in which order, must not depend on hashes
        self.talking_links: dict[LeaderLink, None] = {}
        self.talking_sessions: dict[FollowerSession, None] = {}

    def emit(self, effect: Effect) -> None:
        """One more effect of the present event."""
        self.effects.append(effect)

    def observe(self, kind: str, partition: TopicPartition | None, **fields: str | int) -> None:
        """Tell people."""
        self.effects.append(Observed(kind, partition, fields))

    def on_settings_changed(self, event: SettingsChanged, now_ms: int) -> None:
        """All parts look here whenever they need a setting."""
        self.config = event.config

    def learn(self, registrations: Iterable[BrokerRegistration]) -> Mapping[BrokerId, BrokerRegistration]:
        """Keep the newest registration of each broker; gives those that changed."""
        changed: dict[BrokerId, BrokerRegistration] = {}
        for registration in registrations:
            known = self.registrations.get(registration.broker_id)
            if known is None or (registration.broker_epoch >= known.broker_epoch and registration != known):
                self.registrations[registration.broker_id] = registration
                changed[registration.broker_id] = registration
        return changed

    def join_throttle(self, bytes_per_s: int) -> Throttle | None:
        """That of this figure, for one leader more; None for no limit. Each is given back with `leave_throttle`."""
        if bytes_per_s <= 0:
            return None
        throttle = self.throttles.get(bytes_per_s)
        if throttle is None:
            throttle = self.throttles[bytes_per_s] = Throttle(bytes_per_s, self.now_ms)
        throttle.leader_count += 1
        return throttle

    def leave_throttle(self, throttle: Throttle | None) -> None:
        """One leader less."""
        if throttle is not None:
            throttle.leader_count -= 1
            if throttle.leader_count == 0:
                del self.throttles[throttle.bytes_per_s]

    def move_traffic(self) -> MoveTraffic:
        """See `BrokerQueries.move_traffic`."""
        throttled = sum(len(throttle.waiting) for throttle in self.throttles.values())
        lowest = min(self.throttles, default=0)
        return MoveTraffic(self.added_bytes_out, self.added_bytes_in, throttled, lowest, self.replicated_bytes_in)
