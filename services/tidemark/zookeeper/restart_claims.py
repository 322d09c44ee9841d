# SPDX-License-Identifier: Apache-2.0
"""The claim of a restart: only one of two concurrent brokers may restart (docs/formats.md)."""

from __future__ import annotations

from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tidemark.model import BrokerEpoch, BrokerId
from tidemark.ports import RestartClaim
from tidemark.zookeeper import codecs
from tidemark.zookeeper.multis import Create, Delete, MultiFailed, Operation, Set, commit
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
        return await _is_committed(session, Create(RESTART_CLAIM, data))
    return await _is_committed(session, Set(RESTART_CLAIM, data, claim.version))


async def end(session: Session, claim: RestartClaim) -> None:
    """Delete the node, unless another claim was written meanwhile."""
    await _is_committed(session, Delete(RESTART_CLAIM, claim.version))


async def _is_committed(session: Session, operation: Operation) -> bool:
    try:
        await commit(session, [operation])
    except MultiFailed as failed:
        if not isinstance(failed.cause, BadVersionError | NodeExistsError | NoNodeError):
            raise failed.error from failed
        return False
    return True
