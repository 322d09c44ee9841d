# SPDX-License-Identifier: Apache-2.0
"""Only replicas being added are throttled, to the limit of their reassignment (rule M2)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tidemark.core.messages import Credit, FetchPosition, FollowerMessage, LeaderAndIsrCommand, PartitionCommand
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.throttle import Throttle, Throttles
from tidemark.model import TopicPartition

from tests.unit.core.replication.stage import ID, P, Stage, batch, entries, node

BATCH_BYTES = 100
RATE = 10_000
LOG_END = 10_000


class Disk:
    """Answers reads with one-record batches of 100 bytes; counts the bytes sent to each follower of each
    partition."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.sent: defaultdict[tuple[int, TopicPartition], int] = defaultdict(int)

    def answer_all(self) -> None:
        while self.stage.reads:
            self.answer(self.stage.reads.pop(0))

    def answer(self, read: fx.ReadForFollower) -> None:
        count = max(1, min(read.max_bytes // BATCH_BYTES, read.end_offset - read.offset))
        batches = tuple(batch(1, offset=read.offset + index, epoch=1) for index in range(count))
        self.stage.feed(ev.FollowerReadDone(read.follower, read.partition, read.leader_epoch, read.offset, batches))
        for effect in self.stage.got(fx.SendToFollower):
            for chunk in effect.message.chunks:
                self.sent[effect.follower, chunk.partition] += BATCH_BYTES * len(chunk.batches)

    def sent_in(self, seconds: float) -> dict[tuple[int, TopicPartition], int]:
        before = dict(self.sent)
        for _ in range(round(seconds * 10)):
            self.stage.feed(ev.Tick(), after_ms=100)
            self.answer_all()
        return {key: sent - before.get(key, 0) for key, sent in self.sent.items()}


def move(
    stage: Stage, *partitions: TopicPartition, throttle: int = RATE, adding: tuple[int, ...] = (3,), epoch: int = 5
) -> None:
    stage.version += 1
    commands = tuple(
        PartitionCommand(one, ID, (1, 2, 3), node(1, epoch, (1, 2)), stage.version, adding, (), throttle)
        for one in partitions
    )
    stage.feed(ev.LeaderAndIsrArrived(1, LeaderAndIsrCommand(9, 1, 11, commands)))


def open_all(stage: Stage, *partitions: TopicPartition) -> None:
    for one in partitions:
        log = ev.RecoveredLog(0, LOG_END, LOG_END, LOG_END, entries((1, 0)), ProducerStates(), None)
        stage.feed(ev.LogOpened(one, ID, log))


def fetch(stage: Stage, follower: int, *partitions: TopicPartition, offset: int = 0, epoch: int = 5) -> None:
    last_epoch = 1 if offset else -1
    positions = tuple(FetchPosition(one, ID, epoch, offset, last_epoch, 0) for one in partitions)
    stage.from_follower(follower, FollowerMessage(positions=positions, credits=(Credit(0, 1 << 30),)))


def moving(*partitions: TopicPartition, throttle: int = RATE) -> tuple[Stage, Disk]:
    """Broker 1 leads with 2 in sync, and 3 is being added; 3 fetches."""
    stage = Stage()
    disk = Disk(stage)
    move(stage, *partitions, throttle=throttle)
    open_all(stage, *partitions)
    fetch(stage, 3, *partitions)
    return stage, disk


def test_a_replica_being_added_gets_the_throttled_rate_and_no_more() -> None:
    stage, disk = moving(P)
    disk.answer_all()
    assert disk.sent[3, P] <= RATE, "at most one second of the limit at once"
    assert stage.core.queries.move_traffic().throttled == 1
    sent = disk.sent_in(20)[3, P]
    assert 19 * RATE <= sent <= 20 * RATE
    traffic = stage.core.queries.move_traffic()
    assert (traffic.bytes_out, traffic.bytes_in) == (disk.sent[3, P], 0)


def test_partitions_with_the_same_limit_share_it_evenly_and_other_limits_are_separate() -> None:
    same = [TopicPartition("flights", index) for index in range(4)]
    other = TopicPartition("other", 0)
    stage, disk = moving(*same)
    move(stage, other, throttle=3 * RATE)
    open_all(stage, other)
    fetch(stage, 3, other)
    disk.answer_all()
    sent = disk.sent_in(20)
    assert 19 * RATE <= sum(sent[3, one] for one in same) <= 20 * RATE
    assert all(0.8 * RATE * 5 <= sent[3, one] <= 1.2 * RATE * 5 for one in same)
    assert 57 * RATE <= sent[3, other] <= 60 * RATE


def test_members_of_the_isr_and_other_followers_are_never_slowed_down() -> None:
    stage, disk = moving(P)
    fetch(stage, 2, P)
    disk.answer_all()
    assert disk.sent[2, P] == LOG_END * BATCH_BYTES
    move(stage, P, adding=(4,))
    disk.answer_all()
    assert disk.sent[3, P] == LOG_END * BATCH_BYTES, "the reassignment no longer adds this replica"


def test_a_replica_in_sync_is_not_throttled_any_more() -> None:
    stage = Stage()
    disk = Disk(stage)
    move(stage, P)
    open_all(stage, P)
    fetch(stage, 2, P, offset=LOG_END)
    fetch(stage, 3, P, offset=LOG_END)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2, 3)
    for _ in range(5 * RATE // BATCH_BYTES):
        stage.produce()
        stage.feed(ev.LogAppended(P, ID, stage.got(fx.AppendToLog)[0].base_offset + 1))
    disk.answer_all()
    assert disk.sent[3, P] == 5 * RATE
    assert stage.core.queries.move_traffic()[:3] == (5 * RATE, 0, 0)


@pytest.mark.parametrize("end", ["no throttle", "no move", "leadership"])
def test_the_throttle_ends_at_once_when_its_move_does(end: str) -> None:
    stage, disk = moving(P)
    disk.answer_all()
    assert stage.core.queries.move_traffic().throttled == 1
    if end == "no throttle":
        move(stage, P, throttle=0)
    elif end == "no move":
        move(stage, P, throttle=RATE, adding=())
    else:
        move(stage, P, throttle=0, epoch=6)
        fetch(stage, 3, P, epoch=6)
        disk.sent.clear()
    disk.answer_all()
    assert disk.sent[3, P] == LOG_END * BATCH_BYTES
    assert stage.core.queries.move_traffic().throttled == 0


def test_a_throttle_that_is_changed_holds_from_then_on() -> None:
    stage, disk = moving(P)
    disk.answer_all()
    move(stage, P, throttle=5 * RATE)
    disk.answer_all()
    assert 45 * RATE <= disk.sent_in(10)[3, P] <= 50 * RATE


def test_a_follower_that_leaves_returns_the_tokens_of_its_read() -> None:
    stage, disk = moving(P)
    (read,) = stage.reads
    stage.reads.clear()
    stage.feed(ev.FollowerDisconnected(3, 13))
    assert stage.core.queries.move_traffic().throttled == 0
    fetch(stage, 3, P)
    (again,) = stage.reads
    assert again.max_bytes == read.max_bytes == RATE
    disk.answer(read)  # the late answer of the first read has the same bytes and offset
    assert disk.sent[3, P] == RATE


def test_a_batch_larger_than_the_throttle_passes_and_is_worked_off() -> None:
    _, disk = moving(P, throttle=10)
    disk.answer_all()
    assert disk.sent[3, P] == BATCH_BYTES
    assert 10 * 10 <= disk.sent_in(20)[3, P] <= 20 * 10 + BATCH_BYTES


def test_a_replica_being_added_counts_the_bytes_that_it_receives() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)), adding=(1,), throttle=RATE)
    stage.opened()
    stage.feed(ev.LeaderConnected(2))
    stage.chunk(0, batch(1, offset=0, epoch=5))
    assert stage.core.queries.move_traffic()[:3] == (0, BATCH_BYTES, 0)
    stage.command(node(2, 5, (1, 2)))
    stage.chunk(1, batch(1, offset=1, epoch=5))
    assert stage.core.queries.move_traffic()[:3] == (0, BATCH_BYTES, 0)


