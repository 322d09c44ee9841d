# SPDX-License-Identifier: Apache-2.0
"""Protocols of all parts outside the drivers; implementations and fakes pass the same contract suites.

Times in ms are monotonic unless the name states otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    EpochEntry,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.model import StateRebuild as StateRebuild
from tidemark.model import StateWrite as StateWrite
from tidemark.record.envelope import Batch
from tidemark.record.transactions import AbortedTransaction

T = TypeVar("T")


def no_check() -> None:
    """The check of a search that always continues."""


class Clock(Protocol):
    """Time; a parameter of every driver, so that the simulator controls time."""

    def now_ms(self) -> int:
        """Milliseconds on a clock that runs through suspension (CLOCK_BOOTTIME)."""

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC."""


class Signal(Protocol):
    """A flag that coroutines of one scheduler wait for."""

    def is_set(self) -> bool:
        """Whether the flag is set."""

    def set(self) -> None:
        """Set the flag and resume every waiting coroutine."""

    def clear(self) -> None:
        """Unset the flag."""

    async def wait(self) -> object:
        """Suspend until the flag is set."""


class Scheduler(Protocol):
    """Concurrent work of one driver: asyncio in production, simulated time in the simulator."""

    def spawn(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Run `work` concurrently; an exception other than its cancellation goes to `on_error`."""

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call `work` after the callbacks that are ready now."""

    async def sleep_ms(self, duration_ms: int) -> None:
        """Suspend the calling coroutine."""

    def signal(self) -> Signal:
        """Make a flag that is not set."""

    async def wait(self, signal: Signal, timeout_ms: int) -> None:
        """Suspend until `signal` is set or the timeout expires."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Result of `work`, which blocks; other coroutines continue meanwhile."""

    async def stop(self) -> None:
        """Cancel the work that was spawned."""


class TimestampOffset(NamedTuple):
    """The offset and the timestamp of a record that was found by time."""

    timestamp_us: int
    offset: Offset


class RetentionLimits(NamedTuple):
    """Retention of a log; -1: no limit."""

    retention_ms: int
    retention_bytes: int


ReadBytes = Callable[[int, int], bytes]
"""Reads bytes of a file: function of their position and number; positions start at 0, the first wanted byte."""
TakeParts = Callable[[ReadBytes, int], bytes]
"""Makes a result of bytes in a file: function of a reader of them and of their number."""


class Log(Protocol):
    """One replica's log. Blocking; every call but `read` and `flush` is made by its directory's append thread.

    Errors are `TidemarkError` with STORAGE_ERROR (the replica is offline then) or OFFSET_OUT_OF_RANGE.
    """

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the log, inclusive."""

    @property
    def log_end_offset(self) -> Offset:
        """Next offset of the log, exclusive."""

    def append(
        self, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        """Append the batches as `effects.AppendToLog` states; returns the new log end (exclusive).

        On return the operating system has all bytes (rule R1); only `flush` makes them durable.
        """

    def read(self, offset: Offset, *, end_offset: Offset, max_bytes: int, cached_only: bool = False) -> bytes | None:
        """Whole batches from the batch with `offset`, all below `end_offset` (exclusive); b"" without any.

        The first batch is returned even above `max_bytes`. Thread-safe during appends of one thread. With
        `cached_only`, None if the read would wait for the disk.
        """

    def read_parts(self, offset: Offset, *, end_offset: Offset, max_bytes: int, take: TakeParts) -> bytes:
        """The result of `take` for the batches that `read` would return; `take` may read parts, and be called again."""

    def aborted_transactions(self, start_offset: Offset, end_offset: Offset) -> Sequence[AbortedTransaction]:
        """The aborted transactions with batches that may lie in [start, end) (rule X5); thread-safe, never blocks."""

    def truncate(self, end_offset: Offset) -> ProducerStates:
        """Truncate to `end_offset` (exclusive); returns the producer state of the kept records."""

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Delete all records and start empty there; `epoch_below`: the epoch of the offsets below, -1 if unknown."""

    def trim(self, start_offset: Offset) -> None:
        """Advance the log start; whole segments below it may be deleted (rule L1)."""

    def may_roll_by_time(self, now_ms: int) -> bool:
        """Whether the active segment may be older than segment.ms; thread-safe, never blocks."""

    def roll_by_time(self, now_ms: int) -> None:
        """Roll the active segment if it is older than segment.ms."""

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        """The log start by these limits, at most the high watermark; thread-safe, never blocks."""

    def end_damage(self) -> None:
        """Like `effects.ClearDamage`; the next checkpoint covers the present log, and removes the damage."""

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Write the leader-epoch-checkpoint."""

    def flush(self) -> Offset:
        """fdatasync; all offsets below the result are on disk. Thread-safe during appends of one thread.

        A failed flush is not retried: the replica is offline.
        """

    def offset_for_timestamp(
        self, timestamp_us: int, *, end_offset: Offset, check: Callable[[], None] = no_check
    ) -> TimestampOffset | None:
        """First record at or after `timestamp_us` and below `end_offset`.

        `check` is called before each batch, and may raise an error that ends the search.
        """

    def max_timestamp(self, *, end_offset: Offset, check: Callable[[], None] = no_check) -> TimestampOffset | None:
        """The record with the largest timestamp below `end_offset`; see `offset_for_timestamp`."""

    def size_bytes(self) -> int:
        """Size of all segments, in bytes."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Replace the topic's settings, in the form of `Logs.open`; thread-safe, never blocks."""

    def close(self) -> None:
        """Release the files of the log."""


class Logs(Protocol):
    """All log directories of a broker. Blocking."""

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """Uuids of the directories that are online, by index."""

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        """Replicas on disk, neither stray nor deleted."""

    def directory_of(self, partition: TopicPartition) -> int | None:
        """Index of the directory with this replica, online or not; None if there is none."""

    def open(
        self, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[Log, RecoveredLog]:
        """Open or create; a log of another identity under that name becomes stray first."""

    def set_aside(self, partition: TopicPartition, suffix: str) -> None:
        """Rename the directory to <name>.<uuid>-stray or -delete; "-delete" is removed in the background."""

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Write the HW, recovery-point and log-start checkpoints of every directory, one syncfs each."""


class StoreEvent(Enum):
    """A notification from ZooKeeper that a node changed. A read with watch=True shows the change and arms the watch."""

    BROKERS = "brokers"
    TOPICS = "topics"
    DELETIONS = "deletions"
    ELECTIONS = "elections"
    MOVES = "moves"
    PARTITION_REQUESTS = "partition_requests"
    CONTROLLER = "controller"
    CONFIGS = "configs"
    ACLS = "acls"
    QUOTAS = "quotas"
    SESSION_SUSPENDED = "session_suspended"
    SESSION_RESTORED = "session_restored"
    SESSION_EXPIRED = "session_expired"


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """A won election; every multi checks that /controller_epoch has the version `epoch_version` (rule Z1)."""

    controller_id: BrokerId
    epoch: ControllerEpoch
    epoch_version: int


class ControllerInfo(NamedTuple):
    """The content of /controller; `election_wait_ms` is its leader.election.wait.ms, -1 if unknown."""

    controller_id: BrokerId
    address: str
    election_wait_ms: int = -1


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic with the states of its partitions; replaced when any of them changes.

    Attributes:
        topic: the topic; None if a node of the topic does not parse, with the reason in `error`.
        unreadable: partitions whose leaderAndISR does not parse, or was deleted manually.
    """

    topic: TopicDescription | None
    states: Mapping[TopicPartition, VersionedState] = field(default_factory=dict)
    error: TidemarkError | None = None
    unreadable: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Brokers, controller and topics at one time; an unchanged part is the same object as in the snapshot before.

    Attributes:
        draining: brokers that get no new replicas.
        topics: topics sorted by name.
    """

    cluster_id: str = ""
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    controller: ControllerInfo | None = None
    draining: frozenset[BrokerId] = frozenset()
    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)


class WriteOutcome(Enum):
    """Outcomes of a conditional write to ZooKeeper."""

    WRITTEN = "written"
    CONFLICT = "conflict"  # a node of the batch had changed; no write of the batch took place
    UNKNOWN = "unknown"  # the answer was lost


class WriteResult(NamedTuple):
    """Outcome, and the new version where written."""

    outcome: WriteOutcome
    version: int = -1


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """Record of a request that a client may repeat: a node of /admin/requests.

    Attributes:
        method: the call's name.
        digest: digest of its content, in hex.
        at_ms: arrival of the first attempt, since 1970, UTC.
        facts: observations of the first attempt, for later attempts.
        answer: the answer; None: no answer yet.
        version: version of the node; -1 until it is written.
    """

    request_id: str
    method: str
    digest: str
    at_ms: int
    facts: Mapping[str, str] = field(default_factory=dict)
    answer: bytes | None = None
    version: int = -1


@dataclass(frozen=True, slots=True)
class RestartClaim:
    """The node /admin/restart_claim: the one broker that may restart now.

    Attributes:
        broker_epoch: of the registration that will end; with its end the claim ends, too.
        until_ms: latest end of the claim, since 1970, UTC.
        version: version of the node; -1 until it is written.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    until_ms: int
    version: int = -1
