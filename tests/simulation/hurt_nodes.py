# SPDX-License-Identifier: Apache-2.0
"""leaderAndISR nodes that are damaged, deleted or set back manually (rule Z4), and registrations that are deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.model import BrokerId, LeaderEpoch, TopicPartition
from tidemark.zookeeper import paths

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World

GARBAGE = b"\xff\xfe garbage"


class HurtNodes:
    """Damages nodes, and knows which content was written manually: such content states nothing about the partition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._contents: dict[TopicPartition, list[tuple[LeaderEpoch, bytes]]] = {}
        """Every content that a process wrote."""
        self._by_hand: dict[TopicPartition, int] = {}
        """Transaction of the last manual write; -1: a deletion."""
        self.hurt_once: set[TopicPartition] = set()
        """Partitions whose nodes were ever hurt."""
        self.deleted_once: set[TopicPartition] = set()
        """Partitions whose nodes were ever deleted: the version of a recreated node starts at 0."""

    def wrote(self, partition: TopicPartition, leader_epoch: LeaderEpoch, data: bytes) -> bool:
        """A process wrote the node.

        False: the process had read an older node as the current one, so its content does not count.
        """
        contents = self._contents.setdefault(partition, [])
        if partition in self._by_hand and contents and leader_epoch < contents[-1][0]:
            self._by_hand[partition] = self._world.ensemble.nodes[paths.state(partition)].modified_zxid
            return False
        contents.append((leader_epoch, data))
        return True

    def waits_for_people(self, partition: TopicPartition) -> bool:
        """Whether the replicas cannot prove the state of a hurt node: the last leader's process has ended, or too few
        replicas know its epoch.
        """
        newest = self._contents[partition][-1][0]
        processes, assigned = self._world.brokers, self._world.assigned(partition)
        knowing = [one for one in assigned if one in processes and self._knows(processes[one], partition, newest)]
        unknowing = len(assigned) - len(knowing)
        broker, life = self._world.led_by(partition, newest)
        led = broker in processes and processes[broker].life == life
        return not led or unknowing >= self._world.recipe.min_isr or 2 * unknowing >= len(assigned)

    @staticmethod
    def _knows(process: BrokerNode, partition: TopicPartition, leader_epoch: LeaderEpoch) -> bool:
        replica = process.replica(partition)
        return replica is not None and replica.command is not None and replica.leader_epoch == leader_epoch

    def is_hurt(self, partition: TopicPartition) -> bool:
        """Whether the node still has the content that was written manually."""
        zxid = self._by_hand.get(partition)
        if zxid is None:
            return False
        node = self._world.ensemble.nodes.get(paths.state(partition))
        return zxid == (-1 if node is None else node.modified_zxid)

    def hurt(self, how: str, times: int = 1) -> None:
        """Damage, delete or set back the node of the partition that records are written to."""
        partition = self._world.partitions[0]
        path, ensemble = paths.state(partition), self._world.ensemble
        if path not in ensemble.nodes:
            return
        if how == "older" and self.waits_for_people(partition):
            return  # for every process the older node would look like the present one
        data = self._older(partition) if how == "older" else GARBAGE
        self.hurt_once.add(partition)
        for _ in range(times):
            self._by_hand[partition] = ensemble.zxid + 1 if how != "deleted" else -1
            change: Callable[[Any], Any] = partial(_delete, path) if how == "deleted" else partial(_set, path, data)
            ensemble.commit([change])
            if how == "deleted":
                self.deleted_once.add(partition)
                break
        assert self.is_hurt(partition)

    def unregister(self, broker: BrokerId) -> None:
        """Delete the registration of a broker whose session continues."""
        path = paths.broker(broker)
        if path in self._world.ensemble.nodes:
            self._world.ensemble.commit([partial(_delete, path)])

    def _older(self, partition: TopicPartition) -> bytes:
        """The last content of the leader epoch before the newest one; bytes that do not parse if there is none."""
        contents = self._contents[partition]
        newest = contents[-1][0]
        return next((data for epoch, data in reversed(contents) if epoch < newest), GARBAGE)


def _set(path: str, data: bytes, tree: Any) -> Any:
    return tree.set(path, data, -1)


def _delete(path: str, tree: Any) -> Any:
    return tree.delete(path, -1)
