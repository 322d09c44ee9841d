# SPDX-License-Identifier: Apache-2.0
"""Repairs of damaged logs from other replicas: sources, their order, and damage without a good copy (rule T6)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Envelope, seal
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log import segment_repair
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import find_damage
from tidemark.storage.segments.segment import Segment

from tests.turns import turns
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one, read_all
from tests.unit.storage.log.test_cleaner import CONFIGS, NOW_US, Row, keyed, rows_of

PLAIN = {"segment.bytes": "4096"}
SHORT = CleanerSettings(delete_retention_ms=0)
LEADER, FOLLOWER, HERE = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = 1 << 62


@pytest.fixture
def root() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


def some_batches(log: PartitionLog) -> None:
    rng = random.Random(5)
    for number in range(40):
        lead(log, make_batch(["x" * rng.randrange(60) for _ in range(rng.randrange(1, 8))]), epoch=number // 20)


class World:
    """A replica at broker 3, and its copies at the brokers 1 and 2, all in sync."""

    def __init__(
        self, root: Path, make: Callable[[PartitionLog], None] = some_batches, configs: dict[str, str] = PLAIN
    ) -> None:
        logs = open_one(root / "first")
        make(logs.open(PARTITION, IDENTITY, configs)[0])
        logs.close()
        self.compacted = configs != PLAIN
        self.leads = True
        self.managers: dict[BrokerId, LogManager] = {}
        self.replicas: dict[BrokerId, PartitionLog] = {}
        for broker in (LEADER, FOLLOWER, HERE):
            shutil.copytree(root / "first", root / str(broker))
            self.managers[broker] = open_one(root / str(broker))
            self.replicas[broker] = self.managers[broker].open(PARTITION, IDENTITY, configs)[0]
        self.log = self.replicas[HERE]
        self.good = read_all(self.log)
        self.down: set[BrokerId] = set()
        self.asked: list[BrokerId] = []
        self.rolls = 0
        self.high_watermark = int(self.log.log_end_offset)
        self.counts = {"found": 0, "repaired": 0, "unrepaired": 0}
        self.failures: list[BaseException] = []
        self.given_up: list[bool] = []
        """Whether a repair continues here, one answer each time."""
        self.was_repaired = asyncio.Event()
        self.has_no_damage = asyncio.Event()
        self.scheduler = AsyncioScheduler()
        self.repairs = LogRepairs(self, self, self.scheduler, self, self.give_up, self.failures.append)
        self.changes = self.log.state().epochs

    # -- SuspectLogs

    def find(self, partition: Partition) -> OpenSuspectLog | None:
        if partition != PARTITION:
            return None
        epochs = LeaderEpochs(self.changes)
        return OpenSuspectLog(
            self.log, IDENTITY, self.high_watermark, epochs, may_hold_holes=self.compacted, leads=self.leads
        )

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
        start = max(start, log.log_start_offset)
        data = log.read(Offset(start), end_offset=end, max_bytes=300) or b""
        checked_envelopes(partition, data, start)
        clean_offset = log.cleaning.clean_point
        return ReplicaPart(log.log_start_offset, log.log_end_offset, clean_offset, check_batches(data))

    def give_up(self, partition: Partition, identity: ReplicaIdentity, repairable: bool) -> None:
        assert partition == PARTITION
        self.given_up.append(repairable)

    # -- RepairMetrics

    def found(self, count: int) -> None:
        self.counts["found"] += count

    def repaired(self, count: int) -> None:
        self.counts["repaired"] += count
        self.was_repaired.set()

    def unrepaired(self, count: int) -> None:
        self.counts["unrepaired"] = count
        if not count:
            self.has_no_damage.set()

    # -- calls of the tests

    def segment(self, number: int, broker: BrokerId = HERE) -> Segment:
        return self.replicas[broker].segments.all[number]

    def flip(self, number: int, byte: int, broker: BrokerId = HERE) -> int:
        """Flip a bit in that segment of a broker; returns the segment's base offset."""
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
                async with asyncio.timeout(20):
                    return await work
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


def test_a_range_without_a_good_copy_does_not_keep_the_others_damaged(world: World) -> None:
    base = world.flip(1, 100)
    world.flip(1, 3000)
    for broker in (LEADER, FOLLOWER):
        world.flip(1, 110, broker)

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.counts == {"found": 2, "repaired": 1, "unrepaired": 1}
    [left] = find_damage(world.log.cleaning, world.segment(1), lambda _: None)
    assert left.start_position == 0


