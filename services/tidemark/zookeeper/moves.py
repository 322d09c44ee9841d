# SPDX-License-Identifier: Apache-2.0
"""/admin/reassign_partitions: requests of the admin service and manual ones. The controller removes requests (M1).
Also topic znodes, in which the controller keeps the progress of a reassignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from tidemark.core.reassignment.request import parse_reassignments
from tidemark.model import (
    ErrorCode,
    PartitionReassignment,
    ReassignmentRequests,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
)
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths, refusals
from tidemark.zookeeper.multis import BYTES_MAX, MANY_PARTITIONS, Delete, Set, is_committed, written
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.topics import committed_in

REASSIGN: Final = "reassign"
_NODE_BYTES_MAX: Final = BYTES_MAX - 131_072
"""Largest node to which reassignments are added. Cancellations make the node longer."""


async def read(session: Session, watch: Callable[[Any], None] | None) -> ReassignmentRequests:
    """The requests; entries that do not parse are in `malformed`."""
    if watch is not None:
        await session.exists(paths.MOVES, watch)
    node = await session.get(paths.MOVES)
    if node is None:
        return ReassignmentRequests()
    data, stat = node
    moves, errors = parse_reassignments(data)
    malformed = tuple(Refusal(REASSIGN, None, error) for error in errors)
    return ReassignmentRequests(moves, malformed, stat.version)


async def submit(session: Session, moves: Sequence[PartitionReassignment]) -> None:
    """Add these reassignments, either all or none; an identical request is not an error.

    Raises REASSIGNMENT_IN_PROGRESS for a partition with another request, INVALID_REQUEST (metadata moves_max) if the
    znode becomes too large.
    """

    def added(found: ReassignmentRequests) -> Sequence[PartitionReassignment]:
        known = {move.partition: move for move in found.moves}
        for move in moves:
            other = known.get(move.partition)
            if other is not None and other != move:
                raise TidemarkError(
                    ErrorCode.REASSIGNMENT_IN_PROGRESS,
                    f"{move.partition} is being reassigned to {list(other.replicas)} already; wait for that "
                    "reassignment, or cancel it",
                    move.partition.facts,
                )
        return [*found.moves, *(move for move in moves if move.partition not in known)]

    await _rewrite(session, added, _NODE_BYTES_MAX)


async def cancel(session: Session, partitions: Iterable[TopicPartition]) -> None:
    """Mark these reassignments as cancelled, either all or none; idempotent; raises NO_REASSIGNMENT_IN_PROGRESS."""
    wanted = set(partitions)

    def marked(found: ReassignmentRequests) -> Sequence[PartitionReassignment]:
        missing = sorted(wanted - {move.partition for move in found.moves})
        if missing:
            raise TidemarkError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"{missing[0]} is not being moved; see which are: tidemark reassign list",
                missing[0].facts,
            )
        return [replace(move, cancel=True) if move.partition in wanted else move for move in found.moves]

    await _rewrite(session, marked, MANY_PARTITIONS.size_bytes)


async def _rewrite(
    session: Session, change: Callable[[ReassignmentRequests], Sequence[PartitionReassignment]], bytes_max: int
) -> None:
    while True:
        found = await read(session, None)
        if found.malformed:
            raise invalid_request(
                f"{paths.MOVES} holds an entry that does not parse ({found.malformed[0].error.message}); "
                "the controller will remove the entry soon: try again later"
            )
        moves = change(found)
        data = codecs.encode_moves(moves)
        if len(data) > bytes_max:
            fitting = len(moves) * bytes_max // len(data)
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST,
                f"{len(moves)} reassignments do not fit into a ZooKeeper node; about {fitting} do: submit the others "
                "when some have ended",
                {"moves_max": str(fitting)},
            )
        if await is_committed(session, [written(paths.MOVES, data, found.version)], limits=MANY_PARTITIONS):
            return


async def finish(
    session: Session, term: ControllerTerm, finished: Sequence[PartitionReassignment], refused: Sequence[Refusal]
) -> None:
    """Remove these reassignments, if unchanged, and every malformed entry; keep `refused`.

    Raises CONTROLLER_NOT_ACTIVE.
    """
    done = set(finished)
    while True:
        found = await read(session, None)
        left = [move for move in found.moves if move not in done]
        kept = await refusals.keep(session, refused)
        changed = found.malformed or len(left) < len(found.moves)
        if not changed and not kept:
            return
        operations = [*kept]
        if changed:
            data = codecs.encode_moves(left)
            operations.append(Set(paths.MOVES, data, found.version) if left else Delete(paths.MOVES, found.version))
        if await committed_in(session, term, operations, MANY_PARTITIONS) is not None:
            return


async def write_topic(session: Session, term: ControllerTerm, topic: TopicDescription) -> TopicDescription | None:
    """Write the topic's znode at `topic.version`; None after a version conflict or a deletion.

    The result has the new zxid and version. Reassignments make the znode larger than that of a new topic. Raises
    CONTROLLER_NOT_ACTIVE.
    """
    node = Set(paths.topic(topic.topic), codecs.encode_topic(topic), topic.version)
    answers = await committed_in(session, term, [node], MANY_PARTITIONS)
    if answers is None:
        return None
    (stat,) = answers
    return replace(topic, modified_zxid=stat.mzxid, version=stat.version)
