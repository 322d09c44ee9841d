# SPDX-License-Identifier: Apache-2.0
"""Protocols of all parts outside the drivers; implementations and fakes pass the same contract suites.

Times in ms are monotonic unless the name states otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from tidemark.core.config_resource import ConfigResource, VersionedConfigs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.quotas.quotas import Limits, QuotaEntity, Quotas
from tidemark.core.replication.events import RecoveredLog
from tidemark.core.security.acls import Acl
from tidemark.core.security.authorizer import Rules
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ElectionKind,
    ElectionRequest,
    EpochEntry,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    Refusal,
    ReplicaIdentity,
    SchemaText,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    VersionedState,
)
from tidemark.model import StateRebuild as StateRebuild
from tidemark.model import StateWrite as StateWrite
from tidemark.record.envelope import Batch
from tidemark.record.transactions import AbortedTransaction

T = TypeVar("T")


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

        The first batch is returned even above `max_bytes`. Thread-safe beside one appender. With `cached_only`, None if
        the read would wait for the disk.
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
        """fdatasync; all offsets below the result are on disk. Thread-safe beside one appender.

        A failed flush is not retried: the replica is offline.
        """

    def offset_for_timestamp(self, timestamp_us: int, *, end_offset: Offset) -> TimestampOffset | None:
        """First record at or after `timestamp_us` and below `end_offset`."""

    def max_timestamp(self, *, end_offset: Offset) -> TimestampOffset | None:
        """The record with the largest timestamp below `end_offset`."""

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


class MetadataStore(Protocol):
    """ZooKeeper in the terms of Tidemark.

    Every call raises TidemarkError(COORDINATION_UNAVAILABLE) without an answer in time; the write of such a call may
    have taken place.
    """

    def listen(self, listener: Callable[[StoreEvent], None]) -> None:
        """Call `listener` with every notification, on the event loop."""

    def lease_valid_until_ms(self) -> int:
        """End of the session lease on the port's clock (rule F1); 0 with no session."""

    def lease_length_ms(self) -> int:
        """Length of a lease: the negotiated session timeout less a margin; 0 before the first session."""

    async def start(self) -> None:
        """Connect, and create missing parent nodes of the layout."""

    async def stop(self) -> None:
        """Close the session, which deletes its ephemeral nodes."""

    async def new_session(self) -> None:
        """Connect again after SESSION_EXPIRED."""

    async def cluster_id(self) -> str:
        """The content of /cluster/id; the first caller creates the node."""

    async def cluster_snapshot(self) -> ClusterSnapshot:
        """The state of the nodes that describe the cluster, at the time of this call or later.

        The store keeps a copy up to date by watches; concurrent callers share a read. Without a change, the call
        returns the same object as before.
        """

    # brokers
    async def register_broker(
        self,
        registration: BrokerRegistration,
        *,
        clean: bool,
        locked_directory_ids: frozenset[str],
        flushed_kept: bool = False,
        crashed: bool = False,
    ) -> BrokerEpoch:
        """Register by rule Z3, with its waits; raises BROKER_ID_TAKEN.

        `clean` as rule T1 decides; `flushed_kept`: flushed records survived an unclean stop. `crashed`: the process
        before was not stopped cleanly (rule T7).
        """

    async def live_brokers(self, *, watch: bool = False) -> Mapping[BrokerId, BrokerRegistration]:
        """The registrations in /brokers/ids."""

    async def broker_epochs(self) -> Mapping[BrokerId, BrokerEpochRecord]:
        """The epoch records below /brokers/epochs, by broker id."""

    async def restore_broker_epoch(
        self, term: ControllerTerm, registration: BrokerRegistration, was: BrokerEpochRecord
    ) -> None:
        """Restore the epoch node of a live broker after an operator deleted the node; idempotent.

        Raises CONTROLLER_NOT_ACTIVE, or COORDINATION_UNAVAILABLE where the broker has deregistered meanwhile.
        """

    # brokers to remove
    async def draining_brokers(self) -> frozenset[BrokerId]:
        """/admin/draining_brokers: brokers that get no new replicas."""

    async def begin_draining(self, brokers: Collection[BrokerId]) -> None:
        """Place no new replicas on these brokers; idempotent."""

    async def end_draining(self, brokers: Collection[BrokerId]) -> None:
        """Place replicas on these brokers again; idempotent."""

    async def forget_broker_configs(self, broker: BrokerId) -> None:
        """Delete /config/brokers/<id>; idempotent."""

    # brokers to restart
    async def restart_claim(self) -> RestartClaim | None:
        """/admin/restart_claim, valid or not; None: the node does not exist."""

    async def write_restart_claim(self, claim: RestartClaim) -> bool:
        """Write the claim over its version; returns False if another claim was written meanwhile."""

    async def end_restart_claim(self, claim: RestartClaim) -> None:
        """Delete the node if this claim is still there; idempotent."""

    # topics
    async def topics(
        self, names: Sequence[str] | None = None, *, watch: bool = False, unreadable: set[str] | None = None
    ) -> Mapping[str, TopicDescription]:
        """The topics of `names` that exist (None: all topics), with their configs and schemas, pipelined.

        Topics whose nodes do not parse are omitted and added to `unreadable`.
        """

    async def create_topic(self, topic: TopicDescription) -> TopicDescription:
        """One multi, which fails if the topic exists: the topic node, /config/topics/<t> and the schemas below.
        Raises TOPIC_ALREADY_EXISTS, or INVALID_SCHEMA for a schema that no node can hold.
        """

    async def add_schema(
        self, topic: TopicDescription, version: int, schema: SchemaText, *, receipt: AdminRequest | None = None
    ) -> bool:
        """Create a version of the topic's schema, with `receipt`, in one multi that checks the topic and its settings.

        Returns False if the multi was not written. The multi is not written if the topic, its settings or its schema
        changed since `topic` was read, or the request was answered, or if the controller has not initialised the topic
        yet. Raises INVALID_SCHEMA.
        """

    async def request_topic_deletion(self, topic: str, topic_id: str = "") -> None:
        """Create /admin/delete_topics/<t> for the topic with this id (empty: any); idempotent; raises UNKNOWN_TOPIC."""

    async def requested_deletions(self, *, watch: bool = False) -> frozenset[str]:
        """Children of /admin/delete_topics, except requests for an earlier topic of the name."""

    async def delete_topic(self, term: ControllerTerm, topic: TopicDescription) -> None:
        """Delete a topic: states, node, config, schemas, request. The multis check the controller epoch. Idempotent."""

    # partition states
    async def states(
        self,
        partitions: Sequence[TopicPartition],
        *,
        sync: bool = False,
        unreadable: set[TopicPartition] | None = None,
    ) -> Mapping[TopicPartition, VersionedState]:
        """The states that exist, pipelined; with `sync`, after a ZooKeeper sync.

        A state whose node does not parse, or was deleted manually, is omitted and added to `unreadable`.
        """

    async def write_states(self, term: ControllerTerm, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        """Write in multis of up to 500 operations and 512 KiB that check the controller epoch; one result per write.

        Results are in the order of the writes. A write that conflicts does not fail the other writes. Raises
        CONTROLLER_NOT_ACTIVE if the check of the controller epoch fails.
        """

    async def damaged_versions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Versions of leaderAndISR nodes, with or without damage; -1: the node is missing."""

    async def rebuild_states(self, term: ControllerTerm, rebuilds: Sequence[StateRebuild]) -> Sequence[bool]:
        """Write damaged or deleted nodes again, each in a multi that checks the controller epoch (rule Z4).

        Returns False where the node or its topic has changed since the read. Raises CONTROLLER_NOT_ACTIVE if the check
        of the controller epoch fails.
        """

    async def write_isrs(self, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        """Conditional writes of a leader (rule R9) that check i-<incarnation>; one result per write, in order.

        A broker in `broker_epochs` must be registered, too.

        The writes share multis; each succeeds or fails independently.
        """

    async def read_isrs(
        self, asked: Mapping[TopicPartition, ReplicaIdentity], *, unreadable: set[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, VersionedState]:
        """Sync, then read; omits partitions whose incarnation is deleted.

        A state whose node does not parse, or was deleted manually, is omitted and added to `unreadable`.
        """

    # requested elections
    async def request_elections(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition], request_id: str = ""
    ) -> bool:
        """Create the node of this kind; False while the node of another request (by id) exists."""

    async def requested_elections(self, kind: ElectionKind, *, watch: bool = False) -> ElectionRequest | None:
        """The node of this kind, which may carry an error; None if it does not exist."""

    async def finish_elections(self, term: ControllerTerm, request: ElectionRequest) -> None:
        """Remove the node in a multi that checks the controller epoch; a missing or replaced node is not an error.

        Raises CONTROLLER_NOT_ACTIVE if the check of the controller epoch fails.
        """

    async def unclean_elections(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Sequence[UncleanElection]]:
        """The stored loss reports by partition (None: of all partitions), oldest first."""

    # reassignments (rule M1)
    async def submit_moves(self, moves: Sequence[PartitionReassignment]) -> None:
        """Add these entries to /admin/reassign_partitions, either all or none; the first request creates the node.

        An identical request is not an error. Raises REASSIGNMENT_IN_PROGRESS for a partition with another request,
        INVALID_REQUEST (metadata moves_max) if the node becomes too large.
        """

    async def cancel_moves(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark these entries as cancelled, either all or none; idempotent; raises NO_REASSIGNMENT_IN_PROGRESS."""

    async def move_requests(self, *, watch: bool = False) -> ReassignmentRequests:
        """The requests in /admin/reassign_partitions; entries that do not parse are in `malformed`."""

    async def finish_moves(
        self, term: ControllerTerm, finished: Sequence[PartitionReassignment], refused: Sequence[Refusal]
    ) -> None:
        """Remove these requests if unchanged, and all malformed entries; delete an empty node; store `refused`.

        Raises CONTROLLER_NOT_ACTIVE.
        """

    async def write_topic(self, term: ControllerTerm, topic: TopicDescription) -> TopicDescription | None:
        """Write the topic node if still at `topic.version`; returns the topic with its new zxid and version.

        None: the node has another version. Raises CONTROLLER_NOT_ACTIVE.
        """

    # partitions added and removed (rule C7)
    async def request_partitions(
        self,
        added: Mapping[TopicPartition, tuple[BrokerId, ...]],
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create nodes below /admin/partitions_add, all or none; idempotent.

        Raises UNKNOWN_TOPIC, also for a topic that has another id than in `topic_ids`, and INVALID_REQUEST if another
        request for one of these exists.
        """

    async def request_partition_removal(
        self, removed: Mapping[TopicPartition, bool], topic_ids: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create nodes below /admin/partitions_remove, all or none; raises the errors of `request_partitions`."""

    async def partition_requests(self, *, watch: bool = False) -> PartitionRequests:
        """The requests below /admin/partitions_add and /admin/partitions_remove."""

    async def finish_partition_requests(
        self,
        term: ControllerTerm,
        *,
        added: Sequence[TopicPartition] = (),
        removed: Mapping[TopicPartition, bool] = MappingProxyType({}),
        refused: Sequence[Refusal] = (),
    ) -> None:
        """Remove these requests, and those that `refused` names, by kind; store `refused`; idempotent.

        A forced removal stays if `removed` has the removal that it replaced, which was not forced.

        Raises CONTROLLER_NOT_ACTIVE.
        """

    async def delete_partitions(self, term: ControllerTerm, topic: TopicDescription, partitions: Sequence[int]) -> None:
        """Delete the nodes of partitions that were removed from their topic node; idempotent.

        Raises CONTROLLER_NOT_ACTIVE.
        """

    async def refusals(self) -> Sequence[Refusal]:
        """The latest 100 refusals of all kinds, oldest first."""

    # controller
    async def elect_controller(
        self, controller_id: BrokerId, address: str, *, election_wait_ms: int = -1
    ) -> ControllerTerm | None:
        """Win the election in one multi (rule Z1); None when another controller holds /controller.

        `election_wait_ms`: its leader.election.wait.ms, for `tidemark cluster describe`.
        """

    async def controller(self, *, watch: bool = False) -> ControllerInfo | None:
        """The content of /controller; None without a node."""

    async def resign(self, term: ControllerTerm) -> None:
        """Delete /controller if the controller of `term` still holds it."""

    async def next_producer_ids(self, count: int, *, at_least: int = 0) -> range:
        """A block of producer ids from /producer_ids, from `at_least` on (rule P1)."""

    # settings
    async def configs(
        self, resources: Sequence[ConfigResource], *, watch: bool = False
    ) -> Mapping[ConfigResource, VersionedConfigs]:
        """The explicit settings of each resource; empty, at version -1, for a resource without settings."""

    async def write_configs(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str],
        *,
        version: int,
        receipt: AdminRequest | None = None,
    ) -> bool:
        """Write the settings if their version still is `version` (-1: no node), with `receipt`, in one multi.

        False: the settings changed, or the request was answered, in the meantime; then there was no write. Raises
        UNKNOWN_TOPIC.
        """

    # access rules
    async def acls(self, *, watch: bool = False) -> Rules:
        """All access rules; of generation -1 while there are none. Raises INTERNAL for a damaged node."""

    async def write_acls(self, acls: Collection[Acl], *, version: int) -> bool:
        """Replace all access rules at this version (generation); False after a conflict; then there was no write."""

    # quotas
    async def quotas(self, *, watch: bool = False) -> Quotas:
        """All quotas; of generation -1 while there are none. Raises INTERNAL for a damaged node."""

    async def write_quotas(self, limits: Mapping[QuotaEntity, Limits], *, version: int) -> bool:
        """Replace all quotas at this version (generation); False after a conflict; then there was no write."""

    # requests with one answer for all attempts
    async def begin_request(self, request: AdminRequest) -> AdminRequest:
        """Store the request; if a request of the same id is stored, returns that one."""

    async def kept_request(self, request_id: str) -> AdminRequest | None:
        """The stored request of this id, with its answer if it has one; None: not stored, or expired."""

    async def finish_request(self, request: AdminRequest) -> AdminRequest:
        """Store the answer; if there is an earlier answer, returns the request with that answer."""

    async def forget_request(self, request: AdminRequest) -> None:
        """Remove the request if its version still is `request.version`; idempotent."""

    async def expire_requests(self, before_ms: int) -> int:
        """Remove the requests from before that time (since 1970, UTC); returns their number."""