def test_requests_for_damage_without_a_good_copy_do_not_read_its_segment_again_and_again(world: World) -> None:
    """Two replicas with the same damaged batch suspect one another; consumers retry all the time."""
    base = world.flip(1, 100)
    for broker in (LEADER, FOLLOWER):
        world.flip(1, 110, broker)

    async def again_and_again() -> bool:
        for _ in range(20):
            assert not await world.repairs.repair(PARTITION, base)
            world.repairs.suspect(PARTITION, base)
        assert not world.repairs.is_running(PARTITION)
        return True

    assert world.run(again_and_again())
    assert world.asked == [LEADER, FOLLOWER]
    assert world.counts["found"] == 1


def test_damage_that_is_suspected_during_a_repair_is_repaired_after_it(world: World) -> None:
    first, second = world.flip(1, 100), world.flip(2, 100)

    async def both() -> bool:
        repair = asyncio.create_task(world.repairs.repair(PARTITION, first))
        await asyncio.sleep(0)
        world.repairs.suspect(PARTITION, second)
        assert await repair
        return await world.repairs.repair(PARTITION, second)

    assert world.run(both())
    assert read_all(world.log) == world.good


def test_damage_below_the_log_start_is_no_damage(world: World) -> None:
    base = world.flip(1, 100)
    start = world.segment(1).base_offset + 12
    for log in world.replicas.values():
        log.trim(Offset(start))

    assert world.run(world.repairs.repair(PARTITION, base))

    assert world.asked == []
    assert world.counts["unrepaired"] == 0


def test_a_damaged_batch_with_the_log_start_inside_is_repaired(world: World) -> None:
    path = world.segment(1).log_path
    data = path.read_bytes()
    envelope = next(one.envelope for one in check_batches(data) if one.envelope.record_count > 2)
    first_bytes = envelope.base_offset.to_bytes(8, "little")
    position = next(at for at in range(0, len(data), 8) if data[at : at + 8] == first_bytes)
    world.flip(1, position + 80)
    start = envelope.base_offset + 1
    for log in world.replicas.values():
        log.trim(Offset(start))

    assert world.run(world.repairs.repair(PARTITION, start))

    assert path.read_bytes() == data


def test_a_valid_batch_with_other_contents_is_refused(world: World) -> None:
    """The replica has other records at the same offsets and epoch: restored from elsewhere, or edited manually."""
    base = world.flip(1, 100)
    damaged = world.segment(1).log_path.read_bytes()
    for broker in (LEADER, FOLLOWER):
        path = world.segment(1, broker).log_path
        data = path.read_bytes()
        first = check_batches(data)[0].envelope
        other = make_batch(["y" * 900] * first.record_count)
        stored = _as_stored(other, first)
        path.write_bytes(stored + data[first.batch_length :])
        segment = world.segment(1, broker)
        segment.size_bytes += len(stored) - first.batch_length
        segment.remove_indexes()
        segment.index = None

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.segment(1).log_path.read_bytes() == damaged
    assert world.counts["unrepaired"] == 1


