# SPDX-License-Identifier: Apache-2.0
"""The replication streams of one broker: to the leaders of its replicas, and from its followers (R6-R8, E2-E4, F3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemark.core.messages import EpochEnd, EpochQuery, FetchPosition, StopFetch
from tidemark.core.replication import events as ev
from tidemark.core.replication.context import UNREGISTERED, BrokerContext
from tidemark.core.replication.effects import DisconnectFollower, LowWatermarkMoved
from tidemark.core.replication.follower.leader_link import LeaderLink
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.follower_session import PROMPT_MS, FollowerSession
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.leader_contact import LeaderContact
from tidemark.core.replication.replica import Replica, diverging_end
from tidemark.model import (
    NO_EPOCH,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TidemarkError,
    TopicPartition,
)

LAG_CHECKS_PER_LAG_TIME: Final = 20
_STOP_MS_MIN: Final = 250
"""Shortest time between two ticks that shows a stop of this process; a tick is due every 100 ms."""
_FETCHED_MIN: Final = 10_000
"""Partitions fetched on a stream, beyond twice the present number, after which the stream is replaced: both
ends remember each of them until the stream ends.
"""


class BrokerStreams:
    """Links to leaders and sessions of followers.

    Attributes:
        _fence: ends a leadership of this broker for a reason.
        _links: by leader, the link that carries all partitions followed there.
        _followers: by leader, the partitions that its link carries. Invariant: has the keys of `_links`, and only a
            link in `unused_links` carries no partition.
        unused_links: links that carry no partition any more; dropped at the end of the event.
        _unplaced: followers of a leader whose registration is unknown; a command with the registration places them.
        _sessions: by follower, the session in its present broker epoch.
        _lag_checked_ms: time of the last check for lagging followers.
        _ticked_ms: time of the last tick, None before the first.
    """

    def __init__(
        self,
        ctx: BrokerContext,
        replicas: Mapping[TopicPartition, Replica],
        fence: Callable[[Replica, str], None],
    ) -> None:
        self._ctx = ctx
        self._replicas = replicas
        self._fence = fence
        self._links: dict[BrokerId, LeaderLink] = {}
        self._followers: dict[BrokerId, dict[TopicPartition, PartitionFollower]] = {}
        self.unused_links: dict[LeaderLink, None] = {}
        self._unplaced: dict[PartitionFollower, None] = {}
        self._sessions: dict[BrokerId, FollowerSession] = {}
        self._lag_checked_ms = 0
        self._ticked_ms: int | None = None

    def flush(self, now_ms: int) -> None:
        """Send one message on each stream that has something to send."""
        links, self._ctx.links_to_flush = self._ctx.links_to_flush, {}
        sessions, self._ctx.sessions_to_flush = self._ctx.sessions_to_flush, {}
        for link in links:
            link.flush(now_ms)
        for session in sessions:
            session.flush(now_ms)

    # -- the follower's end ------------------------------------------------------------------------------------

    def follow(self, follower: PartitionFollower) -> None:
        """Fetch a partition over the link to its leader; make the link if it does not exist."""
        link = self._links.get(follower.leader)
        if link is None:
            registration = self._ctx.registrations.get(follower.leader)
            if registration is None:
                self._unplaced[follower] = None
                return
            link = self._links[follower.leader] = LeaderLink(self._ctx, follower.leader, registration)
            self._followers[follower.leader] = {}
            link.connect()
        self.unused_links.pop(link, None)
        followers = self._followers[follower.leader]
        followers[follower.log.partition] = follower
        too_many = link.fetched_count > 2 * len(followers) + _FETCHED_MIN
        if too_many or link.fetched_another(follower.log):
            self._reconnect(link)
        if link.connected:
            follower.on_connected(link)

    def unfollow(self, follower: PartitionFollower) -> None:
        """Stop fetching a partition from its leader."""
        self._unplaced.pop(follower, None)
        self._ctx.paused.pop(follower, None)
        followers = self._followers.get(follower.leader, {})
        if followers.get(follower.log.partition) is follower:
            del followers[follower.log.partition]
            if not followers:
                self.unused_links[self._links[follower.leader]] = None

    def drop_unused_links(self) -> None:
        """Disconnect links that carry no partition, after their last message was sent."""
        for link in self.unused_links:
            del self._links[link.leader], self._followers[link.leader]
            link.disconnect()
        self.unused_links.clear()

    def registrations_changed(self, changed: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Reconnect to leaders with another address or broker epoch, and place followers that waited for a leader."""
        for leader, registration in changed.items():
            link = self._links.get(leader)
            if link is None:
                continue
            known, link.registration = link.registration, registration
            if _address(known) != _address(registration):
                self._reconnect(link)
        for follower in [one for one in self._unplaced if one.leader in self._ctx.registrations]:
            del self._unplaced[follower]
            self.follow(follower)

    def reconnect(self) -> None:
        """Reconnect to every leader, since this broker's hello has a new broker epoch."""
        for link in self._links.values():
            self._reconnect(link)

    def _reconnect(self, link: LeaderLink) -> None:
        link.disconnect()
        for follower in self._followers[link.leader].values():
            follower.on_disconnected()
        link.connect()

    def on_leader_connected(self, event: ev.LeaderConnected, now_ms: int) -> None:
        """Start every follower of that leader on the new stream."""
        link = self._links.get(event.leader)
        if link is None:
            return
        for follower in self._followers[link.leader].values():
            follower.on_disconnected()
        link.on_connected(now_ms)
        for follower in self._followers[link.leader].values():
            follower.on_connected(link)

    def on_leader_disconnected(self, event: ev.LeaderDisconnected, now_ms: int) -> None:
        """Stop every follower of that leader until the stream is up again."""
        link = self._links.get(event.leader)
        if link is None:
            return
        link.on_disconnected()
        for follower in self._followers[link.leader].values():
            follower.on_disconnected()

    def on_leader_message(self, event: ev.LeaderMessageArrived, now_ms: int) -> None:
        """Pass epoch ends, chunks and refusals to the followers of their partitions."""
        link = self._links.get(event.leader)
        if link is None or not link.connected:
            return
        link.echo_ms = event.message.clock_ms
        self._ctx.leader_contacts.setdefault(link.leader, LeaderContact()).on_message(event.message.clock_ms, now_ms)
        followers = self._followers[link.leader]
        for answer in event.message.epoch_ends:
            follower = followers.get(answer.partition)
            if follower is not None:
                follower.on_epoch_end(answer)
        for chunk in event.message.chunks:
            follower = followers.get(chunk.partition)
            if follower is not None:
                follower.on_chunk(chunk, now_ms)
            else:
                link.give_back(chunk)
        for refusal in event.message.refusals:
            follower = followers.get(refusal.partition)
            if follower is not None:
                follower.on_refusal(refusal, now_ms)

    # -- the leader's end --------------------------------------------------------------------------------------

    def disconnect_followers(self) -> None:
        """End all streams from followers, since this broker is no longer a leader."""
        for follower in tuple(self._sessions):
            self._drop_session(follower)
            self._refuse_stream(follower, ErrorCode.NOT_LEADER, "this broker has lost its session and leads nothing")

    def _refuse_stream(self, follower: BrokerId, code: ErrorCode, sentence: str) -> None:
        self._ctx.emit(DisconnectFollower(follower, TidemarkError(code, sentence)))

    def _drop_session(self, follower: BrokerId) -> None:
        session = self._sessions.pop(follower, None)
        if session is None:
            return
        self._ctx.sessions_to_flush.pop(session, None)
        for sender in tuple(session.senders.values()):
            sender.leader.detach(follower)

    def _session(self, event: ev.FollowerMessageArrived, now_ms: int) -> FollowerSession | None:
        """The session of a message; None after refusing a stream with a stale broker epoch (rule Z3)."""
        follower, broker_epoch = event.follower, event.broker_epoch
        if self._ctx.broker_epoch == UNREGISTERED:
            self._refuse_stream(follower, ErrorCode.NOT_LEADER, "this broker is not registered and leads nothing")
            return None
        session = self._sessions.get(follower)
        known = self._ctx.registrations.get(follower)
        newest = max(
            known.broker_epoch if known is not None else UNREGISTERED,
            session.broker_epoch if session is not None else UNREGISTERED,
        )
        if broker_epoch < newest:
            if session is not None and session.broker_epoch == broker_epoch:
                self._drop_session(follower)
            sentence = f"broker {follower} has registered again, with broker epoch {newest} instead of {broker_epoch}"
            self._refuse_stream(follower, ErrorCode.STALE_BROKER_EPOCH, sentence)
            return None
        if session is None or session.broker_epoch != broker_epoch:
            self._drop_session(follower)
            session = self._sessions[follower] = FollowerSession(self._ctx, follower, broker_epoch, now_ms)
        return session

    def on_follower_message(self, event: ev.FollowerMessageArrived, now_ms: int) -> None:
        """Apply a follower's stops, epoch queries, fetch positions, credits and reports, in this order."""
        session = self._session(event, now_ms)
        if session is None:
            return
        session.last_message_ms = now_ms
        message = event.message
        session.confirmed_ms = max(session.confirmed_ms, min(message.echo_ms, now_ms))
        for stop in message.stops:
            self._on_stop(session, stop)
        for query in message.queries:
            self._on_query(session, query)
        for position in message.positions:
            self._on_position(session, position, now_ms)
        for credit in message.credits:
            session.add_credit(credit.directory, credit.credit_bytes)
        for report in message.reports:
            sender = session.senders.get(report.partition)
            if sender is not None and sender.leader.leader_epoch == report.current_leader_epoch:
                sender.leader.on_report(session, report, now_ms)
                if sender.follower_log_start != report.log_start_offset:
                    sender.follower_log_start = report.log_start_offset
                    self._ctx.emit(LowWatermarkMoved(report.partition))

    def on_follower_disconnected(self, event: ev.FollowerDisconnected, now_ms: int) -> None:
        """Drop the session, unless the follower has connected with another broker epoch since."""
        session = self._sessions.get(event.follower)
        if session is not None and session.broker_epoch == event.broker_epoch:
            self._drop_session(event.follower)

    def on_read_done(self, event: ev.FollowerReadDone, now_ms: int) -> None:
        """Pass the batches that were read to the follower's session."""
        session = self._sessions.get(event.follower)
        if session is not None:
            session.on_read_done(event)

    def on_preferred_replica_named(self, event: ev.PreferredReplicaNamed, now_ms: int) -> None:
        """Send high watermarks immediately to a follower that a consumer reads from (rule K1)."""
        session = self._sessions.get(event.follower)
        sender = session.senders.get(event.partition) if session is not None else None
        if sender is not None:
            sender.prompt_until_ms = now_ms + PROMPT_MS

    def _on_stop(self, session: FollowerSession, stop: StopFetch) -> None:
        """Stop sending a partition; a newer leader epoch at the follower fences this leadership (rule F3)."""
        session.early.pop(stop.partition, None)
        sender = session.senders.get(stop.partition)
        if sender is None:
            return
        sender.leader.detach(session.follower)
        replica = self._replicas.get(stop.partition)
        deposed = stop.newer_leader_epoch > sender.leader.leader_epoch
        if deposed and replica is not None and replica.role is sender.leader:
            self._fence(replica, "newer_epoch_at_follower")

    def _leader_for(self, session: FollowerSession, asked: EpochQuery | FetchPosition) -> PartitionLeader | None:
        """The PartitionLeader that serves a follower's epoch query or fetch position. None if the broker refused the
        request. None also if the broker holds the request until it is ready in the requested leader epoch.
        """
        replica = self._replicas.get(asked.partition)
        if replica is None or asked.current_leader_epoch > replica.leader_epoch or replica.waiting is not None:
            session.early[asked.partition] = asked
            return None
        session.early.pop(asked.partition, None)
        try:
            leader = replica.led_in(asked.identity.topic_id, asked.identity.incarnation, asked.current_leader_epoch)
        except TidemarkError as error:
            session.refuse(asked.partition, error.code, error.message, None)
            return None
        if not leader.replicates_to(session.follower):
            session.refuse_unassigned(leader)
            return None
        return leader

    def answer_early_requests(self, replica: Replica, now_ms: int) -> None:
        """Answer the requests that followers sent in this leader epoch before this broker knew the epoch."""
        for session in self._sessions.values():
            asked = session.early.get(replica.partition)
            if isinstance(asked, EpochQuery):
                self._on_query(session, asked)
            elif asked is not None:
                self._on_position(session, asked, now_ms)

    def _on_query(self, session: FollowerSession, query: EpochQuery) -> None:
        leader = self._leader_for(session, query)
        if leader is None:
            return
        log = leader.log
        end = log.epochs.end_of(query.last_epoch, log.log_end_offset)
        enough = leader.in_sync_offset, log.log_start_offset
        session.answer_query(EpochEnd(query.partition, leader.leader_epoch, *end, *enough))

    def _on_position(self, session: FollowerSession, position: FetchPosition, now_ms: int) -> None:
        leader = self._leader_for(session, position)
        if leader is None:
            return
        log, offset = leader.log, position.fetch_offset
        doubtful = offset == log.log_start_offset and NO_EPOCH < position.last_epoch < log.epochs.earliest
        if offset < log.log_start_offset or doubtful:  # the log no longer shows which records below were committed
            sentence = f"the log starts at {log.log_start_offset}"
            session.refuse(position.partition, ErrorCode.OFFSET_OUT_OF_RANGE, sentence, leader)
        elif offset > log.log_end_offset or diverging_end(leader, offset, LeaderEpoch(position.last_epoch)) is not None:
            sentence = f"offset {offset} after epoch {position.last_epoch} does not continue this log"
            session.refuse(position.partition, ErrorCode.LOG_DIVERGED, sentence, leader)
        else:
            leader.attach(session, position, now_ms)

    def log_start_moved(self, leader: PartitionLeader) -> None:
        """Send the log start of a partition that is led here to its followers (rule L1)."""
        for session in self._sessions.values():
            sender = session.senders.get(leader.log.partition)
            if sender is not None and sender.leader is leader:
                session.note_high_watermark(sender)

    def log_starts(self, leader: PartitionLeader) -> dict[BrokerId, Offset]:
        """By follower, the log start that each follower fetching from a leadership has reported."""
        partition = leader.log.partition
        senders = {follower: session.senders.get(partition) for follower, session in self._sessions.items()}
        return {
            follower: sender.follower_log_start
            for follower, sender in senders.items()
            if sender is not None and sender.leader is leader
        }

    # -- time --------------------------------------------------------------------------------------------------

    def on_tick(self, event: ev.Tick, now_ms: int) -> None:
        """Send heartbeats, retry paused followers, serve throttles, and check followers for lag."""
        for link in self._links.values():
            link.tick(now_ms)
        for follower in tuple(self._ctx.paused):
            if follower.retry(now_ms):
                self._ctx.paused.pop(follower, None)
        for session in self._sessions.values():
            session.tick(now_ms)
        for throttle in self._ctx.throttles:
            throttle.serve(now_ms)
        self._check_lag(now_ms)

    def _check_lag(self, now_ms: int) -> None:
        lag_max_ms = self._ctx.config.replica_lag_time_max_ms
        before, self._ticked_ms = self._ticked_ms, now_ms
        if before is None or now_ms - before > max(lag_max_ms // 4, _STOP_MS_MIN):
            # this process was stopped: it must read the messages of its followers before it evicts followers
            self._lag_checked_ms = now_ms
        if now_ms - self._lag_checked_ms < lag_max_ms // LAG_CHECKS_PER_LAG_TIME:
            return
        self._lag_checked_ms = now_ms
        watched = self._ctx.watched
        for session in self._sessions.values():
            if now_ms - session.last_message_ms > lag_max_ms:
                for sender in session.senders.values():
                    self._ctx.watch(sender.log.partition, sender.leader)
        for partition, leader in tuple(watched.items()):
            if now_ms < leader.check_at_ms:
                continue
            if not leader.check_lag(now_ms) and watched.get(partition) is leader:
                del watched[partition]


def _address(registration: BrokerRegistration) -> tuple[str, int, int]:
    return registration.host, registration.port, registration.broker_epoch
