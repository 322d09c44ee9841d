# SPDX-License-Identifier: Apache-2.0
"""A new broker is sent all metadata in parts, and the changes meanwhile after that (rule C3)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from tidemark.core.cluster_view import ClusterView, MetadataAssembler, TopicView, taken_over
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.errors import unknown_topic
from tidemark.model import BrokerId, ControllerEpoch, ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code
from tests.unit.core.controller.worlds.controller_world import World


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.core.controller.command_builder.METADATA_PARTITIONS_MAX", 3)


def shown(world: World, broker: int) -> dict[TopicPartition, tuple[int, int, tuple[int, ...]]]:
    return {
        TopicPartition(name, index): (one.leader, one.leader_epoch, one.in_sync_replicas)
        for name, topic in world.brokers[BrokerId(broker)].view.topics.items()
        for index, one in topic.partitions.items()
    }


def true(world: World) -> dict[TopicPartition, tuple[int, int, tuple[int, ...]]]:
    return {
        partition: (found.state.leader, found.state.leader_epoch, found.state.isr_ids)
        for partition, found in world.states.items()
    }


def something_happens(world: World, chance: random.Random) -> None:
    what = chance.random()
    if what < 0.4 and world.states:
        partition = chance.choice(sorted(world.states))
        if world.states[partition].state.leader >= 0:
            keep = {world.states[partition].state.leader, *chance.sample(range(3), 2)}
            world.leader_writes(partition, *sorted(keep))
            world.happens(ev.IsrChangesReported((partition,)))
    elif what < 0.6:
        away = {0, 1, 2} - {int(one) for one in world.brokers}
        if away:
            world.up(*away)
        else:
            world.down(chance.randrange(3))
    elif what < 0.7 and len(world.topics) < 5:
        world.topic(f"made-{chance.randrange(10**6)}", (0, 1), (1, 2))
    elif what < 0.74 and world.topics:
        world.delete(chance.choice(sorted(world.topics)))
    elif what < 0.78:
        world.fails_over()
    else:
        world.passes(500)


def answer_or_change(world: World, chance: random.Random, *, answers: float) -> None:
    """Answer the oldest effect, with this probability; a fifth of the metadata messages fails."""
    if world.pending and chance.random() < answers:
        effect = world.pending.pop(0)
        fails = isinstance(effect, fx.SendUpdateMetadata) and chance.random() < 0.2
        (world.fail if fails else world.answer)(effect)
    else:
        something_happens(world, chance)


@pytest.mark.parametrize("seed", range(60))
def test_every_broker_gets_all_metadata_with_any_events_between_the_parts(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for broker in range(3):
        world.register(broker)
    for name in ("a", "b"):
        world.make_topic(name, *[(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2)], m="1")
    world.elected()
    for _ in range(120):
        answer_or_change(world, chance, answers=0.75)
    world.up(*({0, 1, 2} - {int(one) for one in world.brokers}))
    for _ in range(30):
        world.settle()
        world.passes(3000)
    world.settle()
    for broker in range(3):
        assert shown(world, broker) == true(world), broker
        assert set(world.brokers[BrokerId(broker)].view.brokers) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(60))
def test_late_or_repeated_messages_remove_no_metadata(seed: int) -> None:
    chance = random.Random(seed)
    world = two_topics()
    sent: list[fx.SendUpdateMetadata] = []
    for _ in range(120):
        if world.pending and chance.random() < 0.75:
            effect = world.pending.pop(0)
            fails = False
            if isinstance(effect, fx.SendUpdateMetadata):
                sent.append(effect)
                fails = chance.random() < 0.2
            (world.fail if fails else world.answer)(effect)
        elif sent and chance.random() < 0.5:
            world.comes_again(chance.choice(sent))
        else:
            something_happens(world, chance)
    world.up(*({0, 1, 2} - {int(one) for one in world.brokers}))
    for _ in range(30):
        world.settle()
        world.passes(3000)
    for effect in sent:
        world.comes_again(effect)
    for broker in range(3):
        assert shown(world, broker) == true(world), broker
        assert set(world.brokers[BrokerId(broker)].view.brokers) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(60))
def test_a_client_loses_no_topic_whichever_brokers_answer(seed: int) -> None:
    chance = random.Random(seed)
    world, client = two_topics(), ClusterView()
    names: set[str] = set()
    for _ in range(150):
        answer_or_change(world, chance, answers=0.7)
        names |= world.topics.keys()
        before = known_to(client)
        client = taken_over(client, answered(world, chance.choice(sorted(world.brokers) or [BrokerId(0)]), names))
        assert before & world.topics.keys() <= known_to(client)
    world.up(*({0, 1, 2} - {int(one) for one in world.brokers}))
    for _ in range(30):
        world.settle()
        world.passes(3000)
    for broker in range(3):
        client = taken_over(client, answered(world, BrokerId(broker), names))
    assert known_to(client) == set(world.topics)


def known_to(client: ClusterView) -> set[str]:
    return {name for name, topic in client.topics.items() if topic.error is None}


def answered(world: World, broker: BrokerId, names: set[str]) -> ClusterView:
    """A broker's answer to a client that names these topics; nothing new from a broker without metadata."""
    if broker not in world.brokers or not world.brokers[broker].view.complete:
        return ClusterView()
    view = world.brokers[broker].view
    topics = {name: view.topics.get(name) or TopicView(name, "", error=unknown_topic(name)) for name in names}
    return replace(view, topics=topics, complete=False)


