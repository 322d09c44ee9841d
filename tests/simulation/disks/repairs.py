# SPDX-License-Identifier: Apache-2.0
"""The shipping repair of damaged batches (rule T6), over the logs and the network of a simulated cluster.

Written here: the findings of a scrubber, the call to another broker, and the logs in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.broker.logs.log_repairs import LogRepairs, SuspectLog
from tidemark.broker.logs.refused_chunks import RefusedChunks
from tidemark.broker.logs.repair_sources import ReplicaPart
from tidemark.broker.logs.suspect_logs import EVERYWHERE
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication import events as ev
from tidemark.model import BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.log.segment_repair import DamagedRange, Patch

from tests.simulation.disks.machine import StoredLog
from tests.simulation.invariants.replication import InvariantError
from tests.simulation.records import is_good
from tests.simulation.scheduler import SimScheduler

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World


class SimRepairs:
    """The repairs of one broker process.

    Attributes:
        repairs: the shipping object.
        refused_chunks: the shipping object.
    """

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.repairs = LogRepairs(self, self, SimScheduler(node), self, self._give_up, node.driver.fail)
        self.refused_chunks = RefusedChunks(self, SimScheduler(node), node.driver.fail)

    def _give_up(self, partition: TopicPartition, identity: ReplicaIdentity, repairable: bool) -> None:
        self._node.world.counts["damaged leaders"] += 1
        self._node.feed(ev.LogDamaged(partition, identity, repairable))

    # -- SuspectLogs

    def find(self, partition: TopicPartition) -> SuspectLog | None:
        """The log of a replica; None while it is not open."""
        return self._node.logs.suspect(partition)

    def roll(self, partition: TopicPartition) -> None:
        """Roll the active segment; a log in memory has none."""
        self._node.logs.roll(partition)

    # -- ReplicaPeers

    def sources(self, partition: TopicPartition) -> Sequence[BrokerId]:
        """The other replicas, as the last command names them."""
        replica = self._node.replica(partition)
        if replica is None or replica.command is None:
            return ()
        state = replica.command.state
        ranked = dict.fromkeys((state.leader, *state.isr_ids, *replica.assigned))
        return [one for one in ranked if one >= 0 and one != self._node.broker_id]

    async def read(
        self, broker: BrokerId, partition: TopicPartition, identity: ReplicaIdentity, start: int, end: int
    ) -> ReplicaPart:
        """Ask the other broker, which checks every batch."""
        peer = await self._reach(broker)
        log, batches = peer.logs.peek(partition, identity, start, end)
        bad = next((one.envelope.base_offset for one in batches if not is_good(one)), None)
        part = ReplicaPart(log.start, log.end, 0, tuple(batches))
        if bad is not None:
            peer.repairs.repairs.suspect(partition, bad)
        await self._reach(broker)
        if bad is not None:
            raise TidemarkError(ErrorCode.CORRUPT_BATCH, "damaged there, too", {"offset": str(bad)})
        return part

    async def have_checked(self, broker: BrokerId, partition: TopicPartition, offset: int) -> None:
        """Have the leader check its log."""
        peer = await self._reach(broker)
        self._node.world.counts["leaders asked to check"] += 1
        if not await peer.repairs.repairs.repair(partition, offset):
            raise TidemarkError(ErrorCode.CORRUPT_BATCH, "the batch stays damaged")

    async def _reach(self, broker: BrokerId) -> BrokerNode:
        """One way through the network."""
        node = self._node
        await node.sleep(node.world.network.delay_ms(node.name, f"b{broker}"))
        peer = node.world.brokers.get(broker)
        if peer is None or peer.paused or not node.world.network.both_ways(node.name, peer.name):
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} does not answer")
        return peer

    # -- RepairMetrics

    def found(self, count: int) -> None:
        """Damaged ranges were found."""
        self._node.world.counts["ranges found"] += count

    def repaired(self, count: int) -> None:
        """Damaged ranges were replaced."""
        self._node.world.counts["ranges repaired"] += count
        self._node.world.tell(f"broker {self._node.broker_id} replaces {count} damaged ranges")

    def unrepaired(self, count: int) -> None:
        """The number of damaged ranges that have no good copy now."""


class MemoryLog:
    """A log in memory as `SuspectLog` and, below the high watermark, as one `SuspectSegment`."""

    base_offset = 0
    next_offset = clean_point = EVERYWHERE

    def __init__(self, node: BrokerNode, partition: TopicPartition, identity: ReplicaIdentity, log: StoredLog) -> None:
        core = node.replica_log(partition)
        self.leads = node.leading(partition) is not None
        self.size_bytes = EVERYWHERE * node.engine.dice("segment size").randrange(2)  # for a large one a leader resigns
        self.identity = identity
        self.high_watermark = min(int(core.high_watermark), log.end) if core is not None else 0
        self.epochs = LeaderEpochs(core.epochs.entries if core is not None else log.epochs)
        self.log_start_offset, self.log_end_offset = log.start, log.end
        self.holes_until = EVERYWHERE if node.world.recipe.compacted else log.start
        self.log = log
        self._cuts = log.cuts

    def is_sealed(self, offset: int) -> bool:
        return True

    def segments(self, offset: int) -> Sequence[MemoryLog]:
        return [self] if self._cuts == self.log.cuts else []

    @property
    def whole(self) -> DamagedRange:
        return DamagedRange(0, 0, 0, self.log.start, self.log.end, "")

    def find_damage(self) -> list[DamagedRange]:
        bad = [one.envelope for one in self.log.batches if one.envelope.base_offset in self.log.flipped]
        return [
            DamagedRange(0, 0, one.batch_length, one.base_offset, one.next_offset, "a bit is wrong")
            for one in bad
            if one.next_offset <= self.high_watermark
        ]

    def replace(self, patches: Sequence[Patch]) -> bool:
        """Check that the log has the batch that was written: no other batch may replace it."""
        if self._cuts != self.log.cuts:
            return False
        done = [one for one in patches if one.batches is not None]
        for damaged, batches in done:
            written = [one for one in self.log.batches if one.envelope.base_offset == damaged.start_offset]
            if [one.envelope for one in batches or ()] != [one.envelope for one in written]:
                raise InvariantError(f"HEALS: {batches} took the place of {written}")
        self.log.flipped -= {damaged.start_offset for damaged, _ in done}
        return True


def scrub(world: World) -> None:
    """The findings of the scrubbers of all brokers."""
    for broker, machine in world.machines.items():
        process = world.brokers.get(broker)
        for partition, log in machine.logs.items():
            if process is not None and log.flipped:
                process.repairs.repairs.suspect(partition, Offset(min(log.flipped)))
