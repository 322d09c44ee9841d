# SPDX-License-Identifier: Apache-2.0
"""Validates and requests leader elections, and waits for their outcomes; the controller holds them (rule T4).

Each partition succeeds or is refused separately. The controller gets only the partitions that pass validation.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.admin.polling import poll
from tidemark.admin.surveys import Survey
from tidemark.admin.views import no_such_partition
from tidemark.core.controller.leader_election import BrokerFacts, PartitionFacts
from tidemark.core.controller.log_comparison import live_replicas
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    REQUEST_ID_CHARACTERS_MAX,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    LeaderAndIsr,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    invalid_request,
    unknown_topic,
)
from tidemark.runtime.slices import InSlices
from tidemark.zookeeper.store import MetadataStore

_PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions in one znode: far below its size limit, even with the longest names."""


@dataclass(frozen=True, slots=True)
class ElectionQuery:
    """Elections to hold; without partitions and topics: of all topics, for preferred elections only."""

    kind: ElectionKind
    partitions: Sequence[TopicPartition] = ()
    topics: Sequence[str] = ()
    request_id: str = ""


@dataclass(slots=True)
class _Snapshot:
    """The partitions of a query as ZooKeeper has them, and the outcomes that need no election."""

    brokers: BrokerFacts
    facts: dict[TopicPartition, PartitionFacts] = field(default_factory=dict)
    identities: dict[TopicPartition, ReplicaIdentity] = field(default_factory=dict)
    unreadable: set[TopicPartition] = field(default_factory=set)
    settled: dict[TopicPartition, ElectionOutcome] = field(default_factory=dict)