class Sender:
    """Reads whenever the throttle lets it, and uses half of each reservation; there is always more to send."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.sent_bytes = 0
        self.now_ms = 0

    def send_more(self) -> None:
        reserved = self.throttle.reserve(self, 1 << 20, self.now_ms)
        if reserved:
            self.throttle.settle(reserved, reserved // 2)
            self.sent_bytes += reserved // 2


def test_bytes_reserved_and_not_sent_go_to_the_next_read_and_senders_take_turns() -> None:
    throttle = Throttle(RATE, 0)
    senders = [Sender(throttle) for _ in range(3)]
    for now_ms in range(0, 30_000, 50):
        for sender in senders:
            sender.now_ms = now_ms
        for sender in senders:
            if sender not in throttle.waiting:
                sender.send_more()
        throttle.serve(now_ms)
    total = sum(sender.sent_bytes for sender in senders)
    assert 29 * RATE <= total <= 31 * RATE
    assert all(0.8 * total / 3 <= sender.sent_bytes <= 1.2 * total / 3 for sender in senders)


def test_a_throttle_exists_while_a_leadership_uses_it_and_the_lowest_limit_is_reported() -> None:
    throttles = Throttles()
    assert throttles.join(0, 0) is None
    throttles.leave(None)
    fast, slow = throttles.join(900, 0), throttles.join(50, 0)
    assert throttles.join(900, 0) is fast
    assert throttles.lowest_bytes_per_s == 50
    throttles.leave(slow)
    throttles.leave(fast)
    assert throttles.lowest_bytes_per_s == 900
    assert throttles.join(900, 0) is fast, "another leadership still uses the throttle, and its tokens are shared"
    throttles.leave(fast)
    throttles.leave(fast)
    assert throttles.lowest_bytes_per_s == 0
    assert list(throttles) == []
