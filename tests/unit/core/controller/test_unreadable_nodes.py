# SPDX-License-Identifier: Apache-2.0
"""Nodes that do not parse: the controller continues, and no replica counts as stray because of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.requested_elections import EXPIRES_MS
from tidemark.core.controller.state_rebuild import untrusted
from tidemark.core.messages import ReplicaDescription
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ErrorCode,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

from tests.unit.core.controller.worlds.controller_world import World, policy_of


def a_world() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("good", (0, 1, 2), m="1")
    world.make_topic("bad", (0, 1, 2), m="1")
    return world


def elected(world: World, **unreadable: frozenset[str] | frozenset[TopicPartition]) -> None:
    topics = {name: one for name, one in world.topics.items() if name not in unreadable.get("unreadable_topics", ())}
    states = {one: found for one, found in world.states.items() if one not in unreadable.get("unreadable_states", ())}
    elected = ev.Elected(world.registrations(), dict(world.epochs), topics, states, frozenset())
    world.happens(replace(elected, **unreadable))  # type: ignore[arg-type]
    world.answer_heartbeats()
    for effect in [one for one in world.pending if isinstance(one, fx.WriteStates)]:
        world.pending.remove(effect)
        world.answer(effect)


def complete(world: World) -> list[bool]:
    return [
        command.complete
        for effect in world.pending
        if isinstance(effect, fx.SendLeaderAndIsr)
        for command in effect.commands
    ]


def test_no_replica_is_stray_while_a_topic_does_not_parse() -> None:
    world = a_world()
    elected(world, unreadable_topics=frozenset({"bad"}))
    assert complete(world) == [False] * 3
    assert [one.fields["topic"] for one in world.observed if one.kind == "node_unreadable"] == ["bad"]
    assert world.state("good").leader == 0, "the others are led"


def test_no_replica_is_stray_while_a_state_does_not_parse() -> None:
    world = a_world()
    world.elected()
    world.settle()
    bad = TopicPartition("bad", 0)
    world.core = type(world.core)(world.config, policy_of)
    elected(world, unreadable_states=frozenset({bad}))
    assert complete(world)
    assert not any(complete(world))


def test_commands_are_complete_once_every_node_parses() -> None:
    world = a_world()
    world.elected()
    world.settle()
    a_controller = ev.Elected(
        world.registrations(), dict(world.epochs), dict(world.topics), dict(world.states), frozenset()
    )
    world.core = type(world.core)(world.config, policy_of)
    world.happens(a_controller)
    assert complete(world) == [True] * 3


def test_commands_are_not_complete_before_new_partitions_have_a_state() -> None:
    """A topic that parses again looks like a new one until its states are read."""
    world = a_world()
    elected(world)
    assert complete(world) == [False] * 3
    world.settle()
    assert all(knows.complete for knows in world.brokers.values())


@pytest.mark.parametrize("is_deleted", [False, True], ids=["restored", "deleted"])
def test_commands_are_complete_once_the_topic_parses_or_is_gone(is_deleted: bool) -> None:
    """Otherwise replicas that were deleted while their broker was down would stay on its disks."""
    world = a_world()
    elected(world, unreadable_topics=frozenset({"bad"}))
    world.settle()
    assert not any(knows.complete for knows in world.brokers.values())
    if is_deleted:
        del world.topics["bad"]
    world.happens(ev.TopicsChanged(dict(world.topics)))
    world.settle()
    assert all(knows.complete for knows in world.brokers.values())
    for knows in world.brokers.values():
        knows.complete = False
    world.topic("more", (0, 1, 2), m="1")
    world.settle()
    assert not any(knows.complete for knows in world.brokers.values()), "every replica is named once"


def test_commands_are_complete_after_the_deletion_of_a_topic_without_states() -> None:
    """The previous controller failed between its deletions of the states and of the topic's node."""
    world = a_world()
    world.elected()
    world.settle()
    for knows in world.brokers.values():
        knows.complete = False
    bad = TopicPartition("bad", 0)
    del world.states[bad]
    world.core = type(world.core)(world.config, policy_of)
    elected(world, deletions=frozenset({"bad"}), unreadable_states=frozenset({bad}))
    assert not any(complete(world))
    world.settle()
    assert "bad" not in world.topics
    assert all(knows.complete for knows in world.brokers.values())


