# SPDX-License-Identifier: Apache-2.0
"""Every broker with a replica learns each version of its topics' schemas, once (rules S1, S3)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tidemark.core.controller import command_builder
from tidemark.core.controller import effects as fx
from tidemark.core.messages import LeaderAndIsrCommand
from tidemark.model import BrokerId, SchemaText

from tests.unit.core.controller.worlds.controller_world import World


class Learners:
    """The versions that each broker process has received, by topic id."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[tuple[BrokerId, int], dict[str, dict[int, str]]] = {}
        self.texts_sent = 0

    def take(self, effect: fx.SendLeaderAndIsr) -> None:
        epoch = self.world.brokers[effect.broker].registration.broker_epoch
        known = self.known.setdefault((effect.broker, epoch), {})
        for command in effect.commands:
            for new in command.schemas.values():
                self.texts_sent += len(new.texts)
                known.setdefault(new.topic_id, {}).update(new.texts)

    def of(self, broker: int, topic: str) -> dict[int, str]:
        epoch = self.world.brokers[BrokerId(broker)].registration.broker_epoch
        return self.known.get((BrokerId(broker), epoch), {}).get(self.world.topics[topic].topic_id, {})

    def settle(self) -> None:
        """Settle as `World.settle`, with a check of each LeaderAndIsr."""
        world = self.world
        for _ in range(10_000):
            if world.pending:
                effect = world.pending.pop(0)
                if isinstance(effect, fx.SendLeaderAndIsr):
                    self.take(effect)
                world.answer(effect)
            elif not [one for one in world.passes(20_000) if not isinstance(one, fx.Observed)]:
                return
        raise AssertionError("effects never end")


def three_brokers() -> tuple[World, Learners]:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.elected()
    return world, Learners(world)


def evolve(world: World, topic: str, version: int, text: str = "") -> None:
    """A version is created in ZooKeeper; the controller has yet to read that."""
    known = world.topics[topic]
    world.topics[topic] = replace(known, schemas={**known.schemas, version: SchemaText(text or f"{topic} {version}")})


def typed(world: World, name: str, *assignments: tuple[int, ...], versions: int = 1) -> None:
    world.make_topic(name, *assignments, m="1")
    for version in range(1, versions + 1):
        evolve(world, name, version)


def test_a_new_version_goes_to_the_replicas_only_and_its_number_to_every_broker() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1), (1, 0), (0, 1))
    world.topic("bytes", (0, 1, 2))
    learners.settle()
    assert [learners.of(broker, "flights") for broker in range(3)] == [{1: "flights 1"}, {1: "flights 1"}, {}]
    sent = learners.texts_sent
    evolve(world, "flights", 2)
    world.topics_seen()
    learners.settle()
    assert learners.of(0, "flights") == learners.of(1, "flights") == {1: "flights 1", 2: "flights 2"}
    assert learners.of(2, "flights") == {}
    assert learners.texts_sent == sent + 2
    for broker in range(3):
        view = world.brokers[BrokerId(broker)].view
        assert (view.topics["flights"].schema_version, view.topics["bytes"].schema_version) == (2, 0)


def test_commands_about_other_changes_repeat_no_version() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2))
    world.topics_seen()
    learners.settle()
    sent = learners.texts_sent
    world.configure("flights", m="2")
    learners.settle()
    world.down(0)
    learners.settle()
    assert learners.texts_sent == sent


def test_a_failed_command_is_sent_again_with_its_versions() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2))
    world.topics_seen()
    learners.settle()
    evolve(world, "flights", 2)
    world.topics_seen()
    lost = world.take(fx.SendLeaderAndIsr)
    world.fail(lost)
    evolve(world, "flights", 3)
    world.topics_seen()
    learners.settle()
    for broker in range(3):
        assert set(learners.of(broker, "flights")) == {1, 2, 3}


def test_a_restarted_broker_and_every_broker_of_a_new_controller_get_all_versions() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2), versions=3)
    world.topics_seen()
    learners.settle()
    world.down(1)
    learners.settle()
    world.up(1)
    learners.settle()
    assert set(learners.of(1, "flights")) == {1, 2, 3}
    learners.known.clear()
    world.fails_over()
    learners.settle()
    assert [set(learners.of(broker, "flights")) for broker in range(3)] == [{1, 2, 3}] * 3


def test_a_recreated_topic_has_its_own_versions_only() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2), versions=3)
    world.topics_seen()
    learners.settle()
    world.delete("flights")
    learners.settle()
    assert "flights" not in world.topics
    typed(world, "flights", (0, 1, 2))
    evolve(world, "flights", 1, "another")
    world.topics_seen()
    learners.settle()
    for broker in range(3):
        assert learners.of(broker, "flights") == {1: "another"}
        assert world.brokers[BrokerId(broker)].view.topics["flights"].schema_version == 1


