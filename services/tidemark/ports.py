# SPDX-License-Identifier: Apache-2.0
"""What the drivers need of the world, as Protocols; the real ones and the fakes pass the same contract suites.

Every time in ms is monotonic unless its name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tidemark.core.config_resource import ConfigResource, VersionedConfigs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.events import RecoveredLog
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
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    Refusal,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    VersionedState,
)
from tidemark.record.envelope import Batch


class Clock(Protocol):
    """Time; injected, so that the simulator owns it."""

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
        """A flag, not set."""

    async def wait(self, signal: Signal, timeout_ms: int) -> None:
        """Suspend until `signal` is set or the timeout expires."""

    async def stop(self) -> None:
        """Cancel what was spawned."""


class TimestampOffset(NamedTuple):
    """A record found by time."""

    timestamp_us: int
    offset: Offset


class RetentionLimits(NamedTuple):
    """How much of a log is kept; -1 for no limit."""

    retention_ms: int
    retention_bytes: int


class Log(Protocol):
    """One replica's log. Blocking; every call but `read` and `flush` is made by its directory's append thread.

    Errors are `TidemarkError` with STORAGE_ERROR (the replica is offline then) or OFFSET_OUT_OF_RANGE.
    """

    @property
    def log_start_offset(self) -> Offset:
        """First offset, inclusive."""

    @property
    def log_end_offset(self) -> Offset:
        """Next offset, exclusive."""

    def append(
        self, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        """As `effects.AppendToLog`; gives the new log end. All written with write(2) when it returns (rule R1)."""

    def read(self, offset: Offset, *, end_offset: Offset, max_bytes: int, cached_only: bool = False) -> bytes | None:
        """Whole batches from the one that holds `offset`, all below `end_offset` (exclusive); b"" when there is none.

        The first batch comes even when larger than `max_bytes`. Thread-safe beside one appender. With
        `cached_only`, None where it would have to wait for the disk.
        """

    def truncate(self, end_offset: Offset) -> ProducerStates:
        """Cut at `end_offset`, exclusive; gives the producer state of what is left."""

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Drop everything, start empty there; what lies below was of that epoch, -1 where nobody knows."""

    def trim(self, start_offset: Offset) -> None:
        """Start there from now on: what lies below may go, whole segments at a time (rule L1)."""

    def may_roll_by_time(self, now_ms: int) -> bool:
        """Whether the active segment may be older than segment.ms; thread-safe, never blocks."""

    def roll_by_time(self, now_ms: int) -> None:
        """Roll the active segment if it is older than segment.ms."""

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        """Where the log may start by these limits, not past the high watermark; thread-safe, never blocks."""

    def end_damage(self) -> None:
        """As `effects.ClearDamage`: forgotten with the next checkpoint, which vouches for the log as it is now."""

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Write the leader-epoch-checkpoint."""

    def flush(self) -> Offset:
        """fdatasync; all below the result is on disk. Thread-safe beside one appender; one that failed is the last."""

    def offset_for_timestamp(self, timestamp_us: int, *, end_offset: Offset) -> TimestampOffset | None:
        """First record at or after `timestamp_us` and below `end_offset`."""

    def max_timestamp(self, *, end_offset: Offset) -> TimestampOffset | None:
        """The record with the largest timestamp below `end_offset`."""

    def size_bytes(self) -> int:
        """Bytes of all segments."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """The topic's settings from now on, as `Logs.open` takes them; thread-safe, never blocks."""

    def close(self) -> None:
        """Release the files."""


