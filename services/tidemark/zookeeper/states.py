# SPDX-License-Identifier: Apache-2.0
"""leaderAndISR znodes: read in bulk, written conditionally by the controller (Z1, Z2, T2) and by leaders (R9)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemark.model import NO_LEADER, ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition, VersionedState
from tidemark.ports import ControllerTerm, StateWrite, WriteOutcome, WriteResult
from tidemark.zookeeper import codecs, paths, requested_elections
from tidemark.zookeeper.multis import Check, Create, MultiFailed, Operation, Set, batches, commit
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import not_active, term_check

_LEADER_READS_MAX: Final = 100
_SLICE: Final = 200
"""States that are parsed before other tasks run."""
_log = logging.getLogger(__name__)

_CONFLICT = WriteResult(WriteOutcome.CONFLICT)
_UNKNOWN = WriteResult(WriteOutcome.UNKNOWN)


class Complaints:
    """Logs why a state is unreadable: once, until the reason changes or the state is readable again."""

    def __init__(self) -> None:
        self._told: dict[TopicPartition, str] = {}

    def tell(self, partition: TopicPartition, why: str) -> None:
        """Log that the state is unreadable, unless the same reason was logged before."""
        if self._told.get(partition) != why:
            self._told[partition] = why
            extra = {"partition": str(partition), "path": paths.state(partition), "why": why}
            _log.error("the state of a partition is unreadable; its records are untouched", extra=extra)

    def readable(self, partition: TopicPartition) -> None:
        """Note that the state is readable."""
        self._told.pop(partition, None)


async def read(
    session: Session,
    partitions: Sequence[TopicPartition],
    unreadable: set[TopicPartition] | None,
    complaints: Complaints,
) -> Mapping[TopicPartition, VersionedState]:
    """Existing states; a state that does not parse, or was deleted, is logged, omitted and added to `unreadable`."""
    nodes = await session.read_many([paths.state(partition) for partition in partitions])
    found = {}
    missing = []
    for number, (partition, node) in enumerate(zip(partitions, nodes, strict=True)):
        if number % _SLICE == _SLICE - 1:
            await session.give_way()
        if node is None:
            missing.append(partition)
            continue
        state = _understood(partition, node, unreadable, complaints)
        if state is not None:
            found[partition] = state
    if missing and unreadable is not None:
        found |= await _read_missing(session, missing, unreadable, complaints)
    return found


def _understood(
    partition: TopicPartition, node: NodeRead, unreadable: set[TopicPartition] | None, complaints: Complaints
) -> VersionedState | None:
    try:
        state = codecs.decode_state(paths.state(partition), node[0])
    except TidemarkError as error:
        complaints.tell(partition, error.message)
        if unreadable is not None:
            unreadable.add(partition)
        return None
    complaints.readable(partition)
    return VersionedState(state, node[1].version)


async def _read_missing(
    session: Session, partitions: Sequence[TopicPartition], unreadable: set[TopicPartition], complaints: Complaints
) -> dict[TopicPartition, VersionedState]:
    """Distinguish new partitions from those whose znodes were deleted manually. One multi creates the state and its
    parent. A missing state below a present parent was deleted, and its replicas still count. If both are missing,
    both may have been deleted (`_with_deleted`), which only brokers know.
    """
    found: dict[TopicPartition, VersionedState] = {}
    for start in range(0, len(partitions), _LEADER_READS_MAX):
        some = partitions[start : start + _LEADER_READS_MAX]
        both = [path for partition in some for path in (paths.partition(partition), paths.state(partition))]
        topics = sorted({partition.topic for partition in some})
        nodes = await session.read_many([*both, *_of_topics(topics)])
        doubtful = _with_deleted(topics, nodes[len(both) :])
        for partition, above, node in zip(some, nodes[: len(both) : 2], nodes[1 : len(both) : 2], strict=True):
            state = None if node is None else _understood(partition, node, unreadable, complaints)
            if state is not None:
                found[partition] = state
            elif above is not None and node is None:
                unreadable.add(partition)
                complaints.tell(partition, "its node was deleted manually")
            elif above is None and partition.topic in doubtful:
                unreadable.add(partition)
    return found


def _of_topics(topics: Sequence[str]) -> list[str]:
    return [path for topic in topics for path in (paths.topic(topic), paths.topic_config(topic))]


def _with_deleted(topics: Sequence[str], nodes: Sequence[NodeRead | None]) -> set[str]:
    """Topics with deleted partition znodes (by a partition removal or manually), or with a znode restored manually. A
    partition without these znodes may not be new.

    A znode's cversion counts created and deleted children; one multi creates a topic and its config.

    Args:
        nodes: the znodes of `_of_topics`.
    """
    return {
        topic
        for topic, node, config in zip(topics, nodes[::2], nodes[1::2], strict=True)
        if node is not None
        and (config is None or config[1].czxid != node[1].czxid or node[1].cversion != node[1].numChildren)
    }


async def read_for_leader(
    session: Session, asked: Mapping[TopicPartition, ReplicaIdentity], *, unreadable: set[TopicPartition] | None = None
) -> Mapping[TopicPartition, VersionedState]:
    """Sync, then read; partitions whose incarnation was deleted are omitted; partitions whose state only is damaged
    or deleted are added to `unreadable`.
    """
    await session.sync()
    missing: set[TopicPartition] = set() if unreadable is None else unreadable
    partitions = list(asked)
    parts = [partitions[start : start + _LEADER_READS_MAX] for start in range(0, len(partitions), _LEADER_READS_MAX)]
    found: dict[TopicPartition, VersionedState] = {}
    for some in await session.gather([_read_part(session, part, asked, missing) for part in parts]):
        found |= some
    return found


async def _read_part(
    session: Session,
    partitions: Sequence[TopicPartition],
    asked: Mapping[TopicPartition, ReplicaIdentity],
    unreadable: set[TopicPartition],
) -> dict[TopicPartition, VersionedState]:
    """One request reads incarnation and state at the same time, so both belong together."""
    wanted = []
    for partition in partitions:
        wanted += [paths.incarnation(partition, asked[partition].incarnation), paths.state(partition)]
    nodes = await session.read_many(wanted)
    found: dict[TopicPartition, VersionedState] = {}
    for partition, marker, node in zip(partitions, nodes[::2], nodes[1::2], strict=True):
        if marker is None:
            continue
        try:
            if node is not None:
                found[partition] = VersionedState(codecs.decode_state(paths.state(partition), node[0]), node[1].version)
                continue
        except TidemarkError as error:
            _log.debug("state not read", extra={"partition": str(partition), "why": error.message})
        unreadable.add(partition)
    return found


async def write_of_controller(
    session: Session, term: ControllerTerm, writes: Sequence[StateWrite]
) -> Sequence[WriteResult]:
    """Concurrent batched multis that check the controller epoch; one result for each write, in order.

    A write that conflicts does not fail the other writes. Raises CONTROLLER_NOT_ACTIVE.

    A state with a leader is not created while it is unknown whether the partition is new; that counts as a conflict.
    """
    first = sorted({write.partition.topic for write in writes if _claims_to_be_first(write)})
    doubtful = _with_deleted(first, await session.read_many(_of_topics(first))) if first else set()
    kept = await requested_elections.keep(session, [write.report for write in writes if write.report is not None])
    items = [
        (index, [*_operations(write), *_epoch_checks(write), *kept.get(write.partition, ())])
        for index, write in enumerate(writes)
        if not (_claims_to_be_first(write) and write.partition.topic in doubtful)
    ]
    parts = batches(items, reserved=[term_check(term)])
    return _in_order(writes, await session.gather([_write_part(session, part, term) for part in parts]))


def _claims_to_be_first(write: StateWrite) -> bool:
    return write.expected_version < 0 and write.state.leader != NO_LEADER


async def write_of_leader(session: Session, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
    """Conditional writes that also check the incarnation and the registrations of joining brokers (rules R8, R9), many
    in a multi. There is one result for each write, in order; each succeeds or fails independently.
    """
    assert all(write.expected_version >= 0 for write in writes), "a leader changes an ISR, it never creates one"
    items = [
        (
            index,
            [
                *_operations(write),
                Check(paths.incarnation(write.partition, write.identity.incarnation)),
                *_epoch_checks(write),
                *(Check(paths.broker(broker_id)) for broker_id in sorted(write.broker_epochs)),
            ],
        )
        for index, write in enumerate(writes)
    ]
    return _in_order(writes, await session.gather([_write_part(session, part) for part in batches(items)]))


def _in_order(writes: Sequence[StateWrite], parts: Sequence[Mapping[int, WriteResult]]) -> list[WriteResult]:
    results = [_CONFLICT] * len(writes)
    for part in parts:
        for index, result in part.items():
            results[index] = result
    return results


async def _write_part(
    session: Session, part: Sequence[tuple[int, Sequence[Operation]]], term: ControllerTerm | None = None
) -> dict[int, WriteResult]:
    """A multi is atomic: when one write fails, a read finds all outdated writes, and the other writes are repeated
    (rule Z2).

    Otherwise a leader and the controller that change thousands of partitions would make each other retry all writes.
    A multi checks each broker's epoch once; of two different epochs of a broker one fails.
    """
    found: dict[int, WriteResult] = {}
    left = list(part)
    reserved = [] if term is None else [term_check(term)]
    while left:
        operations = list(dict.fromkeys([*reserved, *(operation for _, own in left for operation in own)]))
        try:
            answers = await commit(session, operations)
        except MultiFailed as failed:
            if term is not None and failed.index == 0:
                raise not_active(term) from None
            culprit = operations[failed.index]
            outdated = await _outdated(session, left) | {index for index, own in left if culprit in own}
            found |= dict.fromkeys(outdated, _CONFLICT)
            left = [(index, own) for index, own in left if index not in outdated]
            continue
        except TidemarkError as error:
            return found | dict(zip((index for index, _ in left), _lost(error, len(left)), strict=True))
        versions = {operation.path: _version_of(answer) for operation, answer in zip(operations, answers, strict=True)}
        return found | {index: WriteResult(WriteOutcome.WRITTEN, versions[_state_path(own)]) for index, own in left}
    return found


async def _outdated(session: Session, part: Sequence[tuple[int, Sequence[Operation]]]) -> set[int]:
    """The writes whose state has another version than they expect; versions only rise."""
    if len(part) == 1:
        return set()
    nodes = await session.read_many([_state_path(own) for _, own in part])
    return {
        index
        for (index, own), node in zip(part, nodes, strict=True)
        if (None if node is None else node[1].version) != (own[0].version if isinstance(own[0], Set) else None)
    }


def _lost(error: TidemarkError, count: int) -> list[WriteResult]:
    if error.code is not ErrorCode.COORDINATION_UNAVAILABLE or error.metadata.get("sent") != "true":
        raise error
    return [_UNKNOWN] * count


def _operations(write: StateWrite) -> list[Operation]:
    data = codecs.encode_state(write.state)
    if write.expected_version >= 0:
        return [Set(paths.state(write.partition), data, write.expected_version)]
    return [
        Create(paths.partition(write.partition)),
        Create(paths.state(write.partition), data),
        Create(paths.incarnation(write.partition, write.identity.incarnation)),
    ]


def _epoch_checks(write: StateWrite) -> list[Operation]:
    return [Check(paths.broker_epoch(broker_id), epoch) for broker_id, epoch in sorted(write.broker_epochs.items())]


def _state_path(operations: Sequence[Operation]) -> str:
    return operations[0].path if isinstance(operations[0], Set) else operations[1].path


def _version_of(answer: Any) -> int:
    """New version after a Set; 0 for a created znode."""
    return int(getattr(answer, "version", 0))
