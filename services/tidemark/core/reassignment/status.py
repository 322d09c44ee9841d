# SPDX-License-Identifier: Apache-2.0
"""Moves of replicas (the twelve steps of rule M1): what is to be done next, and in what state each replica is.

RAR is the target, OAR the original, AR what is assigned now. During a move AR is RAR and then what of OAR is not in it,
and the topic's node has for the partition `original` (OAR, in its order), `adding` (RAR - OAR) and `removing`
(OAR - RAR). A cancelled move is one whose target is the original. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.model import BrokerId, LeaderAndIsr, TopicDescription


class ReplicaState(StrEnum):
    """Of one replica of a partition that is moved, as ZooKeeper has it."""

    NEW = "new"  # assigned, and not in sync yet
    ONLINE = "online"
    OFFLINE = "offline"  # out of the ISR for good, its log is being deleted
    NON_EXISTENT = "non-existent"  # assigned no more


@dataclass(frozen=True, slots=True)
class ReassignmentStatus:
    """A move under way, read off the topic's node and leaderAndISR.

    Attributes:
        target: what it ends with.
        waiting_for: members of the target that are not in sync yet.
        replicas: the state of every replica that was, is or will be assigned.
    """

    original: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    waiting_for: tuple[BrokerId, ...]
    replicas: Mapping[BrokerId, ReplicaState]

    @property
    def cancelled(self) -> bool:
        """Whether it goes back."""
        return self.target == self.original


def status(topic: TopicDescription, partition: int, state: LeaderAndIsr | None) -> ReassignmentStatus | None:
    """The move of this partition that is under way; None: there is none."""
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