def test_a_topic_that_stops_parsing_keeps_its_last_state() -> None:
    world = a_world()
    world.elected()
    world.settle()
    good = {name: one for name, one in world.topics.items() if name == "good"}
    world.happens(ev.TopicsChanged(good, frozenset({"bad"})))
    world.settle()
    assert "bad" in world.brokers[BrokerId(0)].view.topics
    assert world.core.counts()["partitions"] == 2
    world.happens(ev.TopicsChanged(good))
    world.settle()
    assert "bad" not in world.brokers[BrokerId(0)].view.topics, "the topic was deleted"


def a_new_controller(world: World) -> None:
    """The node of topic "bad" does not parse for the new controller; the previous one may have known the topic."""
    world.pending = []
    world.core = type(world.core)(world.config, policy_of)
    elected = ev.Elected(
        world.registrations(),
        dict(world.epochs),
        {name: one for name, one in world.topics.items() if name != "bad"},
        {one: found for one, found in world.states.items() if one.topic != "bad"},
        frozenset(),
        unreadable_topics=frozenset({"bad"}),
        reassignments=world.asked.move_requests(),
    )
    world.happens(elected)
    world.answer_heartbeats()
    _reads(world, resumed=True)
    world.settle()


def _reads(world: World, *, resumed: bool = False) -> None:
    good = {name: one for name, one in world.topics.items() if name != "bad"}
    world.happens(ev.TopicsChanged(good, frozenset({"bad"})))
    world.happens(ev.ReassignmentsRequested(world.asked.move_requests()))
    world.happens(ev.PartitionsRequested(world.asked.partition_requests(), resumed))


def test_brokers_keep_metadata_of_an_unreadable_topic_until_it_is_deleted() -> None:
    """Otherwise brokers refuse its clients as for a deleted topic, and coordinators delete its committed offsets."""
    world = a_world()
    world.elected()
    world.settle()
    a_new_controller(world)
    view = world.brokers[BrokerId(0)].view
    assert (set(view.topics), view.hidden_topics) == ({"good", "bad"}, ("bad",))
    world.topics_seen()
    world.settle()
    view = world.brokers[BrokerId(0)].view
    assert (set(view.topics), view.hidden_topics) == ({"good", "bad"}, ())
    a_new_controller(world)
    world.happens(ev.TopicsChanged({"good": world.topics["good"]}))
    world.settle()
    view = world.brokers[BrokerId(0)].view
    assert (set(view.topics), view.hidden_topics) == ({"good"}, ())


def test_brokers_keep_metadata_of_a_topic_whose_states_do_not_parse() -> None:
    world = a_world()
    world.elected()
    world.settle()
    world.pending = []
    world.core = type(world.core)(world.config, policy_of)
    elected(world, unreadable_states=frozenset({TopicPartition("bad", 0)}))
    for effect in [one for one in world.pending if isinstance(one, fx.SendUpdateMetadata)]:
        world.pending.remove(effect)
        world.answer(effect)
    view = world.brokers[BrokerId(0)].view
    assert (set(view.topics), view.hidden_topics) == ({"good", "bad"}, ("bad",))


def test_a_begun_reassignment_waits_for_its_topic_to_parse_and_keeps_its_throttle() -> None:
    world = a_world()
    world.register(3)
    world.elected()
    world.settle()
    bad = TopicPartition("bad", 0)
    world.move(bad, 3, 1, 2, throttle_bytes_per_s=1000)
    world.settle()
    a_new_controller(world)
    assert bad in world.asked.moves
    world.asked_seen()
    world.settle()
    assert world.brokers[BrokerId(1)].commands[bad].throttle_bytes_per_s == 1000
    world.settle(catching_up=True)
    assert not world.asked.refusals
    assert world.topics["bad"].partitions[0] == (3, 1, 2)


