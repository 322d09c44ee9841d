# SPDX-License-Identifier: Apache-2.0
"""State that the parts of one broker core share: the effects of the present event and facts about the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from tidemark.core.config import ReplicationConfig
from tidemark.core.replication.effects import Effect, Observed
from tidemark.core.replication.events import SettingsChanged
from tidemark.core.replication.leader_contact import LeaderContact
from tidemark.core.replication.throttle import Throttles
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, TopicPartition

UNREGISTERED: Final = BrokerEpoch(-1)
LONG_AGO_MS: Final = -(1 << 62)
"""A time before every other time."""


class ChecksLag(Protocol):
    """A leadership whose followers are checked for lag.

    Attributes:
        check_at_ms: no check can have an effect before that time, unless an event ends the pause.
    """

    check_at_ms: int

    def check_lag(self, now_ms: int) -> bool:
        """Evict lagging followers from the ISR; False when no further check is needed."""


class Retries(Protocol):
    """A follower that retries after a pause."""

    def retry(self, now_ms: int) -> bool:
        """Start to follow again once the pause has ended; False, without effect, while the pause lasts."""


class Flushes(Protocol):
    """An end of a replication stream that has messages to send."""

    def flush(self, now_ms: int) -> None:
        """Send the messages that the present event added."""


class MoveTraffic(NamedTuple):
    """Traffic of reassignments, and of replication.

    Attributes:
        bytes_out, bytes_in: sent to, and received by, replicas that a reassignment adds.
        throttled: senders that wait for a throttle.
        throttle_bytes_per_s: the lowest limit of a reassignment of a partition led here; 0 without any.
        replicated_bytes_in: bytes that all followers here received.
    """

    bytes_out: int
    bytes_in: int
    throttled: int
    throttle_bytes_per_s: int = 0
    replicated_bytes_in: int = 0


class BrokerContext:
    """One per broker; only `BrokerCore` and its parts write here.

    Attributes:
        effects: effects of the present event so far, in order.
        now_ms: time of the present event; never falls.
        broker_epoch: of the confirmed registration, -1 while there is none.
        suspected: brokers that no leader takes into an ISR (rule C6); replaced by each command.
        registrations: by broker, the newest known. Invariant: the broker epoch of an entry never falls.
        isr_answers_due: partitions with a `WriteIsr` or `ReadIsr` that is not answered. Invariant: one request at a
            time per partition, even across leaderships, so no answer is treated as the answer of another request
            (rule R9).
        watched: leaderships to check for lag: some follower is not provably in sync, or records were appended since.
            Invariant: every leadership with a member that may lag, or with an attached follower that may join, is here.
            A leadership that only waits for an answer about its ISR is not. Leaderships that are not watched have no
            cost (rule R6). Changes in `watch`.
        paused: followers that retry after a pause.
        throttles: the limits named by reassignments of partitions led here (rule M2).
        leader_contacts: by leader, its contact on the present stream.
        added_bytes_in, added_bytes_out: received and sent for replicas that a reassignment adds; never fall.
        replicated_bytes_in: received by followers here; never falls.
        links_to_flush, sessions_to_flush: stream ends with something to send, in insertion order: the order of
            messages must not depend on hashes. Invariant: both are empty between events.
    """

    __slots__ = (
        "added_bytes_in",
        "added_bytes_out",
        "broker_epoch",
        "broker_id",
        "config",
        "effects",
        "isr_answers_due",
        "leader_contacts",
        "links_to_flush",
        "now_ms",
        "paused",
        "registrations",
        "replicated_bytes_in",
        "sessions_to_flush",
        "suspected",
        "throttles",
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
        self.watched: dict[TopicPartition, ChecksLag] = {}
        self.paused: dict[Retries, None] = {}
        self.throttles = Throttles()
        self.leader_contacts: dict[BrokerId, LeaderContact] = {}
        self.added_bytes_in = 0
        self.added_bytes_out = 0
        self.replicated_bytes_in = 0
        self.links_to_flush: dict[Flushes, None] = {}
        self.sessions_to_flush: dict[Flushes, None] = {}

    def emit(self, effect: Effect) -> None:
        """Add an effect of the present event."""
        self.effects.append(effect)

    def observe(self, kind: str, partition: TopicPartition | None, **fields: str | int) -> None:
        """Add an observation for logs and metrics."""
        self.effects.append(Observed(kind, partition, fields))

    def on_settings_changed(self, event: SettingsChanged, now_ms: int) -> None:
        """Replace the settings; every part reads them here at each use."""
        self.config = event.config
        self._end_pauses()

    def suspect(self, brokers: frozenset[BrokerId]) -> None:
        """Replace the suspected brokers, which get more time before leaders remove them."""
        if brokers != self.suspected:
            self.suspected = brokers
            self._end_pauses()

    def watch(self, partition: TopicPartition, leader: ChecksLag) -> None:
        """Check a leadership for lag, from the next check on."""
        leader.check_at_ms = 0
        self.watched[partition] = leader

    def _end_pauses(self) -> None:
        for leader in self.watched.values():
            leader.check_at_ms = 0

    def learn(self, registrations: Iterable[BrokerRegistration]) -> Mapping[BrokerId, BrokerRegistration]:
        """Keep the newest registration of each broker; returns the changed registrations."""
        changed: dict[BrokerId, BrokerRegistration] = {}
        for registration in registrations:
            known = self.registrations.get(registration.broker_id)
            if known is None or (registration.broker_epoch >= known.broker_epoch and registration != known):
                self.registrations[registration.broker_id] = registration
                changed[registration.broker_id] = registration
        return changed

    def move_traffic(self) -> MoveTraffic:
        """The counters of reassignment traffic as one value."""
        throttled = sum(len(throttle.waiting) for throttle in self.throttles)
        lowest = self.throttles.lowest_bytes_per_s
        return MoveTraffic(self.added_bytes_out, self.added_bytes_in, throttled, lowest, self.replicated_bytes_in)
