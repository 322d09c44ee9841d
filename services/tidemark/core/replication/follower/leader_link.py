# SPDX-License-Identifier: Apache-2.0
"""The follower's end of the replication stream to one leader (rules R5, R6).

The link gathers the requests and reports of all partitions during one event into one message.
"""

from __future__ import annotations

from tidemark.core.messages import Chunk, Credit, EpochQuery, FetchPosition, FollowerMessage, Report, StopFetch
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import ConnectToLeader, DisconnectFromLeader, SendToLeader
from tidemark.core.replication.leader_contact import LeaderContact
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import BrokerId, BrokerRegistration, ReplicaIdentity, TopicPartition


class LeaderLink:
    """The follower's end of the stream to one leader.

    Attributes:
        registration: of the leader, the newest known; host and port to connect to.
        connected: True while the stream is up.
        last_sent_ms: time of the last message to the leader.
        echo_ms: clock of the leader in its last message, sent back in the next message (rule F2); 0 before the first
            message.
        _fetched: by partition, the identity and the log directory of its first fetch on this stream.
        _granted: log directories that have had their initial credit on this stream.
        _queries, _positions, _reports, _stops, _credits: content of the next message; `flush` empties them.
            Invariant: all are empty at the start of a stream, and `_reports` holds at most one report of a partition.
    """

    def __init__(self, ctx: BrokerContext, leader: BrokerId, registration: BrokerRegistration) -> None:
        self._ctx = ctx
        self.leader = leader
        self.registration = registration
        self.connected = False
        self.last_sent_ms = 0
        self.echo_ms = 0
        self._fetched: dict[TopicPartition, tuple[ReplicaIdentity, int]] = {}
        self._granted: set[int] = set()
        self._queries: list[EpochQuery] = []
        self._positions: list[FetchPosition] = []
        self._reports: dict[TopicPartition, Report] = {}
        self._stops: list[StopFetch] = []
        self._credits: dict[int, int] = {}

    def connect(self) -> None:
        """Ask the driver to connect the stream."""
        registration = self.registration
        self._ctx.emit(ConnectToLeader(self.leader, registration.host, registration.port, registration.broker_epoch))

    def disconnect(self) -> None:
        """Ask the driver to end the stream."""
        self.on_disconnected()
        self._ctx.emit(DisconnectFromLeader(self.leader))

    def on_connected(self, now_ms: int) -> None:
        """Begin a new stream, without messages so far."""
        self._clear()
        self._ctx.leader_contacts[self.leader] = LeaderContact()
        self.connected = True
        self.last_sent_ms = now_ms

    def on_disconnected(self) -> None:
        """The stream ended: drop the message that was not sent."""
        self._clear()
        self.connected = False

    def _clear(self) -> None:
        self.echo_ms = 0
        self._granted.clear()
        self._fetched.clear()
        self._queries.clear()
        self._positions.clear()
        self._reports.clear()
        self._stops.clear()
        self._credits.clear()

    def query(self, query: EpochQuery) -> None:
        """Ask the leader for the end of an epoch (rule E2)."""
        self._queries.append(query)
        self._ctx.links_to_flush[self] = None

    def fetch(self, position: FetchPosition) -> None:
        """Fetch a partition from a position; the first fetch into a log directory grants its credit (rule R6)."""
        if position.directory not in self._granted:
            self._granted.add(position.directory)
            self.give_credit(position.directory, self._ctx.config.replica_directory_credit_bytes)
        self._fetched[position.partition] = (position.identity, position.directory)
        self._reports.pop(position.partition, None)
        self._positions.append(position)
        self._ctx.links_to_flush[self] = None

    def credit_directory(self, log: ReplicaLog) -> int:
        """The log directory whose credit the chunks of `log` use.

        Throughout a stream this is the directory of the first fetch, even after the log moved. The leader sent the
        chunks in flight against that credit. The next stream uses the new directory.
        """
        fetched = self._fetched.get(log.partition)
        return log.directory if fetched is None else fetched[1]

    def fetched_another(self, log: ReplicaLog) -> bool:
        """Whether this stream fetched another incarnation of the partition (rule C7).

        Chunks do not name their incarnation, so the new incarnation needs another stream.
        """
        fetched = self._fetched.get(log.partition)
        return fetched is not None and fetched[0] != log.identity

    @property
    def fetched_count(self) -> int:
        """Number of partitions that this stream has fetched; chunks of those that were stopped may still arrive."""
        return len(self._fetched)

    def report(self, report: Report) -> None:
        """Queue a report of a log end; a later report of the same partition replaces the queued one."""
        self._reports[report.partition] = report
        self._ctx.links_to_flush[self] = None

    def stop(self, stop: StopFetch) -> None:
        """Stop fetching a partition (rule F3)."""
        self._reports.pop(stop.partition, None)
        self._queries = [query for query in self._queries if query.partition != stop.partition]
        self._positions = [position for position in self._positions if position.partition != stop.partition]
        self._stops.append(stop)
        self._ctx.links_to_flush[self] = None

    def give_credit(self, directory: int, credit_bytes: int) -> None:
        """Allow the leader to send more bytes for a log directory."""
        if credit_bytes == 0:
            return
        self._credits[directory] = self._credits.get(directory, 0) + credit_bytes
        self._ctx.links_to_flush[self] = None

    def give_back(self, chunk: Chunk) -> None:
        """Return the credit of a chunk that is not appended."""
        fetched = self._fetched.get(chunk.partition)
        if fetched is not None:
            self.give_credit(fetched[1], chunk.size_bytes)

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat after an interval without a message; a heartbeat counts for all partitions (rule R6)."""
        if self.connected and now_ms - self.last_sent_ms >= self._ctx.config.replica_heartbeat_interval_ms:
            self._ctx.links_to_flush[self] = None

    def flush(self, now_ms: int) -> None:
        """Send the content that the present event added, in one message."""
        if not self.connected:
            self._clear()
            return
        self.last_sent_ms = now_ms
        message = FollowerMessage(
            tuple(self._queries),
            tuple(self._positions),
            tuple(self._reports.values()),
            tuple(self._stops),
            tuple([Credit(directory, credit_bytes) for directory, credit_bytes in self._credits.items()]),
            self.echo_ms,
        )
        self._queries, self._positions, self._reports, self._stops, self._credits = [], [], {}, [], {}
        self._ctx.effects.append(SendToLeader(self.leader, message))
