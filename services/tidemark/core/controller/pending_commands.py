# SPDX-License-Identifier: Apache-2.0
"""Commands that brokers have not received (rules C1, C3): one command of each kind is in flight, later commands
accumulate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidemark.core.cluster_view import TopicView
from tidemark.core.messages import StoppedReplica
from tidemark.model import BrokerEpoch, TopicPartition

_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 2_000


@dataclass(slots=True)
class InFlightCommand:
    """One kind of command to one broker.

    Attributes:
        request_id: id of the command in flight; None: there is none. Invariant: at most one command of a kind is in
            flight to a broker. So commands of a kind are acknowledged in the order in which they were sent.
        retry_at_ms: the next command is not sent before this time; 0: at any time.
        failures: consecutive failures; 0 after a success.
    """

    request_id: int | None = None
    retry_at_ms: int = 0
    failures: int = 0

    def is_free(self, now_ms: int) -> bool:
        """Whether the next command may be sent."""
        return self.request_id is None and now_ms >= self.retry_at_ms

    def succeeded(self) -> None:
        """Note an answer to the command."""
        self.request_id = None
        self.failures = 0
        self.retry_at_ms = 0

    def failed(self, now_ms: int) -> None:
        """Note that the command was not answered, or was refused as a whole: retry after a back-off."""
        self.request_id = None
        self.retry_at_ms = now_ms + min(_RETRY_FIRST_MS << min(self.failures, 10), _RETRY_MAX_MS)
        self.failures += 1


Topics = Mapping[str, TopicView]


class KnownSchema(NamedTuple):
    """The versions of a topic's schema that a broker knows: the newest version, and the damaged versions."""

    topic_id: str
    newest: int
    damaged: frozenset[int]


@dataclass(slots=True)
class MetadataSnapshot:
    """The metadata of every partition, sent in parts that a broker applies together.

    Attributes:
        partitions: all partitions, in the order of the parts.
        version: `ControllerContext.metadata_version` when the snapshot was taken. Invariant: a broker begins with a
            snapshot only while that version is the present one.
        parts: the parts built so far, by the index of their first partition; shared by the brokers that get them.
    """

    partitions: tuple[TopicPartition, ...]
    version: int
    parts: dict[int, Topics] = field(default_factory=dict)


@dataclass(slots=True)
class PendingCommands:
    """Commands that one broker epoch has not acknowledged. A new broker epoch begins with complete commands.

    Attributes:
        broker_epoch: broker epoch of the registration; the broker refuses a command with another epoch.
        leader_and_isr, stop_replica, update_metadata: the command of that kind in flight.
        needs_full_leader_and_isr: the next LeaderAndIsr names every replica of this broker.
        owes_complete: the last full LeaderAndIsr was not complete, since not every node was known; the next one is sent
            when they are.
        needs_full_metadata: a metadata snapshot is due, and has not begun.
        suspects_changed: the next LeaderAndIsr is sent even where no partition changed.
        brokers_changed: the next UpdateMetadata is sent even where no partition changed.
        partitions: partitions whose LeaderAndIsr is not sent yet.
        metadata: partitions whose metadata is not sent yet; changes during a snapshot gather here.
        gone_topics: deleted topics that the sent metadata does not name yet.
        stopping: replicas to delete, until StopReplica is acknowledged.
        schemas: of each topic, the versions of its schema that this broker epoch has acknowledged (rule S3).
        sent_schemas: the schemas in the LeaderAndIsr in flight.
        sent_partitions: partitions named by the LeaderAndIsr in flight, or by the last one.
        sent_full_leader_and_isr: whether that command named every replica.
        snapshot: the snapshot that is being sent; None: there is none, or its last part is in flight.
        snapshot_next: index of the first partition of the next part.
        sent_metadata: partitions named by the UpdateMetadata in flight, or by the last one.
        sent_gone: deleted topics named by that UpdateMetadata.
        sent_full_metadata: whether the command is a part of a snapshot; after a failure the snapshot begins again.
        sent_stops: replicas named by the StopReplica in flight, or by the last one.
    """

    broker_epoch: BrokerEpoch
    leader_and_isr: InFlightCommand = field(default_factory=InFlightCommand)
    stop_replica: InFlightCommand = field(default_factory=InFlightCommand)
    update_metadata: InFlightCommand = field(default_factory=InFlightCommand)
    needs_full_leader_and_isr: bool = True
    owes_complete: bool = False
    needs_full_metadata: bool = True
    suspects_changed: bool = False
    brokers_changed: bool = False
    partitions: set[TopicPartition] = field(default_factory=set)
    metadata: set[TopicPartition] = field(default_factory=set)
    gone_topics: set[str] = field(default_factory=set)
    stopping: dict[TopicPartition, StoppedReplica] = field(default_factory=dict)
    schemas: dict[str, KnownSchema] = field(default_factory=dict)
    sent_schemas: Mapping[str, KnownSchema] = field(default_factory=dict)
    sent_partitions: frozenset[TopicPartition] = frozenset()
    sent_full_leader_and_isr: bool = False
    snapshot: MetadataSnapshot | None = None
    snapshot_next: int = 0
    sent_metadata: Collection[TopicPartition] = ()
    sent_gone: frozenset[str] = frozenset()
    sent_full_metadata: bool = False
    sent_stops: frozenset[TopicPartition] = frozenset()

    def is_acknowledged(self, partition: TopicPartition) -> bool:
        """Whether no LeaderAndIsr about this partition waits to be sent or is in flight."""
        in_flight = self.leader_and_isr.request_id is not None and partition in self.sent_partitions
        return not (self.needs_full_leader_and_isr or partition in self.partitions or in_flight)

    def leader_and_isr_succeeded(self) -> None:
        """The LeaderAndIsr in flight was applied, apart from partitions that it refused."""
        self.schemas.update(self.sent_schemas)
        self.leader_and_isr.succeeded()

    def topic_gone(self, topic: str) -> None:
        """The topic was deleted: metadata names it once more, and its schema is dropped."""
        self.gone_topics.add(topic)
        self.schemas.pop(topic, None)

    def leader_and_isr_failed(self, now_ms: int) -> None:
        """The LeaderAndIsr in flight has to be sent again."""
        self.partitions |= self.sent_partitions
        self.needs_full_leader_and_isr |= self.sent_full_leader_and_isr
        self.suspects_changed = True
        self.leader_and_isr.failed(now_ms)

    def metadata_succeeded(self) -> None:
        """The UpdateMetadata in flight was applied. Within a snapshot the count of failures is kept, since the next
        failure repeats the whole snapshot."""
        failures = self.update_metadata.failures if self.snapshot is not None else 0
        self.update_metadata.succeeded()
        self.update_metadata.failures = failures

    def metadata_failed(self, now_ms: int) -> None:
        """The UpdateMetadata in flight has to be sent again."""
        self.metadata.update(self.sent_metadata)
        self.gone_topics |= self.sent_gone
        self.needs_full_metadata |= self.sent_full_metadata
        self.brokers_changed = True
        self.update_metadata.failed(now_ms)