def test_a_requested_reassignment_waits_for_its_topic_to_parse_then_for_its_brokers() -> None:
    world = a_world()
    world.register(3)
    world.elected()
    world.settle()
    bad = TopicPartition("bad", 0)
    world.asked.moves[bad] = PartitionReassignment(bad, (BrokerId(3), BrokerId(1), BrokerId(2)))
    a_new_controller(world)
    _reads(world)  # for some other reason
    world.down(3)
    world.settle()
    world.asked_seen()
    world.settle()
    assert not world.asked.refusals
    assert bad in world.asked.moves
    world.up(3)
    world.settle(catching_up=True)
    assert world.topics["bad"].partitions[0] == (3, 1, 2)
    assert not world.asked.moves
    world.down(0)
    world.settle()
    world.move(bad, 0, 1, 2)
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.BROKER_NOT_AVAILABLE], (
        "the broker is another one"
    )


def test_a_new_reassignment_is_checked_once_its_topic_parses() -> None:
    world = a_world()
    world.elected()
    world.settle()
    bad = TopicPartition("bad", 0)
    away = PartitionReassignment(bad, (BrokerId(3), BrokerId(1), BrokerId(2)))
    a_new_controller(world)
    world.asked.moves[bad] = away
    _reads(world)
    world.settle()
    assert not world.asked.refusals
    world.asked_seen()
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.BROKER_NOT_AVAILABLE]


def test_a_reassignment_requested_again_after_it_was_withdrawn_is_new() -> None:
    world = a_world()
    world.elected()
    world.settle()
    bad = TopicPartition("bad", 0)
    world.asked.moves[bad] = away = PartitionReassignment(bad, (BrokerId(3), BrokerId(1), BrokerId(2)))
    a_new_controller(world)
    del world.asked.moves[bad]
    _reads(world)
    world.asked_seen()
    world.asked.moves[bad] = away
    world.asked_seen()
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.BROKER_NOT_AVAILABLE]


def test_a_begun_removal_waits_for_its_topic_to_parse() -> None:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("good", (0, 1, 2), m="1")
    world.make_topic("bad", (0, 1, 2), (0, 1, 2), m="1")
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    world.remove(TopicPartition("bad", 1))
    a_new_controller(world)
    assert TopicPartition("bad", 1) in world.asked.removed
    world.asked_seen()
    world.settle(catching_up=True)
    assert not world.asked.refusals
    assert not world.asked.removed
    assert sorted(world.topics["bad"].partitions) == [0]


def test_a_topic_that_parses_again_without_its_brokers_is_hidden_not_deleted() -> None:
    """The topic's states are read when a broker registers; until then a coordinator keeps its committed offsets."""
    world = World()
    for broker in range(4):
        world.register(broker)
    world.make_topic("good", (0, 3), m="1")
    world.make_topic("bad", (1, 2), m="1")
    world.elected()
    world.settle()
    world.down(1, 2)
    world.settle()
    a_new_controller(world)
    world.down(3)
    world.settle()
    world.up(3)
    world.settle()
    assert world.brokers[BrokerId(3)].view.hidden_topics == ("bad",)
    world.topics_seen()
    world.settle()
    view = world.brokers[BrokerId(3)].view
    assert view.complete
    assert "bad" in view.topics or view.hidden_topics == ("bad",)
    world.up(1, 2)
    world.settle()
    view = world.brokers[BrokerId(3)].view
    assert (set(view.topics), view.hidden_topics) == ({"good", "bad"}, ())


# -- nodes that parse again, or were created again --------------------------------------------------------------------

HURT = TopicPartition("hurt", 0)


def hurt_world() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("hurt", (0, 1, 2), m="1")
    return world


def test_a_state_that_parses_again_is_sent_even_without_a_leader() -> None:
    world = hurt_world()
    hidden = frozenset({HURT})
    brokers, epochs = world.registrations(), dict(world.epochs)
    world.happens(ev.Elected(brokers, epochs, world.topics, {}, frozenset(), unreadable_states=hidden))
    world.answer_heartbeats()
    while world.pending:
        world.answer(world.pending.pop(0))
    assert all(HURT not in knows.commands for knows in world.brokers.values())

    world.states[HURT] = VersionedState(LeaderAndIsr(NO_LEADER, LeaderEpoch(7), ()), 0)
    world.passes(10_000)
    world.settle()
    for broker in range(3):
        told = world.brokers[BrokerId(broker)].commands[HURT].state
        assert (told.leader, told.leader_epoch) == (NO_LEADER, 7)