class ElectionAdministration:
    """Validates requested leader elections, and waits for their outcomes.

    Args:
        store: started.
        survey: function that asks replicas for their logs' ends.
    """

    def __init__(self, store: MetadataStore, survey: Survey) -> None:
        self._store = store
        self._survey = survey

    async def elect(self, query: ElectionQuery, *, validate_only: bool, timeout_s: float) -> list[ElectionOutcome]:
        """Hold elections and return the outcomes by partition; with `validate_only` the expected ones.

        A retry with the same request id returns the outcomes of the first attempt.

        Raises:
            TidemarkError: INVALID_REQUEST, COORDINATION_UNAVAILABLE; other errors are in the outcomes.
        """
        _check(query)
        snapshot = await self._read(query)
        wanted = [partition for partition in snapshot.facts if partition not in snapshot.settled]
        if query.kind is not ElectionKind.PREFERRED and query.request_id:
            done = await self._done_before(wanted, query.request_id)
            snapshot.settled |= done
            wanted = [partition for partition in wanted if partition not in done]
        async for partition in InSlices(wanted):
            outcome = _judge(query.kind, partition, snapshot)
            if outcome is not None:
                snapshot.settled[partition] = outcome
        wanted = [partition for partition in wanted if partition not in snapshot.settled]
        if validate_only:
            snapshot.settled |= await self._foresee(query.kind, wanted, snapshot)
        else:
            snapshot.settled |= await self._carry_out(query, wanted, snapshot, timeout_s)
        return [snapshot.settled[partition] for partition in sorted(snapshot.settled)]

    async def unclean_elections(self, topics: Sequence[str]) -> list[UncleanElection]:
        """List the stored loss reports, by partition, the oldest first; raises UNKNOWN_TOPIC."""
        partitions = None
        if topics:
            for name in topics:
                check_topic_name(name)
            found = await self._store.topics(topics)
            for name in topics:
                if name not in found:
                    raise unknown_topic(name)
            partitions = [TopicPartition(name, index) for name in sorted(found) for index in found[name].partitions]
        kept = await self._store.unclean_elections(partitions)
        return [report for partition in sorted(kept) for report in kept[partition]]

    async def _read(self, query: ElectionQuery) -> _Snapshot:
        everything = not query.partitions and not query.topics
        asked = sorted({*query.topics, *(partition.topic for partition in query.partitions)})
        errors = {name: error for name in asked if (error := _misnamed(name)) is not None}
        names = [name for name in asked if name not in errors]
        unreadable: set[str] = set()
        topics, deletions, live, epochs = await asyncio.gather(
            self._store.topics(None if everything else names, unreadable=None if everything else unreadable),
            self._store.requested_deletions(),
            self._store.live_brokers(),
            self._store.broker_epochs(),
        )
        errors |= {name: _unreadable(name) for name in unreadable}
        there = {name: topic for name, topic in topics.items() if name not in deletions}
        snapshot = _Snapshot(
            BrokerFacts(
                live={broker: registration.broker_epoch for broker, registration in live.items()},
                unclean_at={broker: record.unclean_at for broker, record in epochs.items()},
            )
        )
        targets = set(query.partitions)
        for name in there if everything else query.topics:
            topic = there.get(name)
            targets |= {TopicPartition(name, -1)} if topic is None else _all_of(topic)
        known = {partition for partition in targets if _is_known(partition, there)}
        states = await self._store.states(sorted(known), sync=True, unreadable=snapshot.unreadable)
        async for partition in InSlices(sorted(targets)):
            topic = there.get(partition.topic)
            if topic is None or partition not in known:
                error = errors.get(partition.topic) or no_such_partition(partition, topic)
                snapshot.settled[partition] = ElectionOutcome(partition, error=error)
                continue
            versioned = states.get(partition)
            assigned = topic.partitions[partition.partition]
            state = None if versioned is None else versioned.state
            snapshot.facts[partition] = PartitionFacts(assigned, 1 if state is None else state.min_isr, state)
            incarnation = topic.incarnations.get(partition.partition, "")
            snapshot.identities[partition] = ReplicaIdentity(topic.topic_id, incarnation)
        return snapshot

    async def _done_before(
        self, partitions: Sequence[TopicPartition], request_id: str
    ) -> dict[TopicPartition, ElectionOutcome]:
        kept = await self._store.unclean_elections(partitions)
        mine = {
            partition: report
            for partition, reports in kept.items()
            for report in reports
            if report.request_id == request_id
        }
        return {partition: _elected_uncleanly(report) for partition, report in mine.items()}

    async def _foresee(
        self, kind: ElectionKind, wanted: Sequence[TopicPartition], snapshot: _Snapshot
    ) -> dict[TopicPartition, ElectionOutcome]:
        if kind is ElectionKind.PREFERRED:
            return {
                partition: replace(
                    _before(partition, snapshot),
                    leader=snapshot.facts[partition].assigned[0],
                    leader_epoch=NO_EPOCH,
                    changed=True,
                )
                for partition in wanted
            }
        asked = {
            partition: (snapshot.identities[partition], _with_state(snapshot.facts[partition])) for partition in wanted
        }
        return {
            partition: _elected_uncleanly(report)
            for partition, report in (await self._survey.foresee(asked, snapshot.brokers)).items()
        }

    async def _carry_out(
        self, query: ElectionQuery, wanted: Sequence[TopicPartition], snapshot: _Snapshot, timeout_s: float
    ) -> dict[TopicPartition, ElectionOutcome]:
        request_id = query.request_id or uuid.uuid4().hex
        until_s = asyncio.get_running_loop().time() + timeout_s
        outcomes: dict[TopicPartition, ElectionOutcome] = {}
        for start in range(0, len(wanted), _PARTITIONS_AT_ONCE):
            part = wanted[start : start + _PARTITIONS_AT_ONCE]
            late = await self._have_done(query.kind, part, request_id, snapshot, until_s)
            outcomes |= await self._results(query.kind, part, request_id, snapshot, late)
        return outcomes

    async def _have_done(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition],
        request_id: str,
        snapshot: _Snapshot,
        until_s: float,
    ) -> TidemarkError | None:
        """Request elections and wait until the controller has settled the request; returns the error of a timeout."""

        def left_s() -> float:
            return max(0.0, until_s - asyncio.get_running_loop().time())

        tries = 0

        async def asked() -> bool | None:
            nonlocal tries
            tries += 1
            if tries > 1:  # the previous attempt may have succeeded and lost only its response
                found = await self._results(kind, partitions, request_id, snapshot, None)
                if all(outcome.error is None for outcome in found.values()):
                    return True
            return await self._store.request_elections(kind, partitions, request_id) or None

        async def settled() -> bool | None:
            request = await self._store.requested_elections(kind)
            return True if request is None or request.request_id != request_id else None

        if await poll(asked, left_s()) is None:
            why = "another request for elections is still running; retry"
            return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"nothing was changed: {why}")
        if await poll(settled, left_s()) is None:
            controller = await self._store.controller()
            why = "no controller is active" if controller is None else "the controller has not decided it yet"
            return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"the election is requested, but {why}; check later")
        return None

    async def _results(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition],
        request_id: str,
        snapshot: _Snapshot,
        late: TidemarkError | None,
    ) -> dict[TopicPartition, ElectionOutcome]:
        states = await self._store.states(partitions, sync=True)
        done = await self._done_before(partitions, request_id)
        outcomes = {}
        for partition in partitions:
            before = _before(partition, snapshot)
            state = states[partition].state if partition in states else None
            first = snapshot.facts[partition].assigned[0]
            if partition in done:
                outcomes[partition] = done[partition]
            elif state is None:
                refused = _refused(kind, partition, snapshot.facts[partition])
                gone = refused if partition in snapshot.unreadable else unknown_topic(partition.topic)
                outcomes[partition] = replace(before, error=late or gone)
            elif state.leader == first or (kind is not ElectionKind.PREFERRED and state.leader != NO_LEADER):
                outcomes[partition] = replace(
                    before, leader=state.leader, leader_epoch=state.leader_epoch, changed=True
                )
            else:
                outcomes[partition] = replace(
                    before, leader=state.leader, error=late or _refused(kind, partition, snapshot.facts[partition])
                )
        return outcomes