def test_a_late_answer_about_the_topic_before_makes_no_version_of_the_new_one_known() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2), versions=3)
    world.topics_seen()
    learners.settle()
    evolve(world, "flights", 4)
    world.topics_seen()
    late = list(world.pending)
    world.pending.clear()
    world.states.clear()
    typed(world, "flights", (0, 1, 2), versions=2)
    world.topics_seen()
    for effect in late:
        world.answer(effect)
    learners.settle()
    assert [learners.of(broker, "flights") for broker in range(3)] == [{1: "flights 1", 2: "flights 2"}] * 3


def test_a_read_with_fewer_versions_than_an_earlier_one_removes_none() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2), versions=2)
    world.topics_seen()
    learners.settle()
    newest = world.topics["flights"]
    world.topics["flights"] = replace(newest, schemas={1: newest.schemas[1]})
    world.configure("flights", m="2")
    learners.settle()
    assert world.core.topics()[0].schemas == newest.schemas
    assert world.brokers[BrokerId(0)].view.topics["flights"].schema_version == 2


def test_a_damaged_version_is_sent_once_more_when_its_node_was_put_back() -> None:
    world, learners = three_brokers()
    typed(world, "flights", (0, 1, 2), versions=3)
    whole = world.topics["flights"]
    world.topics["flights"] = replace(whole, schemas={**whole.schemas, 2: SchemaText("")})
    world.topics_seen()
    learners.settle()
    assert learners.of(0, "flights") == {1: "flights 1", 2: "", 3: "flights 3"}
    sent = learners.texts_sent
    world.topics["flights"] = whole
    world.topics_seen()
    learners.settle()
    world.configure("flights", m="2")
    learners.settle()
    assert [learners.of(broker, "flights")[2] for broker in range(3)] == ["flights 2"] * 3
    assert learners.texts_sent == sent + 3


def parts_of(effect: fx.SendLeaderAndIsr) -> list[LeaderAndIsrCommand]:
    for index, command in enumerate(effect.commands):
        assert command.part == index
        assert sum(len(text) for new in command.schemas.values() for text in new.texts.values()) <= 100
    return list(effect.commands)


def test_many_versions_go_in_several_messages_of_bounded_size_before_the_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_builder, "SCHEMA_CHARACTERS_MAX", 100)
    world, learners = three_brokers()
    learners.settle()
    world.make_topic("flights", (0, 1, 2), m="1")
    for version in range(1, 40):
        evolve(world, "flights", version, f"{version:030}")
    world.topics_seen()
    while not world.waiting(fx.SendLeaderAndIsr):
        world.answer(world.pending.pop(0))
    commands = parts_of(world.waiting(fx.SendLeaderAndIsr)[0])
    assert len(commands) == 13
    assert [len(command.partitions) for command in commands] == [0] * 12 + [1]
    learners.settle()
    assert sorted(learners.of(2, "flights")) == list(range(1, 40))


def a_command_arrives_or_not(learners: Learners, effect: fx.SendLeaderAndIsr, chance: random.Random) -> None:
    world, broker = learners.world, learners.world.brokers.get(effect.broker)
    answered = chance.random() < 0.7
    is_lost = not answered and chance.random() < 0.5
    if broker is not None and not is_lost and broker.registration.broker_epoch == effect.commands[0].broker_epoch:
        learners.take(effect)
    (world.answer if answered else world.fail)(effect)


def something_happens(world: World, chance: random.Random) -> None:
    what, name = chance.random(), chance.choice("ab")
    if what < 0.3:
        if name in world.topics:
            evolve(world, name, world.topics[name].schema_version + 1, f"{name} {chance.random()}")
        else:
            typed(world, name, (0, 1), (2, 1), (1, 0, 2))
        world.topics_seen()
    elif what < 0.4:
        away = {0, 1, 2} - {int(one) for one in world.brokers}
        if away:
            world.up(*away)
        else:
            world.down(chance.randrange(3))
    elif what < 0.5 and name in world.topics:
        world.delete(name)
    elif what < 0.6:
        world.fails_over()
    else:
        world.passes(500)


@pytest.mark.parametrize("seed", range(40))
def test_each_replica_finally_knows_every_version_after_any_fault(seed: int) -> None:
    chance = random.Random(seed)
    world, learners = three_brokers()
    for _ in range(150):
        if world.pending and chance.random() < 0.7:
            effect = world.pending.pop(0)
            if isinstance(effect, fx.SendLeaderAndIsr):
                a_command_arrives_or_not(learners, effect, chance)
            else:
                world.answer(effect)
        else:
            something_happens(world, chance)
    world.up(*({0, 1, 2} - {int(one) for one in world.brokers}))
    for _ in range(5):
        learners.settle()
        world.passes(3000)
    for name, topic in world.topics.items():
        texts = {version: schema.text for version, schema in topic.schemas.items()}
        for broker in range(3):
            hosts = any(broker in replicas for replicas in topic.partitions.values())
            assert learners.of(broker, name) == (texts if hosts else {}), (name, broker)
            assert world.brokers[BrokerId(broker)].view.topics[name].schema_version == topic.schema_version
