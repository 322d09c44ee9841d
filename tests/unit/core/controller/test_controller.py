# SPDX-License-Identifier: Apache-2.0
"""The active controller, event by event (rules C1-C6, Z2, E5)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition

from tests.unit.core.controller.worlds.controller_world import Sends, World

P = TopicPartition("flights", 0)


def cluster(*brokers: int) -> World:
    """A cluster of these brokers, which have every command; no command is pending."""
    world = World()
    for broker in brokers:
        world.register(broker)
    world.elected()
    world.settle()
    return world


def with_topic(*brokers: int, replicas: tuple[int, ...] = (0, 1, 2)) -> World:
    world = cluster(*brokers)
    world.topic("flights", replicas)
    world.settle()
    return world


def refusal(world: World, code: ErrorCode, leader_epoch: int | None = None, **told: int) -> None:
    """The next LeaderAndIsr is answered with a refusal of its first partition."""
    send = world.take(fx.SendLeaderAndIsr)
    partition = send.commands[0].partitions[0].partition
    metadata = {key: str(value) for key, value in told.items()}
    if leader_epoch is not None:
        metadata["leader_epoch"] = str(leader_epoch)
    refused = ((partition, TidemarkError(code, "no", metadata)),)
    world.happens(ev.ControlAnswered(send.broker, send.request_id, None, refused))


def test_a_new_topic_is_written_before_commands_are_sent() -> None:
    world = cluster(0, 1, 2)
    effects = world.topic("flights", (0, 1, 2))
    (write,) = [one for one in effects if not isinstance(one, fx.Observed)]
    assert isinstance(write, fx.WriteStates)
    (change,) = write.changes
    assert (change.partition, change.expected_version, change.state.leader) == (P, -1, 0)
    assert change.state.controller_epoch == 7
    assert change.broker_epochs == {0: 0, 1: 0, 2: 0}


def test_a_written_state_is_sent_to_its_replicas_and_as_metadata_to_all() -> None:
    world = cluster(0, 1, 2, 3)
    world.topic("flights", (0, 2))
    world.answer(world.take(fx.WriteStates))
    sent = world.waiting(fx.SendLeaderAndIsr)
    assert {one.broker for one in sent} == {0, 2}
    for one in sent:
        (command,) = one.commands
        assert not command.complete
        assert [part.partition for part in command.partitions] == [P]
        assert command.partitions[0].partition_epoch == 0
    assert {one.broker for one in world.waiting(fx.SendUpdateMetadata)} == {0, 1, 2, 3}


def test_a_new_broker_is_sent_everything_once() -> None:
    world = with_topic(0, 1)
    world.up(2)
    sends = [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 2]
    assert [command.complete for one in sends for command in one.commands] == [True]
    (metadata,) = [one for one in world.waiting(fx.SendUpdateMetadata) if one.broker == 2]
    assert metadata.view.complete
    assert "flights" in metadata.view.topics
    world.settle()
    world.leader_writes(P, 0, 1, 2)
    world.happens(ev.IsrChangesReported((P,)))
    world.answer(world.take(fx.ReadStates))
    assert not world.waiting(fx.SendLeaderAndIsr)
    assert not any(one.view.complete for one in world.waiting(fx.SendUpdateMetadata))


def test_a_leader_that_resigns_is_replaced_by_the_next_in_sync_replica_and_stays_in_the_isr() -> None:
    world = with_topic(0, 1, 2)
    before = world.states[P].state
    world.happens(ev.LeadershipResigned(before.leader, BrokerEpoch(0), P, before.leader_epoch))
    world.settle()
    after = world.states[P].state
    assert (after.leader, after.leader_epoch) == (1, before.leader_epoch + 1)
    assert after.isr == before.isr
    assert [one.kind for one in world.observed].count("leadership_given_up") == 1


def test_leadership_does_not_circulate_among_slow_disks() -> None:
    world = with_topic(0, 1, 2)

    def plea_moves_it() -> bool:
        state = world.states[P].state
        world.happens(ev.LeadershipResigned(state.leader, BrokerEpoch(0), P, state.leader_epoch))
        while world.waiting(fx.WriteStates):
            world.answer(world.take(fx.WriteStates))
        return world.states[P].state.leader != state.leader

    assert plea_moves_it()
    world.now_ms += 11_999
    assert not plea_moves_it()
    world.now_ms += 1
    assert plea_moves_it()


@pytest.mark.parametrize(
    ("broker", "broker_epoch", "later"), [(0, 1, 0), (0, 0, -1), (0, 0, 1), (1, 0, 0)], ids=lambda value: str(value)
)
def test_a_resignation_of_another_broker_epoch_or_leader_epoch_is_ignored(
    broker: int, broker_epoch: int, later: int
) -> None:
    world = with_topic(0, 1, 2)
    state = world.states[P].state
    epoch = LeaderEpoch(state.leader_epoch + later)
    world.happens(ev.LeadershipResigned(BrokerId(broker), BrokerEpoch(broker_epoch), P, epoch))
    world.settle()
    assert world.states[P].state == state


@pytest.mark.parametrize("broker", [0, 1])
def test_a_replica_whose_log_failed_leaves_the_isr_at_once_whether_it_leads_or_not(broker: int) -> None:
    world = with_topic(0, 1, 2)
    before = world.states[P].state
    event = ev.ReplicaFailed(BrokerId(broker), BrokerEpoch(0), P, before.leader_epoch)
    world.happens(event)
    world.settle()
    after = world.states[P].state
    assert broker not in after.isr_ids
    assert len(after.isr_ids) == 2
    assert after.leader == (1 if broker == 0 else 0)
    assert after.leader_epoch == before.leader_epoch + (broker == 0)
    world.happens(event)
    world.settle()
    assert world.states[P].state == after, "the state is known, with another epoch where the leader changed"


def test_a_replica_whose_log_failed_can_lead_again_once_back_in_the_isr() -> None:
    world = with_topic(0, 1)
    world.happens(ev.ReplicaFailed(BrokerId(0), BrokerEpoch(0), P, LeaderEpoch(0)))
    world.settle()
    world.leader_writes(P, 1, 0)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    world.down(1)
    world.settle()
    assert world.states[P].state.leader == 0


def test_a_leader_that_no_replica_can_replace_stays_and_may_resign_again() -> None:
    world = with_topic(0, 1)
    state = world.states[P].state
    world.down(1)
    world.settle()
    alone = world.states[P].state
    assert alone.isr_ids == (0,)
    world.happens(ev.LeadershipResigned(BrokerId(0), BrokerEpoch(0), P, alone.leader_epoch))
    world.up(1)
    world.settle()
    world.leader_writes(P, 0, 1)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert world.states[P].state.leader == state.leader, "a plea that could not be granted is not remembered"
    world.now_ms += 12_000
    world.happens(ev.LeadershipResigned(BrokerId(0), BrokerEpoch(0), P, alone.leader_epoch))
    world.settle()
    assert world.states[P].state.leader == 1


def test_a_new_controller_sends_everything_to_every_broker_and_keeps_valid_states() -> None:
    before = with_topic(0, 1, 2)
    world = World()
    world.states, world.topics, world.epochs, world.brokers = (
        before.states,
        before.topics,
        before.epochs,
        before.brokers,
    )
    for knows in world.brokers.values():
        knows.complete = False
    world.elected()
    assert not world.waiting(fx.WriteStates)
    world.settle()
    assert all(knows.complete for knows in world.brokers.values())


def test_a_failed_broker_leaves_every_isr_in_the_write_that_moves_its_leaders() -> None:
    world = cluster(0, 1, 2)
    world.topic("flights", (0, 1, 2), (1, 2, 0), (2, 0, 1))
    world.settle()
    world.down(1)
    (write,) = world.waiting(fx.WriteStates)
    found = {change.partition.partition: change.state for change in write.changes}
    assert {index: state.leader for index, state in found.items()} == {0: 0, 1: 2, 2: 2}
    assert all(1 not in state.isr_ids for state in found.values())
    assert {index: state.leader_epoch for index, state in found.items()} == {0: 0, 1: 1, 2: 0}


def test_changes_during_a_write_are_decided_when_the_write_is_answered() -> None:
    world = with_topic(0, 1, 2)
    world.down(0)
    write = world.take(fx.WriteStates)
    world.down(1)
    assert not world.waiting(fx.WriteStates)
    world.answer(write)
    (again,) = world.waiting(fx.WriteStates)
    assert (again.changes[0].state.leader, again.changes[0].expected_version) == (2, 1)


def test_a_conflict_is_read_and_decided_again() -> None:
    world = with_topic(0, 1, 2)
    world.leader_writes(P, 0, 2)
    world.down(0)
    world.answer(world.take(fx.WriteStates))
    assert world.state("flights").leader == 0
    world.answer(world.take(fx.ReadStates))
    (change,) = world.take(fx.WriteStates).changes
    assert (change.state.leader, change.state.isr_ids, change.expected_version) == (2, (2,), 1)


def test_after_a_conflict_the_multis_are_halved() -> None:
    world = cluster(0, 1, 2)
    world.topic("flights", *[(0, 1, 2)] * 8)
    world.settle()
    world.down(0)
    write = world.take(fx.WriteStates)
    assert len(write.changes) == 8
    world.happens(ev.StatesWritten({}, tuple(change.partition for change in write.changes)))
    world.answer(world.take(fx.ReadStates))
    assert [len(one.changes) for one in world.waiting(fx.WriteStates)] == [4, 4]


def test_a_write_that_keeps_failing_backs_off() -> None:
    world = with_topic(0, 1, 2)
    world.down(0)
    for _ in range(11):
        world.happens(ev.StatesWritten({}, tuple(one.partition for one in world.take(fx.WriteStates).changes)))
        world.answer(world.take(fx.ReadStates))
    assert not world.waiting(fx.WriteStates)
    world.passes(10)
    assert not world.waiting(fx.WriteStates)
    world.passes(2_000)
    assert world.waiting(fx.WriteStates)


def test_a_write_whose_answer_was_lost_is_sent_once_it_is_read() -> None:
    world = with_topic(0, 1, 2)
    world.down(2)
    world.answer(world.take(fx.WriteStates), lost=True)
    world.answer(world.take(fx.ReadStates))
    assert not world.waiting(fx.WriteStates)
    told = [one for one in world.waiting(fx.SendLeaderAndIsr) if one.commands[0].partitions]
    assert {one.broker: one.commands[0].partitions[0].state.isr_ids for one in told} == {0: (0, 1), 1: (0, 1)}


def test_an_isr_report_during_a_read_causes_another_read() -> None:
    world = with_topic(0, 1, 2)
    world.happens(ev.IsrChangesReported((P,)))
    read = world.take(fx.ReadStates)
    old = dict(world.states)
    world.leader_writes(P, 0, 1)
    world.happens(ev.IsrChangesReported((P,)))
    assert not world.waiting(fx.ReadStates)
    world.happens(ev.StatesRead(read.partitions, old))
    world.settle()
    view = world.brokers[BrokerId(2)].view.topics["flights"].partitions[0]
    assert view.in_sync_replicas == (0, 1)


def test_a_failed_command_is_retried_after_a_back_off() -> None:
    world = with_topic(0, 1, 2)
    world.down(0)
    world.answer(world.take(fx.WriteStates))
    failed = next(one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 1)
    world.pending.remove(failed)
    world.fail(failed)
    assert not [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 1]
    world.passes(99)
    assert not [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 1]
    world.passes(1)
    (again,) = [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 1]
    assert again.commands[0].partitions == failed.commands[0].partitions
    world.pending.remove(again)
    world.fail(again)
    world.passes(100)
    assert not [one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 1]


def test_an_answer_of_an_older_broker_epoch_is_ignored() -> None:
    world = with_topic(0, 1, 2)
    world.up(1)
    (stale,) = [one for one in world.waiting(fx.SendUpdateMetadata) if one.broker == 1]
    world.up(1)
    world.pending.remove(stale)
    world.happens(ev.ControlAnswered(BrokerId(1), stale.request_id, None))
    world.settle()
    assert world.brokers[BrokerId(1)].view.complete


def test_a_leader_that_refuses_its_epoch_gets_the_next_one() -> None:
    world = cluster(0, 1)
    world.topic("flights", (0, 1))
    world.answer(world.take(fx.WriteStates))
    refusal(world, ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=0)
    world.settle()
    assert (world.state("flights").leader, world.state("flights").leader_epoch) == (0, 1)


def test_a_refusal_of_an_older_epoch_raises_no_epoch() -> None:
    world = with_topic(0, 1)
    world.down(0)
    world.answer(world.take(fx.WriteStates))
    refusal(world, ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=0)
    world.settle()
    assert (world.state("flights").leader, world.state("flights").leader_epoch) == (1, LeaderEpoch(1))


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_damaged_leader_is_replaced_and_may_join_the_isr_again(answer_lost: bool) -> None:
    world = cluster(0, 1)
    world.topic("flights", (0, 1), m="1")
    world.answer(world.take(fx.WriteStates))
    refusal(world, ErrorCode.REPLICA_DAMAGED)
    world.answer(world.take(fx.WriteStates), lost=answer_lost)
    world.settle()
    assert (world.state("flights").leader, world.state("flights").isr_ids) == (1, (1,))
    world.leader_writes(P, 1, 0)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert world.state("flights").isr_ids == (1, 0)


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_damaged_single_replica_is_elected_uncleanly_exactly_once(answer_lost: bool) -> None:
    world = cluster(0)
    world.topic("flights", (0,))
    world.answer(world.take(fx.WriteStates))
    refusal(world, ErrorCode.REPLICA_DAMAGED)
    world.answer(world.take(fx.WriteStates), lost=answer_lost)
    world.settle()
    assert (world.state("flights").leader, world.state("flights").lineage) == (0, 1)


def test_a_damaged_single_replica_reports_possible_loss() -> None:
    world = cluster(0)
    world.topic("flights", (0,))
    world.answer(world.take(fx.WriteStates))
    refusal(world, ErrorCode.REPLICA_DAMAGED, last_epoch=0, log_end_offset=60, high_watermark=100)
    world.settle()
    (report,) = world.reports
    assert (report.log_end_offset, report.high_watermark, report.records_maybe_lost) == (60, 100, 40)
    told = next(one.fields for one in world.observed if one.kind == "unclean_election")
    assert told["records_maybe_lost"] == 40


def test_a_follower_with_a_damaged_log_leaves_the_elr() -> None:
    world = cluster(0, 1)
    world.topic("flights", (0, 1), m="2")
    world.settle()
    world.down(1)
    world.settle()
    assert [entry.broker_id for entry in world.state("flights").elr] == [1]
    before = world.state("flights")
    world.up(1)
    world.settle()
    assert [entry.broker_id for entry in world.state("flights").elr] == [1]
    told = ev.ReplicaFailed(BrokerId(1), world.epochs[BrokerId(1)].broker_epoch, P, before.leader_epoch, damaged=True)
    world.happens(told)
    world.settle()
    after = world.state("flights")
    assert (after.isr_ids, after.elr, after.leader_epoch) == ((0,), (), before.leader_epoch)
    world.down(0)
    world.settle()
    assert world.state("flights").leader == NO_LEADER


def test_a_follower_that_joined_after_the_damage_stays() -> None:
    world = cluster(0, 1)
    world.topic("flights", (0, 1), m="2")
    world.settle()
    world.down(1)
    world.up(1)
    world.settle()
    world.leader_writes(P, 0, 1)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    own = world.epochs[BrokerId(1)].broker_epoch
    world.happens(ev.ReplicaFailed(BrokerId(1), own, P, LeaderEpoch(0), damaged=True))
    world.settle()
    assert world.state("flights").isr_ids == (0, 1)


def test_a_topic_is_deleted_after_every_live_replica_is_deleted() -> None:
    world = with_topic(0, 1, 2)
    world.delete("flights")
    stops = world.waiting(fx.SendStopReplica)
    assert {one.broker for one in stops} == {0, 1, 2}
    assert all(replica.delete for one in stops for replica in one.command.replicas)
    assert not world.waiting(fx.DeleteTopic)
    world.settle()
    assert not world.topics
    assert not world.states
    assert all(P in knows.stopped for knows in world.brokers.values())
    assert all("flights" not in knows.view.topics for knows in world.brokers.values())


def test_a_deletion_skips_failed_brokers_and_a_returning_one_gets_no_command() -> None:
    world = with_topic(0, 1, 2)
    world.delete("flights")
    world.register(1)
    world.brokers_seen()
    world.settle()
    assert not world.topics
    assert world.brokers[BrokerId(1)].complete
    assert not world.brokers[BrokerId(1)].commands


def test_a_failed_deletion_is_retried() -> None:
    world = with_topic(0, 1, 2)
    world.delete("flights")
    while not world.waiting(fx.DeleteTopic):
        world.answer(world.pending.pop(0))
    world.take(fx.DeleteTopic)
    world.happens(
        ev.TopicDeleted(
            "flights", world.topics["flights"].topic_id, TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "later")
        )
    )
    assert not world.waiting(fx.DeleteTopic)
    world.passes(1_000)
    world.settle()
    assert not world.topics


def test_a_suspected_broker_loses_leadership_and_every_leader_receives_its_state() -> None:
    world = with_topic(0, 1, 2)
    world.happens(ev.BrokerSuspected(BrokerId(0), BrokerEpoch(0)))
    world.settle()
    assert (world.state("flights").leader, world.state("flights").isr_ids) == (1, (1, 2))
    assert all(knows.suspected == {0} for knows in world.brokers.values())
    world.happens(ev.BrokerTrusted(BrokerId(0), BrokerEpoch(0)))
    world.settle()
    assert world.core.suspected == frozenset()
    assert all(knows.suspected == frozenset() for knows in world.brokers.values())


def test_the_controller_ignores_failure_detection_of_an_older_broker_epoch() -> None:
    world = with_topic(0, 1, 2)
    world.happens(ev.BrokerSuspected(BrokerId(0), BrokerEpoch(-1)))
    assert world.core.suspected == frozenset()


def test_a_controller_ignores_too_many_suspected_brokers_and_resigns_if_long_active() -> None:
    world = with_topic(0, 1, 2)
    world.passes(60_000)
    for broker in (0, 2):
        world.happens(ev.BrokerSuspected(BrokerId(broker), BrokerEpoch(0)))
    assert world.waiting(fx.Resign)
    assert world.core.suspected == frozenset()


def test_the_controller_resigns_when_a_broker_knows_a_newer_one() -> None:
    world = with_topic(0, 1, 2)
    world.down(0)
    world.answer(world.take(fx.WriteStates))
    world.fail(world.take(fx.SendLeaderAndIsr), ErrorCode.STALE_CONTROLLER_EPOCH)
    assert world.waiting(fx.Resign)


def test_an_idle_controller_sends_nothing() -> None:
    world = with_topic(0, 1, 2)
    assert world.passes(100) == []
    assert world.brokers_seen() == []
    assert world.topics_seen() == []


def test_all_brokers_fail_and_return_in_any_order_and_an_elr_member_leads() -> None:
    world = with_topic(0, 1, 2)
    world.down(0, 1, 2)
    world.settle()
    assert world.state("flights").leader == NO_LEADER
    world.up(2)
    world.settle()
    assert (world.state("flights").leader, world.state("flights").leader_epoch) == (2, 2)


@pytest.mark.parametrize("count", [10_000])
def test_a_broker_failure_with_ten_thousand_partitions_is_decided_and_sent_quickly(count: int) -> None:
    world = cluster(0, 1, 2)
    assignments = [[(index + shift) % 3 for shift in range(3)] for index in range(count)]
    world.topic("flights", *assignments)
    world.settle()
    began_s = time.process_time()
    world.down(1)
    while world.waiting(fx.WriteStates):
        world.answer(world.take(fx.WriteStates))
    taken_s = time.process_time() - began_s
    assert all(state.leader != 1 for state, _ in world.states.values())
    assert {one.broker for one in world.waiting(fx.SendLeaderAndIsr)} == {0, 2}
    assert all(isinstance(one, Sends) for one in world.pending)
    assert taken_s < 3


@pytest.mark.parametrize("kind", [ev.ReplicaFailed, ev.LeadershipResigned])
@pytest.mark.parametrize("version", ["0.1.0", "now"])
def test_a_late_report_of_a_deleted_partition_does_not_concern_the_next_one_of_its_name(
    kind: type[ev.ReplicaFailed | ev.LeadershipResigned], version: str
) -> None:
    world = with_topic(0, 1, 2)
    old = world.identity(P)
    report = kind(BrokerId(0), BrokerEpoch(0), P, LeaderEpoch(0), identity=old if version == "now" else None)
    world.delete("flights")
    world.settle()
    world.topic("flights", (0, 1, 2))
    world.settle()
    new = world.state("flights")
    world.happens(report)
    world.settle()
    is_ignored = world.state("flights") == new
    assert is_ignored == (version == "now"), "a broker of 0.1.0 does not state which partition it reports"
    world.happens(replace(report, identity=world.identity(P)))
    world.settle()
    assert world.state("flights") != new
