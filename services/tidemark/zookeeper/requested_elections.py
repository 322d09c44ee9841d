# SPDX-License-Identifier: Apache-2.0
"""Elections that people ask for, and the loss reports of unclean ones (rule T4, docs/formats.md).

One node for each kind holds what is asked for, until the controller removes it. One node for each partition holds its
last reports; it is written by the multi that elects, so that there is no such election without its report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kazoo.exceptions import NodeExistsError

from tidemark.model import (
    ElectionKind,
    ElectionRequest,
    ErrorCode,
    TidemarkError,
    TopicPartition,
    UncleanElection,
)
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Create, Delete, MultiFailed, Operation, Set, commit
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import not_active, term_check

_log = logging.getLogger(__name__)

REPORTS_KEPT: Final = 10
"""Of one partition, the latest."""


async def request(session: Session, kind: ElectionKind, partitions: Sequence[TopicPartition], request_id: str) -> bool:
    """Create the kind's node; False while another request's is there. One of the same id is this one."""
    try:
        await commit(session, [Create(paths.elections(kind), codecs.encode_elections(partitions, request_id))])
    except MultiFailed as failed:
        if not isinstance(failed.cause, NodeExistsError):
            raise TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refused the write: {failed}") from failed
        found = await read(session, kind, None)
        return found is not None and request_id != "" and found.request_id == request_id
    return True


async def read(session: Session, kind: ElectionKind, watch: Callable[[Any], None] | None) -> ElectionRequest | None:
    """The kind's node, with an error where it cannot be understood; None: there is none."""
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
        partitions, request_id = codecs.decode_elections(path, data)
    except TidemarkError as error:
        failure = error
    # Reports name the request: one that was written by hand is named after its node.
    return ElectionRequest(kind, partitions, request_id or f"node-{stat.mzxid:x}", stat.mzxid, stat.version, failure)


async def finish(session: Session, term: ControllerTerm, request: ElectionRequest) -> None:
    """Remove its node unless that is gone or was written anew."""
    found = await read(session, request.kind, None)
    if found is None or found.modified_zxid != request.modified_zxid:
        return
    try:
        await commit(session, [term_check(term), Delete(paths.elections(request.kind), request.version)])
    except MultiFailed as failed:
        if failed.index == 0:
            raise not_active(term) from None
        # Gone, or written anew meanwhile, of which a watch tells.


async def keep(session: Session, reports: Sequence[UncleanElection]) -> Mapping[TopicPartition, Sequence[Operation]]:
    """What a multi has to do so that these are kept with those before them; at most `REPORTS_KEPT` of a partition."""
    nodes = await session.read_many([paths.unclean_elections(one.partition) for one in reports]) if reports else []
    operations: dict[TopicPartition, Sequence[Operation]] = {}
    for report, node in zip(reports, nodes, strict=True):
        path = paths.unclean_elections(report.partition)
        data = codecs.encode_unclean_elections([*_reports(path, node), report][-REPORTS_KEPT:])
        operations[report.partition] = [Create(path, data) if node is None else Set(path, data, node[1].version)]
    return operations


async def reports(
    session: Session, partitions: Sequence[TopicPartition] | None
) -> Mapping[TopicPartition, Sequence[UncleanElection]]:
    """Those kept of each partition that has any (None: of all), the oldest first."""
    if partitions is None:
        node_paths = [f"{paths.UNCLEAN_ELECTIONS}/{name}" for name in await session.children(paths.UNCLEAN_ELECTIONS)]
    else:
        node_paths = [paths.unclean_elections(one) for one in partitions]
    nodes = await session.read_many(node_paths) if node_paths else []
    kept = [one for path, node in zip(node_paths, nodes, strict=True) if (one := _reports(path, node))]
    return {one[0].partition: one for one in sorted(kept, key=lambda one: one[0].partition)}


def _reports(path: str, node: NodeRead | None) -> tuple[UncleanElection, ...]:
    """One that cannot be read is logged and passed over: it must not keep a partition without a leader."""
    if node is None:
        return ()
    try:
        return codecs.decode_unclean_elections(path, node[0])
    except TidemarkError as error:
        _log.error("loss reports skipped: their node cannot be read", extra={"path": path, "why": error.message})
        return ()
