# SPDX-License-Identifier: Apache-2.0
"""The controller's election (rule Z1), the cluster id and blocks of producer ids."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import NodeExistsError

from tidemark.model import BrokerId, ControllerEpoch, ErrorCode, TidemarkError
from tidemark.ports import ControllerInfo, ControllerTerm
from tidemark.zookeeper import codecs, lost_epochs, paths
from tidemark.zookeeper.multis import Create, Delete, MultiFailed, Operation, commit, version_of, written
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import term_check

_log = logging.getLogger(__name__)
_EPOCH: Final = "epoch"
_EPOCH_MAX: Final = (1 << 31) - 1000
_PRODUCER_ID_MAX: Final = 1 << 62
_LOST_ABOVE: Final = 100
"""Number of controllers that may have been elected after the one whose epoch a state has."""
_NEXT: Final = "next"
_RETRIES: Final = 64
"""Attempts of a conditional write; each lost attempt is a success of another writer."""


async def elect(
    session: Session, controller_id: BrokerId, address: str, *, election_wait_ms: int = -1
) -> ControllerTerm | None:
    """Create /controller and raise /controller_epoch in one multi (rule Z1); None while another controller is elected.

    `election_wait_ms`: its leader.election.wait.ms, for `tidemark cluster describe`.
    """
    for _ in range(_RETRIES):
        # The epoch is read first: an election after this read raises the epoch, and this multi fails.
        found_epoch = await session.get(paths.CONTROLLER_EPOCH)
        held = await session.get(paths.CONTROLLER)
        owner = 0 if held is None else held[1].ephemeralOwner  # 0 also for a znode that was created manually
        if owner not in (0, session.session_id):
            return None
        if owner:
            # An earlier attempt of this session may have succeeded after the read of the epoch. While this session's
            # znode exists no other controller is elected, so the present controller epoch is this controller's.
            found_epoch = await session.get(paths.CONTROLLER_EPOCH)
        known = _number(paths.CONTROLLER_EPOCH, found_epoch, _EPOCH, _EPOCH_MAX)
        version = version_of(found_epoch)
        if owner and known is not None:
            return ControllerTerm(controller_id, ControllerEpoch(known), version)
        epoch = (await _lost_epoch(session) if known is None else known) + 1
        node = codecs.encode_controller(controller_id, address, election_wait_ms)
        operations: list[Operation] = [
            written(paths.CONTROLLER_EPOCH, codecs.encode_number(_EPOCH, epoch), version),
            *([] if held is None else [Delete(paths.CONTROLLER)]),
            Create(paths.CONTROLLER, node, ephemeral=True),
        ]
        try:
            await commit(session, operations)
        except MultiFailed:
            continue
        return ControllerTerm(controller_id, ControllerEpoch(epoch), version + 1)
    return None


def _number(path: str, node: NodeRead | None, name: str, most: int) -> int | None:
    """The number in a znode; None if that is missing or damaged."""
    if node is None:
        return None
    try:
        number = codecs.decode_number(path, node[0], name)
    except TidemarkError as error:
        _log.error("a number in ZooKeeper cannot be read", extra={"why": error.message})
        return None
    return number if 0 <= number <= most else None


async def _lost_epoch(session: Session) -> int:
    """An epoch above every controller's, if the znode was damaged or deleted manually; 0 in a new cluster.

    Brokers refuse a lower epoch than they know, and states have the epochs of the controllers that decided them.
    """
    highest = max([state.controller_epoch async for state in lost_epochs.states(session)], default=0)
    return highest + _LOST_ABOVE if highest else 0


async def current(session: Session, watch: Callable[[Any], None] | None) -> ControllerInfo | None:
    """The content of /controller, unless no session has that znode; the watch also fires on its creation."""
    if watch is not None and not await session.exists(paths.CONTROLLER, watch):
        return None
    found = await session.get(paths.CONTROLLER)
    if found is None or not found[1].ephemeralOwner:
        return None  # no session has a znode that was created manually
    return codecs.decode_controller(paths.CONTROLLER, found[0])


async def resign(session: Session, term: ControllerTerm) -> None:
    """Delete /controller unless another controller was elected since."""
    try:
        await commit(session, [term_check(term), Delete(paths.CONTROLLER)])
    except MultiFailed:
        return  # another controller has the node, or the node was deleted


async def cluster_id(session: Session) -> str:
    """The id in /cluster/id; "" without the znode."""
    found = await session.get(paths.CLUSTER_ID)
    return "" if found is None else codecs.decode_cluster_id(paths.CLUSTER_ID, found[0])


async def create_cluster_id(session: Session) -> str:
    """Create /cluster/id of a new cluster, unless the znode exists; returns its id."""
    if await session.children(paths.BROKER_EPOCHS) and not await cluster_id(session):
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"ZooKeeper's tree has brokers and no {paths.CLUSTER_ID}: the node was deleted. Restore the tree, or the "
            "node; meta.json of each log directory has the id",
        )
    try:
        await commit(session, [Create(paths.CLUSTER_ID, codecs.encode_cluster_id(uuid.uuid4().hex))])
    except MultiFailed as failed:
        if not isinstance(failed.cause, NodeExistsError):
            raise TidemarkError(ErrorCode.INTERNAL, f"ZooKeeper refused {paths.CLUSTER_ID}: {failed}") from failed
    found = await cluster_id(session)
    if not found:
        raise TidemarkError(ErrorCode.INTERNAL, f"{paths.CLUSTER_ID} was deleted", {"path": paths.CLUSTER_ID})
    return found


async def next_producer_ids(session: Session, count: int, *, at_least: int = 0) -> range:
    """The next `count` producer ids, the first `at_least` or above.

    A block whose answer was lost is never assigned again (rule P1). After damage of the znode, only `at_least` counts.
    """
    assert count > 0
    for _ in range(_RETRIES):
        found = await session.get(paths.PRODUCER_IDS)
        start = max(at_least, _number(paths.PRODUCER_IDS, found, _NEXT, _PRODUCER_ID_MAX) or 0)
        content = codecs.encode_number(_NEXT, start + count)
        try:
            await commit(session, [written(paths.PRODUCER_IDS, content, version_of(found))])
        except MultiFailed:
            continue
        return range(start, start + count)
    raise TidemarkError(
        ErrorCode.COORDINATION_UNAVAILABLE, f"{paths.PRODUCER_IDS} is changed too often by other processes; try again"
    )
