# SPDX-License-Identifier: Apache-2.0
"""Unclean elections in topics that allow them (rule T4): the controller asks the replicas, and the furthest leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.log_comparison import ASK_AGAIN_MS, WAIT_MS
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.core.replication import events as bev
from tidemark.model import NO_LEADER, BrokerId, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError
from tidemark.model import TopicPartition as Partition

from tests.unit.core.controller.worlds.controller_world import World
from tests.unit.core.replication.stage import ID, P, Stage, batch, node

T = Partition("t", 0)


def held(epoch: int, end: int, high_watermark: int = 0, *, damaged: bool = False) -> ReplicaDescription:
    return ReplicaDescription(LeaderEpoch(epoch), Offset(end), Offset(high_watermark), damaged)


def no_eligible_replica(*assigned: int, partitions: int = 1, **configs: str) -> World:
    """Every broker has restarted uncleanly; the state without a leader is written and sent, questions are pending."""
    world = World()
    for broker in assigned:
        world.register(broker)
    world.elected()
    world.topic("t", *[assigned] * partitions, **({"m": "1", "unclean": "true"} | configs))
    world.settle()
    world.up(*assigned, clean=False)
    answer_all_but(world, fx.DescribeReplicas)
    return world


def answer_all_but(world: World, kept: type) -> None:
    while waiting := [one for one in world.pending if not isinstance(one, kept)]:
        world.pending.remove(waiting[0])
        world.answer(waiting[0])


def asked(world: World) -> dict[int, fx.DescribeReplicas]:
    return {one.broker: one for one in world.waiting(fx.DescribeReplicas)}


def says(world: World, broker: int, *replicas: ReplicaDescription) -> list[Any]:
    question = asked(world)[broker]
    world.pending.remove(question)
    described = {Partition("t", index): replica for index, replica in enumerate(replicas)}
    return world.happens(ev.ReplicasDescribed(question.broker, question.request_id, None, described))


def refuses(world: World, broker: int, code: ErrorCode, *, whole: bool = False) -> list[Any]:
    question = asked(world)[broker]
    world.pending.remove(question)
    error = TidemarkError(code, "no")
    refused = {} if whole else {one.partition: error for one in question.partitions}
    event = ev.ReplicasDescribed(question.broker, question.request_id, error if whole else None, {}, refused)
    return world.happens(event)


def elections(world: World) -> list[dict[str, str | int]]:
    return [dict(one.fields) for one in world.observed if one.kind == "unclean_election"]


def elected(effects: list[Any]) -> int | None:
    """The leader that is written."""
    leaders = [change.state.leader for one in effects if isinstance(one, fx.WriteStates) for change in one.changes]
    return leaders[0] if leaders else None


def test_without_trusted_replicas_each_live_one_is_asked_once() -> None:
    world = no_eligible_replica(0, 1, 2, partitions=2)
    state = world.state("t")
    assert (state.leader, state.lineage) == (NO_LEADER, 0)
    assert sorted(asked(world)) == [0, 1, 2]
    topic = world.topics["t"]
    for broker, question in asked(world).items():
        assert question.broker_epoch == world.epochs[BrokerId(broker)].broker_epoch
        assert set(question.partitions) == {
            ReplicaQuestion(
                Partition("t", index),
                ReplicaIdentity(topic.topic_id, topic.incarnations[index]),
                world.state("t", index).leader_epoch,
            )
            for index in range(2)
        }
    assert not world.passes(50), "no replica is asked twice while a question is in flight"


def test_the_longest_log_is_elected_and_the_possible_loss_reported() -> None:
    world = no_eligible_replica(0, 1, 2)
    epoch = world.state("t").leader_epoch
    assert [entry.broker_id for entry in world.state("t").last_known] == [0]
    assert elected(says(world, 0, held(0, 40, 55, damaged=True))) is None
    assert elected(says(world, 1, held(0, 50, 50))) is None
    assert elected(says(world, 2, held(0, 49, 49))) == 1
    world.settle()
    state = world.state("t")
    assert (state.leader, state.leader_epoch, state.lineage, state.isr_ids) == (1, epoch + 1, 1, (1,))
    assert (state.elr, state.last_known) == ((), ())
    assert elections(world) == [
        {
            "leader": 1,
            "lineage": 1,
            "last_epoch": 0,
            "log_end_offset": 50,
            "high_watermark": 55,
            "records_maybe_lost": 5,
        }
    ]
    assert not asked(world)


def test_a_later_epoch_wins_over_a_longer_log() -> None:
    world = no_eligible_replica(0, 1)
    says(world, 0, held(3, 900, 10))
    says(world, 1, held(4, 20, 12))
    assert not elections(world), "nothing is written yet"
    answer_all_but(world, fx.DescribeReplicas)
    (election,) = elections(world)
    assert (election["leader"], election["records_maybe_lost"]) == (1, 0)


@pytest.mark.parametrize(("last_leader", "leader"), [(held(2, 9, damaged=True), 0), (held(2, 9), 1)])
def test_among_equals_an_undamaged_log_wins_then_the_last_leader(last_leader: ReplicaDescription, leader: int) -> None:
    world = World()
    world.register(1)
    world.elected()
    world.topic("t", (0, 1), m="1", unclean="true")
    world.settle()
    world.up(0, 1, clean=False)
    answer_all_but(world, fx.DescribeReplicas)
    assert [entry.broker_id for entry in world.state("t").last_known] == [1]
    says(world, 1, last_leader)
    assert elected(says(world, 0, held(2, 9))) == leader


def test_among_equals_the_last_leader_wins_if_preferred_too() -> None:
    world = no_eligible_replica(1, 0)
    says(world, 0, held(2, 9))
    assert elected(says(world, 1, held(2, 9))) == 1


def test_a_damaged_log_counts_up_to_the_damage() -> None:
    world = no_eligible_replica(0, 1)
    says(world, 0, held(2, 9, 30, damaged=True))
    assert elected(says(world, 1, held(2, 8, 8))) == 0


def test_a_log_that_is_being_opened_is_asked_again() -> None:
    world = no_eligible_replica(0, 1)
    assert elected(says(world, 0, held(1, 5))) is None
    refuses(world, 1, ErrorCode.OFFSET_NOT_AVAILABLE)
    assert not asked(world)
    world.passes(ASK_AGAIN_MS)
    assert list(asked(world)) == [1]
    assert elected(says(world, 1, held(1, 6))) == 1


def test_a_broker_that_fails_is_not_waited_for() -> None:
    for whole, code in ((True, ErrorCode.BROKER_NOT_AVAILABLE), (False, ErrorCode.STORAGE_ERROR)):
        world = no_eligible_replica(0, 1)
        says(world, 0, held(1, 5))
        assert elected(refuses(world, 1, code, whole=whole)) == 0


def test_after_the_wait_the_answers_decide_and_a_late_one_is_ignored() -> None:
    world = no_eligible_replica(0, 1)
    says(world, 0, held(1, 5))
    assert elected(world.passes(WAIT_MS - 1)) is None
    assert elected(world.passes(1)) == 0
    answer_all_but(world, fx.DescribeReplicas)
    says(world, 1, held(1, 900))
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 1)


def test_without_any_answer_questions_are_repeated_with_pauses() -> None:
    world = no_eligible_replica(0, 1)
    questions = 0
    for _ in range(100):
        for broker in list(asked(world)):
            questions += 1
            refuses(world, broker, ErrorCode.BROKER_NOT_AVAILABLE, whole=True)
        assert elected(world.passes(100)) is None
    assert world.state("t").leader == NO_LEADER
    assert 10 < questions < 40
    world.passes(1_000)
    assert elected(says(world, 1, held(1, 6))) == 1


def test_a_new_registration_voids_an_answer_but_keeps_its_high_watermark() -> None:
    world = no_eligible_replica(0, 1)
    says(world, 1, held(1, 70, 70))
    world.up(1, clean=False)
    answer_all_but(world, fx.DescribeReplicas)
    says(world, 0, held(1, 60, 55))
    again = [one for one in world.waiting(fx.DescribeReplicas) if one.broker == 1]
    assert [one.broker_epoch for one in again] == [world.epochs[BrokerId(1)].broker_epoch]
    says(world, 1, held(1, 50, 50))
    answer_all_but(world, fx.DescribeReplicas)
    (election,) = elections(world)
    assert (election["leader"], election["high_watermark"], election["records_maybe_lost"]) == (0, 70, 10)


def test_an_answer_in_flight_during_a_new_registration_is_ignored() -> None:
    world = no_eligible_replica(0, 1)
    before = asked(world)[1]
    world.pending.remove(before)
    world.up(1, clean=False)
    answer_all_but(world, fx.DescribeReplicas)
    world.happens(ev.ReplicasDescribed(BrokerId(1), before.request_id, None, {T: held(9, 900, 900)}))
    assert elected(says(world, 0, held(1, 5))) is None
    assert elected(says(world, 1, held(1, 4))) == 0
    answer_all_but(world, fx.DescribeReplicas)
    assert elections(world)[0]["high_watermark"] == 0


def test_a_trusted_replica_that_returns_is_elected_cleanly() -> None:
    world = World()
    for broker in range(2):
        world.register(broker)
    world.elected()
    world.topic("t", (0, 1), m="1", unclean="true")
    world.settle()
    world.up(1)
    world.settle()
    assert world.state("t").isr_ids == (0,)
    world.down(0)
    answer_all_but(world, fx.DescribeReplicas)
    assert list(asked(world)) == [1]
    world.up(0)
    answer_all_but(world, fx.DescribeReplicas)
    says(world, 1, held(0, 5))
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (0, 0)
    assert not elections(world)


def test_a_write_that_fails_is_decided_again_from_the_answers() -> None:
    world = no_eligible_replica(0, 1)
    says(world, 0, held(1, 5))
    says(world, 1, held(1, 6))
    world.take(fx.WriteStates)
    world.happens(ev.StatesWritten({}, (T,)))
    world.settle()
    assert (world.state("t").leader, world.state("t").lineage) == (1, 1)


def test_a_topic_that_no_longer_allows_it_stays_without_a_leader() -> None:
    world = no_eligible_replica(0, 1)
    topic = world.topics["t"]
    world.topics["t"] = replace(
        topic, configs={**topic.configs, "unclean": "false"}, modified_zxid=topic.modified_zxid + 1
    )
    world.topics_seen()
    assert elected(says(world, 0, held(1, 5))) is None
    assert elected(says(world, 1, held(1, 5))) is None
    world.settle()
    assert world.state("t").leader == NO_LEADER


def test_a_topic_that_is_being_deleted_elects_no_leader() -> None:
    world = no_eligible_replica(0, 1)
    world.delete("t")
    assert elected(says(world, 0, held(1, 5))) is None
    assert elected(says(world, 1, held(1, 5))) is None
    world.settle()
    assert "t" not in world.topics
    assert not elections(world)


def test_where_not_allowed_no_replica_is_asked() -> None:
    world = no_eligible_replica(0, 1, unclean="false")
    assert not asked(world)
    world.settle()
    assert world.state("t").leader == NO_LEADER


def test_a_single_replica_is_elected_without_being_asked() -> None:
    for allowed in ("true", "false"):
        world = no_eligible_replica(0, unclean=allowed)
        assert not asked(world)
        world.settle()
        assert (world.state("t").leader, world.state("t").lineage) == (0, 1)
        assert elections(world) == [{"leader": 0, "lineage": 1}]


# -- the replica's side --------------------------------------------------------------------------------------------


def question(epoch: int, identity: ReplicaIdentity = ID) -> ReplicaQuestion:
    return ReplicaQuestion(P, identity, LeaderEpoch(epoch))


def refusal(stage: Stage, epoch: int, identity: ReplicaIdentity = ID) -> ErrorCode:
    with pytest.raises(TidemarkError) as refused:
        stage.core.queries.describe(question(epoch, identity))
    return refused.value.code


def test_a_replica_reports_once_it_has_the_epoch_and_an_open_log() -> None:
    stage = Stage()
    assert refusal(stage, 6) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.command(node(-1, 6, ()))
    assert refusal(stage, 6) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.opened(8, (3, 0), (4, 5), high_watermark=7)
    assert stage.core.queries.describe(question(6)) == held(4, 8, 7)
    assert refusal(stage, 7) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert refusal(stage, 5) is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(stage, 6, ReplicaIdentity("c" * 32, "d" * 32)) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_follower_reports_after_the_last_append_of_its_old_leader() -> None:
    stage = Stage().follows(2, epoch=5)
    stage.chunk(0, batch(3, offset=0, epoch=5), high_watermark=2)
    stage.command(node(-1, 6, ()))
    assert refusal(stage, 6) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.appended(3)
    assert stage.core.queries.describe(question(6))[:2] == (5, 3)


def test_a_damaged_log_reports_its_high_watermark_until_it_begins_a_lineage() -> None:
    stage = Stage()
    stage.command(node(-1, 6, ()))
    stage.opened(4, (3, 0), high_watermark=9, damaged="a CRC is wrong at offset 4")
    assert stage.core.queries.describe(question(6)) == held(3, 4, 9, damaged=True)
    stage.command(node(1, 7, (1,), lineage=1))
    assert stage.refusals() == []
    stage.command(node(-1, 8, (), lineage=1))
    assert stage.core.queries.describe(question(8)) == held(3, 4, 4)


def test_a_log_truncated_for_a_new_lineage_reports_its_own_end() -> None:
    stage = Stage()
    stage.command(node(-1, 6, ()))
    stage.opened(9, (3, 0), high_watermark=9)
    stage.command(node(2, 7, (2,), lineage=1))
    stage.feed(bev.LeaderConnected(2))
    stage.answered(3, 4, current=7)
    stage.truncated(4)
    stage.command(node(-1, 8, (), lineage=1))
    assert stage.core.queries.describe(question(8)) == held(3, 4, 4)


def test_a_log_without_records_still_reports_its_end() -> None:
    stage = Stage().leads((1,), end=10, epochs=[(3, 0)], high_watermark=10)
    stage.feed(bev.LogStartRequested(P, ID, 5, 10))
    stage.command(node(-1, 6, ()))
    assert stage.core.queries.describe(question(6)) == held(3, 10, 10)._replace(log_start_offset=10)


def test_an_empty_log_reports_no_epoch() -> None:
    stage = Stage().leads()
    stage.command(node(-1, 6, ()))
    assert stage.core.queries.describe(question(6)) == held(-1, 0, 0)


def test_an_unreadable_log_is_reported() -> None:
    stage = Stage()
    stage.command(node(-1, 6, ()))
    stage.feed(bev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone")))
    assert refusal(stage, 6) is ErrorCode.STORAGE_ERROR
