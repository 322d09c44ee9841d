# SPDX-License-Identifier: Apache-2.0
"""Requests to add partitions to topics and to remove them (rule C7), and the znodes that a removed partition leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from tidemark.model import (
    BrokerId,
    ErrorCode,
    PartitionRequests,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
    unknown_topic,
)
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths, refusals
from tidemark.zookeeper.multis import (
    LOST_RACES,
    MANY_PARTITIONS,
    Check,
    Create,
    Delete,
    MultiFailed,
    Operation,
    Set,
    batches,
    commit,
)
from tidemark.zookeeper.session_port import Session, Watch
from tidemark.zookeeper.topics import commit_of, committed_in, incarnations, term_check

ADD: Final = "partitions_add"
REMOVE: Final = "partitions_remove"
_ROOTS: Final = {ADD: paths.PARTITIONS_ADD, REMOVE: paths.PARTITIONS_REMOVE}
_TRIES_MAX: Final = 20


async def request_added(
    session: Session,
    added: Mapping[TopicPartition, tuple[BrokerId, ...]],
    topic_ids: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create znodes that request these partitions, either all or none; idempotent.

    Raises UNKNOWN_TOPIC, also for a topic that has another id than in `topic_ids`, and INVALID_REQUEST if another
    request for one of these exists.
    """
    nodes = {one: codecs.encode_added_partition(replicas) for one, replicas in added.items()}
    await _request(session, ADD, nodes, topic_ids)


