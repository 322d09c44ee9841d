# SPDX-License-Identifier: Apache-2.0
"""Requested elections, and the loss reports of unclean elections (rule T4, docs/formats.md).

One znode for preferred elections and one for unclean ones hold a request until the controller removes the znode. One
znode for each partition holds its latest loss reports; the multi that elects writes that znode, so every unclean
election has a report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kazoo.exceptions import NodeExistsError

from tidemark.model import ElectionKind, ElectionRequest, TidemarkError, TopicPartition, UncleanElection
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Create, Delete, Operation, is_committed, version_of, written
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import committed_in

_log = logging.getLogger(__name__)

REPORTS_KEPT: Final = 10
"""Largest number of loss reports that are kept for one partition."""


async def request(
    session: Session, kind: ElectionKind, partitions: Sequence[TopicPartition], request_id: str = ""
) -> bool:
    """Create the znode of this kind; False while another request exists. True if the znode has this request id."""
    rebuilds = kind is ElectionKind.REBUILD_STATE
    data = codecs.encode_elections(partitions, request_id, rebuilds_states=rebuilds)
    if await is_committed(session, [Create(paths.elections(kind), data)], (NodeExistsError,)):
        return True
    found = await read(session, kind, None)
    return found is not None and request_id != "" and found.request_id == request_id


async def read(session: Session, kind: ElectionKind, watch: Callable[[Any], None] | None) -> ElectionRequest | None:
    """The request of this kind, with an error if the znode does not parse; None without a request."""
    path = paths.elections(kind)
    if not await session.exists(path, watch):
        return None
    node = await session.get(path)
    if node is None:
        return None
    data, stat = node
    partitions: tuple[TopicPartition, ...] = ()
    request_id, failure = "", None
    try:
        partitions, request_id, rebuilds = codecs.decode_elections(path, data)
        if kind is not ElectionKind.PREFERRED:
            kind = ElectionKind.REBUILD_STATE if rebuilds else ElectionKind.LAST_KNOWN
    except TidemarkError as error:
        failure = error
    # Loss reports name the request; a request written manually gets the name of its znode.
    return ElectionRequest(kind, partitions, request_id or f"node-{stat.mzxid:x}", stat.mzxid, stat.version, failure)


async def finish(session: Session, term: ControllerTerm, request: ElectionRequest) -> None:
    """Remove the request's znode unless that was deleted or replaced; raises CONTROLLER_NOT_ACTIVE."""
    found = await read(session, request.kind, None)
    if found is None or found.modified_zxid != request.modified_zxid:
        return
    # If the request was deleted or replaced in the meantime, a watch reports the replacement.
    await committed_in(session, term, [Delete(paths.elections(request.kind), request.version)])


async def keep(session: Session, reports: Sequence[UncleanElection]) -> Mapping[TopicPartition, Sequence[Operation]]:
    """Operations of a multi that keep these reports with the earlier ones, at most `REPORTS_KEPT` of a partition."""
    nodes = await session.read_many([paths.unclean_elections(one.partition) for one in reports]) if reports else []
    operations: dict[TopicPartition, Sequence[Operation]] = {}
    for report, node in zip(reports, nodes, strict=True):
        path = paths.unclean_elections(report.partition)
        data = codecs.encode_unclean_elections([*_reports(path, node), report][-REPORTS_KEPT:])
        operations[report.partition] = [written(path, data, version_of(node))]
    return operations


async def reports(
    session: Session, partitions: Sequence[TopicPartition] | None = None
) -> Mapping[TopicPartition, Sequence[UncleanElection]]:
    """Kept reports by partition (None: of all partitions), oldest first."""
    if partitions is None:
        node_paths = [f"{paths.UNCLEAN_ELECTIONS}/{name}" for name in await session.children(paths.UNCLEAN_ELECTIONS)]
    else:
        node_paths = [paths.unclean_elections(one) for one in partitions]
    nodes = await session.read_many(node_paths) if node_paths else []
    kept = [one for path, node in zip(node_paths, nodes, strict=True) if (one := _reports(path, node))]
    return {one[0].partition: one for one in sorted(kept, key=lambda one: one[0].partition)}


def _reports(path: str, node: NodeRead | None) -> tuple[UncleanElection, ...]:
    """The kept reports. A report that does not parse is logged and dropped: it must not block an election."""
    if node is None:
        return ()
    try:
        return codecs.decode_unclean_elections(path, node[0])
    except TidemarkError as error:
        _log.error("loss reports skipped: their node cannot be read", extra={"path": path, "why": error.message})
        return ()
