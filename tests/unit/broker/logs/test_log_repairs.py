# SPDX-License-Identifier: Apache-2.0
"""Repairs of damaged logs from other replicas: sources, their order, and damage without a good copy (rule T6)."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

import pytest
from tidemark.broker.clients.read_replica import checked_envelopes
from tidemark.broker.logs import log_repairs
from tidemark.broker.logs.log_repairs import LogRepairs
from tidemark.broker.logs.refused_chunks import RefusedChunks
from tidemark.broker.logs.repair_sources import ReplicaPart
from tidemark.broker.logs.suspect_logs import OpenSuspectLog
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication.effects import Observed
from tidemark.model import BrokerId, EpochEntry, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError
from tidemark.model import TopicPartition as Partition
from tidemark.record.checks import check_batches
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import find_damage
from tidemark.storage.segments.segment import Segment

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one, read_all

PLAIN = {"segment.bytes": "4096"}
LEADER, FOLLOWER, HERE = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = 1 << 62


@pytest.fixture
def root() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


class World:
    """A replica at broker 3, and its copies at the brokers 1 and 2, all in sync."""

    def __init__(self, root: Path) -> None:
        logs = open_one(root / "first")
        rng = random.Random(5)
        log = logs.open(PARTITION, IDENTITY, PLAIN)[0]
        for number in range(40):
            lead(log, make_batch(["x" * rng.randrange(60) for _ in range(rng.randrange(1, 8))]), epoch=number // 20)
        logs.close()
        self.replicas: dict[BrokerId, PartitionLog] = {}
        for broker in (LEADER, FOLLOWER, HERE):
            shutil.copytree(root / "first", root / str(broker))
            self.replicas[broker] = open_one(root / str(broker)).open(PARTITION, IDENTITY, PLAIN)[0]
        self.log = self.replicas[HERE]
        self.good = read_all(self.log)
        self.down: set[BrokerId] = set()
        self.asked: list[BrokerId] = []
        self.rolls = 0
        self.high_watermark = int(self.log.log_end_offset)
        self.counts = {"found": 0, "repaired": 0, "unrepaired": 0}
        self.failures: list[BaseException] = []
        self.was_repaired = asyncio.Event()
        self.scheduler = AsyncioScheduler()
        self.repairs = LogRepairs(self, self, self.scheduler, self, self.failures.append)
        self.changes = self.log.state().epochs

    # -- SuspectLogs

    def find(self, partition: Partition) -> OpenSuspectLog | None:
        if partition != PARTITION:
            return None
        return OpenSuspectLog(self.log, IDENTITY, self.high_watermark, LeaderEpochs(self.changes), may_hold_holes=False)

    def roll(self, partition: Partition) -> None:
        self.rolls += 1
        self.log.roll_by_time(ALL)

    # -- ReplicaPeers

    def sources(self, partition: Partition) -> Sequence[BrokerId]:
        return [broker for broker in (LEADER, FOLLOWER) if broker not in self.down]

    async def read(
        self, broker: BrokerId, partition: Partition, identity: ReplicaIdentity, start: int, end: int
    ) -> ReplicaPart:
        assert (partition, identity) == (PARTITION, IDENTITY)
        self.asked.append(broker)
        log = self.replicas[broker]
        data = log.read(Offset(start), end_offset=end, max_bytes=300) or b""
        checked_envelopes(partition, data, start)
        return ReplicaPart(log.log_start_offset, log.log_end_offset, check_batches(data))

    # -- RepairMetrics

    def found(self, count: int) -> None:
        self.counts["found"] += count

    def repaired(self, count: int) -> None:
        self.counts["repaired"] += count
        self.was_repaired.set()

    def unrepaired(self, count: int) -> None:
        self.counts["unrepaired"] = count

    # -- what the tests do

    def segment(self, number: int, broker: BrokerId = HERE) -> Segment:
        return self.replicas[broker].segments.all[number]

    def flip(self, number: int, byte: int, broker: BrokerId = HERE) -> int:
        """Flip a bit in that segment of a broker; gives the segment's base offset."""
        segment = self.segment(number, broker)
        with segment.log_path.open("r+b") as file:
            file.seek(byte)
            [value] = file.read(1)
            file.seek(byte)
            file.write(bytes([value ^ 4]))
        return segment.base_offset

    def run(self, work: Coroutine[None, None, bool]) -> bool:
        async def until_stopped() -> bool:
            try:
                return await asyncio.wait_for(work, 20)
            finally:
                await self.scheduler.stop()

        return asyncio.run(until_stopped())


@pytest.fixture
def world(root: Path) -> World:
    return World(root)


def test_a_damaged_segment_is_repaired_from_the_leader(world: World) -> None:
    base = world.flip(1, 100)

    assert world.run(world.repairs.repair(PARTITION, base))

    assert read_all(world.log) == world.good
    assert set(world.asked) == {LEADER}
    assert world.counts == {"found": 1, "repaired": 1, "unrepaired": 0}


def test_a_good_segment_is_left_alone(world: World) -> None:
    before = world.segment(1)

    assert world.run(world.repairs.repair(PARTITION, before.base_offset))

    assert world.segment(1) is before
    assert world.asked == []
    assert world.counts["found"] == 0


def test_a_source_that_is_damaged_too_is_passed_over(world: World) -> None:
    base = world.flip(1, 100)
    world.flip(1, 120, LEADER)

    assert world.run(world.repairs.repair(PARTITION, base))

    assert read_all(world.log) == world.good
    assert set(world.asked) == {LEADER, FOLLOWER}


