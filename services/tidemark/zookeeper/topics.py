# SPDX-License-Identifier: Apache-2.0
"""Topics in ZooKeeper: reads, creation guarded by absence, idempotent deletion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from tidemark.model import ControllerEpoch, ErrorCode, TidemarkError, TopicDescription, TopicPartition, unknown_topic
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import (
    BYTES_MAX,
    USUAL,
    Check,
    Create,
    Delete,
    Limits,
    MultiFailed,
    Operation,
    batches,
    commit,
)
from tidemark.zookeeper.session_port import NodeRead, Session, Watch
from tidemark.zookeeper.topic_reader import topic_of
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes

NODE_BYTES_MAX = BYTES_MAX - 16_384
"""Largest topic znode: the limit of a multi, less room for the config and the overhead of operations."""
_TRIES_MAX: Final = 20
_SCHEMAS_LAST: Final = 100
"""Versions of a schema that are deleted in one multi with the topic; earlier ones are deleted before."""


def term_check(term: ControllerTerm) -> Check:
    """The check of the controller epoch, first operation of every multi of a controller (rule Z1)."""
    return Check(paths.CONTROLLER_EPOCH, term.epoch_version)


def not_active(term: ControllerTerm) -> TidemarkError:
    """The refusal of a controller that is not the active one any more."""
    return TidemarkError(
        ErrorCode.CONTROLLER_NOT_ACTIVE,
        f"another controller was elected after epoch {term.epoch}",
        {"controller_epoch": str(ControllerEpoch(term.epoch))},
    )


async def read(
    session: Session,
    names: Sequence[str],
    watch: Callable[[Any], None] | None = None,
    unreadable: set[str] | None = None,
) -> Mapping[str, TopicDescription]:
    """Existing topics of `names` with their configs and schemas; `watch` is set on the list of topics and on each topic
    read. A topic that does not parse is refused, or added to `unreadable`.
    """
    if watch is not None:
        await session.children(paths.TOPICS, watch)
    wanted = list(dict.fromkeys(names))
    topic_paths = [paths.topic(name) for name in wanted]
    config_paths = [paths.topic_config(name) for name in wanted]
    if watch is None:
        nodes = await session.read_many([*topic_paths, *config_paths])
    else:
        nodes = await session.gather([session.get(path, watch) for path in [*topic_paths, *config_paths]])
    both = zip(wanted, nodes[: len(wanted)], nodes[len(wanted) :], strict=True)
    asked = []
    for name, node, config in both:
        if node is None:
            continue
        try:
            asked.append(schema_nodes.Asked(topic_of(name, node, config), config))
        except TidemarkError:
            if unreadable is None:
                raise
            unreadable.add(name)
    return {topic.topic: topic for topic in await schema_nodes.with_schemas(session, asked)}


async def create(session: Session, topic: TopicDescription) -> TopicDescription:
    """One multi, which fails if the topic exists; the result has the zxids and the version.

    Raises TOPIC_ALREADY_EXISTS, or INVALID_SCHEMA for a schema that no node can hold.
    """
    node = codecs.encode_topic(topic)
    if len(node) > NODE_BYTES_MAX:
        fitting = len(topic.partitions) * NODE_BYTES_MAX // len(node)
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic of {len(topic.partitions)} partitions does not fit into a ZooKeeper node; about {fitting} do",
            {"partitions_max": str(fitting)},
        )
    config = codecs.encode_configs(topic.configs)
    operations: list[Operation] = [
        Create(paths.topic(topic.topic), node),
        Create(paths.topic_config(topic.topic), config),
        *schema_nodes.creations(topic),
    ]
    if await session.exists(paths.topic_deletion(topic.topic)):
        # a manual request, made when the topic did not exist
        operations.append(Delete(paths.topic_deletion(topic.topic)))
    try:
        await commit(session, operations)
    except MultiFailed as failed:
        if isinstance(operations[failed.index], Delete) and isinstance(failed.cause, NoNodeError):
            return await create(session, topic)  # the deletion of an earlier topic of this name has just ended
        if not isinstance(failed.cause, NodeExistsError):
            raise failed.error from failed
        if failed.index == 1:
            raise _orphaned(topic.topic) from None
    created = (await read(session, [topic.topic])).get(topic.topic)
    if created is None or created.topic_id != topic.topic_id:
        raise TidemarkError(
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"there is a topic {topic.topic} already: use that topic, or choose another name",
            {"topic": topic.topic},
        )
    return created


def _orphaned(topic: str) -> TidemarkError:
    """Under a new topic id every broker would make the old topic's replicas strays and delete them later."""
    path, config = paths.topic(topic), paths.topic_config(topic)
    return TidemarkError(
        ErrorCode.TOPIC_ALREADY_EXISTS,
        f"there is a topic {topic} whose node {path} was deleted manually. Restore it, or delete {config} if its "
        "records are no longer needed",
        {"topic": topic, "path": path},
    )


