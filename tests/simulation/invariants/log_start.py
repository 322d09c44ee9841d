# SPDX-License-Identifier: Apache-2.0
"""Conditions of logs from which records are removed: by compaction, retention and deletion (rule L1)."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from tidemark.model import BrokerId, TopicPartition

from tests.simulation.invariants.moment import Moment, is_told_of_another, lineage_of
from tests.simulation.invariants.replication import CommittedRead, Invariant, Read
from tests.simulation.records import Values, is_tombstone, key_of

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.plan import Recipe
    from tests.simulation.world import World

_HORIZON_STEP_MS = 1000
"""Unit of delete horizons: a second."""


class LatestKept(Invariant):
    """The latest committed record of each key stays, a tombstone for its time. With a tombstone, the records that it
    deleted are gone too. Checked in the first lineage only: another lineage may lose the record that covers an earlier
    one.
    """

    name = "LATEST-KEPT"

    def __init__(self, committed: CommittedRead) -> None:
        self._committed = committed
        self._latest: dict[tuple[TopicPartition, int], tuple[int, dict[str, int]]] = {}
        self._committed_ms: dict[tuple[TopicPartition, int, int], int] = {}
        self._looked_at: dict[tuple[TopicPartition, BrokerId], object] = {}
        self.came_of_age: set[int] = set()
        """Offsets of tombstones that the cleaner has removed."""

    def is_checked(self, recipe: Recipe) -> bool:
        return recipe.compacted

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for now, log, lineage in moment.reconciled:
            stored = now.stored
            if lineage != 0 or stored is None:
                continue
            committed = self._committed.of(partition, lineage)
            limit = min(log.high_watermark, len(committed))
            looked_at = (lineage, limit, stored.start, stored.cleanings, stored.cuts, len(committed))
            if self._looked_at.get((partition, now.broker_id)) != looked_at:
                self._looked_at[partition, now.broker_id] = looked_at
                latest = self._latest_of(world, partition, lineage, committed)
                for key, offset in latest.items():
                    if stored.start <= offset < limit:
                        where = f"{partition} at broker {now.broker_id}: {key}"
                        self._check_key(world, where, key, stored.values, stored.start, (partition, lineage, offset))

    def _latest_of(self, world: World, partition: TopicPartition, lineage: int, committed: Values) -> dict[str, int]:
        looked, latest = self._latest.get((partition, lineage), (0, {}))
        for offset in range(looked, len(committed)):
            value = committed[offset]
            if value is not None:
                latest[key_of(value)] = offset
                self._committed_ms[partition, lineage, offset] = world.engine.now
        self._latest[partition, lineage] = (len(committed), latest)
        return latest

    def _check_key(
        self, world: World, where: str, key: str, values: Values, start: int, latest: tuple[TopicPartition, int, int]
    ) -> None:
        offset = latest[2]
        if values[offset] is not None:
            return
        committed = self._committed.of(*latest[:2])[offset]
        assert committed is not None, "the latest is one"
        if not is_tombstone(committed):
            self.fails(f"{where}: the latest record is {committed} at {offset}, and is gone")
        oldest_ms = self._committed_ms[latest] + world.recipe.delete_retention_ms - _HORIZON_STEP_MS
        if world.engine.now < oldest_ms:
            self.fails(f"{where}: the tombstone {committed} at {offset} is gone before its time")
        self.came_of_age.add(offset)
        back = [one for one in values[start:offset] if one is not None and key_of(one) == key]
        if back:
            self.fails(f"{where}: {back} came back, which {committed} had deleted")


class StartReleased(Invariant):
    """A log starts where a leader released the records below, never past the high watermark. Records deleted in an
    earlier lineage count only up to the start of the present one: later records exist."""

    name = "START-RELEASED"

    def __init__(self, committed: CommittedRead) -> None:
        self._committed = committed
        self._begins: dict[tuple[TopicPartition, int], int] = {}

    def _allowed(self, world: World, partition: TopicPartition, lineage: int) -> int:
        before = [front for (of, one), front in world.released_fronts.items() if of == partition and one < lineage]
        shared = min(max(before, default=0), self._begins.get((partition, lineage), 0))
        return max(world.released_fronts.get((partition, lineage), 0), shared)

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for _, leader in moment.leaders:
            self._begins.setdefault((partition, leader.state.lineage), leader.epoch_start_offset)
        for now in moment.replicas:
            log, lineage = now.log, now.lineage
            if log is None or not log.log_start_offset:
                continue
            start = log.log_start_offset
            if start > world.released_front:
                self.fails(
                    f"{partition}: broker {now.broker_id} starts at {start}, released was {world.released_front}"
                )
            if lineage is not None and not log.truncating:
                allowed = self._allowed(world, partition, lineage)
                if start > allowed and not is_told_of_another(now.replica, lineage):
                    self.fails(f"{partition}: broker {now.broker_id} starts at {start}, lineage {lineage} at {allowed}")
                committed = len(self._committed.of(partition, lineage))
                if not (start <= committed or lineage > 0):
                    self.fails(f"{partition}: starts at {start}, {committed} are committed")


class DeletedStaysDeleted(Invariant):
    """Records acknowledged as deleted are read again in three cases only.

    The leader is a replica that the acknowledgement named as lagging. Or all in-sync replicas were killed, and a
    replica without a later checkpoint leads. Or a broker has not received that a reassignment removed its replica.
    """

    name = "DELETED"

    def __init__(self) -> None:
        self._before: dict[tuple[TopicPartition, int], int] = {}
        self._had: dict[tuple[TopicPartition, int], set[BrokerId]] = {}
        self._behind: dict[tuple[TopicPartition, int], set[BrokerId]] = {}
        self._lived: dict[tuple[TopicPartition, int], set[BrokerId]] = {}
        """The replicas that had the log start, and were not killed since."""

    def on_deleted(
        self, world: World, process: BrokerNode, partition: TopicPartition, before_offset: int, behind: Set[BrokerId]
    ) -> None:
        leader = process.leading(partition)
        assert leader is not None, "the replica that answers leads"
        key = (partition, leader.state.lineage)
        if before_offset > self._before.get(key, 0):
            removed = world.machines.keys() - set(leader.assigned)
            self._before[key], self._behind[key] = before_offset, set(behind) | removed
            in_sync = {entry.broker_id for entry in leader.state.isr} - behind
            # Their disks may be slow: these replicas know their log starts in memory, until they are killed.
            self._had[key], self._lived[key] = in_sync, set(in_sync)

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is None or not self._before:
            return
        key = (partition, found.state.lineage)
        before = self._before.get(key)
        if before is None:
            return
        had, behind, lived = self._had[key], self._behind[key], self._lived[key]
        in_sync = set(found.state.isr_ids)
        keep = {broker for broker in world.machines if self._start(world, partition, broker) >= before}
        lived |= keep - had
        lived.intersection_update(world.brokers)
        had |= keep
        behind -= keep
        named = bool(keep) and behind >= in_sync  # they never had that start; others may lead again
        nobody_keeps = bool(in_sync) and not in_sync & keep and in_sync <= had | behind and not named
        leader_forgot = found.state.leader in had - keep and not in_sync & lived
        if nobody_keeps or leader_forgot:
            world.tell(f"every in-sync replica was killed before it wrote down that it starts at {before}")
            del self._before[key]

    @staticmethod
    def _start(world: World, partition: TopicPartition, broker: BrokerId) -> int:
        log = world.machines[broker].logs.get(partition)
        if log is None:
            return 0
        return log.start if broker in world.brokers else log.durable_start

    def on_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        leader = process.leading(partition)
        if leader is not None:
            self._check_read(process, partition, leader.state.lineage, read)

    def on_follower_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        lineage = lineage_of(process, partition)
        assert lineage is not None, "a serving replica has reconciled"
        self._check_read(process, partition, lineage, read)

    def _check_read(self, process: BrokerNode, partition: TopicPartition, lineage: int, read: Read) -> None:
        key = (partition, lineage)
        before = self._before.get(key, 0)
        if process.broker_id not in self._behind.get(key, ()) and not (read.first >= before or not read.values):
            self.fails(
                f"{partition}: broker {process.broker_id} shows {read.first}, records before {before} were deleted"
            )
