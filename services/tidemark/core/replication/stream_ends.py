# SPDX-License-Identifier: Apache-2.0
"""The two ends of the stream between a follower and a leader (rules R5, R6).

`FollowerSession` is the leader's end: what each partition was sent, what there is to send, the follower's credit.
`LeaderLink` is the follower's end: it gathers what changed during one event into one message.
Cost follows news: a partition without any is never looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.core.messages import (
    Chunk,
    Credit,
    EpochEnd,
    EpochQuery,
    FetchPosition,
    FollowerMessage,
    LeaderMessage,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import (
    ConnectToLeader,
    DisconnectFromLeader,
    ReadForFollower,
    SendToFollower,
    SendToLeader,
)
from tidemark.core.replication.events import FollowerReadDone
from tidemark.core.replication.leader_contact import Touch
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.throttle import Throttle
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidemark.core.replication.follower import PartitionFollower
    from tidemark.core.replication.leader import PartitionLeader

LONG_AGO_MS = -(1 << 62)
PROMPT_MS = 90_000
"""So long after a consumer was sent to a follower it is taken to be read from; consumers ask again in less time."""
MESSAGE_BYTES_MAX = 4 << 20
"""Chunks beyond this go into another message; one chunk may be larger."""


class Sending:
    """One partition on its way to one follower.

    Invariant: everything below `next_offset` was sent on this stream, or lay in the follower's log before.

    Attributes:
        follower_log_start: where the follower's log starts, as far as it has said.
        reading_since_ms: when the read under way was asked for, None while there is none.
        adding: the follower's replica is being added by a move.
        prompt_until_ms: until then consumers read from that follower: a high watermark is sent to it at once (rule K1).
        throttle: what slows it down, None while nothing does (rule M2); `reserved_bytes` of it are for that read.
    """

    __slots__ = (
        "adding",
        "directory",
        "follower_log_start",
        "leader",
        "log",
        "next_offset",
        "prompt_until_ms",
        "reading_since_ms",
        "reserved_bytes",
        "sent_high_watermark",
        "sent_log_start",
        "session",
        "throttle",
    )

    def __init__(
        self, session: FollowerSession, leader: PartitionLeader, *, next_offset: Offset, directory: int
    ) -> None:
        self.session = session
        self.leader = leader
        self.log: ReplicaLog = leader.log
        self.next_offset = next_offset
        self.directory = directory
        self.sent_high_watermark = Offset(-1)
        self.sent_log_start = Offset(-1)
        self.follower_log_start = Offset(0)
        self.reading_since_ms: int | None = None
        self.prompt_until_ms = 0
        self.adding = False
        self.throttle: Throttle | None = None
        self.reserved_bytes = 0

    def go_by(self, throttle: Throttle | None) -> None:
        """Be slowed down by this one from here on, or by none; then `send_more` has to be called."""
        before = self.throttle
        if before is not throttle:
            if before is not None:
                before.waiting.pop(self, None)
                self.settle(0)
            self.throttle = throttle

    def settle(self, sent_bytes: int) -> None:
        """So much came of the read under way."""
        if self.throttle is not None:
            self.throttle.settle(self.reserved_bytes, sent_bytes)
            self.reserved_bytes = 0


class FollowerSession:
    """The leader's end of the stream from one follower.

    Attributes:
        confirmed_ms: a time after which the follower sent its last message, by this broker's clock (rule F2). That it
            arrived later proves nothing: it may have waited while this process stood still.
        early: what the follower asked in a leader epoch that this broker has not heard of yet; taken up when it has,
            so that a failover need not wait for a retry.
    """

    def __init__(self, ctx: BrokerContext, follower: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> None:
        self._ctx = ctx
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.last_message_ms = now_ms
        self.last_sent_ms = now_ms
        self.confirmed_ms = LONG_AGO_MS
        self.sendings: dict[TopicPartition, Sending] = {}
        self.early: dict[TopicPartition, EpochQuery | FetchPosition] = {}
        self._credit_bytes: dict[int, int] = {}
        self._stalled: dict[int, dict[Sending, None]] = {}
        self._high_watermark_news: dict[Sending, None] = {}
        self._epoch_ends: list[EpochEnd] = []
        self._refusals: list[Refusal] = []
        self._chunks: list[Chunk] = []

    def start(self, leader: PartitionLeader, position: FetchPosition) -> Sending:
        """Send a partition from the follower's position on."""
        self.stop(leader.log.partition)
        sending = Sending(self, leader, next_offset=position.fetch_offset, directory=position.directory)
        sending.follower_log_start = position.log_start_offset
        self.sendings[leader.log.partition] = sending
        self._high_watermark_news[sending] = None
        return sending

    def stop(self, partition: TopicPartition) -> None:
        """Send this partition no more."""
        sending = self.sendings.pop(partition, None)
        if sending is not None:
            sending.go_by(None)
            self._high_watermark_news.pop(sending, None)
            self._stalled.get(sending.directory, {}).pop(sending, None)

    def add_credit(self, directory: int, credit_bytes: int) -> None:
        """The follower has room again in one of its log directories."""
        self._credit_bytes[directory] = self._credit_bytes.get(directory, 0) + credit_bytes
        stalled = self._stalled.pop(directory, None)
        if stalled:
            for sending in stalled:
                self.send_more(sending)

    def send_more(self, sending: Sending) -> None:
        """Read on if there is something to send, room for it, and no read under way."""
        if sending.reading_since_ms is not None or sending.next_offset >= sending.log.log_end_offset:
            return
        if self._credit_bytes.get(sending.directory, 0) <= 0:
            self._stalled.setdefault(sending.directory, {})[sending] = None
            return
        max_bytes = self._ctx.config.replica_fetch_max_bytes
        if sending.throttle is not None:
            max_bytes = sending.reserved_bytes = sending.throttle.reserve(sending, max_bytes, self._ctx.now_ms)
            if max_bytes == 0:
                return
        sending.reading_since_ms = self._ctx.now_ms
        self._ctx.effects.append(
            ReadForFollower(
                self.follower,
                sending.log.partition,
                sending.leader.leader_epoch,
                sending.next_offset,
                sending.log.log_end_offset,
                max_bytes,
            )
        )

    def note_high_watermark(self, sending: Sending) -> None:
        """It, or the log start, rides on the next chunk; where none follows, the next tick sends it alone. At once if
        consumers wait for it there and no read for a chunk is under way."""
        if sending.reading_since_ms is None and self._ctx.now_ms < sending.prompt_until_ms:
            self._chunk(sending, None)
        else:
            self._high_watermark_news[sending] = None

    def on_read_done(self, event: FollowerReadDone) -> None:
        """Pass on what was read, with the high watermark of now (rule R5)."""
        sending = self.sendings.get(event.partition)
        if (
            sending is None
            or sending.reading_since_ms is None
            or event.leader_epoch != sending.leader.leader_epoch
            or event.offset != sending.next_offset
        ):
            return  # of a position that was given up
        sending.reading_since_ms = None
        if not event.batches:
            code = event.error.code if event.error else ErrorCode.STORAGE_ERROR
            message = event.error.message if event.error else "nothing could be read there"
            self.refuse(event.partition, code, message, sending.leader)
            sending.leader.detach(self.follower)
            return
        self._send_chunk(sending, event)
        self.send_more(sending)
        if sending.throttle is not None:
            sending.throttle.serve(self._ctx.now_ms)

    def _send_chunk(self, sending: Sending, event: FollowerReadDone) -> None:
        sent_bytes = 0
        for batch in event.batches:
            sent_bytes += batch.envelope.batch_length
        sending.settle(sent_bytes)
        if sending.adding:
            self._ctx.added_bytes_out += sent_bytes
        self._credit_bytes[sending.directory] = self._credit_bytes.get(sending.directory, 0) - sent_bytes
        self._chunk(sending, event)
        sending.next_offset = Offset(event.batches[-1].envelope.next_offset)

    def _chunk(self, sending: Sending, read: FollowerReadDone | None) -> None:
        log = sending.log
        sending.sent_high_watermark = log.high_watermark
        sending.sent_log_start = log.log_start_offset
        self._high_watermark_news.pop(sending, None)
        self._chunks.append(
            Chunk(
                log.partition,
                sending.leader.leader_epoch,
                sending.next_offset,
                log.high_watermark,
                log.log_start_offset,
                read.batches if read is not None else (),
            )
        )
        self._ctx.talking_sessions[self] = None

    def answer_query(self, answer: EpochEnd) -> None:
        """Answer an epoch query (rule E2)."""
        self._epoch_ends.append(answer)
        self._ctx.talking_sessions[self] = None

    def refuse(self, partition: TopicPartition, code: ErrorCode, message: str, leader: PartitionLeader | None) -> None:
        """Say why a partition is not sent."""
        self._refusals.append(
            Refusal(
                partition,
                code,
                message,
                leader.leader_epoch if leader is not None else LeaderEpoch(-1),
                leader.log.log_start_offset if leader is not None else Offset(0),
                leader.log.let_go_epoch if leader is not None else NO_EPOCH,
            )
        )
        self._ctx.talking_sessions[self] = None

    def refuse_stranger(self, leader: PartitionLeader) -> None:
        """It fetches what it was not assigned, or is assigned no more."""
        partition = leader.log.partition
        sentence = f"broker {self.follower} holds no replica of {partition}"
        self.refuse(partition, ErrorCode.NOT_A_REPLICA, sentence, leader)

    def tick(self, now_ms: int) -> None:
        """High watermarks that no chunk carried, and a heartbeat if there was nothing else for long."""
        for sending in tuple(self._high_watermark_news):
            log = sending.log
            if sending.sent_high_watermark != log.high_watermark or sending.sent_log_start != log.log_start_offset:
                self._chunk(sending, None)
        self._high_watermark_news.clear()
        if now_ms - self.last_sent_ms >= self._ctx.config.replica_heartbeat_interval_ms:
            self._ctx.talking_sessions[self] = None

    def flush(self, now_ms: int) -> None:
        """What this event brought for the follower, in as few messages as the size limit lets."""
        chunks, self._chunks = self._chunks, []
        ends, self._epoch_ends = tuple(self._epoch_ends), []
        refusals, self._refusals = tuple(self._refusals), []
        self.last_sent_ms = now_ms
        if len(chunks) > 1:
            group: list[Chunk] = []
            group_bytes = 0
            for chunk in chunks:
                chunk_bytes = size_bytes(chunk)
                if group and group_bytes + chunk_bytes > MESSAGE_BYTES_MAX:
                    self._send(LeaderMessage(ends, tuple(group), refusals, now_ms))
                    ends, refusals, group, group_bytes = (), (), [], 0
                group.append(chunk)
                group_bytes += chunk_bytes
            chunks = group
        self._send(LeaderMessage(ends, tuple(chunks), refusals, now_ms))

    def _send(self, message: LeaderMessage) -> None:
        self._ctx.effects.append(SendToFollower(self.follower, message))


