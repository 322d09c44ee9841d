# SPDX-License-Identifier: Apache-2.0
"""Requests that are carried out once (docs/formats.md): a znode for each request id, later with the answer."""

from __future__ import annotations

import asyncio
import base64
import heapq
import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tidemark.model import TidemarkError
from tidemark.ports import AdminRequest
from tidemark.zookeeper import codecs
from tidemark.zookeeper.multis import BYTES_MAX, Create, Delete, Operation, batches, is_committed, written
from tidemark.zookeeper.session_port import NodeRead, Session

_log = logging.getLogger(__name__)

REQUESTS: Final = "/admin/requests"

_NODE_BYTES_MAX: Final = BYTES_MAX // 4
"""Largest kept answer; a request with a larger answer is carried out again, without a further effect."""


_CHANGED: Final = (BadVersionError, NoNodeError)
KEPT_BYTES_MAX: Final = 64 << 20
"""Size of all kept requests: above this size, the oldest of the callers with the most bytes are removed early."""
NODE_BYTES: Final = 1_024
"""Memory of a node in a ZooKeeper server, in addition to its data."""


def path_of(request_id: str) -> str:
    """Path of the request's znode; an id may hold any character."""
    # The prefix, since ZooKeeper accepts neither "." nor ".." as a name.
    return f"{REQUESTS}/id-{quote(request_id, safe='')}"


def _encode(request: AdminRequest) -> bytes:
    fields: dict[str, object] = {
        "request_id": request.request_id,
        "method": request.method,
        "digest": request.digest,
        "at_ms": request.at_ms,
        "facts": dict(request.facts),
    }
    if request.answer is not None:
        fields["answer"] = base64.b64encode(zlib.compress(request.answer)).decode()
    return codecs.encode(fields)


def _decode(path: str, node: NodeRead) -> AdminRequest:
    data, stat = node
    return codecs.decode(
        path,
        data,
        lambda fields: AdminRequest(
            request_id=str(fields["request_id"]),
            method=str(fields["method"]),
            digest=str(fields["digest"]),
            at_ms=int(fields["at_ms"]),
            facts={str(name): str(value) for name, value in fields.get("facts", {}).items()},
            answer=_answer_in(fields.get("answer")),
            version=stat.version,
        ),
    )


def _answer_in(text: str | None) -> bytes | None:
    try:
        return None if text is None else zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError("the answer is not compressed") from error


def creation(request: AdminRequest) -> Operation:
    """Operations that keep the request in the same multi as its effect, and only once."""
    return Create(path_of(request.request_id), _encode(request))


async def begin(session: Session, request: AdminRequest) -> AdminRequest:
    """Keep the request, unless one with the same id is kept already; returns the kept one."""
    while True:
        await is_committed(session, [creation(request)], (NodeExistsError,))
        found = await read(session, request.request_id)
        if found is not None:
            return found


async def read(session: Session, request_id: str) -> AdminRequest | None:
    """The kept request with this id; None: never kept, or expired."""
    path = path_of(request_id)
    node = await session.get(path)
    return None if node is None else _decode(path, node)


async def finish(session: Session, request: AdminRequest) -> AdminRequest:
    """Keep the request's answer, unless an answer is kept already; returns the kept request."""
    data = _encode(request)
    if len(data) > _NODE_BYTES_MAX:
        return request
    while True:
        found = await read(session, request.request_id)
        if found is not None and found.answer is not None:
            return found
        version = -1 if found is None else found.version
        if await is_committed(session, [written(path_of(request.request_id), data, version)]):
            return replace(request, version=version + 1)


async def forget(session: Session, request: AdminRequest) -> None:
    """Remove the request if its znode is unchanged; idempotent."""
    await is_committed(session, [Delete(path_of(request.request_id), request.version)], _CHANGED)


class _Kept(NamedTuple):
    """A node of a request; `owner`: the beginning of the id that names the caller, "" without one."""

    path: str
    version: int
    owner: str
    at_ms: int
    size_bytes: int


async def expire(session: Session, before_ms: int) -> int:
    """Remove requests from before that time (since 1970, UTC), znodes that do not parse, and requests beyond
    `KEPT_BYTES_MAX`; returns their number. Another thread decodes the requests, which may be tens of thousands.
    """
    paths = [f"{REQUESTS}/{name}" for name in await session.children(REQUESTS)]
    nodes = await session.read_many(paths) if paths else []
    return await _delete(session, await asyncio.to_thread(_due, paths, nodes, before_ms))


def _due(paths: Sequence[str], nodes: Sequence[NodeRead | None], before_ms: int) -> list[Delete]:
    found = [_kept(path, node) for path, node in zip(paths, nodes, strict=True) if node is not None]
    old = [one for one in found if one.at_ms < before_ms]
    surplus = _surplus([one for one in found if one.at_ms >= before_ms])
    return [Delete(one.path, one.version) for one in (*old, *surplus)]


def _kept(path: str, node: NodeRead) -> _Kept:
    size_bytes, version = len(node[0]) + NODE_BYTES, node[1].version
    try:
        request = _decode(path, node)
    except TidemarkError as error:
        _log.error("a kept request cannot be read and is removed", extra={"path": path, "why": error.message})
        return _Kept(path, version, "", -1, size_bytes)
    owner, colon, _ = request.request_id.partition(":")
    return _Kept(path, version, owner if colon else "", request.at_ms, size_bytes)


def _surplus(kept: Iterable[_Kept]) -> list[_Kept]:
    """Above the limit, the oldest requests of the owners with the most bytes, until 3/4 of the limit remain."""
    by_owner: dict[str, list[_Kept]] = {}
    for one in sorted(kept, key=lambda one: -one.at_ms):
        by_owner.setdefault(one.owner, []).append(one)
    largest = [(-sum(one.size_bytes for one in of), owner) for owner, of in by_owner.items()]
    excess_bytes = -sum(size_bytes for size_bytes, _ in largest) - KEPT_BYTES_MAX
    if excess_bytes <= 0:
        return []
    heapq.heapify(largest)
    surplus, left_bytes = [], excess_bytes + KEPT_BYTES_MAX // 4
    while left_bytes > 0:
        negated_bytes, owner = largest[0]
        oldest = by_owner[owner].pop()
        heapq.heapreplace(largest, (negated_bytes + oldest.size_bytes, owner))
        surplus.append(oldest)
        left_bytes -= oldest.size_bytes
    return surplus


async def _delete(session: Session, deletions: Sequence[Delete]) -> int:
    """Delete nodes in few multis, apart from those that have changed; returns their number."""
    removed = 0
    for batch in batches([(one, [one]) for one in deletions]):
        if await is_committed(session, [one for one, _ in batch], _CHANGED):
            removed += len(batch)
        else:
            removed += sum([await is_committed(session, [one], _CHANGED) for one, _ in batch])
    return removed
