# SPDX-License-Identifier: Apache-2.0
"""The node with all quotas (docs/formats.md): read at a version, replaced as a whole at that version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.core.quotas.quotas import Limits, QuotaEntity, QuotaKind, Quotas, check_entity, check_limit
from tidemark.model import TidemarkError
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.whole_nodes import packed


async def read(session: Session, watch: Callable[[Any], None] | None) -> Quotas:
    """The quotas; empty, with generation -1, while the node does not exist; its creation is watched, too.

    The result is no older than this call. Raises INTERNAL for a damaged node.
    """
    return await packed.read(session, paths.QUOTAS, watch, decode) or Quotas()


async def write(
    session: Session, limits: Mapping[QuotaEntity, Limits], *, version: int, validate_only: bool = False
) -> bool:
    """Replace all quotas in one write; False if the node is not at `version` any more (-1: if it exists).

    `validate_only` writes nothing. Raises INVALID_REQUEST if the quotas do not fit into a node.
    """
    return await packed.write(session, paths.QUOTAS, await asyncio.to_thread(encode, limits), version, validate_only)


def encode(limits: Mapping[QuotaEntity, Limits]) -> bytes:
    """The node's content; the same quotas give the same bytes. Raises INVALID_REQUEST for quotas that are too long."""
    entries = [[*entity, dict(sorted(found.items()))] for entity, found in limits.items() if found]
    entries.sort(key=lambda entry: (entry[0] or "", entry[1] or ""))
    return packed.pack(codecs.encode({"quotas": entries}), "quotas", "use quotas of defaults")


def decode(data: bytes, version: int) -> Quotas:
    """The quotas of a node at this version. A node with a kind that this version does not know is refused as a whole.

    Raises:
        TidemarkError: INTERNAL.
    """
    return packed.unpack(
        paths.QUOTAS, data, lambda fields: Quotas(dict(_entry(*one) for one in fields["quotas"]), version)
    )


def _entry(user: str | None, client_id: str | None, limits: Mapping[str, float]) -> tuple[QuotaEntity, Limits]:
    if not all(name is None or isinstance(name, str) for name in (user, client_id)):
        raise TypeError
    found = {QuotaKind(word): limit for word, limit in limits.items()}
    if any(isinstance(limit, bool) or not isinstance(limit, int | float) for limit in found.values()):
        raise TypeError
    try:
        checked = {kind: check_limit(kind, limit) for kind, limit in found.items()}
        return check_entity(QuotaEntity(user, client_id)), checked
    except TidemarkError as error:
        raise ValueError from error
