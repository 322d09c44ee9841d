# SPDX-License-Identifier: Apache-2.0
"""A registration from before a controller's term counts in elections once its broker has answered (rule C9)."""

from __future__ import annotations

from tidemark.core.controller import effects as fx
from tidemark.model import NO_LEADER, BrokerId, ElectionKind, TopicPartition

from tests.unit.core.controller.elections.test_log_comparison import others
from tests.unit.core.controller.worlds.controller_world import World

T = TopicPartition("t", 0)
SPARE = (10, 11, 12, 13, 14)
"""With this number of other live brokers, two suspected brokers do not make the controller resign (rule C6)."""


def inherited(*assigned: int, dead: int | None = None, **configs: str) -> World:
    """A partition with a leader; then another controller finds these registrations, except `dead`."""
    world = World()
    for broker in (*assigned, *SPARE):
        world.register(broker)
    world.elected()
    world.topic("t", assigned, **({"m": "1"} | configs))
    world.settle()
    if dead is not None:
        del world.brokers[BrokerId(dead)]
    world.fails_over(answering=())
    world.settle()
    return world


def leader(world: World) -> int:
    return world.state("t").leader


def test_an_inherited_broker_without_an_answer_is_not_elected() -> None:
    world = inherited(0, 1, 2, dead=0)
    assert leader(world) == 0, "the decision waits for a first answer"
    world.fails_heartbeat(1)
    world.fails_heartbeat(2)
    others(world)
    assert leader(world) == NO_LEADER
    assert {entry.broker_id for entry in world.state("t").elr} == {0, 1, 2}
    world.answers_heartbeat(2)
    world.settle()
    assert (leader(world), world.state("t").lineage) == (2, 0)


def test_a_broker_that_answers_is_elected_at_once_beside_silent_ones() -> None:
    world = inherited(0, 1, 2, dead=0)
    world.fails_heartbeat(1)
    world.answers_heartbeat(2)
    world.settle()
    assert leader(world) == 2


def test_the_first_assigned_replica_is_elected_although_another_one_answers_before_it() -> None:
    world = inherited(0, 1, 2, dead=0)
    world.answers_heartbeat(2)
    world.settle()
    assert leader(world) == 0
    world.answers_heartbeat(1)
    world.settle()
    assert (leader(world), world.state("t").isr_ids) == (1, (1, 2))


def test_a_leader_with_an_inherited_registration_stays_until_it_is_suspected() -> None:
    world = inherited(0, 1, 2)
    before = world.state("t")
    assert not world.waiting(fx.WriteStates)
    world.answers_heartbeat(1)
    world.settle()
    assert world.state("t").leader_epoch == before.leader_epoch
    world.fails_heartbeat(0)
    world.settle()
    assert leader(world) == 1


def test_a_new_registration_is_believed_at_once() -> None:
    world = inherited(0, 1, dead=0)
    world.fails_heartbeat(1)
    others(world)
    assert leader(world) == NO_LEADER
    world.up(0)
    world.settle()
    assert leader(world) == 0


def test_a_single_replica_leads_after_its_answer() -> None:
    world = World()
    world.register(0)
    world.elected()
    world.topic("t", (0,), m="1")
    world.settle()
    world.down(0)
    world.settle()
    assert leader(world) == NO_LEADER
    world.register(0)
    world.fails_over(answering=())
    world.settle()
    assert leader(world) == NO_LEADER
    world.answers_heartbeat(0)
    world.settle()
    assert leader(world) == 0


def test_a_new_partition_counts_no_silent_broker_as_in_sync() -> None:
    world = World()
    for broker in (0, 1, 2):
        world.register(broker)
    world.elected(answering=())
    world.topic("t", (0, 1, 2), m="1")
    world.settle()
    assert T not in world.states
    world.fails_heartbeat(0)
    world.answers_heartbeat(1)
    world.settle()
    assert T not in world.states, "broker 2 may answer yet"
    world.answers_heartbeat(2)
    world.settle()
    assert (leader(world), world.state("t").isr_ids) == (1, (1, 2))


def test_a_requested_preferred_election_waits_for_the_answer() -> None:
    world = inherited(0, 1, m="2")
    world.answers_heartbeat(1)
    world.fails_heartbeat(0)
    world.settle()
    assert (leader(world), world.state("t").isr_ids) == (1, (0, 1))
    world.fails_over(answering=(1,))
    world.request(ElectionKind.PREFERRED, T)
    world.settle()
    assert leader(world) == 1
    assert not [one for one in world.observed if one.kind == "election_refused"]
    world.answers_heartbeat(0)
    world.settle()
    assert leader(world) == 0
