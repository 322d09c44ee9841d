# SPDX-License-Identifier: Apache-2.0
"""The claim of a restart: only one of two concurrent brokers may restart (docs/formats.md)."""

from __future__ import annotations

from typing import Final

from tidemark.model import BrokerEpoch, BrokerId
from tidemark.ports import RestartClaim
from tidemark.zookeeper import codecs
from tidemark.zookeeper.multis import Delete, is_committed, written
from tidemark.zookeeper.session_port import Session

RESTART_CLAIM: Final = "/admin/restart_claim"
_ADMIN: Final = "/admin"


async def read(session: Session) -> RestartClaim | None:
    """The claim, valid or not, as new as this call; None if the node is missing."""
    await session.sync()
    node = await session.get(RESTART_CLAIM)
    if node is None:
        return None
    data, stat = node
    return codecs.decode(
        RESTART_CLAIM,
        data,
        lambda fields: RestartClaim(
            BrokerId(int(fields["broker"])),
            BrokerEpoch(int(fields["broker_epoch"])),
            int(fields["until_ms"]),
            stat.version,
        ),
    )


async def write(session: Session, claim: RestartClaim) -> bool:
    """Write over the version that `claim` has; False if another claim was written meanwhile."""
    fields = {"broker": claim.broker_id, "broker_epoch": claim.broker_epoch, "until_ms": claim.until_ms}
    data = codecs.encode(fields)
    if claim.version < 0:
        await session.ensure(_ADMIN)
    return await is_committed(session, [written(RESTART_CLAIM, data, claim.version)])


async def end(session: Session, claim: RestartClaim) -> None:
    """Delete the node, unless another claim was written meanwhile."""
    await is_committed(session, [Delete(RESTART_CLAIM, claim.version)])