async def request_removed(
    session: Session, removed: Mapping[TopicPartition, bool], topic_ids: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Create znodes that request the removal of these partitions, either all or none; idempotent.

    A forced removal replaces one that is not forced, which may wait for the leader of a partition without one.
    Raises the errors of `request_added`.
    """
    nodes = {one: codecs.encode_removed_partition(force) for one, force in removed.items()}
    await _request(session, REMOVE, nodes, topic_ids, replaceable=codecs.encode_removed_partition(False))


async def _request(
    session: Session,
    kind: str,
    nodes: Mapping[TopicPartition, bytes],
    topic_ids: Mapping[str, str],
    replaceable: bytes | None = None,
) -> None:
    """Create the znodes of a request; raises UNKNOWN_TOPIC, or INVALID_REQUEST while another request exists.

    Args:
        session: started.
        kind: ADD or REMOVE.
        nodes: content of the znode of each partition.
        topic_ids: ids that the topics must have; other topics may have any id.
        replaceable: content of a znode that the request replaces; a replaced znode fires the watch on its parent.
    """
    topics = sorted({one.topic for one in nodes})
    for _ in range(_TRIES_MAX):
        parents = await session.read_many([f"{_ROOTS[kind]}/{topic}" for topic in topics])
        found = await session.read_many([_path(kind, one) for one in nodes])
        guards = [(topic, paths.topic(topic)) for topic in topics] + await incarnations(session, topic_ids)
        operations: list[Operation] = [Check(path) for _, path in guards]
        operations += [
            Create(f"{_ROOTS[kind]}/{topic}") for topic, parent in zip(topics, parents, strict=True) if parent is None
        ]
        missing = 0
        for (one, data), node in zip(nodes.items(), found, strict=True):
            if node is None:
                missing += 1
                operations.append(Create(_path(kind, one), data))
            elif node[0] != data and node[0] == replaceable:
                missing += 1
                path = _path(kind, one)
                # The version differs from that of the replaced znode, which may be about to be deleted.
                operations += [Delete(path, node[1].version), Create(path, data), Set(path, data, 0)]
            elif node[0] != data:
                raise TidemarkError(
                    ErrorCode.INVALID_REQUEST,
                    f"another request for {one} is in progress; wait for its end, then check its result",
                    one.facts,
                )
        if not missing:
            return
        try:
            await commit(session, operations, MANY_PARTITIONS)
        except MultiFailed as failed:
            if failed.index < len(guards) and isinstance(failed.cause, NoNodeError):
                raise unknown_topic(guards[failed.index][0]) from None
            if not isinstance(failed.cause, LOST_RACES):
                raise failed.error from failed
            continue  # another request created or removed one of these partitions in the meantime
        return
    raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "other processes keep changing the same nodes; try again")


async def read(session: Session, watch: Watch | None) -> PartitionRequests:
    """The requests; znodes that do not parse are in `malformed`."""
    malformed: list[Refusal] = []
    added = await _read_kind(session, ADD, watch, codecs.decode_added_partition, malformed)
    removed = await _read_kind(session, REMOVE, watch, codecs.decode_removed_partition, malformed)
    return PartitionRequests(added, removed, tuple(malformed))


async def _read_kind(
    session: Session,
    kind: str,
    watch: Watch | None,
    decode: Callable[[str, bytes], Any],
    malformed: list[Refusal],
) -> dict[TopicPartition, Any]:
    topics = await session.children(_ROOTS[kind], watch)
    named: list[tuple[str, str]] = []
    for topic in topics:
        named += [(topic, name) for name in await session.children(f"{_ROOTS[kind]}/{topic}", watch)]
    node_paths = [f"{_ROOTS[kind]}/{topic}/{name}" for topic, name in named]
    nodes = await session.read_many(node_paths) if node_paths else []
    found = {}
    for (topic, name), path, node in zip(named, node_paths, nodes, strict=True):
        if node is None:
            continue
        number = paths.number_in(name)
        one = TopicPartition(topic, -1 if number is None else number)
        try:
            if number is None:
                raise invalid_request(f"{name[:40]!r} is not a number of a partition")
            found[one] = decode(path, node[0])
        except TidemarkError as error:
            refusal = TidemarkError(ErrorCode.INVALID_REQUEST, error.message, {"path": path})
            malformed.append(Refusal(kind, one, refusal))
    return found


async def finish(
    session: Session,
    term: ControllerTerm,
    *,
    added: Sequence[TopicPartition] = (),
    removed: Mapping[TopicPartition, bool] = MappingProxyType({}),
    refused: Sequence[Refusal] = (),
) -> None:
    """Remove these requests and the refused requests, with parents that become empty; keep `refused`.

    A forced removal stays if `removed` has the removal that it replaced, which was not forced. Raises
    CONTROLLER_NOT_ACTIVE.
    """
    done = [_path(ADD, one) for one in added] + [_path(REMOVE, one) for one in removed]
    for one in refused:
        malformed = one.error.metadata.get("path")
        if malformed is not None or one.partition is not None:
            done.append(malformed or _path(one.kind, _named(one)))
    unforced = {_path(REMOVE, one) for one, force in removed.items() if not force}
    for _ in range(_TRIES_MAX):
        operations: list[Operation] = [
            *await _deletions(session, done, unforced),
            *await refusals.keep(session, refused),
        ]
        if not operations:
            return
        if await committed_in(session, term, operations, MANY_PARTITIONS) is not None:
            return
    raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "other processes keep changing the same nodes; try again")


async def _deletions(session: Session, node_paths: Sequence[str], unforced: Container[str]) -> list[Operation]:
    """Deletions of these znodes, and of parents that become empty; a znode in `unforced` stays if it is forced now."""
    wanted = sorted(set(node_paths))
    nodes = await session.read_many(wanted) if wanted else []
    by_parent: defaultdict[str, list[Operation]] = defaultdict(list)
    for path, node in zip(wanted, nodes, strict=True):
        if node is not None and not (path in unforced and node[0] == codecs.encode_removed_partition(True)):
            by_parent[path.rpartition("/")[0]].append(Delete(path, node[1].version))
    operations: list[Operation] = []
    for parent, deletions in by_parent.items():
        operations += deletions
        if len(await session.children(parent)) == len(deletions):
            operations.append(Delete(parent))
    return operations


async def delete(session: Session, term: ControllerTerm, topic: TopicDescription, partitions: Sequence[int]) -> None:
    """Delete the znodes below these partitions; idempotent; raises CONTROLLER_NOT_ACTIVE."""
    named = [TopicPartition(topic.topic, index) for index in partitions]
    roots = [paths.partition(one) for one in named]
    below = await session.gather([session.children(root) for root in roots])
    present = await session.read_many([*roots, *(paths.unclean_elections(one) for one in named)])
    items: list[tuple[str, list[Operation]]] = [
        (root, [*(Delete(f"{root}/{name}") for name in names), Delete(root)])
        for root, names, node in zip(roots, below, present[: len(roots)], strict=True)
        if node is not None
    ]
    items += [
        (str(one), [Delete(paths.unclean_elections(one))])
        for one, node in zip(named, present[len(roots) :], strict=True)
        if node is not None
    ]
    for batch in batches(items, reserved=[term_check(term)]):
        await commit_of(session, term, [operation for _, own in batch for operation in own])


def _path(kind: str, one: TopicPartition) -> str:
    return f"{_ROOTS[kind]}/{one.topic}/{one.partition}"


def _named(one: Refusal) -> TopicPartition:
    assert one.partition is not None
    return one.partition
