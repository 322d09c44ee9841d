# SPDX-License-Identifier: Apache-2.0
"""Partitions whose leaderAndISR node is damaged or missing: new partitions, or nodes changed manually (rule Z4).

ZooKeeper does not distinguish a new partition from one whose nodes were deleted, brokers do. A new partition gets its
first state. Otherwise live brokers know the last state, and this module writes the node again if the answers prove that
state. If the answers do not prove the state, an operator decides: `tidemark elect --rebuild-state` writes a state in
which no replica counts as in sync (rule T4), and elects the live replica with the furthest log.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidemark.core.controller.command_builder import PART_PARTITIONS_MAX
from tidemark.core.controller.controller import ControllerCore
from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.core.controller.state_rebuild import Memory, overwritten, rebuilt, untrusted
from tidemark.core.messages import HeldState, ReplicaQuestion
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
    StateRebuild,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import ControllerTerm
from tidemark.rpc.codecs.control import HELD
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)

_FIRST_EPOCH: Final = LeaderEpoch(0)
_NEVER: Final = BrokerEpoch(-1)


@dataclass(slots=True)
class _Found:
    """The answers of the brokers for one partition.

    Attributes:
        topic: topic of the partition, with its assigned replicas.
        stored: a broker has a replica.
        nothing: the brokers without a replica.
        silent: the brokers without an answer.
        states: the states that brokers know.
        highest: the highest leader epoch in the answers.
    """

    topic: TopicDescription
    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    stored: bool = False
    nothing: set[BrokerId] = field(default_factory=set)
    silent: set[BrokerId] = field(default_factory=set)
    states: dict[BrokerId, HeldState] = field(default_factory=dict)
    highest: LeaderEpoch = NO_EPOCH


class _Written(NamedTuple):
    """A state to write, and the reason for the log."""

    state: LeaderAndIsr
    how: str
    trusted: bool = True


class LostStates:
    """Writes damaged and missing state nodes.

    Args:
        ask: sends DescribeReplicas to a live broker.
        policy_of: reads the settings of a topic.
        core: the controller core of this term.
    """

    def __init__(
        self,
        term: ControllerTerm,
        store: MetadataStore,
        ask: Callable[[DescribeReplicas], Awaitable[ReplicasDescribed]],
        policy_of: Callable[[Mapping[str, str]], TopicPolicy],
        core: ControllerCore,
    ) -> None:
        self._term = term
        self._store = store
        self._ask = ask
        self._policy_of = policy_of
        self._core = core
        self._told: dict[TopicPartition, str] = {}
        """The reason logged last for each partition that waits."""

    async def make(self, partitions: Collection[TopicPartition]) -> bool:
        """Write the states that are proven, or requested by an operator; returns whether any was written."""
        topics = await self._store.topics(unreadable=set())  # unreadable topics do not delay other topics
        going = await self._store.requested_deletions()
        brokers = await self._store.live_brokers()
        there = [one for one in partitions if one.topic not in going and _exists(one, topics)]
        versions = await self._store.damaged_versions(there)
        memory = {one: self._core.memory(one, _identity(topics[one.topic], one.partition)) for one in there}
        chosen: dict[TopicPartition, _Written] = {}
        for one in there:
            last = overwritten(memory[one].known, versions[one])
            if last is not None:
                chosen[one] = _Written(last, "as this controller knew it")
        found = await self._surveyed([one for one in there if one not in chosen], topics, brokers)
        for one, answers in found.items():
            written = self._state_of(one, answers, memory[one], brokers)
            if isinstance(written, str):
                self._tell(one, written)
            else:
                chosen[one] = written
        return await self._write(chosen, topics, versions, memory, found)

    async def _write(
        self,
        chosen: Mapping[TopicPartition, _Written],
        topics: Mapping[str, TopicDescription],
        versions: Mapping[TopicPartition, int],
        memory: Mapping[TopicPartition, Memory],
        found: Mapping[TopicPartition, _Found],
    ) -> bool:
        rebuilds = []
        for partition, written in chosen.items():
            topic, (last, _, older), answers = topics[partition.topic], memory[partition], found.get(partition)
            above = [-1 if last is None else last[0].version]
            above += [] if answers is None else [one.command.partition_epoch for one in answers.states.values()]
            identity, version = _identity(topic, partition.partition), versions[partition]
            rebuilds.append(StateRebuild(partition, identity, written.state, topic.version, version, max(above), older))
        results = await self._store.rebuild_states(self._term, rebuilds) if rebuilds else ()
        for rebuild, done in zip(rebuilds, results, strict=True):
            if done:
                self._told.pop(rebuild.partition, None)
                _tell_written(rebuild, chosen[rebuild.partition])
        return any(results)

    async def _surveyed(
        self,
        partitions: Iterable[TopicPartition],
        topics: Mapping[str, TopicDescription],
        brokers: Mapping[BrokerId, BrokerRegistration],
    ) -> dict[TopicPartition, _Found]:
        found: dict[TopicPartition, _Found] = {}
        questions: defaultdict[BrokerId, list[ReplicaQuestion]] = defaultdict(list)
        for partition in partitions:
            topic = topics[partition.topic]
            identity = _identity(topic, partition.partition)
            one = found[partition] = _Found(topic, identity, topic.partitions[partition.partition])
            for broker in one.assigned:
                if broker in brokers:
                    questions[broker].append(ReplicaQuestion(partition, identity, NO_EPOCH))
        for broker, asked in questions.items():
            for start in range(0, len(asked), PART_PARTITIONS_MAX):
                some = asked[start : start + PART_PARTITIONS_MAX]
                answer = await self._ask(DescribeReplicas(broker, 0, brokers[broker].broker_epoch, tuple(some)))
                if answer.error is not None:  # one time limit for each broker, not for each part
                    _note(found, broker, asked[start:], answer)
                    break
                _note(found, broker, some, answer)
        return found

    def _state_of(
        self,
        partition: TopicPartition,
        one: _Found,
        memory: Memory,
        brokers: Mapping[BrokerId, BrokerRegistration],
    ) -> _Written | str:
        """The state to write; or a text, which states why the answers do not prove a state."""
        policy = self._policy_of(one.topic.configs)
        min_isr = min(policy.min_insync_replicas, len(one.assigned))
        entries = tuple(IsrEntry(broker, _epoch_of(brokers.get(broker))) for broker in one.assigned)
        known, proven, _ = memory
        if known is None and proven == NO_EPOCH and one.nothing == set(one.assigned):
            first = LeaderAndIsr(leader=NO_LEADER, leader_epoch=_FIRST_EPOCH, isr=entries, min_isr=min_isr)
            return _Written(first, "new: no broker has a replica")
        state = rebuilt(one.assigned, min_isr, known, one.states, proven)
        if isinstance(state, LeaderAndIsr):
            return _Written(state, "as its replicas know it")
        requested, answered = self._core.rebuilds(partition), one.stored or bool(one.nothing)
        only_one = len(one.assigned) == 1 and one.stored  # there is no other replica to wait for
        unclean = policy.unclean_allowed and one.stored and not one.silent
        if not answered or not (requested or only_one or unclean):
            return state
        highest = max(one.highest, proven, NO_EPOCH if known is None else known[1])
        how = "requested by an operator" if requested else "no other replica can prove it"
        return _Written(untrusted(one.assigned, min_isr, highest, entries), how, trusted=False)

    def _tell(self, partition: TopicPartition, why: str) -> None:
        if self._told.get(partition) != why:
            self._told[partition] = why
            _log.error(
                "the state of a partition cannot be rebuilt without possible loss: start the brokers of its replicas, "
                f"or run `tidemark elect --rebuild-state {partition.topic}:{partition.partition}`",
                extra={"partition": str(partition), "why": why},
            )


def _tell_written(rebuild: StateRebuild, written: _Written) -> None:
    extra = {
        "partition": str(rebuild.partition),
        "how": written.how,
        "leader_epoch": rebuild.state.leader_epoch,
        "isr": ",".join(str(entry.broker_id) for entry in rebuild.state.isr),
    }
    if rebuild.state.leader_epoch == _FIRST_EPOCH and rebuild.damaged_version < 0:
        _log.info("the first state of a partition is written", extra=extra)
    elif written.trusted:
        _log.warning("the state of a partition was damaged manually, and is written again", extra=extra)
    else:
        _log.error("the state of a partition was damaged manually, and its ISR is lost", extra=extra)


def _note(
    found: Mapping[TopicPartition, _Found],
    broker: BrokerId,
    asked: Sequence[ReplicaQuestion],
    answer: ReplicasDescribed,
) -> None:
    for question in asked:
        one = found[question.partition]
        held = answer.held.get(question.partition)
        if held is not None:
            one.states[broker] = held
            one.highest = max(one.highest, held.command.state.leader_epoch)
        refusal = answer.error or answer.refused.get(question.partition)
        if refusal is None or refusal.code is ErrorCode.FENCED_LEADER_EPOCH or HELD in refusal.metadata:
            one.stored = True
            one.highest = max(one.highest, _epoch_in(refusal))
        elif answer.error is None and refusal.code in (ErrorCode.NOT_A_REPLICA, ErrorCode.UNKNOWN_TOPIC_ID):
            one.nothing.add(broker)
        else:
            one.silent.add(broker)


def _exists(partition: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    return partition.topic in topics and partition.partition in topics[partition.topic].partitions


def _identity(topic: TopicDescription, index: int) -> ReplicaIdentity:
    return ReplicaIdentity(topic.topic_id, topic.incarnations.get(index, ""))


def _epoch_in(refusal: TidemarkError | None) -> LeaderEpoch:
    named = "" if refusal is None else refusal.metadata.get("leader_epoch", "")
    return LeaderEpoch(int(named)) if named.isdecimal() else NO_EPOCH


def _epoch_of(registration: BrokerRegistration | None) -> BrokerEpoch:
    return _NEVER if registration is None else registration.broker_epoch
