# SPDX-License-Identifier: Apache-2.0
"""A stage for scenarios of one broker core: events in, effects out; the scenario gives the driver's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import (
    Chunk,
    Credit,
    EpochEnd,
    FetchPosition,
    FollowerMessage,
    LeaderAndIsrCommand,
    LeaderMessage,
    PartitionCommand,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.replica_stats import LeaderFigures
from tidemark.model import (
    BrokerRegistration,
    EpochEntry,
    ErrorCode,
    IsrEntry,
    IsrReasons,
    LeaderAndIsr,
    ReplicaIdentity,
    TopicPartition,
    VersionedState,
)
from tidemark.record.envelope import Attributes, Batch, Envelope, parse_envelope
from tidemark.record.markers import EndMarker, build_marker

P = TopicPartition("flights", 0)
ID = ReplicaIdentity("a" * 32, "b" * 32)
BROKERS = (1, 2, 3)
E = TypeVar("E")


def batch(records: int = 1, *, offset: int = 0, epoch: int = -1, sequence: int = -1, producer_id: int = -1) -> Batch:
    envelope = Envelope(offset, epoch, 0, 100, 0, 1, 0, 0, records, records - 1, sequence, 0, producer_id, 0, 0)
    return Batch(envelope, b"x" * 100)


def pending(sequence: int = 0, *, producer_id: int = 7, producer_epoch: int = 0, records: int = 1) -> Batch:
    plain = batch(records, sequence=sequence, producer_id=producer_id)
    attributes = int(Attributes.PENDING)
    return plain._replace(envelope=plain.envelope._replace(attributes=attributes, producer_epoch=producer_epoch))


def marker(*, commit: bool = True, producer_id: int = 7, producer_epoch: int = 1, coordinator_epoch: int = 4) -> Batch:
    data = build_marker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        marker=EndMarker(commit, coordinator_epoch),
        timestamp_us=0,
    )
    return Batch(parse_envelope(data), data)


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def node(
    leader: int, epoch: int, isr: Sequence[int], *, elr: Sequence[int] = (), min_isr: int = 1, **more: int | bool
) -> LeaderAndIsr:
    return LeaderAndIsr(
        leader,
        epoch,
        tuple(IsrEntry(one, 10 + one) for one in isr),
        tuple(IsrEntry(one, 10 + one) for one in elr),
        min_isr=min_isr,
        **more,
    )


class Stage:
    """One broker, by default broker 1 with broker epoch 11; brokers 2 and 3 have 12 and 13."""

    def __init__(self, me: int = 1) -> None:
        self.me = me
        self.now = 1_000
        self.core = BrokerCore(me, ReplicationConfig())
        self.out: list[fx.Effect] = []
        self.reads: list[fx.ReadForFollower] = []
        self.requests = 0
        self.version = 0
        self.topic_configs: Mapping[str, str] = {}
        self.feed(ev.BrokerRegistered(10 + me))

    def feed(self, event: ev.Event, *, after_ms: int = 0) -> list[fx.Effect]:
        self.now += after_ms
        self.out = self.core.handle(event, self.now)
        self.reads += self.got(fx.ReadForFollower)
        return self.out

    def disk_answers(self) -> None:
        """Answer every read in flight for a follower with one batch up to its end."""
        while self.reads:
            read = self.reads.pop(0)
            whole = batch(read.end_offset - read.offset, offset=read.offset, epoch=read.leader_epoch)
            self.feed(ev.FollowerReadDone(read.follower, P, read.leader_epoch, read.offset, (whole,)))

    def got(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.out if isinstance(effect, kind)]

    def one(self, kind: type[E]) -> E:
        found = self.got(kind)
        assert len(found) == 1, f"one {kind.__name__} expected among {self.out}"
        return found[0]

    # the controller

    def command(
        self,
        state: LeaderAndIsr,
        *,
        version: int | None = None,
        identity: ReplicaIdentity = ID,
        suspected: Sequence[int] = (),
        controller_epoch: int = 1,
        broker_epoch: int | None = None,
        complete: bool = False,
        sequence: int = 0,
        assigned: Sequence[int] = BROKERS,
        adding: Sequence[int] = (),
        throttle: int = 0,
        isr_reasons: IsrReasons = (),
    ) -> list[fx.Effect]:
        self.version = self.version + 1 if version is None else version
        return self.feed(
            ev.LeaderAndIsrArrived(
                1,
                LeaderAndIsrCommand(
                    9,
                    controller_epoch,
                    10 + self.me if broker_epoch is None else broker_epoch,
                    (
                        PartitionCommand(
                            P,
                            identity,
                            tuple(assigned),
                            state,
                            self.version,
                            tuple(adding),
                            (),
                            throttle,
                            isr_reasons=isr_reasons,
                        ),
                    ),
                    tuple(BrokerRegistration(one, f"host{one}", 9192, broker_epoch=10 + one) for one in assigned),
                    suspected=frozenset(suspected),
                    complete=complete,
                    sequence=sequence,
                    topic_configs={P.topic: self.topic_configs},
                ),
            )
        )

    def opened(
        self,
        end: int = 0,
        *epochs: tuple[int, int],
        high_watermark: int = 0,
        start: int = 0,
        flushed: int | None = None,
        damaged: str | None = None,
        cut: bool = False,
        identity: ReplicaIdentity = ID,
    ) -> list[fx.Effect]:
        on_disk = end if flushed is None else flushed
        log = ev.RecoveredLog(start, end, on_disk, high_watermark, entries(*epochs), ProducerStates(), damaged, cut)
        return self.feed(ev.LogOpened(P, identity, log))

    def leads(
        self,
        isr: Sequence[int] = (1, 2),
        *,
        epoch: int = 5,
        min_isr: int = 1,
        end: int = 0,
        epochs: Sequence[tuple[int, int]] = (),
        high_watermark: int = 0,
        **more: int | bool,
    ) -> Stage:
        self.command(node(self.me, epoch, isr, min_isr=min_isr, **more))
        self.opened(end, *epochs, high_watermark=high_watermark)
        return self

    def refusals(self) -> list[ErrorCode]:
        return [error.code for _, error in self.one(fx.ReplyToControl).refused]

    # clients

    def produce(self, *batches: Batch, acks: int = -1, epoch: int = -1, topic_id: str = "") -> int:
        self.requests += 1
        self.feed(ev.ProduceArrived(self.requests, P, topic_id, epoch, acks, batches or (batch(),)))
        return self.requests

    def appended(self, end: int) -> list[fx.Effect]:
        return self.feed(ev.LogAppended(P, ID, end))

    def write(self, *batches: Batch, acks: int = -1) -> int:
        request = self.produce(*batches, acks=acks)
        append = self.one(fx.AppendToLog)
        self.appended(append.base_offset + sum(one.envelope.last_offset_delta + 1 for one in append.batches))
        return request

    def replies(self) -> list[tuple[int, int, ErrorCode | None]]:
        return [
            (reply.request_id, reply.result.base_offset, reply.result.error.code if reply.result.error else None)
            for reply in self.got(fx.ReplyToProduce)
        ]

    # followers of this broker

    def from_follower(self, follower: int, message: FollowerMessage, *, broker_epoch: int | None = None) -> None:
        epoch = 10 + follower if broker_epoch is None else broker_epoch
        self.feed(ev.FollowerMessageArrived(follower, epoch, message))

    def fetches(
        self, follower: int, offset: int, *, epoch: int = 5, last_epoch: int = -1, credit: int = 1 << 20
    ) -> None:
        position = FetchPosition(P, ID, epoch, offset, last_epoch, 0)
        self.from_follower(follower, FollowerMessage(positions=(position,), credits=(Credit(0, credit),)))

    def reports(self, follower: int, end: int, *, epoch: int = 5) -> None:
        self.from_follower(follower, FollowerMessage(reports=(Report(P, epoch, end, end),)))

    def stops(self, follower: int, newer_epoch: int) -> None:
        self.from_follower(follower, FollowerMessage(stops=(StopFetch(P, newer_epoch),)))

    def refused_followers(self) -> list[ErrorCode]:
        return [refusal.code for effect in self.got(fx.SendToFollower) for refusal in effect.message.refusals]

    def high_watermark(self) -> int:
        (view,) = self.core.queries.replicas()
        return view.high_watermark

    def led(self) -> LeaderFigures:
        figures = self.core.queries.figures(P, self.now)
        assert figures is not None
        assert figures.led is not None
        return figures.led

    def isr_read(self, state: LeaderAndIsr, version: int) -> list[fx.Effect]:
        return self.feed(ev.IsrRead(P, VersionedState(state, version)))

    # the leader that this broker follows

    def follows(
        self,
        leader: int = 2,
        *,
        epoch: int = 5,
        end: int = 0,
        epochs: Sequence[tuple[int, int]] = (),
        high_watermark: int = 0,
    ) -> Stage:
        self.command(node(leader, epoch, (1, 2)))
        self.opened(end, *epochs, high_watermark=high_watermark)
        self.feed(ev.LeaderConnected(leader))
        return self

    def from_leader(
        self,
        *,
        ends: Sequence[EpochEnd] = (),
        chunks: Sequence[Chunk] = (),
        refusals: Sequence[Refusal] = (),
        leader: int = 2,
    ) -> list[fx.Effect]:
        return self.feed(ev.LeaderMessageArrived(leader, LeaderMessage(tuple(ends), tuple(chunks), tuple(refusals))))

    def chunk(
        self,
        continues_from: int,
        *batches: Batch,
        high_watermark: int = 0,
        epoch: int = 5,
        error: ErrorCode | None = None,
    ) -> list[fx.Effect]:
        refused_bytes = 100 if error is not None else 0
        return self.from_leader(
            chunks=[Chunk(P, epoch, continues_from, high_watermark, 0, batches, error, refused_bytes)]
        )

    def answered(self, epoch: int, end: int, *, current: int = 5, in_sync: int | None = None) -> list[fx.Effect]:
        return self.from_leader(ends=[EpochEnd(P, current, epoch, end, in_sync)])

    def truncated(self, end: int, *, start: int = 0) -> list[fx.Effect]:
        return self.feed(ev.LogTruncated(P, ID, start, end, ProducerStates()))

    def said(self) -> FollowerMessage:
        return self.one(fx.SendToLeader).message
