# SPDX-License-Identifier: Apache-2.0
"""What the parts of the controller's core share: what is known of the cluster, what is to be decided, what came out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tidemark.core.config import ControllerConfig
from tidemark.core.controller.effects import ControllerEffect, Observed
from tidemark.core.controller.leader_election import BrokerFacts
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.controller.pending_commands import BrokerLink
from tidemark.core.messages import StoppedReplica
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
"""Partitions; then others have their turn: 10 ms."""


class ControllerContext:
    """Changed by the core and its parts only.

    Attributes:
        on_broker: partitions assigned to a broker.
        dirty: partitions to be compared with what should be.
        undecided: of those, what is left of the round under way.
        rewritten: topics whose node may have to be written anew.
        shown_version: rises with everything that is shown to brokers as metadata.
        unwanted: brokers that are suspected or leaving: nobody is elected there who need not be.
        put_back: topics that could not be understood at first and can be since; their states may not be known yet.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self.epochs: dict[BrokerId, BrokerEpochRecord] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.records: dict[TopicPartition, PartitionRecord] = {}
        self.on_broker: defaultdict[BrokerId, set[TopicPartition]] = defaultdict(set)
        self.links: dict[BrokerId, BrokerLink] = {}
        self.dirty: set[TopicPartition] = set()
        self.undecided: set[TopicPartition] = set()
        self.rewritten: set[str] = set()
        self.unwanted: frozenset[BrokerId] = frozenset()
        self.shown_version = 0
        self.unreadable_topics: frozenset[str] = frozenset()
        self.unreadable_states: frozenset[TopicPartition] = frozenset()
        self.put_back: set[str] = set()
        self.effects: list[ControllerEffect] = []

    def emit(self, effect: ControllerEffect) -> None:
        """To be done, after what came before."""
        self.effects.append(effect)

    def observe(self, kind: str, partition: TopicPartition | None, **fields: str | int) -> None:
        """For log and metric."""
        self.effects.append(Observed(kind, partition, fields))

    def next_to_decide(self) -> list[TopicPartition]:
        """Not too many at once. A round goes through all that were dirty when it began; what has to wait, or is marked
        meanwhile, is dirty for the next one."""
        if not self.undecided:
            self.undecided, self.dirty = self.dirty, set()
        return [self.undecided.pop() for _ in range(min(len(self.undecided), DECIDED_AT_ONCE))]

    def knows_everything(self) -> bool:
        """Whether a replica that is not named is surely nobody's: every node could be understood."""
        return not self.unreadable_topics and not any(map(self.is_hidden, self.unreadable_states))

    def learn_unreadable(self, unreadable: frozenset[str], readable: Iterable[str]) -> None:
        """Topics that cannot be understood. One that nobody here ever understood and that is gone is told of as such:
        brokers may know it from another controller."""
        if unreadable == self.unreadable_topics:
            return
        for name in unreadable - self.unreadable_topics:
            self.observe("node_unreadable", None, topic=name)
        understood = {one for one in self.unreadable_topics - unreadable if one not in self.topics}
        gone = understood.difference(readable)
        self.put_back |= understood - gone
        self.unreadable_topics = unreadable
        self.shown_version += 1
        for link in self.links.values():
            link.gone_topics |= gone
            link.brokers_changed = True

    def is_unread(self, topic: str) -> bool:
        """Whether a topic is there that was never understood."""
        return topic in self.unreadable_topics and topic not in self.topics

    def hidden_topics(self) -> tuple[str, ...]:
        """Those of which brokers may know more than can be told."""
        states = {one.topic for one in self.unreadable_states if self.is_hidden(one)}
        states.update(filter(self._has_unknown_states, self.put_back))
        return tuple(sorted(states.union(filter(self.is_unread, self.unreadable_topics))))

    def _has_unknown_states(self, topic: str) -> bool:
        known = self.topics.get(topic)
        return known is not None and any(self.is_hidden(TopicPartition(topic, index)) for index in known.partitions)

    def is_hidden(self, partition: TopicPartition) -> bool:
        """Whether its state was never understood."""
        record = self.records.get(partition)
        return record is not None and record.state is None

    def live_epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """Of every registered broker."""
        return {broker: registration.broker_epoch for broker, registration in self.brokers.items()}

    def broker_facts(self) -> BrokerFacts:
        """The brokers as elections go by them."""
        return BrokerFacts(
            live=self.live_epochs(),
            unclean_at={broker: record.unclean_at for broker, record in self.epochs.items()},
            lost_at={broker: record.lost_at for broker, record in self.epochs.items()},
            suspected=self.unwanted,
        )

    # -- who is told what --------------------------------------------------------------------------------------

    def mark_changed(self, record: PartitionRecord) -> None:
        """Its node changed: its replicas get it as a command, everybody as metadata."""
        for broker in record.assigned:
            link = self.links.get(broker)
            if link is not None:
                link.partitions.add(record.partition)
        self.mark_shown(record)

    def mark_shown(self, record: PartitionRecord) -> None:
        """To be told to everybody as metadata."""
        self.shown_version += 1
        for link in self.links.values():
            link.shown.add(record.partition)

    def assign(self, record: PartitionRecord, assigned: tuple[BrokerId, ...]) -> None:
        """These are its replicas from now on."""
        self.shown_version += 1
        for broker in record.assigned:
            self.on_broker[broker].discard(record.partition)
            if broker not in assigned and broker in self.links:
                self.links[broker].partitions.discard(record.partition)
        record.assigned = assigned
        for broker in assigned:
            self.on_broker[broker].add(record.partition)

    def stop_replicas(self, record: PartitionRecord, brokers: Iterable[BrokerId]) -> set[BrokerId]:
        """Have these replicas deleted; gives the brokers that live and were told."""
        epoch = NO_EPOCH if record.state is None else record.state.leader_epoch
        told = set()
        for broker in brokers:
            link = self.links.get(broker)
            if link is not None:
                link.partitions.discard(record.partition)
                link.stopping[record.partition] = StoppedReplica(record.partition, record.identity, epoch, True)
                told.add(broker)
        return told

    def is_stopping(self, partition: TopicPartition) -> bool:
        """Whether a live broker has not answered yet that it let go of its replica."""
        return any(partition in link.stopping for link in self.links.values())

    def leader_was_told(self, record: PartitionRecord) -> bool:
        """Whether the leader has taken in the state as it is; so it is where nobody leads."""
        if record.state is None or record.state.leader == NO_LEADER:
            return True
        link = self.links.get(record.state.leader)
        return link is not None and link.was_told(record.partition)
