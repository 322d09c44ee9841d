# SPDX-License-Identifier: Apache-2.0
"""Draining brokers: a znode for each prevents new replicas on the broker.

/admin/draining_brokers/<id> exists from the start of the broker's removal until the broker is added again, because a
drained broker that still runs must stay empty.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from tidemark.model import BrokerId
from tidemark.zookeeper import paths
from tidemark.zookeeper.multis import Create, Delete, is_committed
from tidemark.zookeeper.session_port import Session

DRAINING_BROKERS: Final = "/admin/draining_brokers"
BROKER_CONFIGS: Final = "/config/brokers"


async def read(session: Session) -> frozenset[BrokerId]:
    """Ids of the draining brokers, which get no new replicas; children with other names are ignored."""
    names = await session.children(DRAINING_BROKERS)
    return frozenset(BrokerId(number) for name in names if (number := paths.number_in(name)) is not None)


async def begin(session: Session, brokers: Collection[BrokerId]) -> None:
    """Create the znodes of draining brokers; idempotent."""
    await session.ensure(DRAINING_BROKERS)
    for broker in sorted(brokers):
        await is_committed(session, [Create(f"{DRAINING_BROKERS}/{broker}")], (NodeExistsError,))


async def end(session: Session, brokers: Collection[BrokerId]) -> None:
    """Delete the znodes of draining brokers; idempotent."""
    for broker in sorted(brokers):
        await is_committed(session, [Delete(f"{DRAINING_BROKERS}/{broker}")], (NoNodeError,))


async def forget_configs(session: Session, broker: BrokerId) -> None:
    """Delete /config/brokers/<id>; idempotent."""
    await is_committed(session, [Delete(f"{BROKER_CONFIGS}/{broker}")], (NoNodeError,))
