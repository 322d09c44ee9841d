"""Stories in which the controller's knowledge is late, or a disk fails: nobody's data goes with it."""

from __future__ import annotations

from tidemark.core import controller_effects as fx
from tidemark.core import controller_events as ev
from tidemark.model import TopicDescription

from tests.unit.core.controller_world import World


def three_brokers() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.elected()
    world.settle()
    return world


def until_nodes_go(world: World) -> fx.DeleteTopic:
    """Answer everything up to the deletion of the nodes."""
    while not world.waiting(fx.DeleteTopic):
        world.answer(world.pending.pop(0))
    return world.take(fx.DeleteTopic)


def is_whole(world: World, topic: TopicDescription) -> bool:
    return world.topics.get(topic.topic) is topic and not any(
        knows.stopped for knows in world.brokers.values() if topic.topic in {one.topic for one in knows.stopped}
    )


def test_a_request_whose_topic_was_deleted_unanswered_spares_the_new_topic_of_that_name() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.delete("t")
    world.answer(until_nodes_go(world), lost=True)
    for knows in world.brokers.values():
        knows.stopped.clear()
    world.topic("t", (1, 2, 0))
    recreated = world.topics["t"]
    world.settle()
    assert is_whole(world, recreated)
    assert world.state("t").leader == 1
    world.happens(ev.DeletionsRequested(frozenset(world.deletions)))
    world.settle()
    assert is_whole(world, recreated)


def test_a_new_topic_of_that_name_is_deleted_when_that_is_asked_for() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    world.delete("t")
    world.answer(until_nodes_go(world), lost=True)
    world.topic("t", (1, 2, 0))
    world.delete("t")
    world.settle()
    assert world.topics == {}
    assert world.states == {}


def test_a_topic_that_was_read_before_it_was_deleted_is_not_taken_for_a_new_one() -> None:
    world = three_brokers()
    world.topic("t", (0, 1, 2))
    world.settle()
    read_before = dict(world.topics)
    world.delete("t")
    world.answer(until_nodes_go(world))
    effects = world.happens(ev.TopicsChanged(read_before))
    assert not [one for one in effects if isinstance(one, fx.WriteStates)]
    world.topics_seen()
    world.topic("t", (2, 0, 1))
    world.settle()
    assert world.state("t").leader == 2