def test_a_state_that_was_rebuilt_before_the_core_saw_the_damage_is_sent() -> None:
    """Otherwise its replicas never describe their logs in its leader epoch, and the partition has no leader."""
    world = World()
    for broker in range(2):
        world.register(broker)
    world.make_topic("t", (0, 1), m="2")
    world.elected()
    world.settle(catching_up=True)
    partition = TopicPartition("t", 0)
    world.down(0, 1)
    world.settle()
    world.up(0, 1, crashed=True)
    found, version = world.states[partition]
    assert (found.leader, len(found.elr)) == (NO_LEADER, 2), "their logs are compared first"
    rebuilt = replace(found, leader_epoch=LeaderEpoch(found.leader_epoch + 100))
    world.states[partition] = VersionedState(rebuilt, version + 2)
    world.happens(ev.IsrChangesReported((partition,)))
    world.settle()
    assert world.states[partition].state.leader != NO_LEADER


def test_a_state_deleted_and_created_again_gets_a_new_epoch() -> None:
    world = hurt_world()
    world.elected()
    world.settle()
    world.down(0)
    world.settle()
    before = world.states[HURT]
    assert before.version > 0
    world.states[HURT] = VersionedState(before.state, 0)  # the old content, but ZooKeeper counts versions from 0 again
    world.up(0)
    world.down(2)
    world.settle()
    after = world.states[HURT]
    assert after.state.leader_epoch > before.state.leader_epoch, "its leader has a higher version in the old epoch"
    assert 2 not in after.state.isr_ids
    assert world.core.counts()["partitions"] == 1


# -- nodes damaged while their controller lives ---------------------------------------------------------------------


def told(world: World, kind: str) -> list[dict[str, str | int]]:
    return [dict(one.fields) for one in world.observed if one.kind == kind and one.partition == HURT]


def answered(world: World) -> None:
    """Answer all effects in flight.

    The world never settles, because the controller reads a damaged node without end.
    """
    while world.pending:
        world.answer(world.pending.pop(0))


def damaged_under_its_leader(**configs: str) -> World:
    """The node was damaged, and then its leader fails."""
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("hurt", (0, 1, 2), **{"m": "1", **configs})
    world.elected()
    world.settle()
    world.observed.clear()
    world.damaged.add(HURT)
    world.down(0)
    answered(world)
    return world


def test_no_election_is_reported_while_the_node_is_damaged_however_long() -> None:
    world = damaged_under_its_leader()
    for _ in range(10):
        world.passes(2_000)
        answered(world)
    assert not told(world, "leader_elected")
    assert len(told(world, "node_unreadable")) == 1
    assert world.core.counts()["unreadable_nodes"] == 1
    assert world.core.counts()["offline_partitions"] == 1, "its leader is gone, and none can be elected"


def test_the_election_is_reported_once_when_the_node_is_written_again() -> None:
    world = damaged_under_its_leader()
    before = world.states[HURT]
    world.damaged.clear()
    again = replace(before.state, leader=NO_LEADER, leader_epoch=LeaderEpoch(before.state.leader_epoch + 100))
    world.states[HURT] = VersionedState(again, 0)
    world.passes(2_000)
    world.settle()
    (election,) = told(world, "leader_elected")
    assert (election["leader"], election["leader_epoch"]) == (1, again.leader_epoch + 1)
    assert world.brokers[BrokerId(2)].commands[HURT].state.leader == 1
    assert world.core.counts()["unreadable_nodes"] == 0
    assert len(told(world, "node_readable")) == 1


def test_the_other_partitions_continue_beside_a_damaged_one() -> None:
    world = damaged_under_its_leader()
    world.topic("well", (0, 1, 2), m="1")
    answered(world)
    world.up(0)
    answered(world)
    assert world.state("well").leader == 1
    assert world.brokers[BrokerId(0)].complete


