# SPDX-License-Identifier: Apache-2.0
"""Requested elections, of three kinds: of the preferred replica, or of the last known log of an offline partition (rule
T4). The third is of the live replica with the furthest log, for a partition whose node is unreadable (rule Z4).

Level-triggered: each partition of a request is elected or refused when it is next decided; after the last partition,
the request's node is deleted. A partition in a request of the last two kinds may be elected uncleanly until it has a
leader.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.core.controller.effects import ControllerEffect, FinishElections, Observed
from tidemark.core.controller.events import ElectionsRequested
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts
from tidemark.core.controller.log_comparison import live_replicas, loss_report
from tidemark.model import NO_LEADER, ElectionKind, ElectionRequest, LeaderEpoch, TopicPartition, UncleanElection

EXPIRES_MS: Final = 60_000
"""A request is refused after this time, so that no election is held long after its request."""


@dataclass(slots=True)
class _Open:
    """An open request of elections.

    Attributes:
        request: the request as it was read.
        until_ms: partitions that still wait then are refused.
        waiting: partitions neither elected nor refused.
        begun: partitions that counted as allowing an unclean election. Invariant: empty in a preferred election.
        finished: the deletion of the node was requested. Invariant: only once `waiting` is empty.
    """

    request: ElectionRequest
    until_ms: int
    waiting: set[TopicPartition] = field(default_factory=set)
    begun: set[TopicPartition] = field(default_factory=set)
    finished: bool = False


class RequestedElections:
    """The requests, one in each node: `_open` has the kind of the node. Effects gather until `effects` takes them."""

    def __init__(self) -> None:
        self._open: dict[ElectionKind, _Open] = {}
        self._effects: list[ControllerEffect] = []

    def requested(self, event: ElectionsRequested, now_ms: int) -> set[TopicPartition]:
        """Process the present node of a kind; returns the partitions to decide."""
        request, known = event.request, self._open.get(event.kind)
        if request is None:
            self._open.pop(event.kind, None)
            return set() if known is None else known.waiting
        if known is not None and known.request.modified_zxid == request.modified_zxid:
            known.finished = False  # the deletion of the node failed, or is in flight
            return set()
        self._open[event.kind] = _Open(request, now_ms + EXPIRES_MS, set(request.partitions))
        if request.error is not None:
            why = request.error.message
            self._effects.append(Observed("election_request_invalid", None, {"election": str(event.kind), "why": why}))
        return set(request.partitions) | (set() if known is None else known.waiting)

    def due(self, now_ms: int) -> set[TopicPartition]:
        """Partitions whose request has expired."""
        late = [one.waiting for one in self._open.values() if one.waiting and now_ms >= one.until_ms]
        return set().union(*late)

    def facts(
        self, partition: TopicPartition, facts: PartitionFacts, brokers: BrokerFacts, now_ms: int
    ) -> PartitionFacts:
        """The partition as `decide` should see it: the request may allow an unclean election."""
        one = self._waiting_for(ElectionKind.LAST_KNOWN, partition)
        if one is None:
            return facts
        why = _why_not_last_known(facts, brokers)
        led = facts.state is not None and facts.state.leader != NO_LEADER
        if led and partition in one.begun:
            one.waiting.discard(partition)
        elif why is not None or now_ms >= one.until_ms:
            self._refuse(one, partition, why or "no replica reported its log end in time")
        else:
            one.begun.add(partition)
            return facts._replace(unclean_allowed=True)
        return facts

    def unreadable(self, partition: TopicPartition, now_ms: int) -> None:
        """The node of a partition is unreadable: only a request to rebuild the state waits for it."""
        for one in self._open.values():
            if partition not in one.waiting:
                continue
            if one.request.kind is not ElectionKind.REBUILD_STATE:
                named = f"{partition.topic}:{partition.partition}"
                why = f"its node in ZooKeeper is unreadable; run `tidemark elect --rebuild-state {named}`"
                self._refuse(one, partition, why)
            elif now_ms >= one.until_ms:
                self._refuse(one, partition, "no replica reported its state in time")
            else:
                one.begun.add(partition)

    def rebuilds(self, partition: TopicPartition) -> bool:
        """Whether an operator accepted the loss of records that no live replica of the partition knows of."""
        one = self._waiting_for(ElectionKind.LAST_KNOWN, partition)
        return one is not None and one.request.kind is ElectionKind.REBUILD_STATE

    def preferred(self, partition: TopicPartition, facts: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
        """The preferred replica leads in a new epoch, if requested, and if the replica is in sync and not suspected."""
        one = self._waiting_for(ElectionKind.PREFERRED, partition)
        if one is None:
            return None
        if facts.state is not None and facts.state.leader == facts.assigned[0]:
            one.waiting.discard(partition)
            return None
        if facts.assigned[0] in brokers.awaited:
            return None
        elected = elect_preferred(facts, brokers)
        if isinstance(elected, str):
            self._refuse(one, partition, elected)
            return None
        return elected

    def unknown(self, partition: TopicPartition) -> None:
        """The partition does not exist, or its topic is being deleted."""
        for one in self._open.values():
            if partition in one.waiting:
                self._refuse(one, partition, "there is no such partition")

    def effects(self) -> list[ControllerEffect]:
        """Refusals to keep, and requests whose nodes are to be deleted."""
        effects, self._effects = self._effects, []
        for one in self._open.values():
            if not one.waiting and not one.finished:
                one.finished = True
                effects.append(FinishElections(one.request))
        return effects

    def report(self, partition: TopicPartition, topic_id: str, decision: Decision) -> UncleanElection | None:
        """The loss report of a decision; None for a clean election."""
        if not decision.unclean:
            return None
        one = self._waiting_for(ElectionKind.LAST_KNOWN, partition)
        return loss_report(partition, topic_id, decision, "" if one is None else one.request.request_id)

    def _waiting_for(self, kind: ElectionKind, partition: TopicPartition) -> _Open | None:
        one = self._open.get(kind) if self._open else None
        return one if one is not None and partition in one.waiting else None

    def _refuse(self, one: _Open, partition: TopicPartition, why: str) -> None:
        one.waiting.discard(partition)
        fields = {"election": str(one.request.kind), "why": why, "request_id": one.request.request_id}
        self._effects.append(Observed("election_refused", partition, fields))


def elect_preferred(facts: PartitionFacts, brokers: BrokerFacts) -> Decision | str:
    """The first assigned replica leads in a new epoch; a text: why it cannot."""
    state, first = facts.state, facts.assigned[0]
    if state is None:
        return "it has no state yet"
    why = _why_not_preferred(facts, brokers)
    if why is not None:
        return why
    changed = replace(state, leader=first, leader_epoch=LeaderEpoch(state.leader_epoch + 1), last_known=())
    return Decision(changed, {first: brokers.live[first]})


def _why_not_last_known(facts: PartitionFacts, brokers: BrokerFacts) -> str | None:
    if facts.state is None:
        return "it has no state yet"
    if facts.state.leader != NO_LEADER:
        return f"it has a leader, broker {facts.state.leader}"
    if not live_replicas(facts, brokers):
        return "none of its replicas is live"
    return None


def _why_not_preferred(facts: PartitionFacts, brokers: BrokerFacts) -> str | None:
    first, state = facts.assigned[0], facts.state
    if state is None:
        return None
    entry = next((entry for entry in state.isr if entry.broker_id == first), None)
    if entry is None or entry in facts.damaged:
        return f"its preferred replica, broker {first}, is not in sync"
    if first in facts.offline or not brokers.is_present(entry) or brokers.is_void(entry):
        return f"its preferred replica, broker {first}, is not live in the broker epoch in which it joined the ISR"
    if first in brokers.suspected | brokers.unheard:
        return f"its preferred replica, broker {first}, does not answer heartbeats"
    return None
