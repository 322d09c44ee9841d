# SPDX-License-Identifier: Apache-2.0
"""The leader's end of the replication stream from one follower (rules R5, R6).

A session holds one `PartitionSender` for each partition that the follower fetches, and the follower's credit. A session
never checks a partition that has nothing to send, so idle partitions have no cost.
"""

from __future__ import annotations

from typing import Final, Protocol

from tidemark.core.messages import Chunk, EpochEnd, EpochQuery, FetchPosition, LeaderMessage, Refusal, Report
from tidemark.core.replication.context import LONG_AGO_MS, BrokerContext, ChecksLag
from tidemark.core.replication.effects import ReadForFollower, SendToFollower
from tidemark.core.replication.events import FollowerReadDone
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.throttle import Throttle
from tidemark.model import NO_EPOCH, BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition

PROMPT_MS: Final = 90_000
"""Time for which a follower gets each high watermark immediately, after the leader sent a consumer to that follower.
Consumers ask the leader again in less time."""
MESSAGE_BYTES_MAX: Final = 4 << 20
"""Chunks beyond this size go into another message; a chunk of one large batch may be larger."""


class Leadership(ChecksLag, Protocol):
    """The interface of `PartitionLeader` towards the sessions of its followers."""

    log: ReplicaLog
    leader_epoch: LeaderEpoch

    def on_report(self, session: FollowerSession, report: Report, now_ms: int) -> None:
        """Note the log end that a follower reported."""

    def detach(self, follower: BrokerId) -> None:
        """Stop sending the partition to the follower."""


