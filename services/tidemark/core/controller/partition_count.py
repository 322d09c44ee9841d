# SPDX-License-Identifier: Apache-2.0
"""Adding partitions to a topic and removing partitions from it (rule C7).

Added partitions are written to the topic's node, then leaders are elected as for a new topic. Only the highest-numbered
partitions can be removed. Their leader epoch rises with the `sealed` mark, so that the leader refuses produce and
reports whether the partition is empty. Then the topic's node drops them, and their replicas and nodes are deleted. If a
partition is not empty and the request does not force the removal, the topic's request is refused and the seals are
removed.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, TypeVar

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import DeletePartitions, DescribeReplicas, FinishPartitionRequests
from tidemark.core.controller.leader_election import Decision
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.messages import ReplicaQuestion
from tidemark.core.reassignment.request import too_old
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
    unknown_partition,
    unknown_topic,
)

ADD: Final = "partitions_add"
REMOVE: Final = "partitions_remove"
T = TypeVar("T")

_RETRY_MS: Final = 500
_EMPTY_WAIT_MS: Final = 30_000
"""Time that a sealed leader may take to report whether the partition is empty."""


@dataclass(slots=True)
class _Removal:
    """The removal of some of a topic's partitions.

    Attributes:
        forced: the partitions, each with whether it is removed even where it is not empty.
        until_ms: the removal is refused if a leader does not report by then.
        ready: sealed and empty, or forced, or removed already. Invariant: a subset of `forced`; once equal, the topic's
            node is written.
        ask_at_ms: time when a partition's leader is asked next.
        gone: the topic's node no longer names them.
        deleting: the deletion of their nodes is in flight. Invariant: only once `gone`.
        retry_at_ms: time when that deletion is retried.
    """

    forced: Mapping[int, bool]
    until_ms: int
    ready: set[int] = field(default_factory=set)
    ask_at_ms: dict[int, int] = field(default_factory=dict)
    gone: bool = False
    deleting: bool = False
    retry_at_ms: int = 0


class PartitionCountChanges:
    """The requests, by topic. Finished and refused ones gather until `effects` takes them.

    Attributes:
        _reassigned: partitions that are being reassigned; they cannot be removed.
        _known: the requests were read in this term.
        _resumed_later: topics with removals whose node did not parse at the first read of this term.
        _added: replicas of the partitions to add, by topic and index; until the topic's node names them.
        _removals: removals of partitions by topic.
        _asked: partition by request id of a `DescribeReplicas` in flight.
        _questions: questions that are not sent yet.
        _malformed: paths of nodes that do not parse, until a deletion of nodes is confirmed; each is refused once.
        _finishing: requests whose nodes are to be deleted, until that is confirmed; seen after that, they are new.
        _finished, _refused: the requests in `_finishing` that the next `FinishPartitionRequests` names, each with
            whether it forces a removal.
    """

    def __init__(self, ctx: ControllerContext, reassigned: Container[TopicPartition]) -> None:
        self._ctx = ctx
        self._reassigned = reassigned
        self._known = False
        self._resumed_later: set[str] = set()
        self._added: defaultdict[str, dict[int, tuple[BrokerId, ...]]] = defaultdict(dict)
        self._removals: dict[str, _Removal] = {}
        self._asked: dict[int, TopicPartition] = {}
        self._questions: list[DescribeReplicas] = []
        self._ids = count(-1, -1)  # separate from the request ids of unclean elections
        self._finishing: set[tuple[str, TopicPartition]] = set()
        self._malformed: set[str] = set()
        self._finished: dict[str, dict[TopicPartition, bool]] = {ADD: {}, REMOVE: {}}
        self._refused: list[Refusal] = []

    def __contains__(self, partition: object) -> bool:
        """Whether the partition is being removed, or may be: a new controller reads removals late."""
        if not self._known:
            return True
        if not isinstance(partition, TopicPartition):
            return False
        removal = self._removals.get(partition.topic)
        return removal is not None and not removal.gone and partition.partition in removal.forced

    # -- requests ----------------------------------------------------------------------------------------------

    def requested(self, event: ev.PartitionsRequested, now_ms: int) -> None:
        """Begin the requests that are in ZooKeeper now, removals first; refuse those that are malformed."""
        self._known = True
        requests = event.requests  # removals first: none is added to a topic that has a removal
        for refusal in requests.malformed:
            path = refusal.error.metadata.get("path", "")
            if path not in self._malformed:
                self._malformed.add(path)
                self._refuse(refusal.kind, refusal.partition, refusal.error)
        removed, wanted = _by_topic(requests.removed), _by_topic(requests.added)
        for topic, added in wanted.items():
            self._finish_written(topic, added)
        waiting = self._finishing_in(ADD)
        if event.resumed:
            self._resumed_later = set(filter(self._ctx.is_unread, removed))
        for topic, forced in removed.items():
            if self._ctx.is_unread(topic) or topic in waiting:
                continue
            self._remove(
                topic,
                {one: force for one, force in forced.items() if self._is_new(REMOVE, topic, one)},
                now_ms,
                resumed=event.resumed or topic in self._resumed_later,
            )
            self._resumed_later.discard(topic)
        waiting = self._finishing_in(REMOVE)
        for topic, added in wanted.items():
            if not self._ctx.is_unread(topic) and topic not in waiting:
                self._add(topic, {one: found for one, found in added.items() if self._is_new(ADD, topic, one)})
        for topic in [name for name, one in self._removals.items() if name not in removed and not one.gone]:
            del self._removals[topic]  # the request was withdrawn
        self._decide_sealed()

    def _is_new(self, kind: str, topic: str, index: int) -> bool:
        return (kind, TopicPartition(topic, index)) not in self._finishing

    def _finishing_in(self, kind: str) -> set[str]:
        """Topics with finished or refused requests of this kind whose nodes still exist.

        The next controller would apply such a node to partitions that were added or removed after it. So a request of
        the other kind waits; the requests are read again after the deletion of the nodes.
        """
        return {one.topic for of_kind, one in self._finishing if of_kind == kind}

    def _finish_written(self, name: str, added: Mapping[int, tuple[BrokerId, ...]]) -> None:
        """Finish additions that an earlier controller has written to the topic's node."""
        topic, known = self._ctx.topics.get(name), self._added.get(name, {})
        if topic is not None:
            new = [index for index in added if index not in known and self._is_new(ADD, name, index)]
            self._finish(ADD, name, {one: False for one in new if topic.partitions.get(one) == added[one]})

    def _add(self, name: str, added: Mapping[int, tuple[BrokerId, ...]]) -> None:
        topic = self._ctx.topics.get(name)
        known = self._added.get(name, {})
        for index in sorted(set(added) - set(known)):
            there = 0 if topic is None else len(topic.partitions)
            error = self._why_not_added(name, topic, index, added[index], there + len(self._added[name]))
            if error is not None:
                self._refuse(ADD, TopicPartition(name, index), error)
                continue
            self._added[name][index] = added[index]
            self._ctx.rewritten.add(name)

    def _why_not_added(
        self, name: str, topic: TopicDescription | None, index: int, replicas: tuple[BrokerId, ...], following: int
    ) -> TidemarkError | None:
        if topic is None:
            return unknown_topic(name)
        if name in self._removals:
            return invalid_request(f"partitions of {name} are being removed; wait for that")
        if index != following:
            sentence = f"the next partition of {name} is {following}, not {index}"
            return TidemarkError(ErrorCode.INVALID_PARTITIONS, sentence)
        if not replicas:
            return TidemarkError(ErrorCode.EMPTY_REPLICAS, f"partition {index} of {name} needs at least one replica")
        if len(set(replicas)) < len(replicas):
            return TidemarkError(ErrorCode.DUPLICATE_REPLICA, f"{name}-{index}: {list(replicas)} names a broker twice")
        away = [broker for broker in replicas if broker not in self._ctx.brokers]
        if away:
            sentence = f"{name}-{index} must have replicas on brokers {away}, which are not live"
            return TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, sentence)
        older = [broker for broker in replicas if not self._ctx.may_hold(broker, name)]
        if older:
            sentence = f"{name}-{index} is of a typed topic: {too_old(older[0])}, or name another"
            return invalid_request(sentence)
        return None

    def _remove(self, name: str, forced: Mapping[int, bool], now_ms: int, *, resumed: bool) -> None:
        removal = self._removals.get(name)
        if not forced or (removal is not None and (removal.gone or removal.forced == forced)):
            return  # other requests are read again when that removal has ended
        topic = self._ctx.topics.get(name)
        if resumed and topic is None:
            self._finish(REMOVE, name, forced)  # the partition was deleted with its topic
            return
        missing = set() if topic is None else set(forced) - set(topic.partitions)
        if resumed and missing:  # an earlier controller has already removed the partitions
            self._removals[name] = _Removal({index: forced[index] for index in missing}, now_ms, gone=True)
            return
        error = self._why_not_removed(name, topic, forced)
        if error is not None:
            for index, force in forced.items():
                self._refuse(REMOVE, TopicPartition(name, index), error, force=force)
            return
        self._removals[name] = _Removal(forced, now_ms + _EMPTY_WAIT_MS)
        self._ctx.dirty.update(TopicPartition(name, index) for index in forced)

    def _why_not_removed(
        self, name: str, topic: TopicDescription | None, forced: Mapping[int, bool]
    ) -> TidemarkError | None:
        if topic is None:
            return unknown_topic(name)
        unknown = sorted(set(forced) - set(topic.partitions))
        if unknown:
            return unknown_partition(name, unknown[0], len(topic.partitions))
        if self._added.get(name):
            return invalid_request(f"partitions are being added to {name}; wait for that")
        left = len(topic.partitions) - len(forced)
        if left < 1:
            return TidemarkError(ErrorCode.INVALID_PARTITIONS, f"topic {name} keeps one partition at least; delete it")
        if min(forced) < left:
            sentence = (
                f"only the highest-numbered partitions of {name} can be removed: {left} and above, not {min(forced)}"
            )
            return TidemarkError(ErrorCode.NOT_HIGHEST_PARTITION, sentence)
        moving = [index for index in sorted(forced) if TopicPartition(name, index) in self._reassigned]
        if moving:
            sentence = f"{name}-{moving[0]} is being reassigned; wait for that or cancel it"
            return TidemarkError(ErrorCode.REASSIGNMENT_IN_PROGRESS, sentence)
        return None

    # -- sealing -----------------------------------------------------------------------------------------------

    def next(self, partition_state: PartitionState, now_ms: int) -> Decision | None:
        """Seal or unseal this partition, or take the next step of its removal."""
        state, index = partition_state.state, partition_state.partition.partition
        removal = self._removals.get(partition_state.partition.topic)
        wanted = removal is not None and index in removal.forced
        if state is None or not self._known:
            return None
        if state.sealed != wanted and state.leader != NO_LEADER:
            sealed = replace(state, sealed=wanted, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
            return Decision(sealed, {state.leader: self._ctx.brokers[state.leader].broker_epoch})
        if removal is None or not wanted or index in removal.ready:
            return None
        if removal.forced[index] and (state.sealed or state.leader == NO_LEADER):
            self._is_ready(partition_state.partition.topic, removal, index)
        elif (
            state.sealed
            and self._ctx.leader_acknowledged(partition_state)
            and now_ms >= removal.ask_at_ms.get(index, 0)
        ):
            removal.ask_at_ms[index] = now_ms + 2 * _RETRY_MS
            self._ask(partition_state)
        return None

    def _ask(self, partition_state: PartitionState) -> None:
        assert partition_state.state is not None
        broker = partition_state.state.leader
        if broker == NO_LEADER:
            return
        request_id = next(self._ids)
        self._asked[request_id] = partition_state.partition
        question = ReplicaQuestion(
            partition_state.partition, partition_state.identity, partition_state.state.leader_epoch
        )
        self._questions.append(
            DescribeReplicas(broker, request_id, self._ctx.commands[broker].broker_epoch, (question,))
        )

    def answered(self, event: ev.ReplicasDescribed, now_ms: int) -> bool:
        """Use an answer; returns False if the question came from another part of the controller."""
        partition = self._asked.pop(event.request_id, None)
        if partition is None:
            return False
        removal = self._removals.get(partition.topic)
        held = event.described.get(partition)
        if removal is None or partition.partition not in removal.forced:
            return True
        if held is None:
            if now_ms >= removal.until_ms:
                self._give_up(
                    partition, "its leader did not report in time whether it is empty", ErrorCode.REQUEST_TIMED_OUT
                )
            return True
        if held.log_start_offset == held.log_end_offset:
            self._is_ready(partition.topic, removal, partition.partition)
        else:
            records = held.log_end_offset - held.log_start_offset
            self._give_up(
                partition,
                f"it holds {records} offsets; delete its records first (`tidemark topic delete-records`), or use force",
                ErrorCode.PARTITION_NOT_EMPTY,
            )
        return True

    def _give_up(self, partition: TopicPartition, why: str, code: ErrorCode) -> None:
        removal = self._removals.pop(partition.topic)
        for index, force in removal.forced.items():
            one = TopicPartition(partition.topic, index)
            self._refuse(REMOVE, one, TidemarkError(code, f"{partition} cannot be removed: {why}"), force=force)
            self._ctx.dirty.add(one)  # the next decision removes the seal

    def _is_ready(self, topic: str, removal: _Removal, index: int) -> None:
        removal.ready.add(index)
        if len(removal.ready) == len(removal.forced):
            self._ctx.rewritten.add(topic)

    def acknowledged(self) -> None:
        """Continue removals for which brokers have acknowledged commands."""
        for name, removal in self._removals.items():
            if not removal.gone:
                self._ctx.dirty.update(TopicPartition(name, index) for index in removal.forced)

    def due(self, now_ms: int) -> None:
        """Retry questions and deletions of nodes."""
        self.acknowledged()
        for name, removal in self._removals.items():
            if removal.gone and not removal.deleting and now_ms >= removal.retry_at_ms:
                self._delete(name, removal)

    def _decide_sealed(self) -> None:
        self._ctx.dirty.update(
            one
            for one, partition_state in self._ctx.partitions.items()
            if partition_state.state is not None and partition_state.state.sealed
        )

    # -- the topic's node --------------------------------------------------------------------------------------

    def rewrite(self, topic: TopicDescription) -> TopicDescription:
        """The node to write next."""
        partitions, incarnations = dict(topic.partitions), dict(topic.incarnations)
        adding, removing, original = dict(topic.adding), dict(topic.removing), dict(topic.original)
        for index, replicas in sorted(self._added.get(topic.topic, {}).items()):
            if index == len(partitions):
                partitions[index] = replicas
                incarnations[index] = _incarnation(topic, index, self._ctx.config.controller_epoch)
        removal = self._removals.get(topic.topic)
        if removal is not None and len(removal.ready) == len(removal.forced):
            for index in removal.forced:
                for fields in (partitions, incarnations, adding, removing, original):
                    fields.pop(index, None)
        if partitions == topic.partitions:
            return topic
        return replace(
            topic,
            partitions=partitions,
            incarnations=incarnations,
            adding=adding,
            removing=removing,
            original=original,
        )

    def topic_learned(self, topic: TopicDescription) -> None:
        """The current node: additions and removals that the node shows are complete."""
        name = topic.topic
        added = [index for index in self._added.get(name, {}) if index in topic.partitions]
        if added:
            self._finish(ADD, name, dict.fromkeys(added, False))
            self._ctx.observe("partitions_added", None, topic=name, partitions=len(topic.partitions))
            for index in added:
                del self._added[name][index]
        removal = self._removals.get(name)
        if removal is None or removal.gone:
            return
        removal.ready |= set(removal.forced) - set(topic.partitions)  # a write of a smaller removal before this one
        if not set(removal.forced) & set(topic.partitions):
            removal.gone = True
            self._ctx.observe("partitions_removed", None, topic=name, partitions=len(topic.partitions))
            self._delete(name, removal)

    def topic_gone(self, topic: str) -> None:
        """Drop the requests of a topic that was deleted."""
        added, removal = self._added.pop(topic, {}), self._removals.pop(topic, None)
        self._finish(ADD, topic, dict.fromkeys(added, False))
        self._finish(REMOVE, topic, {} if removal is None else removal.forced)

    def _delete(self, name: str, removal: _Removal) -> None:
        topic = self._ctx.topics.get(name)
        if topic is None:
            return
        removal.deleting = True
        self._ctx.emit(DeletePartitions(topic, tuple(sorted(removal.forced))))

    def deleted(self, event: ev.PartitionsDeleted, now_ms: int) -> None:
        """Note that the nodes were deleted, or that the deletion failed."""
        removal = self._removals.get(event.topic)
        if removal is None or not removal.gone:
            return
        if event.error is not None:
            removal.deleting = False
            removal.retry_at_ms = now_ms + _RETRY_MS
            return
        del self._removals[event.topic]
        self._finish(REMOVE, event.topic, removal.forced)

    # -- answers -----------------------------------------------------------------------------------------------

    def finished(self, event: ev.PartitionRequestsFinished) -> None:
        """Note that these nodes were deleted; a node that is read again is a new request."""
        self._malformed.clear()
        self._finishing -= {(ADD, one) for one in event.added} | {(REMOVE, one) for one in event.removed}

    def _finish(self, kind: str, topic: str, forced: Mapping[int, bool]) -> None:
        named = {TopicPartition(topic, index): force for index, force in forced.items()}
        self._finished[kind] |= named
        self._finishing.update((kind, one) for one in named)

    def _refuse(
        self, kind: str, partition: TopicPartition | None, error: TidemarkError, *, force: bool = False
    ) -> None:
        self._ctx.observe("request_refused", partition, request=kind, code=str(error.code), why=error.message)
        self._refused.append(Refusal(kind, partition, error))
        if partition is not None:
            self._finishing.add((kind, partition))
            self._finished[kind][partition] = force

    def effects(self) -> Iterator[DescribeReplicas | FinishPartitionRequests]:
        """Questions to send, and requests to remove."""
        yield from self._questions
        self._questions = []
        added, removed = self._finished[ADD], self._finished[REMOVE]
        if added or removed or self._refused:
            yield FinishPartitionRequests(tuple(added), removed, tuple(self._refused))
            self._finished, self._refused = {ADD: {}, REMOVE: {}}, []


def _by_topic(requests: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    by_topic: defaultdict[str, dict[int, T]] = defaultdict(dict)
    for partition, request in sorted(requests.items()):
        by_topic[partition.topic][partition.partition] = request
    return by_topic


def _incarnation(topic: TopicDescription, index: int, controller_epoch: int) -> str:
    """Derived from the node's version, since the core has no randomness: each write of the node gives another one."""
    name = f"{topic.topic_id}/{index}/{topic.version}/{topic.modified_zxid}/{controller_epoch}"
    return uuid.uuid5(uuid.NAMESPACE_OID, name).hex
