# SPDX-License-Identifier: Apache-2.0
"""The controller's part in partitions that are added to a topic and removed from it (rule C7).

Added: the topic's node gets them, then leaders are found as for a new topic. Removed, the highest-numbered only: their
leader epoch rises with the `sealed` mark, so that the leader refuses produce; it says whether the partition is empty;
the topic's node loses them; their replicas and nodes are deleted. If one is not empty and nobody insists, all of the
topic's request is refused, and the seals are taken off again.
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
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.messages import ReplicaQuestion
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    unknown_topic,
)

ADD: Final = "partitions_add"
REMOVE: Final = "partitions_remove"
T = TypeVar("T")

_RETRY_MS: Final = 500
_EMPTY_WAIT_MS: Final = 30_000
"""So long a sealed leader may take to say whether it is empty."""


@dataclass(slots=True)
class _Removal:
    """Of one topic's partitions. `ready`: sealed and empty, or to go all the same; `asked`: question and its partition.

    `gone`: the topic's node has lost them; `deleting`: their nodes are being deleted.
    """

    forced: Mapping[int, bool]
    until_ms: int
    ready: set[int] = field(default_factory=set)
    ask_at_ms: dict[int, int] = field(default_factory=dict)
    gone: bool = False
    deleting: bool = False
    retry_at_ms: int = 0


class PartitionChanges:
    """What is asked for, by topic. What has ended or was refused gathers until `effects` takes it."""

    def __init__(self, ctx: ControllerContext, moved: Container[TopicPartition]) -> None:
        self._ctx = ctx
        self._moved = moved
        self._known = False
        self._resumed_later: set[str] = set()
        """Topics that could not be understood when this was first asked for in this term."""
        self._added: defaultdict[str, dict[int, tuple[BrokerId, ...]]] = defaultdict(dict)
        self._removals: dict[str, _Removal] = {}
        self._asked: dict[int, TopicPartition] = {}
        self._questions: list[DescribeReplicas] = []
        self._ids = count(-1, -1)  # never those of unclean elections
        self._finishing: set[tuple[str, TopicPartition]] = set()
        self._finished: dict[str, list[TopicPartition]] = {ADD: [], REMOVE: []}
        self._refused: list[Refusal] = []

    def __contains__(self, partition: object) -> bool:
        """Whether it is being removed, or may be: a new controller hears of removals after its first word."""
        if not self._known:
            return True
        if not isinstance(partition, TopicPartition):
            return False
        removal = self._removals.get(partition.topic)
        return removal is not None and not removal.gone and partition.partition in removal.forced

    # -- what is asked for -------------------------------------------------------------------------------------

    def requested(self, event: ev.PartitionsRequested, now_ms: int) -> None:
        """All requests there are now."""
        self._known = True
        requests = event.requests  # removals first: what is being removed is not added before that has ended
        for refusal in requests.malformed:
            self._refuse(refusal.kind, refusal.partition, refusal.error)
        removed = _by_topic(requests.removed)
        if event.resumed:
            self._resumed_later = set(filter(self._ctx.is_unread, removed))
        for topic, forced in removed.items():
            if self._ctx.is_unread(topic):
                continue
            self._remove(
                topic,
                {one: force for one, force in forced.items() if self._is_new(REMOVE, topic, one)},
                now_ms,
                resumed=event.resumed or topic in self._resumed_later,
            )
            self._resumed_later.discard(topic)
        for topic, added in _by_topic(requests.added).items():
            if not self._ctx.is_unread(topic):
                self._add(topic, {one: found for one, found in added.items() if self._is_new(ADD, topic, one)})
        for topic in [name for name, one in self._removals.items() if name not in removed and not one.gone]:
            del self._removals[topic]  # nobody wants it any more
        self._look_at_sealed()

    def _is_new(self, kind: str, topic: str, index: int) -> bool:
        return (kind, TopicPartition(topic, index)) not in self._finishing

    def _add(self, name: str, added: Mapping[int, tuple[BrokerId, ...]]) -> None:
        topic = self._ctx.topics.get(name)
        known = self._added.get(name, {})
        for index in sorted(set(added) - set(known)):
            there = 0 if topic is None else len(topic.partitions)
            if topic is not None and topic.partitions.get(index) == added[index]:
                self._finish(ADD, name, [index])  # a controller before us has written it
                continue
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
            return TidemarkError(ErrorCode.INVALID_REQUEST, f"partitions of {name} are being removed; wait for that")
        if index != following:
            sentence = f"the next partition of {name} is {following}, not {index}"
            return TidemarkError(ErrorCode.INVALID_PARTITIONS, sentence)
        if not replicas:
            return TidemarkError(ErrorCode.EMPTY_REPLICAS, f"partition {index} of {name} needs a replica at least")
        if len(set(replicas)) < len(replicas):
            return TidemarkError(ErrorCode.DUPLICATE_REPLICA, f"{name}-{index}: {list(replicas)} names a broker twice")
        away = [broker for broker in replicas if broker not in self._ctx.brokers]
        if away:
            sentence = f"{name}-{index} shall have replicas on brokers {away}, which are not live"
            return TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, sentence)
        return None

    def _remove(self, name: str, forced: Mapping[int, bool], now_ms: int, *, resumed: bool) -> None:
        removal = self._removals.get(name)
        if not forced or (removal is not None and (removal.gone or removal.forced == forced)):
            return  # what else is asked for is read again when that has ended
        topic = self._ctx.topics.get(name)
        if resumed and topic is None:
            self._finish(REMOVE, name, list(forced))  # it went with its topic
            return
        missing = set() if topic is None else set(forced) - set(topic.partitions)
        if resumed and missing:  # a controller before us came so far with these
            self._removals[name] = _Removal({index: forced[index] for index in missing}, now_ms, gone=True)
            return
        error = self._why_not_removed(name, topic, forced)
        if error is not None:
            for index in forced:
                self._refuse(REMOVE, TopicPartition(name, index), error)
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
            return TidemarkError(ErrorCode.UNKNOWN_PARTITION, f"topic {name} has no partition {unknown[0]}")
        if self._added.get(name):
            return TidemarkError(ErrorCode.INVALID_REQUEST, f"partitions are being added to {name}; wait for that")
        left = len(topic.partitions) - len(forced)
        if left < 1:
            return TidemarkError(ErrorCode.INVALID_PARTITIONS, f"topic {name} keeps one partition at least; delete it")
        if min(forced) < left:
            sentence = (
                f"only the highest-numbered partitions of {name} can be removed: {left} and above, not {min(forced)}"
            )
            return TidemarkError(ErrorCode.NOT_HIGHEST_PARTITION, sentence)
        moving = [index for index in sorted(forced) if TopicPartition(name, index) in self._moved]
        if moving:
            sentence = f"{name}-{moving[0]} is being moved; wait for that or cancel it"
            return TidemarkError(ErrorCode.REASSIGNMENT_IN_PROGRESS, sentence)
        return None

    # -- sealing -----------------------------------------------------------------------------------------------

    def next(self, record: PartitionRecord, now_ms: int) -> Decision | None:
        """The seal of this partition put on or taken off, or the next step towards its end."""
        state, index = record.state, record.partition.partition
        removal = self._removals.get(record.partition.topic)
        wanted = removal is not None and index in removal.forced
        if state is None or not self._known:
            return None
        if state.sealed != wanted and state.leader != NO_LEADER:
            sealed = replace(state, sealed=wanted, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
            return Decision(sealed, {state.leader: self._ctx.brokers[state.leader].broker_epoch})
        if removal is None or not wanted or index in removal.ready:
            return None
        if removal.forced[index] and (state.sealed or state.leader == NO_LEADER):
            self._is_ready(record.partition.topic, removal, index)
        elif state.sealed and self._ctx.leader_was_told(record) and now_ms >= removal.ask_at_ms.get(index, 0):
            removal.ask_at_ms[index] = now_ms + 2 * _RETRY_MS
            self._ask(record)
        return None

    def _ask(self, record: PartitionRecord) -> None:
        assert record.state is not None
        broker = record.state.leader
        if broker == NO_LEADER:
            return
        request_id = next(self._ids)
        self._asked[request_id] = record.partition
        question = ReplicaQuestion(record.partition, record.identity, record.state.leader_epoch)
        self._questions.append(DescribeReplicas(broker, request_id, self._ctx.links[broker].broker_epoch, (question,)))

    def answered(self, event: ev.ReplicasDescribed, now_ms: int) -> bool:
        """Whether this was an answer to a question of ours."""
        partition = self._asked.pop(event.request_id, None)
        if partition is None:
            return False
        removal = self._removals.get(partition.topic)
        held = event.described.get(partition)
        if removal is None or partition.partition not in removal.forced:
            return True
        if held is None:
            if now_ms >= removal.until_ms:
                self._give_up(partition, "its leader does not say whether it is empty", ErrorCode.REQUEST_TIMED_OUT)
            return True
        if held.log_start_offset == held.log_end_offset:
            self._is_ready(partition.topic, removal, partition.partition)
        else:
            records = held.log_end_offset - held.log_start_offset
            self._give_up(
                partition,
                f"it holds {records} offsets; delete its records first, or use force",
                ErrorCode.PARTITION_NOT_EMPTY,
            )
        return True

    def _give_up(self, partition: TopicPartition, why: str, code: ErrorCode) -> None:
        removal = self._removals.pop(partition.topic)
        for index in removal.forced:
            one = TopicPartition(partition.topic, index)
            self._refuse(REMOVE, one, TidemarkError(code, f"{partition} cannot be removed: {why}"))
            self._ctx.dirty.add(one)  # the seal comes off

    def _is_ready(self, topic: str, removal: _Removal, index: int) -> None:
        removal.ready.add(index)
        if len(removal.ready) == len(removal.forced):
            self._ctx.rewritten.add(topic)

    def told(self) -> None:
        """Brokers have taken in commands."""
        for name, removal in self._removals.items():
            if not removal.gone:
                self._ctx.dirty.update(TopicPartition(name, index) for index in removal.forced)

    def due(self, now_ms: int) -> None:
        """Questions are asked again, nodes are deleted again."""
        self.told()
        for name, removal in self._removals.items():
            if removal.gone and not removal.deleting and now_ms >= removal.retry_at_ms:
                self._delete(name, removal)

    def _look_at_sealed(self) -> None:
        self._ctx.dirty.update(
            one for one, record in self._ctx.records.items() if record.state is not None and record.state.sealed
        )

    # -- the topic's node --------------------------------------------------------------------------------------

    def rewrite(self, topic: TopicDescription) -> TopicDescription:
        """The node as it should be next."""
        partitions, incarnations = dict(topic.partitions), dict(topic.incarnations)
        for index, replicas in sorted(self._added.get(topic.topic, {}).items()):
            if index == len(partitions):
                partitions[index] = replicas
                incarnations[index] = _incarnation(topic, index, self._ctx.config.controller_epoch)
        removal = self._removals.get(topic.topic)
        if removal is not None and len(removal.ready) == len(removal.forced):
            for index in removal.forced:
                partitions.pop(index, None)
                incarnations.pop(index, None)
        if partitions == topic.partitions:
            return topic
        return replace(topic, partitions=partitions, incarnations=incarnations)

    def topic_learned(self, topic: TopicDescription) -> None:
        """The node as it is now: what was asked for may be in it."""
        name = topic.topic
        added = [index for index in self._added.get(name, {}) if index in topic.partitions]
        if added:
            self._finish(ADD, name, added)
            self._ctx.observe("partitions_added", None, topic=name, partitions=len(topic.partitions))
            for index in added:
                del self._added[name][index]
        removal = self._removals.get(name)
        if removal is not None and not removal.gone and not set(removal.forced) & set(topic.partitions):
            removal.gone = True
            self._ctx.observe("partitions_removed", None, topic=name, partitions=len(topic.partitions))
            self._delete(name, removal)

    def topic_gone(self, topic: str) -> None:
        """It was deleted, and with it what was asked for."""
        added, removal = self._added.pop(topic, {}), self._removals.pop(topic, None)
        self._finish(ADD, topic, list(added))
        self._finish(REMOVE, topic, [] if removal is None else list(removal.forced))

    def _delete(self, name: str, removal: _Removal) -> None:
        topic = self._ctx.topics.get(name)
        if topic is None:
            return
        removal.deleting = True
        self._ctx.emit(DeletePartitions(topic, tuple(sorted(removal.forced))))

    def deleted(self, event: ev.PartitionsDeleted, now_ms: int) -> None:
        """The nodes are gone, or not yet."""
        removal = self._removals.get(event.topic)
        if removal is None or not removal.gone:
            return
        if event.error is not None:
            removal.deleting = False
            removal.retry_at_ms = now_ms + _RETRY_MS
            return
        del self._removals[event.topic]
        self._finish(REMOVE, event.topic, list(removal.forced))

    # -- answers -----------------------------------------------------------------------------------------------

    def finished(self, event: ev.PartitionRequestsFinished) -> None:
        """These nodes are gone: if one is seen again it was asked for again."""
        self._finishing -= {(ADD, one) for one in event.added} | {(REMOVE, one) for one in event.removed}

    def _finish(self, kind: str, topic: str, partitions: list[int]) -> None:
        named = [TopicPartition(topic, index) for index in partitions]
        self._finished[kind] += named
        self._finishing.update((kind, one) for one in named)

    def _refuse(self, kind: str, partition: TopicPartition | None, error: TidemarkError) -> None:
        self._ctx.observe("request_refused", partition, request=kind, code=str(error.code), why=error.message)
        self._refused.append(Refusal(kind, partition, error))
        if partition is not None:
            self._finishing.add((kind, partition))
            self._finished[kind].append(partition)

    def effects(self) -> Iterator[DescribeReplicas | FinishPartitionRequests]:
        """What is to be asked, and which requests are settled."""
        yield from self._questions
        self._questions = []
        added, removed = self._finished[ADD], self._finished[REMOVE]
        if added or removed or self._refused:
            yield FinishPartitionRequests(tuple(added), tuple(removed), tuple(self._refused))
            self._finished, self._refused = {ADD: [], REMOVE: []}, []


def _by_topic(requests: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    by_topic: defaultdict[str, dict[int, T]] = defaultdict(dict)
    for partition, request in sorted(requests.items()):
        by_topic[partition.topic][partition.partition] = request
    return by_topic


def _incarnation(topic: TopicDescription, index: int, controller_epoch: int) -> str:
    """A new one at each version of the node: the core has no randomness of its own."""
    name = f"{topic.topic_id}/{index}/{topic.version}/{topic.modified_zxid}/{controller_epoch}"
    return uuid.uuid5(uuid.NAMESPACE_OID, name).hex