def test_damage_at_different_offsets_of_all_replicas_is_repaired(world: World) -> None:
    base = world.flip(1, 100)
    world.flip(1, 2000, LEADER)
    world.flip(1, 3000, FOLLOWER)

    assert world.run(world.repairs.repair(PARTITION, base))

    assert read_all(world.log) == world.good


def test_damage_of_the_same_batch_on_all_replicas_is_reported_with_its_offsets(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    base = world.flip(1, 100)
    for broker in (LEADER, FOLLOWER):
        world.flip(1, 110, broker)

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.counts == {"found": 1, "repaired": 0, "unrepaired": 1}
    [line] = [one for one in caplog.records if one.message == "no replica has a good copy of damaged batches"]
    [damaged] = find_damage(world.log.cleaning, world.segment(1), lambda _: None)
    assert line.__dict__["offsets"] == f"[{damaged.start_offset}, {damaged.end_offset})"
    assert set(line.__dict__["asked"]) == {"1", "2"}


def test_damage_without_a_good_copy_is_repaired_once_a_replica_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_repairs, "_AGAIN_MS", 10)
    base = world.flip(1, 100)
    world.down = {LEADER, FOLLOWER}

    async def until_repaired() -> bool:
        assert not await world.repairs.repair(PARTITION, base)
        assert world.counts["unrepaired"] == 1
        world.down = {LEADER}
        world.repairs.start()
        await world.was_repaired.wait()
        return True

    assert world.run(until_repaired())
    assert read_all(world.log) == world.good


def test_a_batch_of_another_leader_epoch_is_refused(world: World) -> None:
    """A source of another lineage: its batches fit the offsets, and are not those of this log."""
    base = world.flip(1, 100)
    world.changes = (*world.changes[:1], EpochEntry(LeaderEpoch(7), Offset(base)))

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.counts["repaired"] == 0
    assert find_damage(world.log.cleaning, world.segment(1), lambda _: None)


def test_a_source_whose_log_starts_later_is_passed_over(world: World) -> None:
    base = world.flip(1, 100)
    world.replicas[LEADER].trim(Offset(world.segment(2).base_offset))

    assert world.run(world.repairs.repair(PARTITION, base))

    assert set(world.asked) == {LEADER, FOLLOWER}


def test_a_damaged_active_segment_is_rolled_first(world: World) -> None:
    active = len(world.log.segments.all) - 1
    base = world.flip(active, 100)

    assert world.run(world.repairs.repair(PARTITION, base))

    assert world.rolls == 1
    assert read_all(world.log) == world.good


def test_records_above_the_high_watermark_are_not_repaired(world: World) -> None:
    base = world.flip(2, 100)
    world.high_watermark = base

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.asked == []


def test_requests_for_one_offset_share_a_repair(world: World) -> None:
    base = world.flip(1, 100)

    async def together() -> bool:
        return all(await asyncio.gather(*(world.repairs.repair(PARTITION, base) for _ in range(5))))

    assert world.run(together())
    assert world.counts["repaired"] == 1


def test_a_request_for_another_offset_follows_the_repair_that_runs(world: World) -> None:
    bases = [world.flip(1, 100), world.flip(2, 100)]

    async def together() -> bool:
        return all(await asyncio.gather(*(world.repairs.repair(PARTITION, base) for base in bases)))

    assert world.run(together())
    assert world.counts["repaired"] == 2


def test_a_repair_survives_the_request_that_began_it(world: World) -> None:
    base = world.flip(1, 100)

    async def abandoned() -> bool:
        request = asyncio.create_task(world.repairs.repair(PARTITION, base))
        await asyncio.sleep(0)
        request.cancel()
        await world.was_repaired.wait()
        return True

    assert world.run(abandoned())


def test_a_log_that_is_closed_is_not_repaired(world: World) -> None:
    base = world.flip(1, 100)
    world.log.close()

    assert not world.run(world.repairs.repair(PARTITION, base))
    assert not world.failures


# -- refused chunks


class Leaders:
    """Brokers that are asked to check their logs."""

    def __init__(self, error: TidemarkError | None = None) -> None:
        self.asked: list[tuple[BrokerId, Partition, int]] = []
        self.error = error
        self.gate = asyncio.Event()

    async def have_checked(self, broker: BrokerId, partition: Partition, offset: int) -> None:
        self.asked.append((broker, partition, offset))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


def refusal(reason: str) -> Observed:
    fields = {"reason": reason, "leader": 1, "continues_from": 40, "log_end_offset": 40}
    return Observed("chunk_refused", PARTITION, fields)


@pytest.mark.parametrize("error", [None, TidemarkError(ErrorCode.CORRUPT_BATCH, "rotten")])
async def test_a_leader_is_asked_once_to_check_the_batch_that_its_follower_refused(error: TidemarkError | None) -> None:
    leaders, scheduler, failures = Leaders(error), AsyncioScheduler(), list[BaseException]()
    chunks = RefusedChunks(leaders, scheduler, failures.append)

    chunks.observe(refusal("gap"))
    for _ in range(3):
        chunks.observe(refusal("CORRUPT_BATCH"))
        await asyncio.sleep(0)
    assert leaders.asked == [(LEADER, PARTITION, 40)]
    leaders.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    chunks.observe(refusal("CORRUPT_BATCH"))
    await asyncio.sleep(0)

    assert len(leaders.asked) == 2
    await chunks.stop()
    assert not failures
