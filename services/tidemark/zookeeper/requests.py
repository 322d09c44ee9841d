# SPDX-License-Identifier: Apache-2.0
"""Requests that are carried out once (docs/formats.md): a znode for each request id, later with the answer."""

from __future__ import annotations

import base64
import logging
import zlib
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tidemark.model import TidemarkError
from tidemark.ports import AdminRequest
from tidemark.zookeeper import codecs
from tidemark.zookeeper.multis import BYTES_MAX, Create, Delete, MultiFailed, Operation, Set, commit
from tidemark.zookeeper.session_port import NodeRead, Session

_log = logging.getLogger(__name__)

REQUESTS: Final = "/admin/requests"

_NODE_BYTES_MAX: Final = BYTES_MAX // 4
"""Largest kept answer; a request with a larger answer is carried out again, without a further effect."""


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
        try:
            await commit(session, [creation(request)])
        except MultiFailed as failed:
            if not isinstance(failed.cause, NodeExistsError):
                raise failed.error from failed
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
        path = path_of(request.request_id)
        operation: Operation = Create(path, data) if found is None else Set(path, data, found.version)
        try:
            await commit(session, [operation])
        except MultiFailed as failed:
            if isinstance(failed.cause, BadVersionError | NodeExistsError | NoNodeError):
                continue  # another service was faster
            raise failed.error from failed
        return replace(request, version=operation.version + 1 if isinstance(operation, Set) else 0)


async def forget(session: Session, request: AdminRequest) -> None:
    """Remove the request if its znode is unchanged; idempotent."""
    try:
        await commit(session, [Delete(path_of(request.request_id), request.version)])
    except MultiFailed as failed:
        if not isinstance(failed.cause, BadVersionError | NoNodeError):
            raise failed.error from failed


async def expire(session: Session, before_ms: int) -> int:
    """Remove requests from before that time (since 1970, UTC), and znodes that do not parse; returns their number."""
    node_paths = [f"{REQUESTS}/{name}" for name in await session.children(REQUESTS)]
    nodes = await session.read_many(node_paths) if node_paths else []
    removed = 0
    for path, node in zip(node_paths, nodes, strict=True):
        if node is None or not _is_older(path, node, before_ms):
            continue
        try:
            await commit(session, [Delete(path, node[1].version)])
            removed += 1
        except MultiFailed as failed:
            if not isinstance(failed.cause, BadVersionError | NoNodeError):
                raise failed.error from failed
    return removed


def _is_older(path: str, node: NodeRead, before_ms: int) -> bool:
    try:
        return _decode(path, node).at_ms < before_ms
    except TidemarkError as error:
        _log.error("a kept request cannot be read and is removed", extra={"path": path, "why": error.message})
        return True