class LeaderLink:
    """The follower's end of the stream to one leader."""

    def __init__(self, ctx: BrokerContext, leader: BrokerId, registration: BrokerRegistration) -> None:
        self._ctx = ctx
        self.leader = leader
        self.registration = registration
        self.connected = False
        self.last_sent_ms = 0
        self.echo_ms = 0
        self.followers: dict[TopicPartition, PartitionFollower] = {}
        self._fetched: dict[TopicPartition, tuple[ReplicaIdentity, int]] = {}
        self._granted: set[int] = set()
        self._queries: list[EpochQuery] = []
        self._positions: list[FetchPosition] = []
        self._reports: dict[TopicPartition, Report] = {}
        self._stops: list[StopFetch] = []
        self._credits: dict[int, int] = {}

    def connect(self) -> None:
        """Have the stream made."""
        registration = self.registration
        self._ctx.emit(ConnectToLeader(self.leader, registration.host, registration.port, registration.broker_epoch))

    def disconnect(self) -> None:
        """Have the stream ended."""
        self.on_gone()
        self._ctx.emit(DisconnectFromLeader(self.leader))

    def on_connected(self, now_ms: int) -> None:
        """A new stream: nothing was said on it yet."""
        self._forget()
        self._ctx.touches[self.leader] = Touch()
        self.connected = True
        self.last_sent_ms = now_ms

    def on_gone(self) -> None:
        """What was not sent is lost."""
        self._forget()
        self.connected = False

    def _forget(self) -> None:
        self.echo_ms = 0
        self._granted.clear()
        self._fetched.clear()
        self._queries.clear()
        self._positions.clear()
        self._reports.clear()
        self._stops.clear()
        self._credits.clear()

    def ask(self, query: EpochQuery) -> None:
        """Ask where an epoch ends (rule E2)."""
        self._queries.append(query)
        self._ctx.talking_links[self] = None

    def fetch(self, position: FetchPosition) -> None:
        """Have a partition sent from a position; a directory first named gets its credit (rule R6)."""
        if position.directory not in self._granted:
            self._granted.add(position.directory)
            self.give_credit(position.directory, self._ctx.config.replica_directory_credit_bytes)
        self._fetched[position.partition] = (position.identity, position.directory)
        self._reports.pop(position.partition, None)
        self._positions.append(position)
        self._ctx.talking_links[self] = None

    def credit_directory(self, log: ReplicaLog) -> int:
        """The log directory whose credit its chunks use: as long as this stream lasts, where it lay when it was first
        fetched on it. What is under way was sent against that one; a log that has moved takes the other next time."""
        fetched = self._fetched.get(log.partition)
        return log.directory if fetched is None else fetched[1]

    def fetched_another(self, log: ReplicaLog) -> bool:
        """Whether another incarnation was fetched on this stream (rule C7): its chunks do not say that it is not this
        one, so this one needs another stream."""
        fetched = self._fetched.get(log.partition)
        return fetched is not None and fetched[0] != log.identity

    def report(self, report: Report) -> None:
        """A log end moved."""
        self._reports[report.partition] = report
        self._ctx.talking_links[self] = None

    def stop(self, stop: StopFetch) -> None:
        """A partition is left (rule F3)."""
        self._reports.pop(stop.partition, None)
        self._queries = [query for query in self._queries if query.partition != stop.partition]
        self._positions = [position for position in self._positions if position.partition != stop.partition]
        self._stops.append(stop)
        self._ctx.talking_links[self] = None

    def give_credit(self, directory: int, credit_bytes: int) -> None:
        """Room again, or for the first time."""
        if credit_bytes == 0:
            return
        self._credits[directory] = self._credits.get(directory, 0) + credit_bytes
        self._ctx.talking_links[self] = None

    def give_back(self, chunk: Chunk) -> None:
        """A chunk that is not appended used credit all the same; of one that was unreadable nobody knows how much."""
        fetched = self._fetched.get(chunk.partition)
        if fetched is None or (not chunk.batches and chunk.error is None):
            return
        used_bytes = size_bytes(chunk) if chunk.batches else self._ctx.config.replica_fetch_max_bytes
        self.give_credit(fetched[1], used_bytes)

    def tick(self, now_ms: int) -> None:
        """A heartbeat if nothing was said for long; it reports every live partition (rule R6)."""
        if self.connected and now_ms - self.last_sent_ms >= self._ctx.config.replica_heartbeat_interval_ms:
            self._ctx.talking_links[self] = None

    def flush(self, now_ms: int) -> None:
        """What this event brought for the leader, in one message."""
        if not self.connected:
            self._forget()
            return
        self.last_sent_ms = now_ms
        message = FollowerMessage(
            tuple(self._queries),
            tuple(self._positions),
            tuple(self._reports.values()),
            tuple(self._stops),
            tuple(Credit(directory, credit_bytes) for directory, credit_bytes in self._credits.items()),
            self.echo_ms,
        )
        self._queries.clear()
        self._positions.clear()
        self._reports.clear()
        self._stops.clear()
        self._credits.clear()
        self._ctx.effects.append(SendToLeader(self.leader, message))


def size_bytes(chunk: Chunk) -> int:
    """Bytes of a chunk's batches."""
    return sum(batch.envelope.batch_length for batch in chunk.batches)