def two_topics() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    for name in ("a", "b"):
        world.make_topic(name, *[(0, 1, 2)] * 4, m="1")
    world.elected()
    return world


def parts_for(world: World, broker: int) -> Iterator[ClusterView]:
    """Each part that is sent to this broker, and its answer; other commands wait."""
    while True:
        for effect in world.pending:
            if isinstance(effect, fx.SendUpdateMetadata) and effect.broker == broker:
                break
        else:
            return
        world.pending.remove(effect)
        world.answer(effect)
        yield effect.view


def test_a_controller_change_makes_no_broker_forget_a_topic() -> None:
    world = two_topics()
    world.settle()
    world.fails_over()
    parts = 0
    for _ in parts_for(world, 0):
        parts += 1
        assert shown(world, 0) == true(world)
    assert parts == 3


def test_a_new_broker_shows_no_metadata_before_the_last_part() -> None:
    world = two_topics()
    world.settle()
    world.down(0)
    world.settle()
    world.up(0)
    for view in parts_for(world, 0):
        assert world.brokers[BrokerId(0)].view.complete != view.more_parts
    assert set(world.brokers[BrokerId(0)].view.topics) == {"a", "b"}


@pytest.mark.parametrize("fails", range(3))
def test_after_a_failed_part_all_parts_are_sent_again(fails: int) -> None:
    world = two_topics()
    world.settle()
    world.fails_over()
    told = parts_for(world, 0)
    for _ in range(fails):
        next(told)
    (effect,) = [one for one in world.waiting(fx.SendUpdateMetadata) if one.broker == 0]
    world.pending.remove(effect)
    world.fail(effect)
    world.passes(3000)
    assert [view.part for view in parts_for(world, 0)][:3] == [0, 1, 2]
    assert shown(world, 0) == true(world)


def test_back_offs_grow_where_a_later_part_keeps_failing() -> None:
    world = two_topics()
    world.settle()
    world.fails_over()
    began_ms: list[int] = []
    while len(began_ms) < 6:
        told = parts_for(world, 0)
        next(told)
        began_ms.append(world.now_ms)
        (effect,) = [one for one in world.waiting(fx.SendUpdateMetadata) if one.broker == 0]
        world.pending.remove(effect)
        world.fail(effect)
        while not any(isinstance(one, fx.SendUpdateMetadata) and one.broker == 0 for one in world.pending):
            world.passes(100)
    pauses_ms = [after - before for before, after in pairwise(began_ms)]
    assert pauses_ms == [100, 200, 400, 800, 1600]


def test_a_topic_deleted_between_two_parts_is_deleted_although_an_earlier_part_names_it() -> None:
    world = two_topics()
    world.settle()
    world.fails_over()
    ahead, behind = parts_for(world, 0), parts_for(world, 1)
    for _ in range(3):
        next(ahead)  # all parts are made now
    next(behind)
    world.delete("b")
    world.settle()
    assert set(world.brokers[BrokerId(1)].view.topics) == {"a"}


