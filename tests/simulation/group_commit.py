"""Worlds whose machines lose power: what was not flushed is gone, and with flush.policy=group-commit nothing is missed.

The controller of these worlds trusts whoever comes back, as rule T1 lets it for such topics.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from tidemark.core import events as ev
from tidemark.model import BrokerId, ReplicaIdentity, TopicPartition

from tests.simulation.harness import PARTITION, Disk, Process, World
from tests.simulation.invariants import Invariant

GROUP_COMMIT = {PARTITION.topic: {"flush.policy": "group-commit"}}


@dataclass
class FlushedDisk(Disk):
    """`flushed`: what a power loss leaves, exclusive. `cuts`: how often the log was cut."""

    flushed: int = 0
    cuts: int = 0

    def truncate(self, end: int) -> None:
        super().truncate(end)
        self.cuts += 1
        self.flushed = min(self.flushed, self.end)

    def lose_power(self) -> None:
        super().truncate(self.flushed)
        self.epochs = tuple(entry for entry in self.epochs if entry.start_offset <= self.end)

    def recovered(self) -> ev.RecoveredLog:
        return replace(super().recovered(), flushed_offset=self.flushed)


class FlushingProcess(Process):
    """A broker with a flush thread: one flush at a time, which covers what was appended until it began."""

    def __init__(self, world: GroupCommitWorld, broker_id: BrokerId, life: int) -> None:
        super().__init__(world, broker_id, life)
        self._flushing = False
        self._unflushed = False
        self._cuts_told: dict[TopicPartition, int] = defaultdict(int)

    def feed(self, event: ev.Event) -> None:
        if isinstance(event, ev.LeaderAndIsrArrived):
            event = replace(event, command=replace(event.command, topic_configs=GROUP_COMMIT))
        elif isinstance(event, ev.LogTruncated):
            self._cuts_told[event.partition] += 1
        super().feed(event)
        if isinstance(event, ev.LogTruncated | ev.LogAppended | ev.LogOpened):
            self._written(event.partition, event.identity)

    def _written(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        self._unflushed = True
        if not self._flushing:
            self._flush(partition, identity)

    def _flush(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        self._flushing, self._unflushed = True, False
        world = self.world
        disk = world.disk(self.broker_id, partition)
        assert isinstance(disk, FlushedDisk)
        end, cuts, cuts_told = disk.end, disk.cuts, self._cuts_told[partition]

        def done() -> None:
            if not self.alive:
                return
            if cuts == disk.cuts:
                disk.flushed = max(disk.flushed, end)
            flushed = disk.flushed
            world.after(world.random.randrange(0, 4), lambda: tell(flushed))
            self._flushing = False
            if self._unflushed:
                self._flush(partition, identity)

        def tell(flushed: int) -> None:
            if cuts_told == self._cuts_told[partition]:
                self.feed(ev.LogFlushed(partition, identity, flushed))

        stalls = world.random.random() < 0.01
        world.after(1200 if stalls else world.random.choice((1, 1, 3, 10, 60)), done)


class OnDisk(Invariant):
    """What a leader calls committed is on the disk of every member of the ISR that it has confirmed."""

    name = "FLUSHED"

    def check(self, world: World, partition: TopicPartition) -> None:
        node = world.store.nodes[partition].state
        for member in node.isr_ids:
            disk = world.disk(member, partition)
            assert isinstance(disk, FlushedDisk)
            committed = len(world.committed[partition])
            self.require(disk.flushed >= committed, f"{partition}: {committed} committed, {disk.flushed} at {member}")


class GroupCommitWorld(World):
    """As `World`, but a process that dies may take the page cache of its machine along."""

    def __init__(self, seed: int, *, min_isr: int = 2, lost_answers: float = 0.2) -> None:
        super().__init__(seed, min_isr=min_isr, lost_answers=lost_answers)
        self.invariants.append(OnDisk())
        self.records_lost = 0

    def disk(self, broker: BrokerId, partition: TopicPartition) -> Disk:
        return self.disks.setdefault((broker, partition), FlushedDisk())

    def start(self, broker: BrokerId) -> None:
        if broker in self.running:
            return
        self._lives[broker] += 1
        process = self.running[broker] = FlushingProcess(self, broker, self._lives[broker])
        self.after(self.random.randrange(1, 30), lambda: self._tick(process))
        self.after(self.random.randrange(1, 20), lambda: self._register(process))

    def crash(self, broker: BrokerId) -> None:
        was_up = broker in self.running
        super().crash(broker)
        disk = self.disk(broker, PARTITION)
        assert isinstance(disk, FlushedDisk)
        if was_up and self.random.random() < 0.7:
            before = disk.end
            disk.lose_power()
            self.records_lost += before - disk.end
