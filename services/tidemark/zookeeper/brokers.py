# SPDX-License-Identifier: Apache-2.0
"""Brokers in ZooKeeper: registration (rule Z3), live brokers, broker epochs (rule T2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from tidemark.model import BrokerEpoch, BrokerEpochRecord, BrokerId, BrokerRegistration, ErrorCode, TidemarkError
from tidemark.zookeeper import codecs, lost_epochs, paths
from tidemark.zookeeper.multis import Create, Delete, MultiFailed, Operation, Set, commit, version_of
from tidemark.zookeeper.session_port import NodeRead, Session

_log = logging.getLogger(__name__)

WAIT_MS_MIN: Final = 30_000
"""The shortest wait of a registration for the session that the same log directories had on another boot."""


async def register(
    session: Session,
    registration: BrokerRegistration,
    *,
    clean: bool,
    locked_directory_ids: frozenset[str],
    flushed_kept: bool = False,
    crashed: bool = False,
) -> BrokerEpoch:
    """Register a broker in one multi (rule Z3): raise the epoch, delete an old node where safe, create the new node.

    Args:
        session: started.
        registration: the broker.
        clean: as rule T1 decides.
        locked_directory_ids: log directories that this process holds.
        flushed_kept: flushed records survived an unclean stop.
        crashed: the process before was not stopped cleanly (rule T7).

    Raises:
        TidemarkError: BROKER_ID_TAKEN.
    """
    broker_id = registration.broker_id
    wait_ms = max(3 * session.call_timeout_ms, WAIT_MS_MIN)
    deadline_ms = session.now_ms() + wait_ms
    while True:
        # The epoch is read first: a registration after this read raises the epoch, and this multi fails.
        found_epoch = await session.get(paths.broker_epoch(broker_id))
        found = await session.get(paths.broker(broker_id))
        delete_old = False
        old = None if found is None else _understood(found[0], broker_id)
        if await lost_epochs.make_up(session, broker_id, found_epoch, old):
            continue
        if found is not None:
            if found[1].ephemeralOwner == session.session_id:
                is_mine = old is not None and replace(old, broker_epoch=registration.broker_epoch) == registration
                if old is not None and is_mine and _has_epoch(found_epoch, old):
                    return old.broker_epoch  # an earlier attempt succeeded, and its answer was lost
                delete_old = True
            elif old is None or _must_wait(old, registration, locked_directory_ids):
                if session.now_ms() >= deadline_ms:
                    raise _taken(broker_id, old, "its directories are in use under another boot of a machine")
                await session.pause()
                continue
            else:
                delete_old = True
        epoch, operations = _operations(
            registration,
            found_epoch,
            clean=clean,
            flushed_kept=flushed_kept,
            crashed=crashed,
            delete_old=delete_old,
        )
        try:
            await commit(session, operations)
        except MultiFailed as failed:
            await _pause_without_node(session, failed)
            continue  # there was another registration, or the old session ended, in the meantime
        except TidemarkError as error:
            if session.now_ms() >= deadline_ms or error.metadata.get("sent") != "true":
                raise
            if session.session_id == 0:
                raise
            continue
        return epoch


def _has_epoch(node: NodeRead | None, registration: BrokerRegistration) -> bool:
    """Whether the epoch znode is that of this registration, and does not call its epoch void."""
    epoch = registration.broker_epoch
    if node is None or version_of(node) != epoch:
        return False
    return lost_epochs.unclean_at(paths.broker_epoch(registration.broker_id), node) <= epoch


async def _pause_without_node(session: Session, failed: MultiFailed) -> None:
    """A missing node may be a parent that was deleted manually; the controller restores it."""
    if isinstance(failed.cause, NoNodeError):
        await session.pause()


def _must_wait(old: BrokerRegistration, registration: BrokerRegistration, locked_directory_ids: frozenset[str]) -> bool:
    """Whether this registration must wait for the old session to expire; raises BROKER_ID_TAKEN where waiting cannot
    help."""
    if not locked_directory_ids & set(old.directory_ids):
        raise _taken(old.broker_id, old, "it has no log directory of this broker")
    return old.boot_id != registration.boot_id


def _understood(data: bytes, broker_id: BrokerId) -> BrokerRegistration | None:
    """The registration, or None for a znode that does not parse: only the end of its session deletes that znode."""
    try:
        return codecs.decode_registration(paths.broker(broker_id), data, broker_id)
    except TidemarkError as error:
        _log.error("a registration cannot be read", extra={"broker": broker_id, "why": error.message})
        return None


def _taken(broker_id: BrokerId, old: BrokerRegistration | None, why: str) -> TidemarkError:
    if old is None:
        return TidemarkError(
            ErrorCode.BROKER_ID_TAKEN,
            f"{paths.broker(broker_id)} cannot be read, and the session that it belongs to continues: stop the broker "
            f"that has it, or delete the node",
            {"broker_id": str(broker_id)},
        )
    return TidemarkError(
        ErrorCode.BROKER_ID_TAKEN,
        f"broker.id {old.broker_id} is registered by {old.address}, and {why}; "
        "give this broker another id, or stop the other broker",
        {"broker_id": str(old.broker_id), "host": old.host, "port": str(old.port)},
    )


def _operations(
    registration: BrokerRegistration,
    found_epoch: tuple[bytes, Any] | None,
    *,
    clean: bool,
    flushed_kept: bool,
    crashed: bool,
    delete_old: bool,
) -> tuple[BrokerEpoch, list[Operation]]:
    broker_id = registration.broker_id
    epoch_path = paths.broker_epoch(broker_id)
    unclean_at = lost_at = crashed_at = BrokerEpoch(-1)
    epoch = BrokerEpoch(0)
    if found_epoch is not None:
        data, stat = found_epoch
        epoch = BrokerEpoch(stat.version + 1)
        try:
            before = codecs.decode_broker_epoch(epoch_path, data, stat.version)
            unclean_at, lost_at, crashed_at = before.unclean_at, before.lost_at, before.crashed_at
        except TidemarkError as error:
            _log.error(
                "the node cannot be read: earlier ISR and ELR entries do not count", extra={"why": error.message}
            )
            unclean_at = lost_at = crashed_at = epoch
    if not clean:
        unclean_at = epoch
        lost_at = lost_at if flushed_kept else epoch
    if crashed:
        crashed_at = epoch
    content = codecs.encode_broker_epoch(registration.directory_ids, unclean_at, lost_at, crashed_at)
    operations: list[Operation] = [
        Create(epoch_path, content) if found_epoch is None else Set(epoch_path, content, epoch - 1)
    ]
    if delete_old:
        operations.append(Delete(paths.broker(broker_id)))
    node = codecs.encode_registration(replace(registration, broker_epoch=epoch))
    operations.append(Create(paths.broker(broker_id), node, ephemeral=True))
    return epoch, operations


async def live(session: Session, watch: Callable[[Any], None] | None) -> Mapping[BrokerId, BrokerRegistration]:
    """The registrations in /brokers/ids; the watch also fires when a broker registers again."""
    ids = _ids(await session.children(paths.BROKERS, watch))
    nodes = await session.read_many([paths.broker(broker_id) for broker_id in ids])
    found = {}
    for broker_id, node in zip(ids, nodes, strict=True):
        if node is None:
            continue
        try:
            found[broker_id] = codecs.decode_registration(paths.broker(broker_id), node[0], broker_id)
        except TidemarkError as error:
            _log.error("broker skipped: its node cannot be read", extra={"broker": broker_id, "why": error.message})
    return found


async def epochs(session: Session) -> Mapping[BrokerId, BrokerEpochRecord]:
    """The broker epochs of all brokers that ever registered, by broker id."""
    ids = _ids(await session.children(paths.BROKER_EPOCHS))
    nodes = await session.read_many([paths.broker_epoch(broker_id) for broker_id in ids])
    return {broker_id: _epoch(broker_id, node) for broker_id, node in zip(ids, nodes, strict=True) if node is not None}


def _epoch(broker_id: BrokerId, node: NodeRead) -> BrokerEpochRecord:
    """A znode that does not parse voids all entries from before the present registration (rule T2)."""
    data, stat = node
    try:
        return codecs.decode_broker_epoch(paths.broker_epoch(broker_id), data, stat.version)
    except TidemarkError as error:
        _log.error(
            "a broker node cannot be read: earlier ISR and ELR entries do not count",
            extra={"broker": broker_id, "why": error.message},
        )
        epoch = BrokerEpoch(stat.version)
        return BrokerEpochRecord(epoch, unclean_at=epoch, lost_at=epoch)


def _ids(names: list[str]) -> list[BrokerId]:
    """Broker ids among the children; other names are ignored."""
    return sorted(BrokerId(number) for name in names if (number := paths.number_in(name)) is not None)
