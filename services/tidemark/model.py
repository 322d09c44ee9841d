# SPDX-License-Identifier: Apache-2.0
"""Common values: ids, offsets, epochs, partition state; re-exports `tidemark.errors`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, NewType

from tidemark.errors import ErrorCode as ErrorCode
from tidemark.errors import TidemarkError as TidemarkError
from tidemark.errors import error_of as error_of
from tidemark.errors import invalid_config as invalid_config
from tidemark.errors import invalid_request as invalid_request
from tidemark.errors import unknown_partition as unknown_partition
from tidemark.errors import unknown_topic as unknown_topic

BrokerId = NewType("BrokerId", int)
"""Id of a broker, >= 0; also the id of its replicas (a broker has at most one replica of a partition)."""

Offset = NewType("Offset", int)
"""Position of a record in a partition. End offsets (LEO, HW) are exclusive, start offsets inclusive."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Raised by the controller at every change of leadership; -1 if no epoch is known."""

BrokerEpoch = NewType("BrokerEpoch", int)
"""Version of /brokers/epochs/<id>: raised by every registration (rule Z3)."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raised with every controller election (rule Z1)."""

NO_LEADER = BrokerId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = -1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Zero of all timestamps."""
_MICROSECOND: Final = timedelta(microseconds=1)

REQUEST_ID_CHARACTERS_MAX = 128
"""Longest id of an election request; loss reports keep the id."""


def number_up_to(most: int, text: str) -> int | None:
    """The number that `text` states in decimal digits; None for another text, and above `most`, however long."""
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdecimal()) or len(digits) > len(str(most)):
        return None
    number = int(digits or "0")
    return number if number <= most else None


_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,100}")
DECIMAL_TEXT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A number in digits 0 to 9, such as -1.5 or 2e-3."""


def whole_number(text: str) -> int | None:
    """The whole number that `text` states in digits 0 to 9, with a sign or without; None for another text.

    Python's `int` also reads 1_000, and digits of all scripts.
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def decimal_number(text: str) -> float | None:
    """The number that `text`, a DECIMAL_TEXT, states; None for another text, and above a float's range."""
    number = float(text) if DECIMAL_TEXT.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def host_port(host: str, port: int | str) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def microseconds_of(instant: datetime) -> int:
    """Microseconds since 1970 of a time with a time zone."""
    return (instant - UNIX_EPOCH) // _MICROSECOND


