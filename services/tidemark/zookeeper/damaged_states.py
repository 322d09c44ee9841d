# SPDX-License-Identifier: Apache-2.0
"""Writes leaderAndISR znodes again that were damaged, deleted or set back manually (rule Z4).

A leader writes its ISR at the version that it knows (rule R9), and ZooKeeper counts a new znode from 0. So the version
of the new znode is raised above the versions that replicas know, by one write for each step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.model import LeaderEpoch, StateRebuild, TidemarkError, TopicPartition
from tidemark.ports import ControllerTerm
from tidemark.zookeeper import codecs, paths
from tidemark.zookeeper.multis import Check, Create, MultiFailed, Operation, Set, commit, version_of, written
from tidemark.zookeeper.session_port import NodeRead, Session
from tidemark.zookeeper.topics import not_active, term_check

_RAISED_MAX: Final = 400
"""Versions raised in one multi.

The new znode does not soon reach the version that a leader with a higher version knows.
"""
_log = logging.getLogger(__name__)


async def versions(session: Session, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Versions of leaderAndISR znodes, with or without damage; -1: the znode is missing."""
    nodes = await session.read_many([paths.state(one) for one in partitions])
    return {partition: version_of(node) for partition, node in zip(partitions, nodes, strict=True)}


async def rebuild(session: Session, term: ControllerTerm, rebuilds: Sequence[StateRebuild]) -> Sequence[bool]:
    """Write each state again, in separate multis; False if the znode or its topic has changed since the read.

    Raises:
        TidemarkError: CONTROLLER_NOT_ACTIVE, COORDINATION_UNAVAILABLE.
    """
    return [await _rebuilt(session, term, one) for one in rebuilds]


async def _rebuilt(session: Session, term: ControllerTerm, one: StateRebuild) -> bool:
    path, above = paths.state(one.partition), paths.partition(one.partition)
    incarnation = paths.incarnation(one.partition, one.identity.incarnation)
    node, parent, marker = await session.read_many([path, above, incarnation])
    if version_of(node) != one.damaged_version or _is_good(path, node, one.older_epoch):
        return False
    operations: list[Operation] = [Check(paths.topic(one.partition.topic), one.topic_version)]
    if parent is None:
        operations.append(Create(above))
    operations += _writes(path, codecs.encode_state(one.state), one)
    if marker is None:
        operations.append(Create(incarnation))
    try:
        await commit(session, [term_check(term), *operations])
    except MultiFailed as failed:
        if failed.index == 0:
            raise not_active(term) from None
        _log.info("the state was changed meanwhile", extra={"path": path, "why": str(failed)})
        return False
    return True


def _writes(path: str, data: bytes, one: StateRebuild) -> list[Operation]:
    first = written(path, data, one.damaged_version)
    version = one.damaged_version + 1
    end = min(one.above_version + 1, version + _RAISED_MAX)
    return [first, *(Set(path, data, at) for at in range(version, end))]


def _is_good(path: str, node: NodeRead | None, older_epoch: LeaderEpoch) -> bool:
    if node is None:
        return False
    try:
        return codecs.decode_state(path, node[0]).leader_epoch > older_epoch
    except TidemarkError:
        return False
