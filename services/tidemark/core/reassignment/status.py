# SPDX-License-Identifier: Apache-2.0
"""The status of a reassignment (rule M1), from the topic's node and leaderAndISR. Pure.

RAR is the target, OAR the original and AR the assigned replicas. During a reassignment AR is RAR, then OAR - RAR; the
topic's node names `original` (OAR, in its order), `adding` (RAR - OAR) and `removing` (AR - RAR). The target of a
cancelled reassignment is OAR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.model import BrokerId, LeaderAndIsr, TopicDescription


class ReplicaState(StrEnum):
    """State of one replica of a partition that is being reassigned."""

    NEW = "new"  # added, and not in sync yet
    ONLINE = "online"
    OFFLINE = "offline"  # out of sync; a removed replica stays so until its log is deleted
    NON_EXISTENT = "non-existent"  # not assigned


@dataclass(frozen=True, slots=True)
class ReassignmentStatus:
    """A reassignment that has begun.

    Attributes:
        original: OAR.
        target: RAR.
        adding: RAR - OAR.
        removing: AR - RAR.
        waiting_for: members of the target that are not in sync yet.
        replicas: state of every replica of AR.
    """

    original: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    waiting_for: tuple[BrokerId, ...]
    replicas: Mapping[BrokerId, ReplicaState]

    @property
    def cancelled(self) -> bool:
        """Whether the reassignment is cancelled: its target is OAR."""
        return self.target == self.original


def status(topic: TopicDescription, partition: int, state: LeaderAndIsr | None) -> ReassignmentStatus | None:
    """The reassignment of this partition; None: the topic's node has none."""
    original = topic.original.get(partition)
    if original is None:
        return None
    assigned = topic.partitions[partition]
    adding, removing = topic.adding.get(partition, ()), topic.removing.get(partition, ())
    target = tuple(broker for broker in assigned if broker not in removing)
    in_sync = () if state is None else state.isr_ids
    waiting_for = tuple(broker for broker in target if broker not in in_sync)
    return ReassignmentStatus(
        original,
        target,
        adding,
        removing,
        waiting_for,
        {broker: _replica_state(broker, adding, removing, in_sync) for broker in assigned},
    )


def _replica_state(
    broker: BrokerId, adding: tuple[BrokerId, ...], removing: tuple[BrokerId, ...], in_sync: tuple[BrokerId, ...]
) -> ReplicaState:
    if broker in in_sync:
        return ReplicaState.ONLINE
    if broker in removing:
        return ReplicaState.OFFLINE
    return ReplicaState.NEW if broker in adding else ReplicaState.OFFLINE