class PartitionSender:
    """Sends one partition to one follower.

    Invariant: everything below `next_offset` was sent on this stream, or was in the follower's log before.

    Attributes:
        next_offset: offset of the next read, which only `FollowerSession` raises, after a read.
        directory: the follower's log directory whose credit the chunks use.
        sent_high_watermark, sent_log_start: the leader's, as sent last; -1 before the first chunk.
        follower_log_start: log start of the follower as reported last.
        reading_since_ms: start time of the read in flight, None if no read is in flight. At most one read is in flight.
        adding: True while a reassignment adds this follower's replica.
        prompt_until_ms: until then consumers read from this follower, so each high watermark is sent immediately (rule
            K1).
        throttle: the throttle that limits the sender, None without a limit (rule M2).
        reserved_bytes: bytes that the read in flight has reserved of `throttle`; 0 without a read or a throttle.
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

    def __init__(self, session: FollowerSession, leader: Leadership, *, next_offset: Offset, directory: int) -> None:
        self.session = session
        self.leader = leader
        self.log = leader.log
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

    def send_more(self) -> None:
        """Start the next read; see `FollowerSession.send_more`."""
        self.session.send_more(self)

    def set_throttle(self, throttle: Throttle | None) -> None:
        """Limit the sender by `throttle` from now on, None for no limit; the caller calls `send_more` afterwards."""
        before = self.throttle
        if before is not throttle:
            if before is not None:
                before.waiting.pop(self, None)
                self.settle(0)
            self.throttle = throttle

    def settle(self, sent_bytes: int) -> None:
        """Return to the throttle the bytes that the read in flight reserved and did not send."""
        if self.throttle is not None:
            self.throttle.settle(self.reserved_bytes, sent_bytes)
            self.reserved_bytes = 0


class FollowerSession:
    """The leader's end of the stream from one follower.

    Attributes:
        broker_epoch: of the follower, as in its hello. A follower with another broker epoch gets another session.
        last_message_ms: time of the follower's last message, by this broker's clock.
        last_sent_ms: time of the last message to the follower.
        confirmed_ms: a time after which the follower sent its last message, by this broker's clock; never falls
            (rule F2). The arrival time proves less: the message may have waited while this process was stopped.
        senders: by partition. Invariant: each is the `sender` of one `FollowerProgress` of its leader.
        early: by partition, the last request in a leader epoch that this broker does not know yet. The session
            answers when the command of the controller arrives, so a failover needs no retry.
        _credit_bytes: by log directory of the follower, bytes that may still be read; below 0 after a large batch.
        _stalled: by log directory without credit, the senders that have something to send.
        _high_watermark_news: senders whose high watermark or log start may be newer than the one sent.
        _epoch_ends, _refusals, _chunks: content of the next message; `flush` empties them.
    """

    def __init__(self, ctx: BrokerContext, follower: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> None:
        self._ctx = ctx
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.last_message_ms = now_ms
        self.last_sent_ms = now_ms
        self.confirmed_ms = LONG_AGO_MS
        self.senders: dict[TopicPartition, PartitionSender] = {}
        self.early: dict[TopicPartition, EpochQuery | FetchPosition] = {}
        self._credit_bytes: dict[int, int] = {}
        self._stalled: dict[int, dict[PartitionSender, None]] = {}
        self._high_watermark_news: dict[PartitionSender, None] = {}
        self._epoch_ends: list[EpochEnd] = []
        self._refusals: list[Refusal] = []
        self._chunks: list[Chunk] = []

    def start(self, leader: Leadership, position: FetchPosition) -> PartitionSender:
        """Send a partition from the follower's position on."""
        self.stop(leader.log.partition)
        sender = PartitionSender(self, leader, next_offset=position.fetch_offset, directory=position.directory)
        sender.follower_log_start = position.log_start_offset
        self.senders[leader.log.partition] = sender
        self._high_watermark_news[sender] = None
        return sender

    def stop(self, partition: TopicPartition) -> None:
        """Stop sending a partition on this session."""
        sender = self.senders.pop(partition, None)
        if sender is not None:
            sender.set_throttle(None)
            self._high_watermark_news.pop(sender, None)
            self._stalled.get(sender.directory, {}).pop(sender, None)

    def add_credit(self, directory: int, credit_bytes: int) -> None:
        """Add credit for one log directory of the follower, and continue the senders that waited for credit."""
        self._credit_bytes[directory] = self._credit_bytes.get(directory, 0) + credit_bytes
        stalled = self._stalled.pop(directory, None)
        if stalled:
            for sender in stalled:
                self.send_more(sender)

    def send_more(self, sender: PartitionSender) -> None:
        """Start the next read if there are records to send, credit for them, and no read in flight."""
        if sender.reading_since_ms is not None or sender.next_offset >= sender.log.log_end_offset:
            return
        if self._credit_bytes.get(sender.directory, 0) <= 0:
            self._stalled.setdefault(sender.directory, {})[sender] = None
            return
        max_bytes = min(self._ctx.config.replica_fetch_max_bytes, MESSAGE_BYTES_MAX)
        if sender.throttle is not None:
            max_bytes = sender.reserved_bytes = sender.throttle.reserve(sender, max_bytes, self._ctx.now_ms)
            if max_bytes == 0:
                return
        sender.reading_since_ms = self._ctx.now_ms
        self._ctx.effects.append(
            ReadForFollower(
                self.follower,
                sender.log.partition,
                sender.leader.leader_epoch,
                sender.next_offset,
                sender.log.log_end_offset,
                max_bytes,
            )
        )

    def note_high_watermark(self, sender: PartitionSender) -> None:
        """The high watermark or the log start has moved: the next chunk carries both; without a chunk, the next tick
        sends them.

        The session sends both immediately if consumers read from this follower and no read is in flight.
        """
        if sender.reading_since_ms is None and self._ctx.now_ms < sender.prompt_until_ms:
            self._add_chunk(sender, None)
        else:
            self._high_watermark_news[sender] = None

    def on_read_done(self, event: FollowerReadDone) -> None:
        """Send the batches that were read, with the present high watermark (rule R5)."""
        sender = self.senders.get(event.partition)
        if (
            sender is None
            or sender.reading_since_ms is None
            or event.leader_epoch != sender.leader.leader_epoch
            or event.offset != sender.next_offset
        ):
            return  # the sender was stopped after the read began
        sender.reading_since_ms = None
        if not event.batches:
            code = event.error.code if event.error else ErrorCode.STORAGE_ERROR
            message = event.error.message if event.error else "the read returned no batch"
            self.refuse(event.partition, code, message, sender.leader)
            sender.leader.detach(self.follower)
            return
        self._send_batches(sender, event)
        self.send_more(sender)
        if sender.throttle is not None:
            sender.throttle.serve(self._ctx.now_ms)

    def _send_batches(self, sender: PartitionSender, read: FollowerReadDone) -> None:
        sent_bytes = 0
        for batch in read.batches:
            sent_bytes += batch.envelope.batch_length
        sender.settle(sent_bytes)
        if sender.adding:
            self._ctx.added_bytes_out += sent_bytes
        self._credit_bytes[sender.directory] = self._credit_bytes.get(sender.directory, 0) - sent_bytes
        self._add_chunk(sender, read)
        sender.next_offset = Offset(read.batches[-1].envelope.next_offset)

    def _add_chunk(self, sender: PartitionSender, read: FollowerReadDone | None) -> None:
        log = sender.log
        sender.sent_high_watermark = log.high_watermark
        sender.sent_log_start = log.log_start_offset
        self._high_watermark_news.pop(sender, None)
        self._chunks.append(
            Chunk(
                log.partition,
                sender.leader.leader_epoch,
                sender.next_offset,
                log.high_watermark,
                log.log_start_offset,
                read.batches if read is not None else (),
            )
        )
        self._ctx.sessions_to_flush[self] = None

    def answer_query(self, answer: EpochEnd) -> None:
        """Answer an epoch query (rule E2)."""
        self._epoch_ends.append(answer)
        self._ctx.sessions_to_flush[self] = None

    def refuse(self, partition: TopicPartition, code: ErrorCode, message: str, leader: Leadership | None) -> None:
        """Refuse to send a partition; `leader` is None when this broker does not lead the partition."""
        self._refusals.append(
            Refusal(
                partition,
                code,
                message,
                leader.leader_epoch if leader is not None else LeaderEpoch(-1),
                leader.log.log_start_offset if leader is not None else Offset(0),
                leader.log.epoch_below_start if leader is not None else NO_EPOCH,
            )
        )
        self._ctx.sessions_to_flush[self] = None

    def refuse_unassigned(self, leader: Leadership) -> None:
        """Refuse a partition to which the follower is not assigned."""
        partition = leader.log.partition
        sentence = f"broker {self.follower} holds no replica of {partition}"
        self.refuse(partition, ErrorCode.NOT_A_REPLICA, sentence, leader)

    def tick(self, now_ms: int) -> None:
        """Send the high watermarks that no chunk carried, and a heartbeat after an interval without a message."""
        for sender in tuple(self._high_watermark_news):
            log = sender.log
            if sender.sent_high_watermark != log.high_watermark or sender.sent_log_start != log.log_start_offset:
                self._add_chunk(sender, None)
        self._high_watermark_news.clear()
        if now_ms - self.last_sent_ms >= self._ctx.config.replica_heartbeat_interval_ms:
            self._ctx.sessions_to_flush[self] = None

    def flush(self, now_ms: int) -> None:
        """Send the messages that the present event added, in as few messages as the size limit allows."""
        chunks, self._chunks = self._chunks, []
        ends, self._epoch_ends = tuple(self._epoch_ends), []
        refusals, self._refusals = tuple(self._refusals), []
        self.last_sent_ms = now_ms
        if len(chunks) > 1:
            group: list[Chunk] = []
            group_bytes = 0
            for chunk in chunks:
                chunk_bytes = chunk.size_bytes
                if group and group_bytes + chunk_bytes > MESSAGE_BYTES_MAX:
                    self._send(LeaderMessage(ends, tuple(group), refusals, now_ms))
                    ends, refusals, group, group_bytes = (), (), [], 0
                group.append(chunk)
                group_bytes += chunk_bytes
            chunks = group
        self._send(LeaderMessage(ends, tuple(chunks), refusals, now_ms))

    def _send(self, message: LeaderMessage) -> None:
        self._ctx.effects.append(SendToFollower(self.follower, message))
