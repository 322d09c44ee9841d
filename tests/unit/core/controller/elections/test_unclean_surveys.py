# SPDX-License-Identifier: Apache-2.0
"""A survey of replicas belongs to one leader epoch, repeats questions, and ends with an election (rule T4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts
from tidemark.core.controller.log_comparison import ASK_AGAIN_MS, WAIT_MS, LogComparisons, elect_furthest
from tidemark.core.messages import ReplicaDescription
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ErrorCode,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)

from tests.unit.core.controller.elections.test_unclean_election import held
from tests.unit.core.replication.stage import ID, P

BROKERS = BrokerFacts(live={BrokerId(one): BrokerEpoch(0) for one in (1, 2)})
LEADERLESS = LeaderAndIsr(NO_LEADER, LeaderEpoch(5), (), min_isr=2)
FACTS = PartitionFacts((BrokerId(1), BrokerId(2)), 2, LEADERLESS, unclean_allowed=True)


class Surveys:
    """Surveys of one partition, and the questions that they ask."""

    def __init__(self) -> None:
        self.elections = LogComparisons(5_000)
        self.now_ms = 1_000
        self.asked: dict[int, DescribeReplicas] = {}

    def decide(self, facts: PartitionFacts = FACTS, identity: ReplicaIdentity = ID) -> Decision | None:
        decision = self.elections.decide(P, identity, facts, BROKERS, self.now_ms)
        self.asked = {one.broker: one for one in self.elections.questions()}
        return decision

    def says(self, broker: int, answer: ReplicaDescription | ErrorCode) -> set[TopicPartition]:
        request = self.asked[broker].request_id
        if isinstance(answer, ReplicaDescription):
            event = ReplicasDescribed(BrokerId(broker), request, None, {P: answer})
        else:
            event = ReplicasDescribed(BrokerId(broker), request, None, {}, {P: TidemarkError(answer, "no")})
        return self.elections.answered(event, self.now_ms)


def heard() -> Surveys:
    """Two replicas were asked, and one has answered."""
    surveys = Surveys()
    assert surveys.decide() is None
    assert set(surveys.asked) == {1, 2}
    assert surveys.says(1, held(4, 90)) == {P}
    return surveys


@pytest.mark.parametrize(
    ("facts", "identity"),
    [
        (FACTS._replace(state=replace(LEADERLESS, leader_epoch=LeaderEpoch(7))), ID),
        (FACTS, ReplicaIdentity(ID.topic_id, "d" * 32)),
    ],
    ids=["another epoch without a leader", "another incarnation"],
)
def test_answers_of_another_epoch_or_incarnation_are_ignored(facts: PartitionFacts, identity: ReplicaIdentity) -> None:
    surveys = heard()
    assert surveys.decide(facts, identity) is None
    assert {one.partitions[0][1:] for one in surveys.asked.values()} == {(identity, facts.state.leader_epoch)}
    assert set(surveys.asked) == {1, 2}, "the replicas that have answered are asked again"


@pytest.mark.parametrize(
    "facts",
    [FACTS._replace(unclean_allowed=False), FACTS._replace(state=replace(LEADERLESS, leader=BrokerId(2)))],
    ids=["not allowed any more", "a leader is there"],
)
def test_an_abandoned_survey_keeps_no_answers(facts: PartitionFacts) -> None:
    surveys = heard()
    surveys.now_ms += WAIT_MS
    assert surveys.elections.due(surveys.now_ms) == {P}
    assert surveys.decide(facts) is None
    assert surveys.elections.due(surveys.now_ms) == set()
    assert surveys.decide() is None
    assert set(surveys.asked) == {1, 2}


def test_a_survey_is_due_at_its_bound_and_for_repeated_questions() -> None:
    surveys = heard()
    assert surveys.elections.due(surveys.now_ms) == set()
    surveys.says(2, ErrorCode.OFFSET_NOT_AVAILABLE)
    assert surveys.decide() is None
    assert surveys.asked == {}
    surveys.now_ms += ASK_AGAIN_MS - 1
    assert surveys.elections.due(surveys.now_ms) == set()
    surveys.now_ms += 1
    assert surveys.elections.due(surveys.now_ms) == {P}
    assert surveys.decide() is None
    assert set(surveys.asked) == {2}
    assert surveys.elections.due(surveys.now_ms) == set()
    surveys.now_ms += WAIT_MS
    decision = surveys.decide()
    assert decision is not None
    assert (decision.state.leader, decision.unheard) == (1, (2,))


def test_without_any_answer_the_bound_is_ignored() -> None:
    surveys = Surveys()
    surveys.decide()
    surveys.now_ms += 10 * WAIT_MS
    assert surveys.elections.due(surveys.now_ms) == set()


def test_a_failed_replica_is_asked_again_once_all_have_failed() -> None:
    surveys = Surveys()
    surveys.decide()
    questions = dict(surveys.asked)
    surveys.says(1, ErrorCode.STORAGE_ERROR)
    assert surveys.decide() is None
    surveys.now_ms += ASK_AGAIN_MS
    assert surveys.decide() is None
    assert surveys.asked == {}
    surveys.asked = questions
    surveys.says(2, ErrorCode.STORAGE_ERROR)
    assert surveys.decide() is None
    surveys.now_ms += ASK_AGAIN_MS
    assert surveys.decide() is None
    assert set(surveys.asked) == {1, 2}


def test_the_questions_of_many_partitions_go_in_several_messages_each_partition_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemark.core.controller.log_comparison.QUESTIONS_MAX", 2)
    elections = LogComparisons(5_000)
    partitions = [TopicPartition("many", index) for index in range(5)]
    for partition in partitions:
        elections.decide(partition, ID, FACTS, BROKERS, 1_000)
    messages = [one for one in elections.questions() if one.broker == 1]
    assert [len(one.partitions) for one in messages] == [2, 2, 1]
    assert [question.partition for one in messages for question in one.partitions] == partitions
    assert len({one.request_id for one in messages}) == 3


def test_an_abandoned_survey_asks_no_replica() -> None:
    elections = LogComparisons(5_000)
    elections.decide(P, ID, FACTS, BROKERS, 1_000)
    elections.forget(P)
    assert elections.questions() == []


def test_among_equals_an_unsuspected_one_is_elected() -> None:
    answers = {BrokerId(1): held(4, 9), BrokerId(2): held(4, 9)}
    assert elect_furthest(FACTS, BROKERS, answers, 9).state.leader == 1
    assert elect_furthest(FACTS, replace(BROKERS, suspected=frozenset({BrokerId(1)})), answers, 9).state.leader == 2
