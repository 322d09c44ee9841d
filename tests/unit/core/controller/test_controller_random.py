# SPDX-License-Identifier: Apache-2.0
"""Random worlds around the controller: its decisions keep the rules, and all brokers learn the final state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)

from tests.unit.core.controller.worlds.controller_world import Sends, World

STEPS = 120
BROKERS = range(5)


class RandomWorld(World):
    """A seeded world that advances by single steps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.highest_epochs: dict[tuple[str, str], int] = {}
        self.unreadable: set[tuple[TopicPartition, IsrEntry]] = set()
        self.names = 0
        self._checked: dict[TopicPartition, tuple[LeaderAndIsr, TopicDescription]] = {}
        for broker in BROKERS:
            self.register(broker)
        for _ in range(2):
            self._new_topic()
        self.elected()

    def _new_topic(self) -> None:
        self.names += 1
        count = self.random.randint(1, 4)
        size = self.random.randint(1, 3)
        assignments = [self.random.sample(BROKERS, size) for _ in range(count)]
        unclean = "true" if self.random.random() < 0.1 else "false"
        name = f"topic-{self.names % 6}"
        if name not in self.topics:
            self.make_topic(name, *assignments, m=str(self.random.randint(1, 2)), unclean=unclean)

    def step(self) -> None:
        happenings = (
            (self._answer_something, 12),
            (self._broker_goes, 2),
            (self._broker_comes, 3),
            (self._broker_bounces, 1),
            (self._brokers_are_seen, 3),
            (self._leader_changes_isr, 3),
            (self._suspicion, 1),
            (self._trust, 2),
            (self._topic_comes, 1),
            (self._topic_goes, 1),
            (self._time_passes, 2),
        )
        self.one_of(happenings)

    def one_of(self, happenings: Sequence[tuple[Callable[[], None], int]]) -> None:
        """Let one of these happen, by their weights."""
        self.random.choices([one for one, _ in happenings], [weight for _, weight in happenings])[0]()
        self.check()

    def _answer_something(self) -> None:
        if not self.pending:
            return
        effect = self.pending.pop(self.random.randrange(min(len(self.pending), 4)))
        chance = self.random.random()
        if isinstance(effect, fx.Resign):
            return
        if isinstance(effect, fx.SendLeaderAndIsr) and chance < 0.1:
            self._refuse(effect)
        elif isinstance(effect, Sends) and chance < 0.2:
            self.fail(effect)
        elif isinstance(effect, fx.WriteStates) and chance < 0.1:
            self.happens(ev.StatesWritten({}, tuple(change.partition for change in effect.changes)))
        else:
            self.answer(effect, lost=chance > 0.85 and not isinstance(effect, fx.ReadStates))

    def _refuse(self, effect: fx.SendLeaderAndIsr) -> None:
        code = self.random.choice(
            [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REPLICA_DAMAGED, ErrorCode.STORAGE_ERROR, ErrorCode.SHUTTING_DOWN]
        )
        refused = tuple(
            (one.partition, TidemarkError(code, "no", {"leader_epoch": str(one.state.leader_epoch)}))
            for command in effect.commands
            for one in command.partitions
            if one.state.leader == effect.broker
        )[:1]
        self._tell(effect)
        if code is ErrorCode.STORAGE_ERROR:
            entry = IsrEntry(effect.broker, effect.commands[0].broker_epoch)
            self.unreadable |= {(partition, entry) for partition, _ in refused}
        self.happens(ev.ControlAnswered(effect.broker, effect.request_id, None, refused))

    def _broker_goes(self) -> None:
        if self.brokers:
            del self.brokers[self.random.choice(sorted(self.brokers))]

    def _broker_comes(self) -> None:
        away = [broker for broker in BROKERS if BrokerId(broker) not in self.brokers]
        if away:
            self.register(self.random.choice(away), clean=self.random.random() < 0.8)

    def _broker_bounces(self) -> None:
        if self.brokers:
            self.register(self.random.choice(sorted(self.brokers)), clean=self.random.random() < 0.8)

    def _brokers_are_seen(self) -> None:
        self.brokers_seen()

    def _leader_changes_isr(self) -> None:
        led = [one for one, found in self.states.items() if found.state.leader in self.brokers]
        if not led:
            return
        partition = self.random.choice(sorted(led))
        leader = self.states[partition].state.leader
        assigned = self.topics[partition.topic].partitions[partition.partition]
        others = [one for one in assigned if one in self.brokers and one != leader and self.random.random() < 0.7]
        entry = next(one for one in self.states[partition].state.isr if one.broker_id == leader)
        if entry.broker_epoch == self.epochs[leader].broker_epoch:
            self.leader_writes(partition, leader, *others)
            if self.random.random() < 0.9:  # else the hint is lost
                self.happens(ev.IsrChangesReported((partition,)))

    def _suspicion(self) -> None:
        if self.brokers:
            broker = self.random.choice(sorted(self.brokers))
            self.happens(ev.BrokerSuspected(broker, self.epochs[broker].broker_epoch))

    def _trust(self) -> None:
        for broker in sorted(self.brokers):
            self.happens(ev.BrokerTrusted(broker, self.epochs[broker].broker_epoch))

    def _topic_comes(self) -> None:
        self._new_topic()
        self.topics_seen()

    def _topic_goes(self) -> None:
        if self.topics:
            self.delete(self.random.choice(sorted(self.topics)))

    def _time_passes(self) -> None:
        self.passes(self.random.choice([10, 100, 1000, 7000]))

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for partition, (state, _) in self.states.items():
            topic = self.topics[partition.topic]
            before = self._checked.get(partition)
            if before is not None and before[0] is state and before[1] is topic:
                continue
            self._checked[partition] = state, topic
            key = (topic.topic_id, topic.incarnations.get(partition.partition, ""))
            if key[1]:  # else the partition was removed, and its node is deleted next
                assert state.leader_epoch >= self.highest_epochs.get(key, 0)
                self.highest_epochs[key] = state.leader_epoch
            assert state.leader in state.isr_ids if state.leader != NO_LEADER else not state.isr
            assert len(set(state.isr_ids)) == len(state.isr)
            assert not {one.broker_id for one in state.elr} & set(state.isr_ids)
        under_way = [change.partition for write in self.waiting(fx.WriteStates) for change in write.changes]
        assert len(under_way) == len(set(under_way)), "two writes of one partition at once"

    def rest(self) -> None:
        """Every watch fires, every broker answers, every answer arrives."""
        self._trust()
        self.pending = [one for one in self.pending if not isinstance(one, fx.Resign)]
        self.brokers_seen()
        self.topics_seen()
        self.happens(ev.DeletionsRequested(frozenset(self.deletions)))
        self.happens(ev.IsrChangesReported(tuple(self.states)))
        for _ in range(5000):
            if self.pending:
                effect = self.pending.pop(0)
                if not isinstance(effect, fx.Resign):
                    self.answer(effect)
            elif not any(not isinstance(one, fx.Observed) for one in self.passes(11_000)):
                return
        raise AssertionError(f"never at rest: {self.pending[:2]}")

    def check_at_rest(self) -> None:
        assert not self.deletions
        assert {one.topic for one in self.states} <= set(self.topics)
        for topic in self.topics.values():
            for index, assigned in topic.partitions.items():
                self._check_partition(TopicPartition(topic.topic, index), assigned)
        for knows in self.brokers.values():
            assert knows.complete
            assert knows.view.complete
            assert knows.view.brokers == self.registrations()
            assert set(knows.view.topics) == {one.topic for one in self.states}
            assert set(knows.commands) == {
                one
                for one in self.states
                if knows.registration.broker_id in self.topics[one.topic].partitions[one.partition]
            }

    def _check_partition(self, partition: TopicPartition, assigned: tuple[BrokerId, ...]) -> None:
        if partition not in self.states:
            assert not set(assigned) & set(self.brokers), f"{partition} has no state though a replica lives"
            return
        state, version = self.states[partition]
        self._check_leader(partition, state)
        for broker, knows in self.brokers.items():
            view = knows.view.topics[partition.topic]
            assert view.topic_id == self.topics[partition.topic].topic_id
            shown = view.partitions[partition.partition]
            assert (shown.leader, shown.leader_epoch, shown.partition_epoch) == (
                state.leader,
                state.leader_epoch,
                version,
            )
            if broker in assigned:
                told = knows.commands[partition]
                assert (told.state.leader, told.state.leader_epoch) == (state.leader, state.leader_epoch)

    def _check_leader(self, partition: TopicPartition, state: LeaderAndIsr) -> None:
        if state.leader == NO_LEADER:
            topic = self.topics[partition.topic]
            for broker in topic.partitions[partition.partition] if topic.configs["unclean"] == "true" else ():
                now = IsrEntry(broker, self.epochs[broker].broker_epoch)
                excused = (partition, now) in self.unreadable
                assert broker not in self.brokers or excused, f"{partition}: {broker} lives and may lead"
            for one in state.elr:
                void = one.broker_epoch < self.epochs[one.broker_id].unclean_at
                now = IsrEntry(one.broker_id, self.epochs[one.broker_id].broker_epoch)
                excused = void or (partition, now) in self.unreadable
                assert one.broker_id not in self.brokers or excused, f"{partition}: {one} lives and is not elected"
        for one in state.isr:
            assert self.brokers[one.broker_id].registration.broker_epoch == one.broker_epoch, f"{partition}: {state}"


_World = TypeVar("_World", bound=RandomWorld)


def live(kind: type[_World], seeds: range, steps: int = STEPS) -> list[_World]:
    """Live the worlds of this kind, with all checks."""
    worlds = [kind(seed) for seed in seeds]
    for seed, world in zip(seeds, worlds, strict=True):
        try:
            for _ in range(steps):
                world.step()
            world.rest()
            world.check()
            world.check_at_rest()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return worlds


@pytest.mark.parametrize("batch", range(10))
def test_in_random_worlds_the_rules_hold_and_brokers_learn_the_final_state(batch: int) -> None:
    live(RandomWorld, range(batch * 25, batch * 25 + 25))
