# SPDX-License-Identifier: Apache-2.0
"""Three brokers, appends, deletions, failovers and absences at random: log starts agree, no other record goes (L1)."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.model import (
    BrokerRegistration,
    IsrEntry,
    LeaderAndIsr,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.checks import check_batches

from tests.fakes.logs import MemoryLogs
from tests.unit.storage.batches import make_batch

P = TopicPartition("flights", 0)
ID = ReplicaIdentity("a" * 32, "b" * 32)
BROKERS = (1, 2, 3)


class Trio:
    """Three cores over logs in memory; messages and answers arrive immediately, unless a broker is down."""

    def __init__(self) -> None:
        self.now = 1_000
        self.epoch, self.version = 0, 0
        self.isr: tuple[int, ...] = BROKERS
        self.leader = 1
        self.requests = 0
        self.away: set[int] = set()
        self.carried_out: set[type[fx.Effect]] = set()
        self.cores = {one: BrokerCore(one, ReplicationConfig()) for one in BROKERS}
        self.logs = {one: MemoryLogs() for one in BROKERS}
        self.queue: deque[tuple[int, ev.Event]] = deque()
        for one in BROKERS:
            self.feed(one, ev.BrokerRegistered(10 + one))

    def feed(self, broker: int, event: ev.Event) -> None:
        self.queue.append((broker, event))
        while self.queue:
            at, one = self.queue.popleft()
            for effect in self.cores[at].handle(one, self.now):
                self.carry_out(at, effect)

    def log(self, broker: int) -> Any:
        return self.logs[broker]._logs.get(P)

    def carry_out(self, me: int, effect: fx.Effect) -> None:
        log, answer = self.log(me), self.queue.append
        self.carried_out.add(type(effect))
        if isinstance(effect, fx.OpenLog):
            answer((me, ev.LogOpened(P, ID, self.logs[me].open(P, ID, {})[1])))
        elif isinstance(effect, fx.AppendToLog):
            end = log.append(
                effect.batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
            )
            answer((me, ev.LogAppended(P, ID, end)))
        elif isinstance(effect, fx.TruncateLog | fx.ResetLog):
            if isinstance(effect, fx.TruncateLog):
                log.truncate(effect.end_offset)
            else:
                log.reset(effect.start_offset, effect.epoch_below)
            producers = log.truncate(log.log_end_offset)
            answer((me, ev.LogTruncated(P, ID, log.log_start_offset, log.log_end_offset, producers)))
        elif isinstance(effect, fx.AdvanceLogStart):
            log.trim(effect.start_offset)
        else:
            self.pass_on(me, log, effect)

    def pass_on(self, me: int, log: Any, effect: fx.Effect) -> None:
        answer = self.queue.append
        if isinstance(effect, fx.ConnectToLeader):
            if not {me, effect.leader} & self.away:
                answer((me, ev.LeaderConnected(effect.leader)))
        elif isinstance(effect, fx.SendToLeader):
            if not {me, effect.leader} & self.away:
                answer((effect.leader, ev.FollowerMessageArrived(me, 10 + me, effect.message)))
        elif isinstance(effect, fx.SendToFollower):
            if not {me, effect.follower} & self.away:
                answer((effect.follower, ev.LeaderMessageArrived(me, effect.message)))
        elif isinstance(effect, fx.ReadForFollower):
            try:
                data = log.read(effect.offset, end_offset=effect.end_offset, max_bytes=effect.max_bytes)
                done = ev.FollowerReadDone(effect.follower, P, effect.leader_epoch, effect.offset, check_batches(data))
            except TidemarkError as error:
                done = ev.FollowerReadDone(effect.follower, P, effect.leader_epoch, effect.offset, (), error)
            answer((me, done))
        elif isinstance(effect, fx.WriteIsr):
            self.version += 1
            self.isr = effect.state.isr_ids
            answer((me, ev.IsrWritten(P, self.version)))

    def lead(self, leader: int) -> None:
        """A clean election of a member of the ISR."""
        self.leader, self.epoch, self.version = leader, self.epoch + 1, self.version + 1
        self.isr = tuple(one for one in self.isr if one not in self.away)
        state = LeaderAndIsr(leader, self.epoch, tuple(IsrEntry(one, 10 + one) for one in self.isr), (), min_isr=1)
        brokers = tuple(BrokerRegistration(one, f"host{one}", 9192, broker_epoch=10 + one) for one in BROKERS)
        for one in BROKERS:
            command = PartitionCommand(P, ID, BROKERS, state, self.version)
            whole = LeaderAndIsrCommand(9, 1, 10 + one, (command,), brokers)
            self.feed(one, ev.LeaderAndIsrArrived(self.epoch, whole))

    def leave(self, broker: int) -> None:
        self.away.add(broker)
        for other in BROKERS:
            if other != broker:
                self.feed(other, ev.FollowerDisconnected(broker, 10 + broker))
                self.feed(broker, ev.LeaderDisconnected(other))
        if broker == self.leader:
            self.lead(next(one for one in self.isr if one not in self.away))

    def come_back(self, broker: int) -> None:
        self.away.discard(broker)
        self.feed(broker, ev.LeaderConnected(self.leader))

    def pass_time(self, ms: int = 100) -> None:
        for _ in range(max(1, ms // 500)):
            self.now += min(ms, 500)
            for one in BROKERS:
                self.feed(one, ev.Tick())

    def view(self, broker: int) -> Any:
        return self.cores[broker].queries.replica(P)

    def check(self) -> None:
        leading = self.view(self.leader)
        for one in BROKERS:
            view = self.view(one)
            assert view.log_start_offset <= view.high_watermark <= view.log_end_offset
            assert view.log_start_offset == self.log(one).log_start_offset
            if one in self.isr:
                assert view.log_end_offset >= leading.high_watermark, "an in-sync replica has every committed record"


@pytest.mark.parametrize("seed", range(60))
def test_log_starts_agree_in_random_worlds(seed: int) -> None:
    dice, trio = random.Random(seed), Trio()
    trio.lead(1)
    deleted = 0
    for _ in range(80):
        step = dice.random()
        view = trio.view(trio.leader)
        if step < 0.45:
            trio.requests += 1
            one = make_batch(["v"] * dice.randint(1, 4))
            trio.feed(trio.leader, ev.ProduceArrived(trio.requests, P, "", -1, 1, (one,)))
        elif step < 0.65:
            start = Offset(dice.randint(view.log_start_offset, view.log_end_offset))
            trio.feed(trio.leader, ev.LogStartRequested(P, ID, trio.epoch, start))
            assert trio.view(trio.leader).log_start_offset <= max(start, view.log_start_offset)
        elif step < 0.75:
            candidates = [one for one in trio.isr if one not in trio.away]
            trio.lead(dice.choice(candidates))
        elif step < 0.82 and not trio.away and len(trio.isr) > 1:
            trio.leave(dice.choice(BROKERS))
        elif step < 0.90 and trio.away:
            trio.come_back(trio.away.copy().pop())
        else:
            trio.pass_time(dice.choice((100, 100, 20_000)))
        trio.check()
        deleted = max(deleted, trio.view(trio.leader).log_start_offset)
    for one in tuple(trio.away):
        trio.come_back(one)
    trio.pass_time(30_000)
    trio.check()
    views = [trio.view(one) for one in BROKERS]
    assert len({(one.log_end_offset, one.high_watermark) for one in views}) == 1
    leading = trio.view(trio.leader)
    assert all(one.log_start_offset >= leading.log_start_offset for one in views), "no follower keeps deleted records"
    contents = {
        trio.log(one).read(Offset(deleted), end_offset=leading.log_end_offset, max_bytes=1 << 30) for one in BROKERS
    }
    assert len(contents) == 1, "all replicas have the same bytes"


def test_the_random_worlds_cover_every_case() -> None:
    met: set[type[fx.Effect]] = set()
    for seed in range(20):
        dice, trio = random.Random(seed), Trio()
        trio.lead(1)
        trio.leave(3)
        trio.pass_time(30_000)
        for _ in range(dice.randint(1, 5)):
            trio.requests += 1
            trio.feed(trio.leader, ev.ProduceArrived(trio.requests, P, "", -1, 1, (make_batch(["v"] * 3),)))
        trio.feed(1, ev.LogStartRequested(P, ID, trio.epoch, trio.view(1).log_end_offset))
        trio.come_back(3)
        trio.pass_time(30_000)
        assert trio.view(3).log_start_offset == trio.view(1).log_start_offset == trio.view(1).log_end_offset
        met |= trio.carried_out
    assert met >= {fx.AdvanceLogStart, fx.ResetLog, fx.WriteIsr, fx.SaveEpochs}
