# SPDX-License-Identifier: Apache-2.0
"""Refused requests of /admin znodes, kept so that the requester finds the answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tidemark.model import ErrorCode, Refusal, TidemarkError
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Operation, version_of, written
from tidemark.zookeeper.session_port import Session

_log = logging.getLogger(__name__)

KEPT: Final = 100
_MESSAGE_CHARACTERS_MAX: Final = 1_000


async def read(session: Session) -> Sequence[Refusal]:
    """Kept refusals, oldest first; empty if the znode does not parse, which is logged."""
    node = await session.get(paths.REFUSALS)
    return () if node is None else _decoded(node[0])


async def keep(session: Session, refusals: Sequence[Refusal]) -> Sequence[Operation]:
    """Operations of a multi that keep these refusals with the earlier ones, `KEPT` in all."""
    if not refusals:
        return ()
    node = await session.get(paths.REFUSALS)
    before = () if node is None else _decoded(node[0])
    shortened = [Refusal(one.kind, one.partition, _shortened(one.error), one.request_id, one.at_ms) for one in refusals]
    data = codecs.encode_refusals([*before, *shortened][-KEPT:])
    return [written(paths.REFUSALS, data, version_of(node))]


def _shortened(error: TidemarkError) -> TidemarkError:
    return TidemarkError(ErrorCode(error.code), error.message[:_MESSAGE_CHARACTERS_MAX])


def _decoded(data: bytes) -> Sequence[Refusal]:
    try:
        return codecs.decode_refusals(paths.REFUSALS, data)
    except TidemarkError as error:
        _log.error("refusals ignored: their node cannot be read", extra={"why": error.message})
        return ()