def test_a_missing_part_is_detected() -> None:
    told = MetadataAssembler()
    nothing = ClusterView()
    assert told.take(nothing, ClusterView(complete=True, more_parts=True)) is None
    with raises_code(ErrorCode.INVALID_REQUEST):
        told.take(nothing, ClusterView(part=2))
    whole = told.take(nothing, ClusterView(part=1))
    assert whole is not None
    assert whole.complete
    with pytest.raises(TidemarkError):
        told.take(whole, ClusterView(part=1))  # repeated


def told_of(*names: str, sequence: int, part: int = 0, more_parts: bool = False, complete: bool = True) -> ClusterView:
    topics = {name: TopicView(name, f"{name}-id", created_zxid=1) for name in names}
    return ClusterView(topics=topics, complete=complete, part=part, more_parts=more_parts, sequence=sequence)


def test_a_late_first_part_is_ignored() -> None:
    told = MetadataAssembler()
    nothing = ClusterView()
    late = told_of("old", sequence=1, more_parts=True)
    assert told.take(nothing, told_of("a", sequence=3, more_parts=True)) is None
    assert told.take(nothing, late) is None
    assert told.take(nothing, told_of("b", sequence=4, part=1, more_parts=True)) is None
    assert told.take(nothing, late) is None
    whole = told.take(nothing, told_of("c", sequence=5, part=2))
    assert whole is not None
    assert set(whole.topics) == {"a", "b", "c"}
    assert told.take(whole, told_of("old", sequence=2)) is None, "ignored after the last part too"


def test_a_repeated_part_is_ignored() -> None:
    told = MetadataAssembler()
    nothing = ClusterView()
    first, second, last = (
        told_of(name, sequence=part + 1, part=part, more_parts=part < 2) for part, name in enumerate("abc")
    )
    assert [told.take(nothing, part) for part in (first, first, second, first, second)] == [None] * 5
    whole = told.take(nothing, last)
    assert whole is not None
    assert set(whole.topics) == {"a", "b", "c"}
    assert told.take(whole, last) is None
    with pytest.raises(TidemarkError):
        told.take(whole, told_of("d", sequence=5, part=1))
    with pytest.raises(TidemarkError):
        told.take(whole, told_of("d", sequence=5, part=1))  # a repeated wrong part is refused again


def test_a_late_change_restores_no_deleted_topic() -> None:
    told = MetadataAssembler()
    view = told.take(ClusterView(), told_of("a", sequence=1))
    assert view is not None
    view = told.take(view, ClusterView(deleted_topics=("a",), sequence=3))
    assert view is not None
    assert told.take(view, told_of("a", sequence=2, complete=False)) is None
    first_of_another = replace(told_of("b", sequence=1), controller_epoch=ControllerEpoch(1))
    view = told.take(view, first_of_another)
    assert view is not None
    assert set(view.topics) == {"b"}, "another controller counts for itself"


def test_metadata_for_several_brokers_is_built_once() -> None:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("a", *[(0, 1, 2)] * 8, m="1")
    world.elected()
    parts = []
    while world.pending:
        effect = world.pending.pop(0)
        if isinstance(effect, fx.SendUpdateMetadata):
            parts.append(effect.view.topics)
        world.answer(effect)
    assert len({id(one) for one in parts if one}) < len([one for one in parts if one])


def test_a_broker_that_gets_a_change_later_gets_the_same_metadata() -> None:
    world = two_topics()
    world.settle()
    partition = min(world.states)
    world.leader_writes(partition, world.states[partition].state.leader)
    world.happens(ev.IsrChangesReported((partition,)))
    while not (sent := world.waiting(fx.SendUpdateMetadata)):
        world.answer(world.pending.pop(0))
    world.pending.remove(sent[0])
    world.fail(sent[0])
    while not (again := [one for one in world.waiting(fx.SendUpdateMetadata) if one.broker == sent[0].broker]):
        world.passes(100)
    first, later = (one.view.topics[partition.topic].partitions[partition.partition] for one in (sent[0], again[0]))
    assert first is later
