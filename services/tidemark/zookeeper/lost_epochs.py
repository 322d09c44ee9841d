# SPDX-License-Identifier: Apache-2.0
"""Restores /brokers/epochs/<id> znodes that were deleted or written manually: no broker epoch is used twice (rules Z3,
T2).

The znode's version is the broker epoch, and ZooKeeper counts a new znode from 0. ISR entries, commands and checks of an
older registration would then match a new registration. So the version is raised above the old one, by one write for
each step.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    LeaderAndIsr,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Check, Create, Delete, MultiFailed, Operation, Set, commit, version_of
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import commit_of

_WRITES_AT_ONCE: Final = 400
_SLICE: Final = 200
_NEVER: Final = BrokerEpoch(-1)
_log = logging.getLogger(__name__)


async def make_up(
    session: Session, broker_id: BrokerId, found: NodeRead | None, old: BrokerRegistration | None
) -> bool:
    """Create a missing znode before a registration. The registration then gets an epoch above every epoch that a
    partition or `old` names; entries from before that registration are void.

    Returns:
        Whether a znode was missing, so that the caller must read again.
    """
    path = paths.broker_epoch(broker_id)
    if found is None:
        highest = max(await _highest_named(session, broker_id), _NEVER if old is None else old.broker_epoch)
        if highest == _NEVER:
            return False  # this broker has never registered, or no state names it
        target, version = BrokerEpoch(highest + 1), -1
        _log.error(
            "the node of this broker's epoch was deleted manually; its replicas count as not in sync until they are",
            extra={"path": path, "broker": broker_id, "broker_epoch": target},
        )
    else:
        version = found[1].version
        target = max(unclean_at(path, found), BrokerEpoch(0))
        if target <= version + 1 or target > codecs.BROKER_EPOCH_MAX:
            return False
    content = codecs.encode_broker_epoch((), target, target, target)
    try:
        await commit(session, _raising(path, content, version, target - 1))
    except MultiFailed as failed:
        _log.info("another process created the epoch node", extra={"path": path, "why": str(failed)})
        await session.pause()  # the parent may be missing, too
    return True


async def restore(
    session: Session, term: ControllerTerm, registration: BrokerRegistration, was: BrokerEpochRecord
) -> bool:
    """Create the znode of a live broker again, with the epoch of its registration as the version; idempotent.

    A znode of a higher version was written manually, unless the broker has registered again: a registration raises the
    version in the same multi. After an edit of its registration the broker registers again by itself.

    Returns:
        Whether the znode was written.

    Raises:
        TidemarkError: CONTROLLER_NOT_ACTIVE, or COORDINATION_UNAVAILABLE where the broker has deregistered meanwhile.
    """
    path, epoch = paths.broker_epoch(registration.broker_id), registration.broker_epoch
    content = codecs.encode_broker_epoch(registration.directory_ids, was.unclean_at, was.lost_at, was.crashed_at)
    later = BrokerEpoch(epoch + 1)
    part = codecs.encode_broker_epoch((), later, later, later)  # `make_up` raises this node if the broker registers
    lives, is_restored = Check(paths.broker(registration.broker_id)), False
    while True:
        found, live = await session.read_many([path, paths.broker(registration.broker_id)])  # of the same moment
        version = version_of(found)
        is_edited = version >= 0 and version_of(live) > 0
        if version == epoch or is_edited:
            return is_restored
        if live is not None and not _is_of(live, registration):
            return is_restored
        operations: list[Operation] = [lives]
        if version > epoch:
            operations.append(Delete(path, version))
            version = -1
        is_last = epoch <= max(version, 0) + _WRITES_AT_ONCE
        await commit_of(session, term, [*operations, *_raising(path, content if is_last else part, version, epoch)])
        is_restored = True


def _is_of(node: NodeRead, registration: BrokerRegistration) -> bool:
    """Whether the znode of the broker has this registration's broker epoch."""
    try:
        broker_id = registration.broker_id
        found = codecs.decode_registration(paths.broker(broker_id), node[0], broker_id)
    except TidemarkError:
        return False
    return found.broker_epoch == registration.broker_epoch


def _raising(path: str, content: bytes, version: int, to: int) -> list[Operation]:
    """Operations that raise the znode (-1: missing) to this version, or nearer to it."""
    operations: list[Operation] = [Create(path, content)] if version < 0 else []
    start = max(version, 0)
    return operations + [Set(path, content, at) for at in range(start, min(to, start + _WRITES_AT_ONCE))]


async def _highest_named(session: Session, broker_id: BrokerId) -> BrokerEpoch:
    """The highest epoch of this broker in any partition's state."""
    highest = _NEVER
    async for state in states(session):
        entries = (*state.isr, *state.elr, *state.last_known)
        named = [one.broker_epoch for one in entries if one.broker_id == broker_id]
        highest = max([highest, *(epoch for epoch in named if epoch < codecs.BROKER_EPOCH_MAX)])
    return highest


async def states(session: Session) -> AsyncIterator[LeaderAndIsr]:
    """The state of every partition, apart from damaged ones, which are logged."""
    names = await session.children(paths.TOPICS)
    nodes = await session.read_many([paths.topic(name) for name in names])
    partitions: list[TopicPartition] = []
    for name, node in zip(names, nodes, strict=True):
        try:
            indices = () if node is None else codecs.decode_topic(paths.topic(name), node[0], name).partitions
        except TidemarkError as error:
            _log.error("topic skipped: its node cannot be read", extra={"topic": name, "why": error.message})
            continue
        partitions += [TopicPartition(name, index) for index in indices]
    for start in range(0, len(partitions), _SLICE):
        some = [paths.state(one) for one in partitions[start : start + _SLICE]]
        for path, node in zip(some, await session.read_many(some), strict=True):
            try:
                if node is not None:
                    yield codecs.decode_state(path, node[0])
            except TidemarkError as error:
                _log.error("state skipped: its node cannot be read", extra={"path": path, "why": error.message})
        await session.give_way()


def unclean_at(path: str, node: NodeRead) -> BrokerEpoch:
    """The stored `unclean_at`, which is above the znode's version until the broker registers, if the znode was missing.

    The registration reports a znode that does not parse.
    """
    try:
        return codecs.decode_broker_epoch(path, node[0], node[1].version).unclean_at
    except TidemarkError:
        return _NEVER
