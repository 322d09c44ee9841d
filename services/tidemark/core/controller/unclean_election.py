# SPDX-License-Identifier: Apache-2.0
"""Unclean election, where no trusted replica is left and the topic allows it (rule T4): ask all, elect the longest log.

Level-triggered: `decide` is called whenever a partition may have changed. It comes after the write that left the
partition without a leader, so in that leader epoch no log grows. The longest log has the highest (leader epoch of the
last record, log end offset): it holds every record that another log can show to be committed in this lineage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, elect_uncleanly, losses_of
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicPartition,
    UncleanElection,
)

WAIT_MS: Final = 2_000
"""How long the first answers wait for the others."""
ASK_AGAIN_MS: Final = 100
"""The first pause; each further pause is twice as long, up to `ASK_AGAIN_MAX_MS`."""
ASK_AGAIN_MAX_MS: Final = 1_000
QUESTIONS_MAX: Final = 10_000
"""Replicas in one message: under half of the message limit, even with the longest topic names."""


@dataclass(slots=True)
class _Asked:
    """One live replica of a survey, in one broker epoch.

    Attributes:
        broker_epoch: an answer of another broker epoch does not count.
        ask_at_ms: when it is asked; None: a question is in flight, or it is settled.
        request_id: of the question in flight; None: there is none.
        answer: what the replica holds; None: not reported.
        failed: it cannot answer; asked again once every replica of the survey has failed.
        pause_ms: before the next question.
    """

    broker_epoch: BrokerEpoch
    ask_at_ms: int | None
    request_id: int | None = None
    answer: ReplicaDescription | None = None
    failed: bool = False
    pause_ms: int = ASK_AGAIN_MS

    def again(self, now_ms: int) -> None:
        """Ask again after a pause."""
        self.failed = False
        self.ask_at_ms = now_ms + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, ASK_AGAIN_MAX_MS)

    @property
    def settled(self) -> bool:
        """Whether it has answered or failed."""
        return self.failed or self.answer is not None


@dataclass(slots=True)
class _Survey:
    """The replicas of one partition, asked in one leader epoch that has no leader.

    Attributes:
        identity: topic id and incarnation; of another one, a new survey begins.
        leader_epoch: of the write that left no leader. Invariant: answers are of this epoch, so no log grows.
        until_ms: the replicas that have answered by then are enough.
        replicas: by broker; those that are live and can open their log.
        high_watermark: the highest one reported, exclusive; answers of brokers that have since stopped count too.
    """

    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    until_ms: int
    replicas: dict[BrokerId, _Asked] = field(default_factory=dict)
    high_watermark: int = 0

    def wakes(self, now_ms: int) -> bool:
        """Whether a pause or the wait for answers is over."""
        again = any(asked.ask_at_ms is not None and asked.ask_at_ms <= now_ms for asked in self.replicas.values())
        return again or (now_ms >= self.until_ms and self.answered)

    @property
    def answered(self) -> bool:
        """Whether a replica has answered."""
        return any(asked.answer is not None for asked in self.replicas.values())

    def ready(self, now_ms: int) -> bool:
        """Whether to elect among the replicas that have answered."""
        return self.answered and (now_ms >= self.until_ms or all(asked.settled for asked in self.replicas.values()))


class UncleanElections:
    """The surveys. Questions gather by broker until `questions` takes them.

    Attributes:
        _surveys: of partitions without a leader that may be elected uncleanly.
        _requests: partitions by request id of a question in flight.
        _to_ask: replicas to ask, by broker and broker epoch.
    """

    def __init__(self) -> None:
        self._surveys: dict[TopicPartition, _Survey] = {}
        self._requests: dict[int, tuple[TopicPartition, ...]] = {}
        self._to_ask: defaultdict[tuple[BrokerId, BrokerEpoch], dict[TopicPartition, _Asked]] = defaultdict(dict)
        self._ids = count(1)

    def decide(
        self,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        facts: PartitionFacts,
        brokers: BrokerFacts,
        now_ms: int,
    ) -> Decision | None:
        """The unclean election of a partition that `leader_election.decide` leaves as it is; None: none, or not yet."""
        state = facts.state
        single = len(facts.assigned) == 1
        if state is None or state.leader != NO_LEADER or single or not facts.unclean_allowed:
            self.forget(partition)
            return None
        survey = self._surveys.get(partition)
        if survey is None or (survey.identity, survey.leader_epoch) != (identity, state.leader_epoch):
            survey = self._surveys[partition] = _Survey(identity, state.leader_epoch, now_ms + WAIT_MS)
        _follow(survey, facts, brokers, now_ms)
        if survey.ready(now_ms):
            answers = {broker: asked.answer for broker, asked in survey.replicas.items() if asked.answer is not None}
            return elect_furthest(facts, brokers, answers, survey.high_watermark)
        if all(asked.failed for asked in survey.replicas.values()):
            for asked in survey.replicas.values():
                asked.again(now_ms)
        for broker, asked in survey.replicas.items():
            if asked.ask_at_ms is not None and asked.ask_at_ms <= now_ms:
                asked.ask_at_ms = None
                self._to_ask[broker, asked.broker_epoch][partition] = asked
        return None

    def forget(self, partition: TopicPartition) -> None:
        """The partition has a leader, allows no unclean election, or was deleted."""
        self._surveys.pop(partition, None)

    def due(self, now_ms: int) -> set[TopicPartition]:
        """Partitions to decide because time has passed."""
        return {partition for partition, survey in self._surveys.items() if survey.wakes(now_ms)}

    def questions(self) -> list[DescribeReplicas]:
        """Questions to send now, one call for each broker."""
        effects = []
        for (broker, broker_epoch), replicas in self._to_ask.items():
            asked_now = [(one, asked) for one, asked in replicas.items() if self._asks(one, broker, asked)]
            for start in range(0, len(asked_now), QUESTIONS_MAX):
                part = asked_now[start : start + QUESTIONS_MAX]
                request_id = next(self._ids)
                for _, asked in part:
                    asked.request_id = request_id
                self._requests[request_id] = tuple(partition for partition, _ in part)
                questions = tuple(self._question(partition) for partition, _ in part)
                effects.append(DescribeReplicas(broker, request_id, broker_epoch, questions))
        self._to_ask.clear()
        return effects

    def _asks(self, partition: TopicPartition, broker: BrokerId, asked: _Asked) -> bool:
        survey = self._surveys.get(partition)
        return survey is not None and survey.replicas.get(broker) is asked

    def _question(self, partition: TopicPartition) -> ReplicaQuestion:
        survey = self._surveys[partition]
        return ReplicaQuestion(partition, survey.identity, survey.leader_epoch)

    def answered(self, event: ReplicasDescribed, now_ms: int) -> set[TopicPartition]:
        """Take an answer in; gives the partitions to decide. Parts of the answer to abandoned questions are ignored."""
        touched = set()
        for partition in self._requests.pop(event.request_id, ()):
            survey = self._surveys.get(partition)
            asked = survey.replicas.get(event.broker) if survey is not None else None
            if survey is None or asked is None or asked.request_id != event.request_id:
                continue
            touched.add(partition)
            asked.request_id = None
            asked.answer = event.described.get(partition) if event.error is None else None
            refusal = event.error or event.refused.get(partition)
            if asked.answer is not None:
                survey.high_watermark = max(survey.high_watermark, asked.answer.high_watermark)
            elif event.error is None and refusal is not None and refusal.code is ErrorCode.OFFSET_NOT_AVAILABLE:
                asked.again(now_ms)  # the broker is opening the log
            else:
                asked.failed = True
        return touched


def live_replicas(facts: PartitionFacts, brokers: BrokerFacts) -> list[BrokerId]:
    """Assigned replicas that can be asked."""
    return [broker for broker in facts.assigned if brokers.is_live(broker) and broker not in facts.offline]


def _follow(survey: _Survey, facts: PartitionFacts, brokers: BrokerFacts, now_ms: int) -> None:
    """Survey the replicas that are live now; a registration in another broker epoch voids the answer."""
    candidates = {broker: brokers.live[broker] for broker in live_replicas(facts, brokers)}
    for broker in [broker for broker in survey.replicas if broker not in candidates]:
        del survey.replicas[broker]
    for broker, epoch in candidates.items():
        known = survey.replicas.get(broker)
        if known is None or known.broker_epoch != epoch:
            survey.replicas[broker] = _Asked(epoch, now_ms)


def elect_furthest(
    facts: PartitionFacts, brokers: BrokerFacts, answers: Mapping[BrokerId, ReplicaDescription], high_watermark: int
) -> Decision:
    """The longest log leads; among equals an undamaged one, the last leader, an unsuspected one, the first assigned.

    Args:
        facts: of a partition with a state.
        brokers: those in `answers` are live.
        answers: reports of live replicas; not empty.
        high_watermark: the highest one reported, exclusive.
    """
    assert facts.state is not None
    last_known = {entry.broker_id for entry in facts.state.last_known}

    def rank(broker: BrokerId) -> tuple[int, int, bool, bool, bool, int]:
        held = answers[broker]
        return (
            held.last_epoch,
            held.log_end_offset,
            not held.damaged,
            broker in last_known,
            broker not in brokers.suspected,
            -facts.assigned.index(broker),
        )

    heir = max(answers, key=rank)
    return replace(
        elect_uncleanly(facts, brokers, heir),
        losses=losses_of(answers[heir].last_epoch, answers[heir].log_end_offset, high_watermark),
        unheard=tuple(broker for broker in facts.assigned if broker not in answers),
    )


def loss_report(partition: TopicPartition, topic_id: str, decision: Decision, request_id: str) -> UncleanElection:
    """The report that is kept of an unclean election; offsets only where replicas were asked."""
    state, losses = decision.state, decision.losses
    return UncleanElection(
        partition=partition,
        topic_id=topic_id,
        lineage=state.lineage,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        last_epoch=LeaderEpoch(losses["last_epoch"]) if losses else None,
        log_end_offset=Offset(losses["log_end_offset"]) if losses else None,
        high_watermark=Offset(losses["high_watermark"]) if losses else None,
        unheard=decision.unheard,
        request_id=request_id,
    )