def test_an_election_with_a_lost_answer_is_reported_when_the_node_shows_it() -> None:
    world = hurt_world()
    world.elected()
    world.answer(world.take(fx.WriteStates), lost=True)
    assert not told(world, "leader_elected")
    world.settle()
    (election,) = told(world, "leader_elected")
    assert (election["leader"], election["before"]) == (0, NO_LEADER)


def test_an_election_that_was_never_written_is_never_reported() -> None:
    world = hurt_world()
    world.elected()
    write = world.take(fx.WriteStates)
    world.happens(ev.StatesWritten({}, tuple(change.partition for change in write.changes)))
    assert not told(world, "leader_elected")
    world.settle()
    assert len(told(world, "leader_elected")) == 1, "of the second write"


def test_other_elections_of_a_damaged_partition_are_refused_with_the_command_to_run() -> None:
    world = damaged_under_its_leader()
    world.request(ElectionKind.LAST_KNOWN, HURT)
    answered(world)
    (refused,) = told(world, "election_refused")
    assert "run `tidemark elect --rebuild-state hurt:0`" in str(refused["why"])
    assert not world.requests


def test_a_rebuilt_state_without_trusted_replicas_is_elected_uncleanly_with_a_report() -> None:
    world = damaged_under_its_leader(m="2")
    world.request(ElectionKind.REBUILD_STATE, HURT, request_id="r1")
    assert world.core.rebuilds(HURT)
    state = untrusted((BrokerId(0), BrokerId(1), BrokerId(2)), 2, LeaderEpoch(3), ())
    world.damaged.clear()
    world.states[HURT] = VersionedState(state, 5)
    world.logs[1, HURT] = ReplicaDescription(LeaderEpoch(2), Offset(40), Offset(30), damaged=False)
    world.logs[2, HURT] = ReplicaDescription(LeaderEpoch(2), Offset(30), Offset(45), damaged=False)
    world.settle()
    assert world.state("hurt").leader == 1
    (report,) = world.reports
    assert (report.request_id, report.records_maybe_lost, report.unheard) == ("r1", 5, (0,))
    assert not world.requests
    assert not world.core.rebuilds(HURT)


def test_a_rebuild_that_no_replica_answers_expires() -> None:
    world = damaged_under_its_leader()
    world.request(ElectionKind.REBUILD_STATE, HURT, request_id="r1")
    answered(world)
    world.passes(EXPIRES_MS)
    answered(world)
    assert [one["why"] for one in told(world, "election_refused")] == ["no replica reported its state in time"]
    assert not world.requests


def test_a_rebuild_of_a_node_that_its_replicas_prove_loses_nothing() -> None:
    world = damaged_under_its_leader()
    world.request(ElectionKind.REBUILD_STATE, HURT, request_id="r1")
    answered(world)
    before = world.states[HURT].state
    world.damaged.clear()
    again = replace(before, leader=NO_LEADER, leader_epoch=LeaderEpoch(before.leader_epoch + 100))
    world.states[HURT] = VersionedState(again, 3)
    world.passes(2_000)
    world.settle()
    assert (world.state("hurt").leader, world.state("hurt").lineage) == (1, before.lineage)
    assert not world.reports
    assert not told(world, "election_refused")
    assert not world.requests


def set_back(world: World) -> VersionedState:
    """Broker 1 leads since broker 0 left; then the node gets its first content again. Returns the state before."""
    world.elected()
    world.settle()
    first = world.states[HURT]
    world.down(0)
    world.settle()
    before = world.states[HURT]
    assert before.state.leader == 1
    world.states[HURT] = VersionedState(first.state, before.version + 1)
    world.observed.clear()
    return before


def is_written_again(world: World, before: VersionedState) -> None:
    """Write the node again, as the driver of the term does."""
    again = replace(before.state, leader=NO_LEADER, leader_epoch=LeaderEpoch(before.state.leader_epoch + 100))
    world.states[HURT] = VersionedState(again, before.version + 2)
    world.passes(2_000)
    world.settle()
    assert (world.state("hurt").leader, world.state("hurt").isr_ids) == (1, before.state.isr_ids)
    assert world.state("hurt").leader_epoch == again.leader_epoch + 1


