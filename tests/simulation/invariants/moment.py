# SPDX-License-Identifier: Apache-2.0
"""The state of a partition after an event, read once for all invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.model import BrokerId, IsrEntry, TopicPartition, VersionedState

from tests.simulation.records import Values

if TYPE_CHECKING:
    from tidemark.core.replication.replica import Replica
    from tidemark.core.replication.replica_log import ReplicaLog

    from tests.simulation.disks.machine import StoredLog
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World


class ReplicaNow(NamedTuple):
    """A replica in the memory of a live process, and its log on the disk."""

    process: BrokerNode
    broker_id: BrokerId
    replica: Replica
    leader: PartitionLeader | None
    log: ReplicaLog | None
    lineage: int | None
    stored: StoredLog | None
    values: Values


class Moment(NamedTuple):
    """The partition's node, the replicas of live brokers, and the in-sync replicas that count."""

    partition: TopicPartition
    found: VersionedState | None
    replicas: list[ReplicaNow]
    leaders: list[tuple[ReplicaNow, PartitionLeader]]
    reconciled: list[tuple[ReplicaNow, ReplicaLog, int]]
    """Replicas with their logs and lineages: no truncation is in flight."""
    trusted: list[tuple[IsrEntry, Values]]
    """Members of the ISR whose machines have not lost acknowledged records, and their records."""


def look(world: World, partition: TopicPartition) -> Moment:
    """The present state of a partition."""
    moment = Moment(partition, world.state(partition), [], [], [], [])
    machines = world.machines
    for broker_id, process in world.brokers.items():
        replica = process.replica(partition)
        if replica is None:
            continue
        role, log = replica.role, replica.log
        leader = role if isinstance(role, PartitionLeader) else None
        lineage = _lineage(process, replica)
        stored = machines[broker_id].logs.get(partition)
        values = stored.values if stored is not None else []
        now = ReplicaNow(process, broker_id, replica, leader, log, lineage, stored, values)
        moment.replicas.append(now)
        if leader is not None:
            moment.leaders.append((now, leader))
        if log is not None and lineage is not None and not log.truncating:
            moment.reconciled.append((now, log, lineage))
    if moment.found is not None:
        for member in moment.found.state.isr:
            if machines[member.broker_id].keeps_promise_of(member.broker_epoch):
                moment.trusted.append((member, world.values(member.broker_id, partition)))
    return moment


def lineage_of(process: BrokerNode, partition: TopicPartition) -> int | None:
    """The lineage in which a replica's log was last reconciled; None while unknown."""
    replica = process.replica(partition)
    return None if replica is None else _lineage(process, replica)


def _lineage(process: BrokerNode, replica: Replica) -> int | None:
    role = replica.role
    if isinstance(role, PartitionLeader):
        return role.state.lineage
    if isinstance(role, PartitionFollower) and role.reconciled and replica.command is not None:
        return replica.command.state.lineage
    if not process.world.recipe.unclean:
        return 0
    return replica.reconciled_lineage if replica.reconciled_lineage >= 0 else None


def is_told_of_another(replica: Replica | None, lineage: int) -> bool:
    """Whether a replica of one lineage is being moved to another: it may truncate records below its high
    watermark of the first, as rule E3 allows, and more than once."""
    return replica is not None and replica.command is not None and replica.command.state.lineage != lineage
