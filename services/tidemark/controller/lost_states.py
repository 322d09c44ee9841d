# SPDX-License-Identifier: Apache-2.0
"""Partitions without a state node where nodes were deleted: new partitions, or states deleted by hand.

ZooKeeper does not distinguish the two, brokers do. A new partition gets its first state. The leader and the ISR of the
other are lost: that partition gets a state that trusts no replica (rule T4). So no replica truncates acknowledged
records that it lacks, and `tidemark elect --last-known` finds the replica with the most records.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.core.messages import ReplicaQuestion
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import ControllerTerm, MetadataStore, StateWrite, WriteOutcome
from tidemark.rpc.control_codec import HELD

_log = logging.getLogger(__name__)

_FIRST_EPOCH = LeaderEpoch(0)
_NEVER = BrokerEpoch(-1)


@dataclass(slots=True)
class _Found:
    """The answers of the brokers for one partition.

    Attributes:
        held: a broker holds a replica.
        nothing: the brokers without a replica.
        silent: the brokers without an answer.
        highest: the highest leader epoch in the answers.
    """

    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    held: bool = False
    nothing: set[BrokerId] = field(default_factory=set)
    silent: set[BrokerId] = field(default_factory=set)
    highest: LeaderEpoch = NO_EPOCH


class LostStates:
    """Creates missing state nodes.

    Args:
        ask: sends DescribeReplicas to a live broker.
        policy_of: reads the settings of a topic.
    """

    def __init__(
        self,
        term: ControllerTerm,
        store: MetadataStore,
        ask: Callable[[DescribeReplicas], Awaitable[ReplicasDescribed]],
        policy_of: Callable[[Mapping[str, str]], TopicPolicy],
    ) -> None:
        self._term = term
        self._store = store
        self._ask = ask
        self._policy_of = policy_of

    async def make(self, partitions: Collection[TopicPartition]) -> bool:
        """Create the states that the answers of the brokers allow; returns whether any was created."""
        topics = await self._store.topics(unreadable=set())  # unreadable topics do not delay the others
        brokers = await self._store.live_brokers()
        found = await self._surveyed(partitions, topics, brokers)
        writes = []
        for partition, one in found.items():
            state = self._state_of(one, topics[partition.topic], brokers)
            if state is None:
                _log.warning(
                    "a partition has no readable state, and not all of its brokers have answered: waiting for them",
                    extra={"partition": str(partition), "waits_for": sorted(set(one.assigned) - one.nothing)},
                )
                continue
            epochs = {entry.broker_id: entry.broker_epoch for entry in state.isr}
            writes.append(StateWrite(partition, one.identity, state, -1, epochs))
        results = await self._store.write_states(self._term, writes) if writes else ()
        made = [write for write, result in zip(writes, results, strict=True) if result.outcome is WriteOutcome.WRITTEN]
        for write in made:
            if not write.state.isr:
                _log.error(
                    "the state of a partition was deleted by hand, its ISR is lost: the partition has no leader until "
                    "`tidemark elect --last-known` chooses the replica with the most records",
                    extra={
                        "partition": str(write.partition),
                        "path": f"/brokers/topics/{write.partition.topic}/{write.partition.partition}",
                    },
                )
        return bool(made)

    async def _surveyed(
        self,
        partitions: Iterable[TopicPartition],
        topics: Mapping[str, TopicDescription],
        brokers: Mapping[BrokerId, BrokerRegistration],
    ) -> dict[TopicPartition, _Found]:
        found: dict[TopicPartition, _Found] = {}
        questions: defaultdict[BrokerId, list[ReplicaQuestion]] = defaultdict(list)
        for partition in partitions:
            topic = topics.get(partition.topic)
            if topic is None or partition.partition not in topic.partitions:
                continue
            identity = ReplicaIdentity(topic.topic_id, topic.incarnations.get(partition.partition, ""))
            one = found[partition] = _Found(identity, topic.partitions[partition.partition])
            for broker in one.assigned:
                if broker in brokers:
                    questions[broker].append(ReplicaQuestion(partition, identity, NO_EPOCH))
        for broker, asked in questions.items():
            answer = await self._ask(DescribeReplicas(broker, 0, brokers[broker].broker_epoch, tuple(asked)))
            _note(found, broker, asked, answer)
        return found

    def _state_of(
        self, one: _Found, topic: TopicDescription, brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> LeaderAndIsr | None:
        """None while the answers do not show whether the partition is new, or in which epoch its replicas are."""
        min_isr = min(self._policy_of(topic.configs).min_insync_replicas, len(one.assigned))
        if one.held and not one.silent:
            # A lineage starts with an election, so that it never exceeds the leader epoch.
            epoch = LeaderEpoch(one.highest + 1)
            last = tuple(IsrEntry(broker, _epoch_of(brokers.get(broker))) for broker in one.assigned)
            return LeaderAndIsr(
                leader=NO_LEADER, leader_epoch=epoch, isr=(), last_known=last, min_isr=min_isr, lineage=epoch
            )
        if not one.held and one.nothing == set(one.assigned):
            everyone = tuple(IsrEntry(broker, _epoch_of(brokers.get(broker))) for broker in one.assigned)
            return LeaderAndIsr(leader=NO_LEADER, leader_epoch=_FIRST_EPOCH, isr=everyone, min_isr=min_isr)
        return None


def _note(
    found: Mapping[TopicPartition, _Found],
    broker: BrokerId,
    asked: Sequence[ReplicaQuestion],
    answer: ReplicasDescribed,
) -> None:
    for question in asked:
        one = found[question.partition]
        refusal = answer.error or answer.refused.get(question.partition)
        if refusal is None or refusal.code is ErrorCode.FENCED_LEADER_EPOCH or HELD in refusal.metadata:
            one.held = True
            one.highest = max(one.highest, _epoch_in(refusal))
        elif answer.error is None and refusal.code in (ErrorCode.NOT_A_REPLICA, ErrorCode.UNKNOWN_TOPIC_ID):
            one.nothing.add(broker)
        else:
            one.silent.add(broker)


def _epoch_in(refusal: TidemarkError | None) -> LeaderEpoch:
    named = "" if refusal is None else refusal.metadata.get("leader_epoch", "")
    return LeaderEpoch(int(named)) if named.isdecimal() else NO_EPOCH


def _epoch_of(registration: BrokerRegistration | None) -> BrokerEpoch:
    return _NEVER if registration is None else registration.broker_epoch
