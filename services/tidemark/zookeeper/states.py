"""leaderAndISR nodes: read many at once, written conditionally by the controller (Z1, Z2, T2) and by leaders (R9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition, VersionedState
from tidemark.ports import ControllerTerm, StateWrite, WriteOutcome, WriteResult
from tidemark.zookeeper import codecs, paths, requested_elections
from tidemark.zookeeper.multis import Check, Create, MultiFailed, Operation, Set, batches, commit
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.topics import not_active, term_check

_CONFLICT = WriteResult(WriteOutcome.CONFLICT)
_UNKNOWN = WriteResult(WriteOutcome.UNKNOWN)


async def read(session: Session, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, VersionedState]:
    """Those that exist."""
    nodes = await session.read_many([paths.state(partition) for partition in partitions])
    return {
        partition: VersionedState(codecs.decode_state(paths.state(partition), node[0]), node[1].version)
        for partition, node in zip(partitions, nodes, strict=True)
        if node is not None
    }


async def read_one(session: Session, partition: TopicPartition, identity: ReplicaIdentity) -> VersionedState | None:
    """Sync, then read; None when the node or this incarnation is gone."""
    await session.sync()
    node_path = paths.state(partition)
    # Incarnation first: one request is read at one moment, so that both belong together.
    marker, node = await session.read_many([paths.incarnation(partition, identity.incarnation), node_path])
    if marker is None or node is None:
        return None
    return VersionedState(codecs.decode_state(node_path, node[0]), node[1].version)


async def write_of_controller(
    session: Session, term: ControllerTerm, writes: Sequence[StateWrite]
) -> Sequence[WriteResult]:
    """Batched multis, all under way at once; one result for each write, in order."""
    kept = await requested_elections.keep(session, [write.report for write in writes if write.report is not None])
    items = [
        (index, [*_operations(write), *_epoch_checks(write), *kept.get(write.partition, ())])
        for index, write in enumerate(writes)
    ]
    parts = list(batches(items, reserved=[term_check(term)]))
    outcomes = await session.gather([_write_batch(session, term, part) for part in parts])
    results = [_UNKNOWN] * len(writes)
    for part, versions in zip(parts, outcomes, strict=True):
        for (index, _), result in zip(part, versions, strict=True):
            results[index] = result
    return results


async def _write_batch(
    session: Session, term: ControllerTerm, part: Sequence[tuple[int, Sequence[Operation]]]
) -> list[WriteResult]:
    # Each broker's epoch is checked once a multi, and a conflicting pair twice: then it fails, as it must.
    operations: dict[Operation, None] = {term_check(term): None}
    for _, own in part:
        operations.update(dict.fromkeys(own))
    ordered = list(operations)
    try:
        answers = await commit(session, ordered)
    except MultiFailed as failed:
        if failed.index == 0:
            raise not_active(term) from None
        return [_CONFLICT] * len(part)
    except TidemarkError as error:
        return _lost(error, len(part))
    versions = {operation.path: _version_of(answer) for operation, answer in zip(ordered, answers, strict=True)}
    return [WriteResult(WriteOutcome.WRITTEN, versions[_state_path(own)]) for _, own in part]


async def write_of_leader(session: Session, write: StateWrite) -> WriteResult:
    """One multi that also checks the incarnation (rule R9)."""
    assert write.expected_version >= 0, "a leader changes an ISR, it never creates one"
    operations: list[Operation] = [
        Set(paths.state(write.partition), codecs.encode_state(write.state), write.expected_version),
        Check(paths.incarnation(write.partition, write.identity.incarnation)),
        *_epoch_checks(write),
    ]
    try:
        answers = await commit(session, operations)
    except MultiFailed:
        return _CONFLICT
    except TidemarkError as error:
        return _lost(error, 1)[0]
    return WriteResult(WriteOutcome.WRITTEN, _version_of(answers[0]))


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
    """Of a Set its new version; a node just created is at 0."""
    return int(getattr(answer, "version", 0))
