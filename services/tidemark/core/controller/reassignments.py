# SPDX-License-Identifier: Apache-2.0
"""The controller's part in moves of replicas (rules M1, M2).

Level-triggered: what a move needs next is read off its entry in /admin/reassign_partitions, the topic's node and
leaderAndISR, so that a new controller goes on where the last one stopped. Its twelve steps:

1 AR becomes RAR + OAR in the topic's node (`begin`); 2 all of them are told by LeaderAndIsr, 3 the new ones are New;
4 wait until all of RAR are in sync; 5, 6, 7 one leaderAndISR write after which RAR alone are in sync, one of them leads
in a new epoch and min_isr is RAR's (`next`), told to RAR as the assigned replicas (`look`); 8, 9 once the leader has
taken that in, nobody can take the others back into the ISR: they are Offline, and deleted by StopReplica; 10 the
topic's node has AR = RAR (`rewrite`); 11 the entry goes; 12 everybody is told by UpdateMetadata.

A cancelled move goes the same way to the original list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import FinishMoves
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, settle
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.controller.reassignment_log_dirs import MoveDirectories, directory_refusal
from tidemark.core.reassignment.request import check_moves, named_directories
from tidemark.core.reassignment.status import MoveStatus, status
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    ErrorCode,
    LeaderAndIsr,
    LeaderEpoch,
    Move,
    MoveRequests,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)

REASSIGN = "reassign"


@dataclass(slots=True)
class _Settled:
    """RAR alone is in sync; what is left is to get rid of the others. `stopping`: they were told."""

    target: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    stopping: bool = False
    ended: bool = False


class Moves:
    """Entries that are wanted, moves under way. What has ended or was refused gathers until `effects` takes it."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._wanted: dict[TopicPartition, Move] = {}
        self._active: set[TopicPartition] = set()
        self._queued: dict[TopicPartition, None] = {}
        self._beginning: set[TopicPartition] = set()
        self._drafted: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        """Targets of first steps that may have been written; who wants something else since waits until they are."""
        self._fences: dict[TopicPartition, tuple[tuple[BrokerId, ...], LeaderEpoch]] = {}
        """Target and leader epoch of the settling write: from this epoch on leaders know nobody but the target."""
        self._settled: dict[TopicPartition, _Settled] = {}
        self._resumed_later: set[Move] = set()
        """Of topics that could not be understood when this term began, and not since."""
        self._finishing: set[Move] = set()
        self._finished: list[Move] = []
        self._refused: list[Refusal] = []
        self._look = False
        self._directories = MoveDirectories(ctx)

    # -- what is asked for -------------------------------------------------------------------------------------

    def requested(self, requests: MoveRequests, *, resumed: bool = False) -> None:
        """The node as it is now; `resumed`: the first time in this term, so they may be half done. Else an entry that
        is new is checked as the admin service checks it."""
        before = self._wanted
        unread = {move for move in requests.moves if self._ctx.is_unread(move.partition.topic)}
        self._wanted = {
            move.partition: move for move in requests.moves if move not in self._finishing and move not in unread
        }
        changed = [move for move in self._wanted.values() if before.get(move.partition) != move]
        for refusal in requests.malformed:
            self._refuse(refusal)
        for move, error in self._checked(changed, set(changed) if resumed else self._resumed_later):
            self._finish(move)
            self._refuse(Refusal(REASSIGN, move.partition, error, move.request_id))
        self._resumed_later = unread if resumed else self._resumed_later & unread
        for partition in {*before, *self._wanted}:
            entry = self._wanted.get(partition)
            if entry != before.get(partition):
                self._queued.pop(partition, None)
                self._beginning.discard(partition)
                self._ctx.dirty.add(partition)
                self._throttle(partition, 0 if entry is None else entry.throttle_bytes_per_s)
                self._direct(partition)

    def _throttle(self, partition: TopicPartition, bytes_per_s: int) -> None:
        record = self._ctx.records.get(partition)
        if record is not None and record.throttle_bytes_per_s != bytes_per_s:
            record.throttle_bytes_per_s = bytes_per_s
            if partition in self._active or not bytes_per_s:
                self._ctx.mark_changed(record)

    def _direct(self, partition: TopicPartition) -> None:
        """Directories count from the first step on (rule M3), or at once where the replicas stay."""
        record, entry = self._ctx.records.get(partition), self._wanted.get(partition)
        if record is None:
            self._directories.forget(partition)
        else:
            begun = entry is not None and (partition in self._active or self._is_done(entry))
            self._directories.want(record, entry if begun else None)

    def directory_refused(self, broker: BrokerId, partition: TopicPartition, error: TidemarkError) -> None:
        """A broker has adopted the partition but cannot hold it where it was told to: people hear of it once."""
        entry = self._wanted.get(partition)
        if entry is not None and self._directories.is_news(broker, partition):
            self._refuse(Refusal(REASSIGN, partition, directory_refusal(broker, error), entry.request_id))

    def _checked(self, moves: Iterable[Move], resumed: Container[Move]) -> list[tuple[Move, TidemarkError]]:
        """Those refused. What a controller before this one has found, or begun, is not looked at as if it were new."""
        ctx = self._ctx
        new = []
        refused = []
        for move in moves:
            found = self._status(move.partition)
            if found is not None:
                if not move.cancel and found.target != move.replicas and move not in resumed:
                    refused.append((move, _in_progress(move.partition, found)))
            elif not move.cancel and not (self._is_done(move) and not named_directories(move)):
                new.append(move)
        errors = check_moves(new, ctx.topics, set(ctx.brokers), ())
        for move in new:
            error = errors.get(move.partition)
            if error is not None and not (move in resumed and error.code is ErrorCode.BROKER_NOT_AVAILABLE):
                refused.append((move, error))
        return refused

    def finished(self, event: ev.MovesFinished) -> None:
        """These are out of the node."""
        self._finishing.difference_update(event.finished)

    def _refuse(self, refusal: Refusal) -> None:
        error = refusal.error
        self._ctx.observe(
            "request_refused", refusal.partition, request=REASSIGN, code=str(error.code), why=error.message
        )
        self._refused.append(refusal)

    def _finish(self, move: Move) -> None:
        self._wanted.pop(move.partition, None)
        self._queued.pop(move.partition, None)
        self._beginning.discard(move.partition)
        self._finishing.add(move)
        self._finished.append(move)
        self._throttle(move.partition, 0)
        self._direct(move.partition)

    def effects(self) -> Iterator[FinishMoves]:
        """What goes out of the node."""
        if self._finished or self._refused:
            yield FinishMoves(tuple(self._finished), tuple(self._refused))
            self._finished, self._refused = [], []

    # -- what a topic's node says ------------------------------------------------------------------------------

    def topic_learned(self, topic: TopicDescription) -> None:
        """The node as it is now: moves that have begun, gone back or ended by it."""
        name = topic.topic
        for index in topic.original:
            partition = TopicPartition(name, index)
            self._beginning.discard(partition)
            self._drafted.pop(partition, None)
            if partition not in self._active:
                self._active.add(partition)
                self._ctx.observe("move_begun", partition, to=str(list(topic.partitions[index])))
                self._direct(partition)
        ended = [one for one in self._active if one.topic == name and one.partition not in topic.original]
        for partition in ended:
            self._forget(partition)
            self._ctx.observe(
                "move_ended", partition, replicas=str(list(topic.partitions.get(partition.partition, ())))
            )
        for partition in [one for one in self._wanted if one.topic == name and one.partition not in topic.partitions]:
            self.unknown(partition)
        self._look = True  # somebody's turn may have come

    def topic_gone(self, topic: str) -> None:
        """It was deleted; what was asked for is refused when its partitions are next looked at."""
        for partition in [one for one in (*self._active, *self._drafted) if one.topic == topic]:
            self._forget(partition)
        self._ctx.dirty.update(one for one in self._wanted if one.topic == topic)

    def unknown(self, partition: TopicPartition) -> None:
        """There is no such partition any more."""
        move = self._wanted.get(partition)
        if move is not None:
            error = TidemarkError(ErrorCode.UNKNOWN_PARTITION, f"there is no partition {partition} any more")
            self._finish(move)
            self._refuse(Refusal(REASSIGN, partition, error, move.request_id))

    def _forget(self, partition: TopicPartition) -> None:
        self._active.discard(partition)
        self._drafted.pop(partition, None)
        self._settled.pop(partition, None)
        self._fences.pop(partition, None)

    def assigned(self, topic: TopicDescription, index: int) -> tuple[BrokerId, ...]:
        """The replicas that count: of a settled move the target alone."""
        settled = self._settled.get(TopicPartition(topic.topic, index))
        return topic.partitions[index] if settled is None else settled.target

    def replication_factor(self, topic: TopicDescription, index: int) -> int:
        """Of the original replicas until the move is settled (rule R4)."""
        if TopicPartition(topic.topic, index) in self._settled:
            return len(self.assigned(topic, index))
        return len(topic.original.get(index, topic.partitions[index]))

    def wanted_count(self) -> int:
        """Moves that are asked for or under way."""
        return len(self._wanted.keys() | self._active)

    def replicas_left(self) -> int:
        """How many replicas are not in sync yet where they are to be."""
        left = 0
        for move in self._wanted.values():
            record = self._ctx.records.get(move.partition)
            state = record.state if record is not None else None
            if not move.cancel and state is not None:
                left += len(set(move.replicas).difference(state.isr_ids))
        return left

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, partition: object) -> bool:
        """Whether it is being moved, or about to be."""
        return partition in self._active or partition in self._beginning or partition in self._drafted

    # -- what is to be done next -------------------------------------------------------------------------------

    def next(self, record: PartitionRecord, facts: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
        """Take the move of this partition one step further; a leaderAndISR to write, where that is the step."""
        partition = record.partition
        found = self._status(partition)
        entry = self._wanted.get(partition)
        if found is None and partition in self._drafted:
            self._ctx.rewritten.add(partition.topic)  # whether that was written is known when it is written again
            return None
        if found is None:
            if entry is not None and (entry.cancel or self._is_done(entry)):
                self._direct(partition)
                if entry.cancel or self._directories.are_told(record):
                    self._finish(entry)
            elif entry is not None and partition not in self._beginning:
                self._queued[partition] = None
                self._look = True
            return None
        settled = self._settled.get(partition)
        if settled is not None:
            if record.state is not None and not set(record.state.isr_ids) <= set(settled.target):
                return self._settle(record, found, facts, brokers)  # somebody wrote it by hand
            self._get_rid_of_the_others(record, settled)
            return None
        if entry is not None and entry.cancel and not found.cancelled:
            self._ctx.rewritten.add(partition.topic)
            return None
        if record.state is None or not _is_ready(found, record.state):
            return None
        if not found.cancelled and not self._ctx.unwanted.isdisjoint(found.target):
            return None  # what is about to be let go may be the only replica that answers
        return self._settle(record, found, facts, brokers)

    def _settle(
        self, record: PartitionRecord, found: MoveStatus, facts: PartitionFacts, brokers: BrokerFacts
    ) -> Decision | None:
        fences = not self._is_fenced(record, found)
        decision = settle(facts, brokers, found.target, record.min_isr_of(found.target), fences=fences)
        if decision is not None and fences:
            self._fences[record.partition] = (found.target, decision.state.leader_epoch)
        return decision

    def _is_fenced(self, record: PartitionRecord, found: MoveStatus) -> bool:
        """Whether nobody can lead any more who was told of more replicas than the target."""
        assert record.state is not None
        target, epoch = self._fences.get(record.partition, ((), NO_EPOCH))
        return not found.removing or (target == found.target and record.state.leader_epoch >= epoch)

    def begin(self, removed: Container[TopicPartition]) -> None:
        """Step 1 for those whose turn it is: so many replicas a broker takes in or gives out at a time, and none of a
        partition that is being removed."""
        if not self._look:
            return
        self._look = False
        limit = self._ctx.config.moves_per_broker_max
        load: Counter[BrokerId] = Counter()
        for partition in {*self._active, *self._beginning, *self._drafted}:
            load.update(self._busy_brokers(partition))
        for partition in list(self._queued):
            move = self._wanted[partition]
            if partition in removed:
                self._look = True  # it may stay, or nothing is known of it yet
                continue
            busy = self._busy_brokers(partition)
            if all(load[broker] < limit for broker in busy) and all(one in self._ctx.brokers for one in move.replicas):
                load.update(busy)
                del self._queued[partition]
                self._beginning.add(partition)
                self._ctx.rewritten.add(partition.topic)
            elif all(load[broker] >= limit for broker in self._ctx.brokers):
                return

    def _busy_brokers(self, partition: TopicPartition) -> set[BrokerId]:
        """Those that copy for this move: who takes in, and who gives out."""
        record = self._ctx.records.get(partition)
        if record is None or partition in self._settled:
            return set()
        found, entry = self._status(partition), self._wanted.get(partition)
        if found is not None:
            adding = set(found.adding)
        else:
            adding = set() if entry is None else set(entry.replicas) - set(record.assigned)
        return adding | {record.state.leader} if adding and record.state is not None else adding

    def look(self, record: PartitionRecord) -> None:
        """Before anything is decided: once step 7 is written RAR are told that they alone are assigned."""
        partition = record.partition
        found = self._status(partition) if partition in self._active and partition not in self._settled else None
        if found is None or record.state is None:
            return
        entry = self._wanted.get(partition)
        turns = entry is not None and entry.cancel and not found.cancelled
        if not record.busy and record.state.leader_epoch < self._fences.get(partition, ((), NO_EPOCH))[1]:
            del self._fences[partition]  # that write did not come about
        settled = _is_settled(found, record.state, record.min_isr_of(found.target))
        if not turns and settled and self._is_fenced(record, found):
            self._settled[partition] = _Settled(found.target, found.removing)
            self._ctx.assign(record, found.target)
            record.replication_factor = len(found.target)
            self._ctx.mark_changed(record)
            self._look = True

    def _get_rid_of_the_others(self, record: PartitionRecord, settled: _Settled) -> None:
        """Steps 8 to 10."""
        if not settled.stopping:
            if not self._ctx.leader_was_told(record):
                return  # looked at again when it has answered
            settled.stopping = True
            self._ctx.stop_replicas(record, settled.removing)
        if not settled.ended and not self._ctx.is_stopping(record.partition):
            settled.ended = True
            self._ctx.rewritten.add(record.partition.topic)

    def told(self, partitions: Iterable[TopicPartition]) -> None:
        """Brokers have taken in commands about these."""
        partitions = set(partitions)
        self._ctx.dirty |= (self._settled.keys() & partitions) | self._directories.told(partitions)

    def brokers_changed(self) -> None:
        """Whoever was waited for may be gone, or back."""
        self._ctx.dirty.update(self._settled, self._directories.waiting())
        self._look = True

    # -- the topic's node --------------------------------------------------------------------------------------

    def rewrite(self, topic: TopicDescription) -> TopicDescription:
        """The node as it should be next (steps 1 and 10, and going back)."""
        draft = _Draft(topic)
        for partition in (one for one in {*self._beginning, *self._drafted, *self._active} if one.topic == topic.topic):
            index, entry = partition.partition, self._wanted.get(partition)
            settled = self._settled.get(partition)
            if index not in topic.partitions:
                continue
            if index not in topic.original:
                if partition in self._drafted:
                    draft.begin(index, self._drafted[partition])
                elif partition in self._beginning and entry is not None and not entry.cancel:
                    self._drafted[partition] = entry.replicas
                    draft.begin(index, entry.replicas)
            elif settled is not None:
                if settled.ended:
                    draft.end(index, settled.target)
            elif entry is not None and entry.cancel and tuple(topic.original[index]) != _target(topic, index):
                draft.turn(index)
        return draft.result()

    def _status(self, partition: TopicPartition) -> MoveStatus | None:
        topic, record = self._ctx.topics.get(partition.topic), self._ctx.records.get(partition)
        if topic is None or record is None:
            return None
        return status(topic, partition.partition, record.state)

    def _is_done(self, move: Move) -> bool:
        topic = self._ctx.topics.get(move.partition.topic)
        return topic is not None and topic.partitions.get(move.partition.partition) == move.replicas


def _is_ready(move: MoveStatus, state: LeaderAndIsr) -> bool:
    """Step 4. To go back it is enough that nobody is dropped whom the partition needs."""
    if state.leader == NO_LEADER:
        return False
    in_sync = set(state.isr_ids)
    if not move.cancelled:
        return in_sync.issuperset(move.target)
    kept = in_sync.intersection(move.target)
    others = (in_sync | {entry.broker_id for entry in state.elr}) - set(move.target)
    return bool(kept) and (len(kept) >= state.min_isr or not others)


def _is_settled(move: MoveStatus, state: LeaderAndIsr, min_isr: int) -> bool:
    """Whether step 7 is done."""
    inside = set(state.isr_ids) <= set(move.target) and state.leader in move.target and state.min_isr == min_isr
    return inside and _is_ready(move, state)


def _target(topic: TopicDescription, index: int) -> tuple[BrokerId, ...]:
    removing = topic.removing.get(index, ())
    return tuple(broker for broker in topic.partitions[index] if broker not in removing)


class _Draft:
    """A topic's node that is being changed."""

    def __init__(self, topic: TopicDescription) -> None:
        self._topic = topic
        self._partitions = dict(topic.partitions)
        self._adding, self._removing, self._original = dict(topic.adding), dict(topic.removing), dict(topic.original)

    def begin(self, index: int, target: tuple[BrokerId, ...]) -> None:
        """Step 1."""
        original = self._partitions[index]
        self._original[index] = original
        self._adding[index] = tuple(broker for broker in target if broker not in original)
        self._assign(index, target, original)

    def turn(self, index: int) -> None:
        """Back to the original; whoever was added is removed."""
        self._adding[index] = ()
        self._assign(index, self._original[index], self._partitions[index])

    def end(self, index: int, target: tuple[BrokerId, ...]) -> None:
        """Step 10."""
        self._partitions[index] = target
        for field in (self._adding, self._removing, self._original):
            field.pop(index, None)

    def _assign(self, index: int, target: tuple[BrokerId, ...], others: tuple[BrokerId, ...]) -> None:
        self._removing[index] = tuple(broker for broker in others if broker not in target)
        self._partitions[index] = (*target, *self._removing[index])

    def result(self) -> TopicDescription:
        """Equal to what it was where nothing has changed."""
        return replace(
            self._topic,
            partitions=self._partitions,
            adding=self._adding,
            removing=self._removing,
            original=self._original,
        )


def _in_progress(partition: TopicPartition, found: MoveStatus) -> TidemarkError:
    return TidemarkError(
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        f"{partition} is being moved from {list(found.original)} to {list(found.target)} already; wait for it, or "
        "cancel it",
    )
