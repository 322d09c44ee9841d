# SPDX-License-Identifier: Apache-2.0
"""Events that concern thousands of partitions are decided and sent in slices, so that other events wait little."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.command_builder import PART_PARTITIONS_MAX, PARTITIONS_AT_ONCE
from tidemark.core.controller.context import DECIDED_AT_ONCE
from tidemark.core.controller.controller import ControllerCore
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, decide
from tidemark.core.controller.reassignments import Reassignments
from tidemark.model import BrokerEpoch, BrokerId

from tests.unit.core.controller.worlds.controller_world import World, policy_of


def cluster(count: int) -> World:
    """Three brokers that were sent everything about a topic of this many partitions, with three replicas each."""
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("flights", *([(index + shift) % 3 for shift in range(3)] for index in range(count)))
    world.elected()
    world.settle()
    return world


def sizes(effects: list[Any]) -> tuple[int, list[int]]:
    """Partitions decided in each slice, and the number of partitions sent to each broker."""
    decided = sum(len(one.changes) for one in effects if isinstance(one, fx.WriteStates))
    sent = [one for one in effects if isinstance(one, fx.SendLeaderAndIsr)]
    return decided, [sum(len(command.partitions) for command in one.commands) for one in sent]


def in_slices(world: World, first: ev.ControllerEvent) -> list[tuple[int, list[int]]]:
    """An event, and all that it leaves for later."""
    found = [sizes(world.core.handle(first, world.now_ms))]
    while world.core.has_more:
        found.append(sizes(world.core.handle(ev.MoreToDo(), world.now_ms)))
    return found


def test_a_broker_failure_is_decided_in_slices() -> None:
    world = cluster(3_000)
    live = {broker: one for broker, one in world.registrations().items() if broker != 1}
    slices = in_slices(world, ev.BrokersChanged(live, dict(world.epochs)))
    assert max(decided for decided, _ in slices) == DECIDED_AT_ONCE
    assert sum(decided for decided, _ in slices) == 3_000


def test_partitions_that_are_alike_are_decided_once_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster(3_000)
    decided: list[object] = []

    def counted(facts: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
        decided.append(facts)
        return decide(facts, brokers)

    monkeypatch.setattr("tidemark.core.controller.controller.decide", counted)
    live = {broker: one for broker, one in world.registrations().items() if broker != 1}
    slices = in_slices(world, ev.BrokersChanged(live, dict(world.epochs)))
    assert sum(count for count, _ in slices) == 3_000
    assert len(decided) <= 3 * len(slices), "a slice has partitions in three states"


def test_writes_of_partitions_with_the_same_brokers_share_multis() -> None:
    """A leader changes the ISRs of one follower meanwhile: that fails the multis with partitions of that follower."""
    world = World()
    for broker in range(7):
        world.register(broker)
    world.make_topic("flights", *([6, index % 6] for index in range(3_000)))
    world.elected()
    world.settle()
    found: list[fx.ControllerEffect] = []
    event: ev.ControllerEvent | None = ev.BrokerSuspected(BrokerId(6), world.registrations()[BrokerId(6)].broker_epoch)
    while event is not None:
        found += world.core.handle(event, world.now_ms)
        event = ev.MoreToDo() if world.core.has_more else None
    multis = [
        {change.partition.partition % 6 for change in one.changes} for one in found if isinstance(one, fx.WriteStates)
    ]
    assert len(multis) >= 6
    assert sum(2 in one for one in multis) <= 2, "broker 2 has 500 of the partitions"


def test_partitions_whose_write_is_in_flight_cost_other_events_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine has more heartbeats and ticks during a write; each would check all partitions again."""
    world = cluster(3_000)
    live = {broker: one for broker, one in world.registrations().items() if broker != 1}
    in_slices(world, ev.BrokerSuspected(BrokerId(1), world.registrations()[BrokerId(1)].broker_epoch))
    in_slices(world, ev.BrokersChanged(live, dict(world.epochs)))
    looked_at: list[object] = []
    monkeypatch.setattr(Reassignments, "look", lambda _, partition_state: looked_at.append(partition_state))
    in_slices(world, ev.Tick())
    looked_at.clear()
    for event in (ev.Tick(), ev.BrokerTrusted(BrokerId(0), BrokerEpoch(0))):
        in_slices(world, event)
    assert looked_at == []


def test_a_new_controller_sends_to_one_broker_after_the_other() -> None:
    world = cluster(PARTITIONS_AT_ONCE + 200)
    world.core = ControllerCore(world.config, policy_of)
    found = ev.Elected(world.registrations(), dict(world.epochs), dict(world.topics), dict(world.states), frozenset())
    assert [told for _, told in in_slices(world, found) if told] == [[PARTITIONS_AT_ONCE + 200]] * 3


def test_a_full_leader_and_isr_waits_for_pending_decisions() -> None:
    world = cluster(DECIDED_AT_ONCE + 50)
    world.register(1)
    first, *rest = in_slices(world, ev.BrokersChanged(world.registrations(), dict(world.epochs)))
    assert rest, "there is a second slice"
    assert first == (DECIDED_AT_ONCE, [])


def test_messages_stay_small() -> None:
    world = cluster(PART_PARTITIONS_MAX + 500)
    world.fails_over()
    sent = world.waiting(fx.SendLeaderAndIsr)
    assert {tuple(len(command.partitions) for command in one.commands) for one in sent} == {(PART_PARTITIONS_MAX, 500)}
    assert {tuple(command.complete for command in one.commands) for one in sent} == {(False, True)}


@pytest.mark.parametrize("seed", range(40))
def test_slices_end_the_same_with_any_events_between_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.core.controller.context.DECIDED_AT_ONCE", 2)
    monkeypatch.setattr("tidemark.core.controller.command_builder.PARTITIONS_AT_ONCE", 3)
    monkeypatch.setattr("tidemark.core.controller.command_builder.PART_PARTITIONS_MAX", 2)
    chance = random.Random(seed)
    world = cluster(12)
    world.goes_on = False
    for _ in range(60):
        step = chance.random()
        if step < 0.3:
            world.happens(ev.MoreToDo())
        elif step < 0.8 and world.pending:
            world.answer(world.pending.pop(0))
        elif step < 0.9:
            away = {0, 1, 2} - {int(one) for one in world.brokers}
            if len(away) < 2:
                world.down(chance.choice(sorted({0, 1, 2} - away)))
            else:
                world.up(*away)
        else:
            world.passes(100)
    world.goes_on = True
    world.up(*({0, 1, 2} - {int(one) for one in world.brokers}))
    for _ in range(10):
        world.settle()
        world.passes(3_000)
    for broker in world.brokers.values():
        told = {partition: command.state.leader_epoch for partition, command in broker.commands.items()}
        assert told == {partition: found.state.leader_epoch for partition, found in world.states.items()}
    assert all(state.leader in range(3) for state, _ in world.states.values())
