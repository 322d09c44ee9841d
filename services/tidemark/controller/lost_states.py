# SPDX-License-Identifier: Apache-2.0
"""Partitions that have no node where nodes have been deleted: new ones, or ones whose state somebody deleted by hand.

ZooKeeper cannot tell them apart, brokers can. A new one gets its first state. Who led the other, and who was in sync,
nobody knows any more: it gets a state in which nobody is trusted (rule T4), so that nothing acknowledged is cut off by
a replica that lacks it, and `tidemark elect --last-known` finds the replica that holds most.
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
    """What the brokers say of one partition. `highest`: the highest leader epoch that one of them named."""

    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    held: bool = False
    nothing: set[BrokerId] = field(default_factory=set)
    silent: set[BrokerId] = field(default_factory=set)
    highest: LeaderEpoch = NO_EPOCH


class LostStates:
    """Makes the nodes that are missing.

    Args:
        ask: puts a question to a live broker.
        policy_of: what a topic's settings say.
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
        """Whether one of these has a state now that had no node; those whose brokers do not all answer wait."""
        topics = await self._store.topics(unreadable=set())  # what cannot be read holds nothing else up
        brokers = await self._store.live_brokers()
        found = await self._surveyed(partitions, topics, brokers)
        writes = []
        for partition, one in found.items():
            state = self._state_of(one, topics[partition.topic], brokers)
            if state is None:
                _log.warning(
                    "a partition has no state that can be read, and not all of its brokers say whether they hold it: "
                    "it waits for them",
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
                    "the nodes of a partition were deleted by hand, and with them who was in sync: nobody leads it "
                    "until `tidemark elect --last-known` has chosen the replica that holds most",
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
            told = await self._ask(DescribeReplicas(broker, 0, brokers[broker].broker_epoch, tuple(asked)))
            _note(found, broker, asked, told)
        return found

    def _state_of(
        self, one: _Found, topic: TopicDescription, brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> LeaderAndIsr | None:
        """None: it is not known yet which of the two it is, or in which epoch its replicas are."""
        min_isr = min(self._policy_of(topic.configs).min_insync_replicas, len(one.assigned))
        if one.held and not one.silent:
            # No lineage is ever above the leader epoch, as an election begins it.
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
    told: ReplicasDescribed,
) -> None:
    for question in asked:
        one = found[question.partition]
        refusal = told.error or told.refused.get(question.partition)
        if refusal is None or refusal.code is ErrorCode.FENCED_LEADER_EPOCH or HELD in refusal.metadata:
            one.held = True
            one.highest = max(one.highest, _epoch_in(refusal))
        elif told.error is None and refusal.code in (ErrorCode.NOT_A_REPLICA, ErrorCode.UNKNOWN_TOPIC_ID):
            one.nothing.add(broker)
        else:
            one.silent.add(broker)


def _epoch_in(refusal: TidemarkError | None) -> LeaderEpoch:
    named = "" if refusal is None else refusal.metadata.get("leader_epoch", "")
    return LeaderEpoch(int(named)) if named.isdecimal() else NO_EPOCH


def _epoch_of(registration: BrokerRegistration | None) -> BrokerEpoch:
    return _NEVER if registration is None else registration.broker_epoch