def deleted_keys(log: PartitionLog) -> None:
    """Each key is written twice, and then deleted; other keys lie in between."""
    for number in range(30):
        key = b"key-%d" % number
        lead(log, keyed([(key, b"first" * 9), (b"other-%d" % (number % 7), b"x" * 90)]), epoch=number // 9)
        if number >= 8:
            lead(
                log,
                keyed([(b"key-%d" % (number - 8), None), (b"other-%d" % (number % 5), b"y" * 90)]),
                epoch=number // 9,
            )
    for number in range(20):
        lead(log, keyed([(b"last-%d" % number, b"z" * 200)]), epoch=9)


@pytest.mark.parametrize("number", range(1, 4))
@pytest.mark.parametrize("compacted_here", [False, True])
def test_a_repair_from_a_replica_that_is_compacted_further_brings_no_deleted_record_back(
    root: Path, number: int, compacted_here: bool
) -> None:
    world = World(root, deleted_keys, CONFIGS)
    before = contents(rows_of(world.log))
    for broker in (LEADER, FOLLOWER):
        for now_us in (NOW_US, 2 * NOW_US):  # the second time, the tombstones go
            clean_log(world.replicas[broker], world.high_watermark, SHORT, now_us=now_us, pace=lambda _: None)
    view = world.log.cleaning.view(world.high_watermark)
    assert view is not None
    if compacted_here:
        clean_log(world.log, view.segments[1].next_offset, SHORT, now_us=NOW_US, pace=lambda _: None)
        view = world.log.cleaning.view(world.high_watermark)
        assert view is not None
    segment = view.segments[min(number, len(view.segments) - 1)]
    for byte in (17, segment.size_bytes // 3 // 8 * 8 + 3, segment.size_bytes // 2):
        with segment.log_path.open("r+b") as file:
            file.seek(byte)
            [value] = file.read(1)
            file.seek(byte)
            file.write(bytes([value ^ 4]))

    assert world.run(world.repairs.repair(PARTITION, segment.base_offset))

    assert contents(rows_of(world.log)) == before
    world.managers[HERE].checkpoint({PARTITION: world.log.log_end_offset})
    for one in world.log.segments.all:
        one.remove_indexes()
    world.managers[HERE].close()
    assert contents(rows_of(open_one(root / str(HERE)).open(PARTITION, IDENTITY, CONFIGS)[0])) == before


def contents(rows: list[Row]) -> dict[bytes, bytes]:
    """The values of a table that is built from the records."""
    latest = {key: value for _, key, value in rows if key is not None}
    return {key: value for key, value in latest.items() if value is not None}


def _as_stored(batch: Batch, like: Envelope) -> bytes:
    return seal(
        batch.envelope._replace(base_offset=like.base_offset, leader_epoch=like.leader_epoch),
        memoryview(batch.data)[ENVELOPE_BYTES:],
    )


@pytest.mark.parametrize("leads", [True, False])
def test_a_leader_resigns_before_it_repairs_a_large_segment(
    world: World, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_repairs, "_HAND_OVER_BYTES", 3000)
    base, world.leads = world.flip(1, 100), leads

    async def ask() -> bool:
        if await world.repairs.repair(PARTITION, base) is leads:
            return False
        await world.was_repaired.wait()
        return True

    assert world.run(ask())
    assert world.given_up == [True] * leads
    assert read_all(world.log) == world.good


def test_a_leader_does_not_resign_if_no_replica_can_read_the_damaged_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_repairs, "_HAND_OVER_BYTES", 3000)
    base = world.flip(1, 100)
    for broker in (LEADER, FOLLOWER):
        world.flip(1, 110, broker)

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.given_up == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_leader_gives_up_leadership_if_its_disk_cannot_store_the_good_batch(
    world: World, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = world.flip(1, 100)

    def refuse(descriptor: int, content: bytes, position: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(segment_repair, "write_all", refuse)

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.given_up == [False]
    assert world.counts == {"found": 1, "repaired": 0, "unrepaired": 1}
    assert not world.failures


def test_a_leader_gives_up_leadership_if_a_damaged_batch_is_not_committed(world: World) -> None:
    """No follower can fetch past the batch, so its records would never be committed."""
    base = world.flip(2, 100)
    world.high_watermark = base

    assert not world.run(world.repairs.repair(PARTITION, base))

    assert world.given_up == [False]


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


def test_damage_of_a_deleted_topic_makes_no_leader_of_the_next_topic_of_its_name_resign(
    world: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created again before the damage is checked again."""
    monkeypatch.setattr(log_repairs, "_AGAIN_MS", 1)
    base = world.flip(1, 100)
    world.down = {LEADER, FOLLOWER}

    async def created_again() -> bool:
        await world.repairs.repair(PARTITION, base)
        assert world.counts["unrepaired"] == 1
        world.log, world.high_watermark = open_one(root / "next").open(PARTITION, IDENTITY, PLAIN)[0], 0
        world.repairs.start()
        await world.has_no_damage.wait()
        return True

    assert world.run(created_again())
    assert world.given_up == []


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
    await turns(5)
    chunks.observe(refusal("CORRUPT_BATCH"))
    await asyncio.sleep(0)

    assert len(leaders.asked) == 2
    await chunks.stop()
    assert not failures