class TopicPartition(NamedTuple):
    """A partition, named by its topic and its index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def facts(self) -> dict[str, str]:
        """Topic and partition, for the metadata of an error."""
        return {"topic": self.topic, "partition": str(self.partition)}


class ReplicaIdentity(NamedTuple):
    """Distinguishes a partition from an earlier partition of the same name (rules F4, C7): two uuids in hex."""

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
    """The content of a leaderAndISR znode (docs/formats.md)."""

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
        return _ids_of(self.isr)


@lru_cache(1024)
def _ids_of(entries: tuple[IsrEntry, ...]) -> tuple[BrokerId, ...]:
    """Thousands of partitions have the same few ISRs."""
    return tuple([entry.broker_id for entry in entries])


IsrReasons = tuple[tuple[BrokerId, str], ...]
"""Replicas that joined or left an ISR, each with one reason; "" if no process stated a reason."""


class VersionedState(NamedTuple):
    """A leaderAndISR znode with the version that was read (the partition epoch)."""

    state: LeaderAndIsr
    version: int


TYPED_FEATURE: Final = "typed"
"""Feature of a broker that stores typed batches."""
TRANSACTIONS_FEATURE: Final = "transactions"
"""Feature of a broker that stores pending batches and markers, and knows the last stable offset."""
REMEMBERED_FEATURE: Final = "remembered_batches"
"""Feature whose level is the number of batches of a producer that the broker remembers."""
REMEMBERED_BATCHES: Final = 10
"""Batches of a producer that each replica of a partition remembers, to recognise duplicates (rule P1)."""
_REMEMBERED_BEFORE: Final = 5
FEATURES: Final[Mapping[str, int]] = {
    "protocol": 1,
    TYPED_FEATURE: 1,
    TRANSACTIONS_FEATURE: 1,
    REMEMBERED_FEATURE: REMEMBERED_BATCHES,
}
"""Features of a broker of this version, with their levels."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The content of /brokers/ids/<id>.

    Attributes:
        features: levels of the features of the broker's version; an older version names fewer.
        host: of the address that services use; with `port`.
        endpoints: the address of each listener, `NAME://HOST:PORT`; empty: the broker has one listener without a name.
    """

    broker_id: BrokerId
    host: str
    port: int
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    rack: str = ""
    directory_ids: tuple[str, ...] = ()
    boot_id: str = ""
    features: Mapping[str, int] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """host:port of the address that services use."""
        return host_port(self.host, self.port)

    @property
    def stores_typed(self) -> bool:
        """Whether the broker may hold replicas of typed topics: an older version treats each typed batch as damaged."""
        return bool(self.features.get(TYPED_FEATURE))

    @property
    def has_transactions(self) -> bool:
        """Whether the broker knows open and aborted transactions: an older version returns their records."""
        return bool(self.features.get(TRANSACTIONS_FEATURE))

    @property
    def remembered_batches(self) -> int:
        """Number of batches of a producer that the broker remembers: an older version does not state the number."""
        return self.features.get(REMEMBERED_FEATURE, _REMEMBERED_BEFORE)


@dataclass(frozen=True, slots=True)
class BrokerEpochRecord:
    """The content of /brokers/epochs/<id>; `broker_epoch` is the version of the znode (rules T1, T2).

    Attributes:
        unclean_at: broker epoch of the last registration that voids earlier unflushed writes.
        lost_at: broker epoch of the last registration that voids earlier flushed writes, too.
        crashed_at: broker epoch of the last registration after a stop that was not clean (rule T7).
    """

    broker_epoch: BrokerEpoch
    directory_ids: tuple[str, ...] = ()
    unclean_at: BrokerEpoch = BrokerEpoch(-1)
    lost_at: BrokerEpoch = BrokerEpoch(-1)
    crashed_at: BrokerEpoch = BrokerEpoch(-1)


class SchemaText(NamedTuple):
    """The content of the znode of one version of a topic's schema. A version never changes (rule S1).

    Attributes:
        text: JSON; empty if the znode is damaged.
        created_at_ms: milliseconds since 1970, UTC.
    """

    text: str
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The content of /brokers/topics/<topic>, with the transaction ids of the znode (rule K2).

    `configs_zxid`: of the last change of the topic's settings; `created_zxid` before the first change.
    `configs_version`: version of the settings' znode. `schemas`: every version of the schema of a typed topic.
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
    configs_version: int = -1
    version: int = -1
    schemas: Mapping[int, SchemaText] = field(default_factory=dict)

    @property
    def schema_version(self) -> int:
        """The newest version of the schema; 0: the topic has no schema."""
        return max(self.schemas, default=0)


class ElectionKind(StrEnum):
    """Kinds of requested elections; the value is part of metrics and logs."""

    PREFERRED = "preferred"  # the first assigned replica leads again
    LAST_KNOWN = "last_known"  # the live replica with the longest log leads an offline partition (rule T4)
    REBUILD_STATE = "rebuild_state"  # the same, for a partition whose leaderAndISR node is unreadable (rule Z4)


REQUESTED_ELECTIONS = (ElectionKind.PREFERRED, ElectionKind.LAST_KNOWN)
"""Kinds with a separate node; a request for REBUILD_STATE uses the node of LAST_KNOWN."""


@dataclass(frozen=True, slots=True)
class ElectionRequest:
    """A request for elections in its znode (docs/formats.md).

    Attributes:
        request_id: names the request in loss reports; derived from `modified_zxid` for a request without an id.
        modified_zxid: distinguishes the request from a later request; the znode is deleted at `version`.
        error: why the znode does not parse; then `partitions` is empty.
    """

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    request_id: str = ""
    modified_zxid: int = -1
    version: int = -1
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """The loss report of one unclean election (rule T4): the start of a new lineage, and the records that may be
    lost.

    Attributes:
        lineage: the new lineage.
        leader_epoch: leader epoch of the new leader.
        elected_at_ms: milliseconds since 1970, UTC; 0 until the report is written.
        last_epoch: leader epoch of the new leader's last record; None when the leader was not queried.
        log_end_offset: of the new leader, exclusive; None when the leader was not queried.
        high_watermark: the highest high watermark (exclusive) of the queried replicas; None if no replica was queried.
        unheard: assigned replicas that did not answer; their records are not in this report.
        request_id: id of the election request; "" when the topic's setting allowed the election.
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
        """Number of committed records from `log_end_offset` to `high_watermark`; None if either offset is unknown."""
        if self.log_end_offset is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.log_end_offset)