def _check(query: ElectionQuery) -> None:
    if len(query.request_id) > REQUEST_ID_CHARACTERS_MAX:
        raise invalid_request(f"a request_id has {REQUEST_ID_CHARACTERS_MAX} characters at most")
    if query.kind is not ElectionKind.PREFERRED and (query.topics or not query.partitions):
        raise invalid_request("name each partition: this election may lose records")


def _all_of(topic: TopicDescription) -> set[TopicPartition]:
    return {TopicPartition(topic.topic, index) for index in topic.partitions}


def _is_known(partition: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    return partition.topic in topics and partition.partition in topics[partition.topic].partitions


def _before(partition: TopicPartition, snapshot: _Snapshot) -> ElectionOutcome:
    state = snapshot.facts[partition].state
    if state is None:  # the state of the partition is unreadable
        return ElectionOutcome(partition)
    return ElectionOutcome(partition, state.leader, state.leader, state.leader_epoch)


def _with_state(facts: PartitionFacts) -> PartitionFacts:
    """The request for a partition with an unreadable node names no leader epoch."""
    unknown = LeaderAndIsr(leader=NO_LEADER, leader_epoch=NO_EPOCH, isr=())
    return facts if facts.state is not None else facts._replace(state=unknown)


def _judge(kind: ElectionKind, partition: TopicPartition, snapshot: _Snapshot) -> ElectionOutcome | None:
    """The outcome that needs no controller; None when the controller must decide."""
    facts, brokers = snapshot.facts[partition], snapshot.brokers
    if kind is ElectionKind.REBUILD_STATE:
        return _judge_rebuild(partition, facts, brokers, unreadable=partition in snapshot.unreadable)
    if partition in snapshot.unreadable:
        command = f"run `tidemark elect --rebuild-state {partition.topic}:{partition.partition}`"
        sentence = f"the node of {partition} in ZooKeeper is unreadable: {command}"
        return _refusal(partition, facts, ErrorCode.LEADER_NOT_AVAILABLE, sentence)
    judge = _judge_preferred if kind is ElectionKind.PREFERRED else _judge_last_known
    return judge(partition, facts, brokers)


def _judge_rebuild(
    partition: TopicPartition, facts: PartitionFacts, brokers: BrokerFacts, *, unreadable: bool
) -> ElectionOutcome | None:
    """The outcome that needs no controller; None when the controller must decide."""
    if not unreadable:
        sentence = f"the node of {partition} in ZooKeeper is readable: there is no state to rebuild"
        return _refusal(partition, facts, ErrorCode.ELECTION_NOT_NEEDED, sentence)
    return None if live_replicas(facts, brokers) else _no_live_replica(partition, facts)


def _judge_preferred(partition: TopicPartition, facts: PartitionFacts, brokers: BrokerFacts) -> ElectionOutcome | None:
    """The outcome that needs no controller; None when the controller must decide."""
    state, first = facts.state, facts.assigned[0]
    if state is None or state.leader == NO_LEADER:
        return _refusal(
            partition,
            facts,
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{partition} has no leader, so a preferred election is not possible",
        )
    if state.leader == first:
        return ElectionOutcome(partition, first, first, state.leader_epoch)
    why = None
    if first not in brokers.live:
        why = "is not live: start it"
    elif first not in state.isr_ids:
        why = f"is not in sync yet (the ISR is {_listed(state.isr_ids)}): wait until it has caught up"
    if why is None:
        return None
    return _refusal(
        partition,
        facts,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"broker {state.leader} still leads {partition}: its preferred replica, broker {first}, {why}",
    )


def _judge_last_known(partition: TopicPartition, facts: PartitionFacts, brokers: BrokerFacts) -> ElectionOutcome | None:
    """The outcome that needs no controller; None when the controller must decide."""
    state = facts.state
    if state is None:
        return _refusal(
            partition, facts, ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} is new and has had no leader yet"
        )
    if state.leader != NO_LEADER:
        return _refusal(
            partition,
            facts,
            ErrorCode.ELECTION_NOT_NEEDED,
            f"broker {state.leader} leads {partition}: this election is for partitions without a leader",
        )
    return None if live_replicas(facts, brokers) else _no_live_replica(partition, facts)


