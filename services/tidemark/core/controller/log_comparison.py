# SPDX-License-Identifier: Apache-2.0
"""Elections that compare the logs of replicas first, in a leader epoch without a leader (rules T4, T7).

Either several candidates have crashed: the candidate with the furthest log is elected cleanly, but never one with a cut
tail. Or an unclean election is held: no replica can be elected cleanly and the topic or an operator allows the
election, or every candidate has a cut tail.

Level-triggered: `decide` is called whenever a partition may have changed. The call comes after the write that left the
partition without a leader, so in that leader epoch no log grows. The longest log has the highest (leader epoch of the
last record, log end offset). This log holds every record that another log can show to be committed in this lineage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.leader_election import (
    BrokerFacts,
    Decision,
    PartitionFacts,
    candidates,
    elect_eligible,
    elect_uncleanly,
    losses_of,
)
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ErrorCode,
    IsrEntry,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicPartition,
    UncleanElection,
)

WAIT_MS: Final = 2_000
"""Time that the first answer waits for the other live replicas if no replica can be elected cleanly."""
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
        ask_at_ms: time when the replica is asked; None: a question is in flight, or the replica is settled.
        request_id: id of the question in flight; None: no question.
        answer: the replica's report on its log; None: not reported.
        failed: the replica cannot answer; asked again once every replica of the survey failed, or the survey awaits it.
        pause_ms: before the next question.
    """

    broker_epoch: BrokerEpoch
    ask_at_ms: int | None
    request_id: int | None = None
    answer: ReplicaDescription | None = None
    failed: bool = False
    pause_ms: int = ASK_AGAIN_MS

    def again(self, now_ms: int) -> None:
        """Ask this replica again after a pause."""
        self.failed = False
        self.ask_at_ms = now_ms + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, ASK_AGAIN_MAX_MS)

    @property
    def settled(self) -> bool:
        """Whether the replica has answered or failed."""
        return self.failed or self.answer is not None


@dataclass(slots=True)
class _Survey:
    """The replicas of one partition, asked in one leader epoch that has no leader.

    Attributes:
        identity: topic id and incarnation; another identity begins a new survey.
        leader_epoch: leader epoch of the write that left no leader. Invariant: answers are of this epoch, so no log
            grows.
        begun_ms: time when the survey began.
        awaited: brokers whose answers end the wait early, live or not.
        wait_ms: time that the first answer waits for other answers, if one is awaited; else from the beginning.
        answered_ms: time of the first answer; None: no answer.
        replicas: by broker, the live replicas that can open their log.
        high_watermark: the highest one reported, exclusive; answers of brokers that have since stopped count too.
    """

    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    begun_ms: int
    awaited: frozenset[BrokerId] = frozenset()
    wait_ms: int = WAIT_MS
    answered_ms: int | None = None
    replicas: dict[BrokerId, _Asked] = field(default_factory=dict)
    high_watermark: int = 0

    def wakes(self, now_ms: int) -> bool:
        """Whether a pause or the wait for answers is over."""
        again = any(asked.ask_at_ms is not None and asked.ask_at_ms <= now_ms for asked in self.replicas.values())
        return again or (self.answered and self.waited(now_ms))

    @property
    def answered(self) -> bool:
        """Whether a replica has answered."""
        return any(asked.answer is not None for asked in self.replicas.values())

    @property
    def has_cut_tail(self) -> bool:
        """Whether a replica has answered that its torn tail was cut off."""
        return any(asked.answer is not None and asked.answer.cut for asked in self.replicas.values())

    def waited(self, now_ms: int) -> bool:
        """Whether the first answer has waited long enough for the other answers."""
        since_ms = self.answered_ms if self.awaited else self.begun_ms
        return since_ms is not None and now_ms >= since_ms + self.wait_ms

    def ready(self, now_ms: int) -> bool:
        """Whether to elect among the replicas that have answered."""
        here = self.awaited <= self.replicas.keys() and all(asked.settled for asked in self.replicas.values())
        return self.answered and (here or self.waited(now_ms))