def test_a_node_that_was_set_back_during_the_term_is_not_believed() -> None:
    world = hurt_world()
    before = set_back(world)
    world.happens(ev.IsrChangesReported((HURT,)))
    answered(world)
    assert world.core.counts()["unreadable_nodes"] == 1
    assert world.core.is_older(HURT, world.states[HURT].state)
    memory = world.core.memory(HURT, world.identity(HURT))
    assert (memory.known, memory.older) == ((before, 1), 0)
    assert world.brokers[BrokerId(1)].commands[HURT].state == before.state, "the leader continues"
    is_written_again(world, before)


def test_a_new_controller_stops_believing_a_node_when_a_replica_knows_a_later_leadership() -> None:
    world = hurt_world()
    before = set_back(world)
    world.pending = []
    world.config = replace(world.config, controller_epoch=world.config.controller_epoch + 1)
    world.core = type(world.core)(world.config, policy_of)
    world.elected()
    world.answer(world.take(fx.WriteStates))  # broker 0 is down, so that broker 1 gets the leader epoch 1 again
    command = next(one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 2)
    world.pending.remove(command)
    known = {"leader_epoch": "2", "known_leader": "1", "known_leader_epoch": "2"}
    refusal = TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", known)
    world.happens(ev.ControlAnswered(BrokerId(2), command.request_id, None, ((HURT, refusal),)))
    answered(world)
    assert len(told(world, "node_unreadable")) == 1
    assert world.core.memory(HURT, world.identity(HURT)) == (None, 2, 1)
    world.passes(2_000)
    answered(world)
    assert world.core.counts()["unreadable_nodes"] == 1, "the content of the node is the older one still"
    is_written_again(world, before)


def test_a_leader_that_knows_a_much_higher_epoch_leads_after_one_more_write() -> None:
    world = hurt_world()
    world.elected()
    world.answer(world.take(fx.WriteStates))
    command = next(one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 0)
    world.pending.remove(command)
    refusal = TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", {"leader_epoch": "104"})
    world.happens(ev.ControlAnswered(BrokerId(0), command.request_id, None, ((HURT, refusal),)))
    world.settle()
    assert (world.state("hurt").leader, world.state("hurt").leader_epoch) == (0, 105)


def _led_world() -> World:
    world = hurt_world()
    world.elected()
    world.settle()
    return world


def _refused_leader() -> World:
    """A new controller finds brokers 0, 1 and 2 with broker 0 as the leader, and only that one answers: it refuses."""
    world = _led_world()
    world.fails_over()
    command = next(one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 0)
    world.pending.remove(command)
    epoch = str(world.state("hurt").leader_epoch)
    refusal = TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", {"leader_epoch": epoch})
    world.happens(ev.ControlAnswered(BrokerId(0), command.request_id, None, ((HURT, refusal),)))
    assert not world.waiting(fx.WriteStates), "another replica may prove that the node is older"
    return world


def _first_commands(world: World) -> list[fx.SendLeaderAndIsr]:
    return [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker in (1, 2)]


@pytest.mark.parametrize("way", ["answers", "fails"])
def test_a_new_controller_raises_a_refused_epoch_after_the_first_answer_of_each_replica(way: str) -> None:
    world = _refused_leader()
    first, second = _first_commands(world)
    world.answer(first)
    assert not world.waiting(fx.WriteStates)
    if way == "answers":
        world.answer(second)
    else:
        world.fail(second)
    (write,) = world.waiting(fx.WriteStates)
    assert (write.changes[0].state.leader, write.changes[0].state.leader_epoch) == (0, 1)


def test_a_new_controller_waits_for_no_suspected_replica_before_it_raises_a_refused_epoch() -> None:
    world = _refused_leader()
    first, _ = _first_commands(world)
    world.answer(first)
    world.fails_heartbeat(2)
    world.settle()
    assert world.state("hurt").leader_epoch == 1


def test_a_new_controller_elects_at_once_in_place_of_a_leader_that_is_gone() -> None:
    world = _led_world()
    world.down(0)
    world.fails_over()
    (write,) = world.waiting(fx.WriteStates)
    assert (write.changes[0].state.leader, write.changes[0].state.leader_epoch) == (1, 1)