@dataclass(frozen=True, slots=True)
class StateWrite:
    """One leaderAndISR node to write (rules R9, T2).

    Attributes:
        expected_version: version the node must have, -1 to create it (with its parents and its i-<incarnation> node).
        broker_epochs: /brokers/epochs/<id> must be at these versions.
        report: of an unclean election, kept by the same multi (rule T4).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    state: LeaderAndIsr
    expected_version: int
    broker_epochs: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    report: UncleanElection | None = None


@dataclass(frozen=True, slots=True)
class StateRebuild:
    """A damaged or deleted leaderAndISR node to write again (rule Z4).

    Attributes:
        topic_version: version of the topic's node, which must not have changed.
        damaged_version: version of the unreadable node; -1: the node is missing.
        above_version: the new node gets a higher version than this one, the highest that a replica knows.
        older_epoch: a readable node is replaced only up to this leader epoch; -1: never.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    state: LeaderAndIsr
    topic_version: int
    damaged_version: int
    above_version: int = -1
    older_epoch: LeaderEpoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The result of an election request for one partition; with a dry run, the expected result.

    Attributes:
        partition: index -1 means an unknown topic.
        leader_before: the former leader, or NO_LEADER.
        leader: the present (or expected) leader; NO_LEADER for none.
        leader_epoch: NO_EPOCH while the leader is not elected yet.
        changed: whether the leader changed.
        unclean: the loss report of an unclean election.
        error: the reason why the leader did not change.
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
    """One entry of /admin/reassign_partitions (rule M1): a partition and its target replicas.

    Attributes:
        replicas: the target (RAR), preferred leader first; kept when `cancel` is set.
        log_dirs: a log directory for each of `replicas`, "any" or a path; empty means "any" for all.
        throttle_bytes_per_s: rate at which each broker sends to adding replicas of all reassignments with the same
            rate; 0 for no limit. The throttle ends with the reassignment (rule M2).
        cancel: restore the original replicas (KIP-455).
        request_id: id of the request; "" for a znode written manually.
    """

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    log_dirs: tuple[str, ...] = ()
    throttle_bytes_per_s: int = 0
    cancel: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request of an /admin znode, kept for the requester after its removal.

    Attributes:
        kind: "reassign", "partitions_add", "partitions_remove".
        partition: the partition; None when the whole znode does not parse.
        at_ms: milliseconds since 1970, UTC.
    """

    kind: str
    partition: TopicPartition | None
    error: TidemarkError
    request_id: str = ""
    at_ms: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Different for each refusal, so that new ones are distinguished from known ones."""
        return self.kind, self.partition, self.request_id, self.at_ms, self.error.code


@dataclass(frozen=True, slots=True)
class ReassignmentRequests:
    """The znode /admin/reassign_partitions: requested and running reassignments, and malformed entries.

    `version` of the znode; -1 when it does not exist.
    """

    moves: tuple[PartitionReassignment, ...] = ()
    malformed: tuple[Refusal, ...] = ()
    version: int = -1


@dataclass(frozen=True, slots=True)
class PartitionRequests:
    """Partitions to add (with their assigned replicas) and to remove (True: with their records), rule C7.

    Znodes below /admin/partitions_add/<topic> and /admin/partitions_remove/<topic>.
    """

    added: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    removed: Mapping[TopicPartition, bool] = field(default_factory=dict)
    malformed: tuple[Refusal, ...] = ()