async def request_deletion(session: Session, topic: str, topic_id: str = "") -> None:
    """Create /admin/delete_topics/<t> if the topic exists, and replace a request for an earlier topic of the name.

    The node has the topic id. Its data is empty if the request was made manually: the request is for any topic.
    Idempotent. Raises UNKNOWN_TOPIC.
    """
    path, data = paths.topic_deletion(topic), topic_id.encode()
    for _ in range(_TRIES_MAX):
        node = await session.get(path)
        if node is not None and node[0] in (b"", data):
            return
        replaced: list[Operation] = [] if node is None else [Delete(path, node[1].version)]
        try:
            await commit(session, [Check(paths.topic(topic)), *replaced, Create(path, data)])
        except MultiFailed as failed:
            if failed.index == 0 and isinstance(failed.cause, NoNodeError):
                raise unknown_topic(topic) from None
            if not isinstance(failed.cause, NodeExistsError | NoNodeError):
                raise failed.error from failed
            continue  # another request was made or removed in the meantime
        return
    raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, f"{path} cannot be created; try again", {"path": path})


async def incarnations(session: Session, topic_ids: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each topic with a znode that exists as long as the topic does; without one for a topic that has no states yet.

    Raises:
        TidemarkError: UNKNOWN_TOPIC for a topic with another id.
    """
    found: list[tuple[str, str]] = []
    topics = await session.read_many([paths.topic(name) for name in topic_ids])
    for (name, topic_id), node in zip(topic_ids.items(), topics, strict=True):
        topic = None if node is None else codecs.decode_topic(paths.topic(name), node[0], name)
        if topic is None or topic.topic_id != topic_id:
            raise unknown_topic(name)
        found.append((name, paths.incarnation(TopicPartition(name, 0), topic.incarnations.get(0, ""))))
    nodes = await session.read_many([path for _, path in found])
    return [one for one, node in zip(found, nodes, strict=True) if node is not None]


async def requested_deletions(session: Session, watch: Watch | None) -> frozenset[str]:
    """Children of /admin/delete_topics, except requests for an earlier topic of the name."""
    names = await session.children(paths.TOPIC_DELETIONS, watch)
    if not names:
        return frozenset()
    requests = await session.read_many([paths.topic_deletion(name) for name in names])
    nodes = await session.read_many([paths.topic(name) for name in names])
    asked = zip(names, requests, nodes, strict=True)
    return frozenset(name for name, request, node in asked if request and not _is_of_earlier(request[0], name, node))


def _is_of_earlier(topic_id: bytes, name: str, node: NodeRead | None) -> bool:
    """Whether a request is for an earlier topic than the one of this znode, which may be damaged."""
    if not topic_id or node is None:
        return False
    try:
        return codecs.decode_topic(paths.topic(name), node[0], name).topic_id.encode() != topic_id
    except TidemarkError:
        return False


async def delete(session: Session, term: ControllerTerm, topic: TopicDescription) -> None:
    """Partitions and requests to add and remove them first, then znode, config, schema and request in one multi: the
    deletion can be repeated. A request that stays would change the next topic of the name.

    Without znode and request, a deletion whose answer was lost has ended, and all other nodes may be those of the next
    topic. Without the znode only, which was deleted manually, each multi proves that there is no next topic.
    """
    found = (await read(session, [topic.topic])).get(topic.topic)
    if found is None and not await _is_requested(session, topic):
        return
    if found is not None and found.topic_id != topic.topic_id:
        return
    node = paths.topic(topic.topic)
    proof: list[Operation] = [Create(node), Delete(node)] if found is None else []
    partitions = await session.children(node)
    roots = [f"{node}/{name}" for name in partitions]
    below = await session.gather([session.children(root) for root in roots])
    items: list[tuple[str, list[Operation]]] = [
        (root, [*(Delete(f"{root}/{name}") for name in names), Delete(root)])
        for root, names in zip(roots, below, strict=True)
    ]
    reports = await session.children(paths.UNCLEAN_ELECTIONS)
    items += [
        (name, [Delete(f"{paths.UNCLEAN_ELECTIONS}/{name}")])
        for name in reports
        if name.rpartition("-")[0] == topic.topic
    ]
    items += [(path, [Delete(path)]) for path in await _partition_requests(session, topic.topic)]
    schemas = schema_nodes.deletions(topic.topic, await session.children(paths.topic_config(topic.topic)))
    items += [(operation.path, [operation]) for operation in schemas[:-_SCHEMAS_LAST]]
    for batch in batches(items, reserved=[term_check(term), *proof]):
        await commit_of(session, term, [*proof, *(operation for _, own in batch for operation in own)])
    last: list[Operation] = [*schemas[-_SCHEMAS_LAST:]]
    for path in (paths.topic_config(topic.topic), paths.topic_deletion(topic.topic)):
        if await session.exists(path):
            last.append(Delete(path))
    last += proof if found is None else [Delete(node, found.version)]
    await commit_of(session, term, last)


async def _is_requested(session: Session, topic: TopicDescription) -> bool:
    """Whether the deletion of this topic, or of any topic of the name, is still requested."""
    request = await session.get(paths.topic_deletion(topic.topic))
    return request is not None and request[0] in (b"", topic.topic_id.encode())


async def _partition_requests(session: Session, topic: str) -> list[str]:
    """Paths of the requests to add partitions to the topic and to remove them, children before their parents."""
    found = []
    for root in (paths.PARTITIONS_ADD, paths.PARTITIONS_REMOVE):
        parent = f"{root}/{topic}"
        if await session.exists(parent):
            found += [*(f"{parent}/{name}" for name in await session.children(parent)), parent]
    return found


async def committed_in(
    session: Session, term: ControllerTerm, operations: Sequence[Operation], limits: Limits = USUAL
) -> list[Any] | None:
    """Commit as the controller of `term`; the results, or None after a conflicting change of a znode.

    Raises:
        TidemarkError: CONTROLLER_NOT_ACTIVE.
    """
    try:
        return (await commit(session, [term_check(term), *operations], limits))[1:]
    except MultiFailed as failed:
        if failed.index == 0:
            raise not_active(term) from None
        return None


async def commit_of(session: Session, term: ControllerTerm, operations: Sequence[Operation]) -> None:
    """Commit as the controller of `term`.

    Raises:
        TidemarkError: CONTROLLER_NOT_ACTIVE, or COORDINATION_UNAVAILABLE after a conflicting change of a znode.
    """
    try:
        await commit(session, [term_check(term), *operations])
    except MultiFailed as failed:
        if failed.index == 0:
            raise not_active(term) from None
        raise TidemarkError(
            ErrorCode.COORDINATION_UNAVAILABLE,
            f"{operations[failed.index - 1].path} was changed by another writer meanwhile; run it again",
        ) from failed