def _no_live_replica(partition: TopicPartition, facts: PartitionFacts) -> ElectionOutcome:
    sentence = f"no replica of {partition} is live: start one of the brokers {_listed(facts.assigned)}"
    return _refusal(partition, facts, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, sentence)


def _refusal(partition: TopicPartition, facts: PartitionFacts, code: ErrorCode, sentence: str) -> ElectionOutcome:
    error = TidemarkError(code, sentence, partition.facts)
    if facts.state is None:
        return ElectionOutcome(partition, error=error)
    leader = facts.state.leader
    return ElectionOutcome(partition, leader, leader, facts.state.leader_epoch, error=error)


def _refused(kind: ElectionKind, partition: TopicPartition, facts: PartitionFacts) -> TidemarkError:
    """Make the error of a partition for which the controller settled the request without an election."""
    where = partition.facts
    if kind is ElectionKind.PREFERRED:
        return TidemarkError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"the preferred replica of {partition}, broker {facts.assigned[0]}, was not elected. The replica left "
            "the ISR, or does not answer the controller; the controller's log has the reason",
            where,
        )
    return TidemarkError(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"{partition} has no leader yet: no replica has reported its log to the controller; see the controller's log",
        where,
    )


def _elected_uncleanly(report: UncleanElection) -> ElectionOutcome:
    return ElectionOutcome(
        report.partition, NO_LEADER, report.leader, report.leader_epoch, report.leader != NO_LEADER, report
    )


def _misnamed(name: str) -> TidemarkError | None:
    try:
        check_topic_name(name)
    except TidemarkError as error:
        return error
    return None


def _unreadable(name: str) -> TidemarkError:
    sentence = f"the ZooKeeper node of topic {name}, or the node of its settings, cannot be read: restore that first"
    return TidemarkError(ErrorCode.INTERNAL, sentence, {"topic": name})


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(str(broker) for broker in brokers) or "empty"
