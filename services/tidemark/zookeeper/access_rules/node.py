# SPDX-License-Identifier: Apache-2.0
"""The node with all access rules (docs/formats.md): read at a version, and replaced as a whole at that version."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType, check_acl
from tidemark.core.security.authorizer import Rules
from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Create, MultiFailed, Set, commit
from tidemark.zookeeper.multis import Operation as Write
from tidemark.zookeeper.session_port import Session

_GZIP: Final = 31
"""zlib's window bits for a gzip header, so that an operator can read the node with gunzip."""
_EXPANDED_BYTES_MAX: Final = 64 << 20


async def read(session: Session, watch: Callable[[Any], None] | None) -> Rules:
    """The rules; none, of generation -1, while there is no node, whose creation is watched too.

    A read without watch is no older than this call. Raises INTERNAL for a damaged node.
    """
    if watch is None:
        await session.sync()
    else:
        await session.exists(paths.ACLS, watch)
    node = await session.get(paths.ACLS)
    return Rules() if node is None else await asyncio.to_thread(decode, node[0], node[1].version)


async def write(session: Session, acls: Iterable[Acl], version: int) -> bool:
    """Replace all rules in one write; False if the node is not at `version` any more (-1: if it exists).

    Rules by the ten thousand take a second, so another thread encodes and decodes them. Raises INVALID_REQUEST if the
    rules do not fit into a node.
    """
    data = await asyncio.to_thread(encode, acls)
    operation: Write = Create(paths.ACLS, data) if version < 0 else Set(paths.ACLS, data, version)
    try:
        await commit(session, [operation])
    except MultiFailed as failed:
        if isinstance(failed.cause, BadVersionError | NodeExistsError | NoNodeError):
            return False
        raise TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refused the write: {failed}") from failed
    return True


def encode(acls: Iterable[Acl]) -> bytes:
    """The node's content; the same rules give the same bytes. Raises INVALID_REQUEST for rules that are too long."""
    text = codecs.encode({"acls": sorted(set(acls))})
    if len(text) > _EXPANDED_BYTES_MAX:
        sentence = f"the access rules would take {len(text)} bytes, of {_EXPANDED_BYTES_MAX}: use prefixed rules"
        raise TidemarkError(ErrorCode.INVALID_REQUEST, sentence)
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return packer.compress(text) + packer.flush()


def decode(data: bytes, version: int) -> Rules:
    """The rules of a node at this version.

    A rule that this version of Tidemark does not understand could be a DENY. So the whole node is refused then.

    Raises:
        TidemarkError: INTERNAL.
    """
    return codecs.decode(paths.ACLS, _expanded(data), lambda fields: Rules(_acls_of(fields), version))


def _acls_of(fields: Mapping[str, Any]) -> list[Acl]:
    if fields["version"] != codecs.VERSION:
        raise ValueError
    return [_acl_of(*words) for words in fields["acls"]]


def _acl_of(kind: str, pattern: str, name: str, principal: str, host: str, operation: str, permission: str) -> Acl:
    if not all(isinstance(text, str) for text in (name, principal, host)):
        raise TypeError
    whole = Acl(
        ResourceType(kind), Pattern(pattern), name, principal, host, Operation(operation), Permission(permission)
    )
    try:
        return check_acl(whole)
    except TidemarkError as error:
        raise ValueError from error


def _expanded(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(data, _EXPANDED_BYTES_MAX)
    except zlib.error:
        text = b""
    if not unpacker.eof or unpacker.unused_data:
        sentence = f"the ZooKeeper node {paths.ACLS} cannot be understood: it is no whole gzip file"
        raise TidemarkError(ErrorCode.INTERNAL, sentence, {"path": paths.ACLS})
    return text
