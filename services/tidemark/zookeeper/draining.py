# SPDX-License-Identifier: Apache-2.0
"""Brokers that are being drained, or are drained: a node each, so that nothing new is placed on them.

/admin/draining_brokers/<id> is there from the moment somebody begins to remove the broker until it is added again: a
broker that was drained and not stopped yet must stay empty.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from tidemark.model import BrokerId, ErrorCode, TidemarkError
from tidemark.zookeeper.multis import Create, Delete, MultiFailed, Operation, commit
from tidemark.zookeeper.session_port import Session

DRAINING_BROKERS: Final = "/admin/draining_brokers"
BROKER_CONFIGS: Final = "/config/brokers"


async def read(session: Session) -> frozenset[BrokerId]:
    """The brokers that have the node; a node of another name is none of ours."""
    names = await session.children(DRAINING_BROKERS)
    return frozenset(BrokerId(int(name)) for name in names if name.isascii() and name.isdecimal())


async def begin(session: Session, brokers: Collection[BrokerId]) -> None:
    """Make the nodes; again is fine."""
    await session.ensure(DRAINING_BROKERS)
    for broker in sorted(brokers):
        await _commit_unless(session, Create(f"{DRAINING_BROKERS}/{broker}"), NodeExistsError)


async def end(session: Session, brokers: Collection[BrokerId]) -> None:
    """Delete the nodes; again is fine."""
    for broker in sorted(brokers):
        await _commit_unless(session, Delete(f"{DRAINING_BROKERS}/{broker}"), NoNodeError)


async def forget_configs(session: Session, broker: BrokerId) -> None:
    """Delete /config/brokers/<id>; gone already is fine."""
    await _commit_unless(session, Delete(f"{BROKER_CONFIGS}/{broker}"), NoNodeError)


async def _commit_unless(session: Session, operation: Operation, done_already: type[Exception]) -> None:
    try:
        await commit(session, [operation])
    except MultiFailed as failed:
        if not isinstance(failed.cause, done_already):
            raise TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refused the write: {failed}") from failed
