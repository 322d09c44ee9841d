# SPDX-License-Identifier: Apache-2.0
"""What everybody names: ids, offsets, epochs and partition state; with `tidemark.errors`, which it gives on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

from tidemark.errors import RETRIABLE as RETRIABLE
from tidemark.errors import ErrorCode as ErrorCode
from tidemark.errors import TidemarkError as TidemarkError
from tidemark.errors import unknown_topic as unknown_topic

BrokerId = NewType("BrokerId", int)
"""Id of a broker, >= 0; also the id of its replicas (a broker has at most one replica of a partition)."""

Offset = NewType("Offset", int)
"""Position of a record in a partition. End offsets (LEO, HW) are exclusive, start offsets inclusive."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Raised by the controller at every change of leadership; -1 where none is known."""

BrokerEpoch = NewType("BrokerEpoch", int)
"""Version of /brokers/epochs/<id>: raised by every registration (rule Z3)."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raised with every controller election (rule Z1)."""

NO_LEADER = BrokerId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = -1

REQUEST_ID_CHARACTERS_MAX = 128
"""Of the id of a request for elections: loss reports keep it."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ReplicaIdentity(NamedTuple):
    """What tells a partition from an earlier one of the same name (rules F4, C7): two uuids in hex."""

    topic_id: str
    incarnation: str


class IsrEntry(NamedTuple):
    """A member of an ISR or ELR, with its broker epoch on joining (rule T2)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it (rule E1)."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The content of a leaderAndISR node (docs/formats.md)."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[IsrEntry, ...]
    elr: tuple[IsrEntry, ...] = ()
    last_known: tuple[IsrEntry, ...] = ()
    min_isr: int = 1
    lineage: int = 0
    sealed: bool = False
    controller_epoch: ControllerEpoch = ControllerEpoch(0)

    @property
    def isr_ids(self) -> tuple[BrokerId, ...]:
        """Broker ids of the ISR, in its order."""
        return tuple(entry.broker_id for entry in self.isr)


class VersionedState(NamedTuple):
    """A leaderAndISR node and the version of the node (the partition epoch) it was read at."""

    state: LeaderAndIsr
    version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The content of /brokers/ids/<id>."""

    broker_id: BrokerId
    host: str
    port: int
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    rack: str = ""
    directory_ids: tuple[str, ...] = ()
    boot_id: str = ""
    features: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerEpochRecord:
    """The content of /brokers/epochs/<id>; `broker_epoch` is the version of the node (rules T1, T2).

    Attributes:
        unclean_at: broker epoch of the last registration after which what was written is not trusted.
        lost_at: broker epoch of the last one after which what was flushed is not trusted either.
    """

    broker_epoch: BrokerEpoch
    directory_ids: tuple[str, ...] = ()
    unclean_at: BrokerEpoch = BrokerEpoch(-1)
    lost_at: BrokerEpoch = BrokerEpoch(-1)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The content of /brokers/topics/<topic>, with the transaction ids of the node (rule K2).

    `configs_zxid`: of the last change of the topic's settings; `created_zxid` while they are those it was created with.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, tuple[BrokerId, ...]]
    incarnations: Mapping[int, str]
    adding: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    original: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    created_zxid: int = -1
    modified_zxid: int = -1
    configs_zxid: int = -1
    version: int = -1


class ElectionKind(StrEnum):
    """What somebody may ask the controller for; the value is part of metrics and logs."""

    PREFERRED = "preferred"  # the first assigned replica leads again
    LAST_KNOWN = "last_known"  # the furthest live replica leads a partition that nobody leads (rule T4)


@dataclass(frozen=True, slots=True)
class ElectionRequest:
    """A node by which somebody asked for elections (docs/formats.md).

    Attributes:
        request_id: names it in loss reports; made up of `modified_zxid` where nobody gave one.
        modified_zxid: tells one request from a later one; `version` is what the node is removed at.
        error: why it cannot be understood; then `partitions` is empty.
    """

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    request_id: str = ""
    modified_zxid: int = -1
    version: int = -1
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """The loss report of one unclean election (rule T4): what a new lineage began with, and what it may lack.

    Attributes:
        lineage: the new one.
        leader_epoch: the new leader's.
        elected_at_ms: since 1970, UTC; 0 until it is written.
        last_epoch: leader epoch of the new leader's last record; None where it was not asked.
        log_end_offset: of the new leader, exclusive; None where it was not asked.
        high_watermark: the highest one, exclusive, that any replica asked knew; None where none was asked.
        unheard: assigned replicas that did not answer; what only they knew is not in this report.
        request_id: of the request that asked for it; "" where the topic's setting allowed it.
    """

    partition: TopicPartition
    topic_id: str
    lineage: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    elected_at_ms: int = 0
    last_epoch: LeaderEpoch | None = None
    log_end_offset: Offset | None = None
    high_watermark: Offset | None = None
    unheard: tuple[BrokerId, ...] = ()
    request_id: str = ""

    @property
    def records_maybe_lost(self) -> int | None:
        """Committed records from `log_end_offset` to `high_watermark`, as far as it is known; None: it is not."""
        if self.log_end_offset is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.log_end_offset)


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """What became of one partition of a request for elections, or would.

    Attributes:
        partition: index -1 stands for a topic that is unknown.
        leader_before: NO_LEADER for none; so is `leader`, the one there is now or would be.
        leader_epoch: NO_EPOCH where the leader is not elected yet.
        changed: whether another leads now than before.
        unclean: the loss report, where the election was unclean.
        error: why nothing was changed.
    """

    partition: TopicPartition
    leader_before: BrokerId = NO_LEADER
    leader: BrokerId = NO_LEADER
    leader_epoch: LeaderEpoch = NO_EPOCH
    changed: bool = False
    unclean: UncleanElection | None = None
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """One entry of /admin/reassign_partitions (rule M1): a partition and the replicas it shall have.

    Attributes:
        replicas: the target (RAR), the preferred leader first; what is asked for even where `cancel` is set.
        log_dirs: one for each of `replicas`, "any" or a path; empty means "any" for all.
        throttle_bytes_per_s: what each broker may send to replicas that are being added by all moves that name the
            same figure; 0 for no limit. It is gone when the move is (rule M2).
        cancel: the original replicas are wanted back (KIP-455).
        request_id: of whoever asked; "" for a node that was written by hand.
    """

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    log_dirs: tuple[str, ...] = ()
    throttle_bytes_per_s: int = 0
    cancel: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something asked for through a node of /admin that was refused and removed; kept for people to find.

    Attributes:
        kind: "reassign", "partitions_add", "partitions_remove".
        partition: None where the node as a whole could not be understood.
        at_ms: since 1970, UTC.
    """

    kind: str
    partition: TopicPartition | None
    error: TidemarkError
    request_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReassignmentRequests:
    """The node /admin/reassign_partitions as it is: moves that are wanted or under way, and what of it is malformed.

    `version` is the node's; -1 where there is none.
    """

    moves: tuple[PartitionReassignment, ...] = ()
    malformed: tuple[Refusal, ...] = ()
    version: int = -1


@dataclass(frozen=True, slots=True)
class PartitionRequests:
    """Partitions to be added to topics (with their assigned replicas) and removed (True: even if not empty), rule C7.

    Nodes below /admin/partitions_add/<topic> and /admin/partitions_remove/<topic>.
    """

    added: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    removed: Mapping[TopicPartition, bool] = field(default_factory=dict)
    malformed: tuple[Refusal, ...] = ()
