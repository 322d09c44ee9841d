# SPDX-License-Identifier: Apache-2.0
"""Consumers that fetch from any replica, leader or not (rule K1, KIP-392).

No broker names a preferred replica to them: they ask any replica, and a replica must refuse records that it may not
return. A follower always believes that it is in sync: other rules keep its answers committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.core.replication import events as ev
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.model import NO_EPOCH, ErrorCode, LeaderEpoch, Offset, TidemarkError

from tests.simulation.clients.consumers import Reader
from tests.simulation.invariants.replication import InvariantError, Read

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World


class NearReader(Reader):
    """Reads leaders as other consumers do, to check whether the followers' records still exist.

    A reader that does not continue begins at the log start of the replica that it asks, and knows that replica's epoch.
    """

    def __init__(self, world: World, *, goes_on: bool) -> None:
        super().__init__(world, goes_on=goes_on)
        self._dice = world.engine.dice(f"near consumer, {'patient' if goes_on else 'anew'}")

    def _read(self, process: BrokerNode) -> None:
        partition, now_ms = self._world.partitions[0], self._world.engine.now
        replica = process.replica(partition)
        if replica is None or not isinstance(replica.role, PartitionFollower):
            others = [broker for broker in self._world.assigned(partition) if broker != process.broker_id]
            if others and process.leading(partition) is not None:
                process.feed(ev.PreferredReplicaNamed(partition, self._dice.choice(others)))
            super()._read(process)
            return
        if not self._goes_on:
            self._position, self._epoch = replica.role.log.log_start_offset, LeaderEpoch(NO_EPOCH)
            self._leader_epoch = LeaderEpoch(NO_EPOCH)
        self._leader_epoch = max(self._leader_epoch, replica.leader_epoch)
        try:
            readable = process.core.queries.readable_here(
                partition,
                identity=replica.identity,
                current_leader_epoch=self._leader_epoch,
                fetch_offset=Offset(self._position),
                last_fetched_epoch=self._epoch,
                in_sync_replicas=(process.broker_id,),
                now_ms=now_ms,
            )
            process.lease.check(partition)
        except TidemarkError as error:
            self._refused(error)
            return
        values = self._take(process, readable.end_offset)
        read = Read(self._position - len(values), values, readable.log_start_offset, readable.high_watermark)
        for invariant in self._world.invariants:
            invariant.on_follower_read(self._world, process, partition, read)

    def _refused(self, error: TidemarkError) -> None:
        """The next leader must return the same records."""
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise InvariantError(f"COMMITTED-READ: a follower states that an offset does not exist: {error}")
        if error.code is ErrorCode.LOG_TRUNCATED and not self._world.recipe.unclean:
            raise InvariantError(f"COMMITTED-READ: records read up to {self._position} are gone: {error}")
