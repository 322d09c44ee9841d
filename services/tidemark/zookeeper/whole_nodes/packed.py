# SPDX-License-Identifier: Apache-2.0
"""A node whose content is JSON in gzip, so that an operator can read it with gunzip; written at a version."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.zookeeper import codecs
from tidemark.zookeeper.multis import check_size, is_committed, written
from tidemark.zookeeper.session_port import Session

T = TypeVar("T")

_GZIP: Final = 31
"""zlib's window bits for a gzip header."""
EXPANDED_BYTES_MAX: Final = 64 << 20


async def read(
    session: Session, path: str, watch: Callable[[Any], None] | None, decode: Callable[[bytes, int], T]
) -> T | None:
    """The decoded node; None while the node does not exist; its creation is watched, too. Another thread decodes.

    The result is no older than this call: a new session may have a server that lags, and a rule that was removed
    must not come back. Raises INTERNAL for a damaged node.
    """
    await session.sync()
    if watch is not None:
        await session.exists(path, watch)
    node = await session.get(path)
    return None if node is None else await asyncio.to_thread(decode, node[0], node[1].version)


async def write(session: Session, path: str, data: bytes, version: int, validate_only: bool) -> bool:
    """Replace the node in one write; False if it is not at `version` any more (-1: if it exists).

    `validate_only` writes nothing. Raises INVALID_REQUEST for data beyond the size of a node.
    """
    operation = written(path, data, version)
    if validate_only:
        check_size([operation])
        return True
    return await is_committed(session, [operation])


def pack(text: bytes, what: str, advice: str) -> bytes:
    """Compress the JSON of a node with gzip; equal texts give equal bytes.

    Raises:
        TidemarkError: INVALID_REQUEST for a text of more than 64 MiB, which `unpack` would refuse to read.
    """
    if len(text) > EXPANDED_BYTES_MAX:
        raise invalid_request(f"the {what} would take {len(text)} bytes, of {EXPANDED_BYTES_MAX}: {advice}")
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return packer.compress(text) + packer.flush()


def unpack(path: str, data: bytes, build: Callable[[Mapping[str, Any]], T]) -> T:
    """Build a value from the JSON of a node of the present version; raises INTERNAL for another content."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(data, EXPANDED_BYTES_MAX)
    except zlib.error:
        text = b""
    if not unpacker.eof or unpacker.unused_data:
        sentence = f"the ZooKeeper node {path} cannot be understood: it is not a whole gzip file"
        raise TidemarkError(ErrorCode.INTERNAL, sentence, {"path": path})

    def built(fields: Mapping[str, Any]) -> T:
        if fields["version"] != codecs.VERSION:
            raise ValueError
        return build(fields)

    return codecs.decode(path, text, built)