class LogComparisons:
    """The surveys. Questions gather by broker until `questions` takes them.

    Attributes:
        _wait_ms: `leader.election.wait.ms`.
        _surveys: of partitions without a leader.
        _requests: partitions by request id of a question in flight.
        _to_ask: replicas to ask, by broker and broker epoch.
    """

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
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
        """The election of a partition that `leader_election.decide` leaves without a leader; None: no election, or
        not yet.
        """
        state = facts.state
        if state is None or state.leader != NO_LEADER or len(facts.assigned) == 1:
            self.forget(partition)
            return None
        trusted = candidates(facts, state.elr)
        all_cut = bool(state.elr) and set(state.elr) <= facts.cut
        if len(trusted) < 2 and not facts.unclean_allowed and not all_cut:
            self.forget(partition)
            return None
        survey = self._surveys.get(partition)
        if survey is None or (survey.identity, survey.leader_epoch) != (identity, state.leader_epoch):
            survey = self._surveys[partition] = _Survey(identity, state.leader_epoch, now_ms)
        survey.awaited = _awaited(survey, facts, brokers, trusted, all_cut=all_cut)
        survey.wait_ms = self._wait_ms if survey.awaited else WAIT_MS
        uncleanly = facts.unclean_allowed or all_cut
        _follow(survey, live_replicas(facts, brokers) if uncleanly else survey.awaited, brokers, now_ms)
        decision = _elect(survey, facts, brokers, uncleanly=uncleanly) if survey.ready(now_ms) else None
        if decision is None:
            self._ask(partition, survey, now_ms)
        return decision

    def _ask(self, partition: TopicPartition, survey: _Survey, now_ms: int) -> None:
        """Queue a DescribeReplicas question for each replica whose retry pause is over."""
        if all(asked.failed for asked in survey.replicas.values()):
            for asked in survey.replicas.values():
                asked.again(now_ms)
        for broker, asked in survey.replicas.items():
            if asked.ask_at_ms is not None and asked.ask_at_ms <= now_ms:
                asked.ask_at_ms = None
                self._to_ask[broker, asked.broker_epoch][partition] = asked

    def forget(self, partition: TopicPartition) -> None:
        """The partition has a leader, needs no comparison of logs, or was deleted."""
        self._surveys.pop(partition, None)

    def due(self, now_ms: int) -> set[TopicPartition]:
        """Partitions to decide because time has passed."""
        return {partition for partition, survey in self._surveys.items() if survey.wakes(now_ms)}

    def questions(self) -> list[DescribeReplicas]:
        """DescribeReplicas questions to send now, one call for each broker."""
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
        """Use an answer; returns the partitions to decide. Parts of the answer to abandoned questions are ignored."""
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
                survey.answered_ms = now_ms if survey.answered_ms is None else survey.answered_ms
                survey.high_watermark = max(survey.high_watermark, asked.answer.high_watermark)
            elif event.error is None and refusal is not None and refusal.code is ErrorCode.OFFSET_NOT_AVAILABLE:
                asked.again(now_ms)  # the broker is opening the log
            elif event.error is not None and event.broker in survey.awaited:
                asked.again(now_ms)  # a broker whose process has ended may still be registered
            else:
                asked.failed = True
        return touched


def _awaited(
    survey: _Survey, facts: PartitionFacts, brokers: BrokerFacts, trusted: tuple[IsrEntry, ...], *, all_cut: bool
) -> frozenset[BrokerId]:
    """The brokers to wait for. If an unclean election is allowed, none unless several replicas have crashed."""
    if all_cut:
        return frozenset(facts.assigned)
    crash_shows = any(brokers.is_live(entry.broker_id) for entry in trusted) or survey.has_cut_tail
    return frozenset(entry.broker_id for entry in trusted if crash_shows)


def _follow(survey: _Survey, wanted: Iterable[BrokerId], brokers: BrokerFacts, now_ms: int) -> None:
    """Add the live replicas among these to the survey; a new broker epoch makes the answer of a replica void."""
    here = {broker: brokers.live[broker] for broker in wanted if brokers.is_live(broker)}
    for broker in [broker for broker in survey.replicas if broker not in here]:
        del survey.replicas[broker]
    for broker, epoch in here.items():
        known = survey.replicas.get(broker)
        if known is None or known.broker_epoch != epoch:
            survey.replicas[broker] = _Asked(epoch, now_ms)


def _elect(survey: _Survey, facts: PartitionFacts, brokers: BrokerFacts, *, uncleanly: bool) -> Decision | None:
    """The undamaged candidate with the furthest log; else an unclean election, if allowed or if all have a cut tail."""
    assert facts.state is not None
    answers = {broker: asked.answer for broker, asked in survey.replicas.items() if asked.answer is not None}
    trusted = {entry.broker_id for entry in candidates(facts, facts.state.elr)}
    whole = {broker: answer for broker, answer in answers.items() if broker in trusted and not answer.damaged}
    if whole:
        return elect_eligible(facts, brokers, furthest(facts, brokers, whole))
    cut = {broker for broker, answer in answers.items() if answer.cut}
    left = {entry.broker_id for entry in facts.state.elr if entry not in facts.cut}
    if uncleanly or left <= cut:
        return elect_furthest(facts, brokers, answers, survey.high_watermark)
    return None


def live_replicas(facts: PartitionFacts, brokers: BrokerFacts) -> list[BrokerId]:
    """Assigned replicas that can be asked."""
    return [broker for broker in facts.assigned if brokers.is_live(broker) and broker not in facts.offline]


def elect_furthest(
    facts: PartitionFacts, brokers: BrokerFacts, answers: Mapping[BrokerId, ReplicaDescription], high_watermark: int
) -> Decision:
    """The furthest log leads; among equals an undamaged replica, the last leader, an unsuspected replica, the first
    assigned.

    Args:
        facts: facts of a partition with a state.
        brokers: those in `answers` are live.
        answers: reports of live replicas; not empty.
        high_watermark: the highest one reported, exclusive.
    """
    successor = furthest(facts, brokers, answers)
    return replace(
        elect_uncleanly(facts, brokers, successor),
        losses=losses_of(answers[successor].last_epoch, answers[successor].log_end_offset, high_watermark),
        unheard=tuple(broker for broker in facts.assigned if broker not in answers),
    )


def furthest(facts: PartitionFacts, brokers: BrokerFacts, answers: Mapping[BrokerId, ReplicaDescription]) -> BrokerId:
    """The replica with the furthest log; among equals as in `elect_furthest`. `answers` is not empty."""
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

    return max(answers, key=rank)


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