class Logs(Protocol):
    """All log directories of a broker. Blocking."""

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """Uuids of the directories that are online, by index."""

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        """What lies on disk (not stray, not deleted)."""

    def directory_of(self, partition: TopicPartition) -> int | None:
        """Index of the directory that holds a replica, whether or not it can be used; None: none does."""

    def open(
        self, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[Log, RecoveredLog]:
        """Open or make; another identity under that name is set aside as stray first."""

    def set_aside(self, partition: TopicPartition, suffix: str) -> None:
        """Rename the directory to <name>.<uuid>-stray or -delete; a "-delete" one goes in the background."""

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Write the HW, recovery-point and log-start checkpoints of every directory, one syncfs each."""


class StoreEvent(Enum):
    """A hint from ZooKeeper: something changed; read to learn what, with watch=True to be told again."""

    BROKERS = "brokers"
    TOPICS = "topics"
    DELETIONS = "deletions"
    ELECTIONS = "elections"
    MOVES = "moves"
    PARTITION_REQUESTS = "partition_requests"
    CONTROLLER = "controller"
    CONFIGS = "configs"
    SESSION_SUSPENDED = "session_suspended"
    SESSION_RESTORED = "session_restored"
    SESSION_EXPIRED = "session_expired"


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """A won election; `epoch_version` is what every multi checks /controller_epoch at (rule Z1)."""

    controller_id: BrokerId
    epoch: ControllerEpoch
    epoch_version: int


class ControllerInfo(NamedTuple):
    """The content of /controller."""

    controller_id: BrokerId
    address: str


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


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    CONFLICT = "conflict"  # its batch failed: somebody changed a node; nothing of the batch was written
    UNKNOWN = "unknown"  # the answer was lost


class WriteResult(NamedTuple):
    """Outcome, and the new version where written."""

    outcome: WriteOutcome
    version: int = -1


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """What is kept of a request that people may repeat: a node of /admin/requests.

    Attributes:
        method: the call's name.
        digest: of its content, in hex.
        at_ms: when it came first, since 1970, UTC.
        facts: what the first try saw, for those after it.
        answer: what it was answered with; None while there is no answer.
        version: of the node; -1 until it is written.
    """

    request_id: str
    method: str
    digest: str
    at_ms: int
    facts: Mapping[str, str] = field(default_factory=dict)
    answer: bytes | None = None
    version: int = -1


class MetadataStore(Protocol):
    """ZooKeeper in the words of the domain. Every call raises TidemarkError(COORDINATION_UNAVAILABLE) when
    it cannot be answered in time; a write that raises it may have happened."""

    def listen(self, listener: Callable[[StoreEvent], None]) -> None:
        """Be told of hints, on the event loop."""

    def lease_valid_until_ms(self) -> int:
        """End of the session lease on the port's clock (rule F1); 0 with no session."""

    def lease_length_ms(self) -> int:
        """How long a lease is: the negotiated session timeout less a margin; 0 before the first session."""

    async def start(self) -> None:
        """Connect; make the layout's parent nodes where missing."""

    async def stop(self) -> None:
        """Close the session, which deletes its ephemeral nodes."""

    async def new_session(self) -> None:
        """After SESSION_EXPIRED: connect anew."""

    async def cluster_id(self) -> str:
        """Of /cluster/id, created by whoever is first."""

    # brokers
    async def register_broker(
        self,
        registration: BrokerRegistration,
        *,
        clean: bool,
        locked_directory_ids: frozenset[str],
        flushed_kept: bool = False,
    ) -> BrokerEpoch:
        """Rule Z3, waiting where it says wait; raises BROKER_ID_TAKEN. `clean` as rule T1 decides; where it is
        not, `flushed_kept`: what was flushed is there all the same."""

    async def live_brokers(self, *, watch: bool = False) -> Mapping[BrokerId, BrokerRegistration]:
        """/brokers/ids."""

    async def broker_epochs(self) -> Mapping[BrokerId, BrokerEpochRecord]:
        """/brokers/epochs."""

    async def restore_broker_epoch(
        self, term: ControllerTerm, registration: BrokerRegistration, was: BrokerEpochRecord
    ) -> None:
        """Make the node of a live broker's epoch again, which somebody deleted by hand; there already is fine.

        Raises CONTROLLER_NOT_ACTIVE, or COORDINATION_UNAVAILABLE where the broker is gone meanwhile.
        """

    # brokers that are removed
    async def draining_brokers(self) -> frozenset[BrokerId]:
        """Those on which nothing new is placed: /admin/draining_brokers."""

    async def begin_draining(self, brokers: Collection[BrokerId]) -> None:
        """Place nothing new on these any more; again is fine."""

    async def end_draining(self, brokers: Collection[BrokerId]) -> None:
        """Place replicas on these again; again is fine."""

    async def forget_broker_configs(self, broker: BrokerId) -> None:
        """Delete /config/brokers/<id>; gone already is fine."""

    # topics
    async def topics(
        self, names: Sequence[str] | None = None, *, watch: bool = False, unreadable: set[str] | None = None
    ) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist (None: all), configs included, pipelined.

        Of all, those whose nodes cannot be understood are left out, and added to `unreadable`.
        """

    async def create_topic(self, topic: TopicDescription) -> TopicDescription:
        """One multi guarded by absence: the topic node and /config/topics/<t>; raises TOPIC_ALREADY_EXISTS."""

    async def request_topic_deletion(self, topic: str) -> None:
        """Create /admin/delete_topics/<t>; again is fine; raises UNKNOWN_TOPIC."""

    async def requested_deletions(self, *, watch: bool = False) -> frozenset[str]:
        """Children of /admin/delete_topics."""

    async def delete_topic(self, term: ControllerTerm, topic: TopicDescription) -> None:
        """Delete its states, its node, its config and its request, in multis that check the term; can be run again."""

    # partition states
    async def states(
        self,
        partitions: Sequence[TopicPartition],
        *,
        sync: bool = False,
        unreadable: set[TopicPartition] | None = None,
    ) -> Mapping[TopicPartition, VersionedState]:
        """Those that exist, pipelined; `sync` first where asked.

        One whose node cannot be understood, or was deleted by hand, is left out, and added to `unreadable`.
        """

    async def write_states(self, term: ControllerTerm, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        """Multis of up to 500 operations and 512 KiB, each checking the term; one result for each write, in order.

        Raises CONTROLLER_NOT_ACTIVE when the term's check fails.
        """

    async def write_isrs(self, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        """Conditional writes of a leader (rule R9), each also checking i-<incarnation>; as many to a multi as fit, but
        each stands or fails by itself. One result for each, in order."""

    async def read_isrs(
        self, asked: Mapping[TopicPartition, ReplicaIdentity]
    ) -> Mapping[TopicPartition, VersionedState]:
        """Sync, then read; without those whose node or whose incarnation is gone."""

    async def write_isr(self, write: StateWrite) -> WriteResult:
        """One of `write_isrs`."""

    async def read_isr(self, partition: TopicPartition, identity: ReplicaIdentity) -> VersionedState | None:
        """One of `read_isrs`; None when it is gone."""

    # elections that people ask for
    async def request_elections(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition], request_id: str = ""
    ) -> bool:
        """Create the kind's node; False while another request's is there. One of the same id is this one."""

    async def requested_elections(self, kind: ElectionKind, *, watch: bool = False) -> ElectionRequest | None:
        """The kind's node, which may carry an error; None: there is none."""

    async def finish_elections(self, term: ControllerTerm, request: ElectionRequest) -> None:
        """Remove its node, in a multi that checks the term; gone or written anew since is fine.

        Raises CONTROLLER_NOT_ACTIVE when the term's check fails.
        """

    async def unclean_elections(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Sequence[UncleanElection]]:
        """The loss reports kept of each partition that has any (None: of all), the oldest first."""

    # moves of replicas (rule M1)
    async def submit_moves(self, moves: Sequence[PartitionReassignment]) -> None:
        """Add these to /admin/reassign_partitions, making it where there is none; all or none.

        One that is there word for word already is fine. Raises REASSIGNMENT_IN_PROGRESS for a partition that has
        another one, INVALID_REQUEST (metadata moves_max) where the node would become too large.
        """

    async def cancel_moves(self, partitions: Sequence[TopicPartition]) -> None:
        """Mark these as cancelled, all or none; again is fine; raises NO_REASSIGNMENT_IN_PROGRESS."""

    async def move_requests(self, *, watch: bool = False) -> ReassignmentRequests:
        """/admin/reassign_partitions; what of it cannot be understood is in `malformed`."""

    async def finish_moves(
        self, term: ControllerTerm, finished: Sequence[PartitionReassignment], refused: Sequence[Refusal]
    ) -> None:
        """Take these moves, if they are still word for word the same, and all that is malformed out of the node, the
        node itself when nothing is left; keep `refused`. Raises CONTROLLER_NOT_ACTIVE."""

    async def write_topic(self, term: ControllerTerm, topic: TopicDescription) -> TopicDescription | None:
        """Write the topic node if it still is at `topic.version`; the new one has its zxid and version, None: it is
        at another version. Raises CONTROLLER_NOT_ACTIVE."""

    # partitions added and removed (rule C7)
    async def request_partitions(self, added: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """Create nodes below /admin/partitions_add, all or none; the same again is fine; raises UNKNOWN_TOPIC, and
        INVALID_REQUEST where another request for one of them is there."""

    async def request_partition_removal(self, removed: Mapping[TopicPartition, bool]) -> None:
        """Create nodes below /admin/partitions_remove, all or none; as `request_partitions`."""

    async def partition_requests(self, *, watch: bool = False) -> PartitionRequests:
        """Both."""

    async def finish_partition_requests(
        self,
        term: ControllerTerm,
        *,
        added: Sequence[TopicPartition] = (),
        removed: Sequence[TopicPartition] = (),
        refused: Sequence[Refusal] = (),
    ) -> None:
        """Remove these requests (and those that `refused` names, by kind); keep `refused`. Gone already is fine.
        Raises CONTROLLER_NOT_ACTIVE."""

    async def delete_partitions(self, term: ControllerTerm, topic: TopicDescription, partitions: Sequence[int]) -> None:
        """Delete the nodes below these partitions of a topic whose node does not name them any more; again is fine.
        Raises CONTROLLER_NOT_ACTIVE."""

    async def refusals(self) -> Sequence[Refusal]:
        """The latest 100 of all kinds, the oldest first."""

    # controller
    async def elect_controller(self, controller_id: BrokerId, address: str) -> ControllerTerm | None:
        """Rule Z1 in one multi; None when somebody else holds /controller."""

    async def controller(self, *, watch: bool = False) -> ControllerInfo | None:
        """/controller."""

    async def resign(self, term: ControllerTerm) -> None:
        """Delete /controller if it is still ours."""

    async def next_producer_ids(self, count: int) -> range:
        """A block of producer ids from /producer_ids (rule P1)."""

    # settings
    async def configs(
        self, resources: Sequence[ConfigResource], *, watch: bool = False
    ) -> Mapping[ConfigResource, VersionedConfigs]:
        """The explicit settings of each; of one that has none, or does not exist, they are empty, at version -1."""

    async def write_configs(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str],
        *,
        version: int,
        receipt: AdminRequest | None = None,
    ) -> bool:
        """Write them if they are still at `version` (-1: there is no node), and keep `receipt` with them, in one multi.

        False: somebody else has written them, or has answered the request, meanwhile; nothing was written then.
        Raises UNKNOWN_TOPIC.
        """

    # requests that are answered once
    async def begin_request(self, request: AdminRequest) -> AdminRequest:
        """Keep it; where one of its id is kept already that one is given, whatever it is about."""

    async def kept_request(self, request_id: str) -> AdminRequest | None:
        """The one kept under this id."""

    async def finish_request(self, request: AdminRequest) -> AdminRequest:
        """Keep its answer; where an answer is kept already, that stays, and is given."""

    async def forget_request(self, request: AdminRequest) -> None:
        """Remove it if it still is at `request.version`; gone already is fine."""

    async def expire_requests(self, before_ms: int) -> int:
        """Remove those that came before that time (since 1970, UTC); gives how many."""
