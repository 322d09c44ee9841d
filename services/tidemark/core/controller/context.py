# SPDX-License-Identifier: Apache-2.0
"""State that the parts of the controller's core share: the cluster, the partitions to decide, pending commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidemark.core.config import ControllerConfig
from tidemark.core.controller.effects import ControllerEffect, Observed
from tidemark.core.controller.leader_election import BrokerFacts
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.core.messages import StoppedReplica
from tidemark.core.reassignment.request import too_old
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    TopicDescription,
    TopicPartition,
)

DECIDED_AT_ONCE: Final = 500
"""Partitions decided in one call, about 10 ms; other events are handled before the next call."""


class ControllerContext:
    """The state of the controller's core; only the core and its parts change this state.

    Attributes:
        brokers: registrations of the live brokers.
        epochs: /brokers/epochs, of every broker that ever registered.
        topics: topics' nodes as last read or written.
        partitions: every partition of `topics`. Invariant: the same partitions as in those nodes.
        on_broker: partitions by assigned broker. Invariant: follows `PartitionState.assigned`.
        commands: pending commands of each live broker.
        dirty: partitions to decide in the next round.
        undecided: partitions of the present round that are still to be decided, the next one last.
        rewritten: topics whose node may have to be written.
        older: live brokers of versions without typed topics; they get no replicas of them (rule S1).
        avoided: brokers that are suspected or shutting down; elected only where no other replica can be.
        unheard: broker epochs of inherited registrations without an answer to this controller (rule C9).
        silent: brokers of `unheard` whose heartbeat has failed.
        unconfirmed: brokers with inherited registrations that have not answered a LeaderAndIsr of this term (rule Z4).
        metadata_version: rises with each change of the metadata that brokers are sent.
        unreadable_topics: topics whose node does not parse.
        unreadable_states: partitions whose leaderAndISR does not parse, or was deleted manually; they are not decided.
        readable_again: topics whose node parses again; the states of their partitions may not be known yet.
        effects: effects of the event that is being handled, in order.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self.epochs: dict[BrokerId, BrokerEpochRecord] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.on_broker: defaultdict[BrokerId, set[TopicPartition]] = defaultdict(set)
        self.commands: dict[BrokerId, PendingCommands] = {}
        self.dirty: set[TopicPartition] = set()
        self.undecided: list[TopicPartition] = []
        self.rewritten: set[str] = set()
        self.older: frozenset[BrokerId] = frozenset()
        self.avoided: frozenset[BrokerId] = frozenset()
        self.unheard: dict[BrokerId, BrokerEpoch] = {}
        self.silent: set[BrokerId] = set()
        self.unconfirmed: set[BrokerId] = set()
        self.metadata_version = 0
        self.unreadable_topics: frozenset[str] = frozenset()
        self.unreadable_states: set[TopicPartition] = set()
        self.readable_again: set[str] = set()
        self.effects: list[ControllerEffect] = []
        self._told_older: dict[tuple[str, BrokerId], BrokerEpoch] = {}

    def emit(self, effect: ControllerEffect) -> None:
        """Append to the effects of this event."""
        self.effects.append(effect)

    def observe(self, kind: str, partition: TopicPartition | None, **fields: str | int) -> None:
        """Report an observation for log and metric."""
        self.effects.append(Observed(kind, partition, fields))

    def next_to_decide(self) -> list[TopicPartition]:
        """The next partitions of the round, up to `DECIDED_AT_ONCE`.

        A round has the partitions that were dirty when it began; partitions marked later are decided in the next round.
        Partitions with the same brokers follow one another: a broker's ISR changes then conflict with few multis.
        """
        if not self.undecided:
            self.undecided, self.dirty = sorted(self.dirty, key=self._brokers_of), set()
        due, self.undecided = self.undecided[-DECIDED_AT_ONCE:], self.undecided[:-DECIDED_AT_ONCE]
        return due

    def _brokers_of(self, partition: TopicPartition) -> list[BrokerId]:
        partition_state = self.partitions.get(partition)
        return sorted(partition_state.assigned) if partition_state is not None else []

    def knows_everything(self) -> bool:
        """Whether every node parses, so that a replica that no command names belongs to no partition."""
        return not self.unreadable_topics and not any(map(self.is_hidden, self.unreadable_states))

    def learn_unreadable(self, unreadable: frozenset[str], readable: Iterable[str]) -> None:
        """Topics whose node does not parse.

        A deleted topic that never parsed is sent to brokers as deleted: an earlier controller may have sent the topic.
        """
        if unreadable == self.unreadable_topics:
            return
        for name in unreadable - self.unreadable_topics:
            self.observe("node_unreadable", None, topic=name)
        understood = {one for one in self.unreadable_topics - unreadable if one not in self.topics}
        gone = understood.difference(readable)
        self.readable_again |= understood - gone
        self.unreadable_topics = unreadable
        self.metadata_version += 1
        for pending in self.commands.values():
            pending.gone_topics |= gone
            pending.brokers_changed = True

    def states_read(self, asked: Iterable[TopicPartition], unreadable: Iterable[TopicPartition]) -> None:
        """The nodes of `asked` were read, except `unreadable`."""
        before = self.unreadable_states
        self.unreadable_states = before.difference(asked).union(unreadable)
        for partition in sorted(self.unreadable_states - before):
            self.observe("node_unreadable", partition)
        for partition in sorted(before - self.unreadable_states):
            self.observe("node_readable", partition)

    def is_unread(self, topic: str) -> bool:
        """Whether the topic exists, and this controller has never read a node of it that parses."""
        return topic in self.unreadable_topics and topic not in self.topics

    def hidden_topics(self) -> tuple[str, ...]:
        """Topics of which brokers may have metadata that this controller cannot read."""
        states = {one.topic for one in self.unreadable_states if self.is_hidden(one)}
        states.update(filter(self._has_unknown_states, self.readable_again))
        return tuple(sorted(states.union(filter(self.is_unread, self.unreadable_topics))))

    def _has_unknown_states(self, topic: str) -> bool:
        known = self.topics.get(topic)
        return known is not None and any(self.is_hidden(TopicPartition(topic, index)) for index in known.partitions)

    def is_hidden(self, partition: TopicPartition) -> bool:
        """Whether leaderAndISR was never read, so that its state is unknown."""
        partition_state = self.partitions.get(partition)
        return partition_state is not None and partition_state.state is None

    def is_refused(self, partition: TopicPartition) -> bool:
        """Whether the leader has refused the present leader epoch (rule E5)."""
        known = self.partitions.get(partition)
        return known is not None and known.state is not None and known.refused_epoch == known.state.leader_epoch

    def may_be_older(self, partition_state: PartitionState) -> bool:
        """Whether a replica may still report that the node was set back manually before its first read (rule Z4).

        Asked only where the leader has refused its leader epoch: the next one may have had another leader. The
        controller does not wait for a broker that is suspected or whose call has failed.
        """
        if not self.unconfirmed or not self.is_refused(partition_state.partition):
            return False
        return not (self.unconfirmed - self.avoided).isdisjoint(partition_state.assigned)

    def live_epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """Broker epoch of every registered broker, suspected ones included."""
        return {broker: registration.broker_epoch for broker, registration in self.brokers.items()}

    def broker_facts(self) -> BrokerFacts:
        """The brokers as elections see them."""
        return BrokerFacts(
            live=self.live_epochs(),
            unclean_at={broker: partition_state.unclean_at for broker, partition_state in self.epochs.items()},
            lost_at={broker: partition_state.lost_at for broker, partition_state in self.epochs.items()},
            crashed_at={broker: record.crashed_at for broker, record in self.epochs.items()},
            suspected=self.avoided,
            unheard=frozenset(self.unheard),
            awaited=frozenset(self.unheard.keys() - self.silent),
        )

    def may_hold(self, broker: BrokerId, topic: str) -> bool:
        """Whether a live broker may hold replicas of the topic (rule S1)."""
        return broker not in self.older or not self._is_typed(topic)

    def _is_typed(self, topic: str) -> bool:
        known = self.topics.get(topic)
        return known is not None and bool(known.schemas)

    def facts_for(self, partition_state: PartitionState, brokers: BrokerFacts) -> BrokerFacts:
        """The brokers in elections of this partition: a broker that may not hold the replica is not live."""
        if not self.older:
            return brokers
        older = self.older.intersection(partition_state.assigned)
        topic = partition_state.partition.topic
        if not older or not self._is_typed(topic):
            return brokers
        for broker in sorted(older):
            epoch = brokers.live[broker]
            if self._told_older.get((topic, broker)) != epoch:
                self._told_older[topic, broker] = epoch
                why = f"{topic} is a typed topic: {too_old(broker)}, or reassign its replicas"
                self.observe("broker_too_old", None, topic=topic, broker=broker, why=why)
        return replace(brokers, live={broker: epoch for broker, epoch in brokers.live.items() if broker not in older})

    # -- commands that brokers must get -------------------------------------------------------------------------

    def send_leader_and_isr(self, partition_state: PartitionState) -> None:
        """leaderAndISR or its companions changed: LeaderAndIsr to the replicas, UpdateMetadata to all brokers."""
        for broker in partition_state.assigned:
            pending = self.commands.get(broker)
            if pending is not None:
                pending.partitions.add(partition_state.partition)
        self.send_metadata(partition_state)

    def send_metadata(self, partition_state: PartitionState) -> None:
        """Send UpdateMetadata to all brokers."""
        self.metadata_version += 1
        for pending in self.commands.values():
            pending.metadata.add(partition_state.partition)

    def assign(self, partition_state: PartitionState, assigned: tuple[BrokerId, ...]) -> None:
        """Make these brokers the assigned replicas of the partition."""
        self.metadata_version += 1
        for broker in partition_state.assigned:
            self.on_broker[broker].discard(partition_state.partition)
            if broker not in assigned and broker in self.commands:
                self.commands[broker].partitions.discard(partition_state.partition)
        partition_state.assigned = assigned
        for broker in assigned:
            self.on_broker[broker].add(partition_state.partition)

    def stop_replicas(self, partition_state: PartitionState, brokers: Iterable[BrokerId]) -> set[BrokerId]:
        """Send StopReplica with delete; returns the live brokers among these."""
        epoch = NO_EPOCH if partition_state.state is None else partition_state.state.leader_epoch
        live = set()
        for broker in brokers:
            pending = self.commands.get(broker)
            if pending is not None:
                pending.partitions.discard(partition_state.partition)
                pending.stopping[partition_state.partition] = StoppedReplica(
                    partition_state.partition, partition_state.identity, epoch, True
                )
                live.add(broker)
        return live

    def is_stopping(self, partition: TopicPartition) -> bool:
        """Whether a live broker has not acknowledged the StopReplica of this partition yet."""
        return any(partition in pending.stopping for pending in self.commands.values())

    def leader_acknowledged(self, partition_state: PartitionState) -> bool:
        """Whether the leader has acknowledged the present leaderAndISR; True where there is no leader."""
        if partition_state.state is None or partition_state.state.leader == NO_LEADER:
            return True
        pending = self.commands.get(partition_state.state.leader)
        return pending is not None and pending.is_acknowledged(partition_state.partition)
