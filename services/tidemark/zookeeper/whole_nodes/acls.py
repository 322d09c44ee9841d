# SPDX-License-Identifier: Apache-2.0
"""The node with all access rules (docs/formats.md): read at a version, and replaced as a whole at that version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType, check_acl
from tidemark.core.security.authorizer import Rules
from tidemark.model import TidemarkError
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.whole_nodes import packed


async def read(session: Session, watch: Callable[[Any], None] | None) -> Rules:
    """The rules; empty, with generation -1, while the node does not exist; its creation is watched, too.

    The result is no older than this call. Raises INTERNAL for a damaged node.
    """
    return await packed.read(session, paths.ACLS, watch, decode) or Rules()


async def write(session: Session, acls: Iterable[Acl], *, version: int, validate_only: bool = False) -> bool:
    """Replace all rules in one write; False if the node is not at `version` any more (-1: if it exists).

    Rules by the ten thousand take a second, so another thread encodes and decodes them. `validate_only` writes
    nothing. Raises INVALID_REQUEST if the rules do not fit into a node.
    """
    return await packed.write(session, paths.ACLS, await asyncio.to_thread(encode, acls), version, validate_only)


def encode(acls: Iterable[Acl]) -> bytes:
    """The node's content; the same rules give the same bytes. Raises INVALID_REQUEST for rules that are too long."""
    return packed.pack(codecs.encode({"acls": sorted(set(acls))}), "access rules", "use prefixed rules")


def decode(data: bytes, version: int) -> Rules:
    """The rules of a node at this version.

    A rule that this version of Tidemark does not understand could be a DENY. So the whole node is refused then.

    Raises:
        TidemarkError: INTERNAL.
    """
    return packed.unpack(paths.ACLS, data, lambda fields: Rules([_acl_of(*words) for words in fields["acls"]], version))


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
