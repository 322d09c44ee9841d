# SPDX-License-Identifier: Apache-2.0
"""The broker's log cleaner: choice and order of logs, throttle, stop, and errors of one log."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from tidemark.broker.logs import log_cleaner as cleaner_module
from tidemark.broker.logs.log_cleaner import Job, LogCleaner
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.model import ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Batch, Codec, parse_envelope, seal
from tidemark.record.payload import build_batch, from_columns
from tidemark.runtime.configuration.settings import BrokerSettings, read_settings
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.wall_bounds import WallBounds
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.cleaner import CleaningDone
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import DamagedRange
from tidemark.storage.segments.segment import Segment

from tests.unit.storage.batches import at, follow, lead, make_marker, memory_directory, open_one
from tests.unit.storage.log.test_cleaner import fill, keyed, latest_of, rows_of

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.1"}


class World:
    """Open logs of some topics, and a cleaner; all records are below the high watermark unless `marks` has a lower
    one."""

    def __init__(self, path: Path, topics: Mapping[str, Mapping[str, str]]) -> None:
        self.logs: LogManager = open_one(path)
        self.table = TopicTable()
        self.table.update(topics)
        self.opened: dict[str, PartitionLog] = {}
        for topic, configs in topics.items():
            identity = ReplicaIdentity(topic, topic)
            self.opened[topic] = self.logs.open(TopicPartition(topic, 0), identity, configs)[0]
        self.marks: dict[TopicPartition, Offset] = {}
        self.paused: set[TopicPartition] = set()
        self.clock = SetClock()
        self.metrics = Metrics()
        settings = read_settings(
            BrokerSettings,
            [
                "--broker.id",
                "1",
                "--log.dirs",
                str(path),
                "--zookeeper.connect",
                "zk:2181",
                "--listeners",
                "h:9092",
                "--log.cleaner.backoff.ms",
                "10",
            ],
            {},
        )
        self.cleaner = LogCleaner(
            self.logs,
            self.table,
            lambda: self.marks,
            settings,
            self.metrics,
            WallBounds(self.clock),
            self.paused.__contains__,
        )

    def fill(self, topic: str, batches: int) -> None:
        log = self.opened[topic]
        fill(log, random.Random(topic), batches, keys=5)
        self.marks[TopicPartition(topic, 0)] = log.log_end_offset

    def round(self) -> None:
        self.cleaner._clean_all(0, self.cleaner._jobs(0))

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"tidemark_broker_log_cleaner_{name}") or 0.0


DAY_MS = 86_400_000


class SetClock:
    """A wall clock that is set, while time passes."""

    def __init__(self) -> None:
        self._passed_ms = 0
        self._set_ms = time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._passed_ms

    def wall_us(self) -> int:
        return (self._passed_ms + self._set_ms) * 1000

    def pass_ms(self, passed_ms: int) -> None:
        self._passed_ms += passed_ms

    def set_by_ms(self, by_ms: int) -> None:
        self._set_ms += by_ms


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as directory:
        yield directory


def test_a_log_that_is_being_copied_is_cleaned_afterwards(path: Path) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    before = rows_of(world.opened["prices"])
    world.paused.add(TopicPartition("prices", 0))
    world.round()
    assert rows_of(world.opened["prices"]) == before
    world.paused.clear()
    world.round()
    assert len(rows_of(world.opened["prices"])) < len(before)
    world.logs.close()


def test_a_round_cleans_exactly_the_dirty_compacted_logs(path: Path) -> None:
    world = World(path, {"prices": COMPACT, "clicks": {"segment.bytes": "4096"}, "quiet": COMPACT})
    world.fill("prices", 80)
    world.fill("clicks", 80)
    prices, clicks = rows_of(world.opened["prices"]), rows_of(world.opened["clicks"])
    world.round()
    assert world.metric("runs_total") == 1
    assert len(rows_of(world.opened["prices"])) < len(prices)
    assert rows_of(world.opened["clicks"]) == clicks
    assert world.metric("freed_bytes_total") > 0
    world.round()
    assert world.metric("runs_total") == 1, "no log is dirty any more"
    assert world.metrics.registry.get_sample_value(
        "tidemark_broker_log_cleaner_dirty_ratio_max", {"directory": "0"}
    ) == pytest.approx(0.0)
    world.logs.close()


def test_a_round_leaves_a_clean_log_whose_last_marker_of_a_producer_outlives_its_horizon(path: Path) -> None:
    world = World(path, {"prices": COMPACT})
    log = world.opened["prices"]
    marker = make_marker(producer_id=7)
    envelope = marker.envelope._replace(
        attributes=marker.envelope.attributes | int(Attributes.DELETE_HORIZON), delete_horizon_s=1
    )
    data = seal(envelope, memoryview(marker.data)[ENVELOPE_BYTES:])
    follow(log, at(Batch(parse_envelope(data), data), 0))  # as a new replica gets the marker from a cleaned log
    world.fill("prices", 80)
    world.round()
    assert world.metric("runs_total") == 1
    read_bytes = world.metric("read_bytes_total")
    world.round()
    assert world.metric("read_bytes_total") == read_bytes
    world.logs.close()


async def test_the_cleaner_reports_no_dirt_once_the_last_compacted_log_is_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(path, {"prices": {**COMPACT, "min.cleanable.dirty.ratio": "1"}})
    world.fill("prices", 80)
    world.fill("prices", 80)
    world.round()
    known = world.metrics.registry.get_sample_value
    dirt = partial(known, "tidemark_broker_log_cleaner_dirty_ratio_max", {"directory": "0"})
    assert dirt() == pytest.approx(1)
    world.logs.set_aside(TopicPartition("prices", 0), "delete")
    done, clean_all = threading.Event(), world.cleaner._clean_all

    def clean_and_note(directory: int, jobs: list[Job]) -> None:
        clean_all(directory, jobs)
        done.set()

    monkeypatch.setattr(world.cleaner, "_clean_all", clean_and_note)
    world.cleaner.start()
    assert await asyncio.to_thread(done.wait, 20)
    await world.cleaner.stop()
    assert dirt() == 0
    world.logs.close()


@pytest.mark.parametrize("retention_ms", [0, 3_600_000])
def test_the_cleaner_deletes_the_tombstones_of_an_idle_log_after_a_restart(path: Path, retention_ms: int) -> None:
    configs = {**COMPACT, "delete.retention.ms": str(retention_ms)}
    first = World(path, {"prices": configs})
    lead(first.opened["prices"], keyed([(b"gone", None)]))
    first.fill("prices", 80)
    first.round()
    first.logs.close()
    second = World(path, {"prices": configs})
    log = second.opened["prices"]
    second.marks = dict(first.marks)
    if retention_ms:
        second.round()
        assert b"gone" in [key for _, key, _ in rows_of(log)]
        assert second.metric("read_bytes_total") == 0, "nothing is due"
        second.clock.pass_ms(3_601_000)
    second.round()
    assert b"gone" not in [key for _, key, _ in rows_of(log)]
    read_bytes = second.metric("read_bytes_total")
    second.round()
    assert second.metric("read_bytes_total") == read_bytes
    second.logs.close()


def test_a_jump_of_the_clock_deletes_no_tombstone_early(path: Path) -> None:
    """Regression: a day in the future deleted the tombstones; a day in the past gave new ones a horizon that was over
    when the clock was corrected.
    """
    world = World(path, {"prices": {**COMPACT, "delete.retention.ms": "3600000"}})
    log = world.opened["prices"]
    lead(log, keyed([(b"gone", None)]))
    world.fill("prices", 80)
    world.clock.set_by_ms(-DAY_MS)
    world.round()
    for later_ms in (DAY_MS, DAY_MS, -DAY_MS):
        world.clock.set_by_ms(later_ms)
        world.clock.pass_ms(600_000)
        world.round()
        assert b"gone" in [key for _, key, _ in rows_of(log)]
    world.clock.pass_ms(2 * 3_600_000)
    world.round()
    assert b"gone" not in [key for _, key, _ in rows_of(log)]
    world.logs.close()


def test_a_horizon_waits_until_all_of_the_clean_part_is_stable(path: Path) -> None:
    world = World(path, {"prices": {**COMPACT, "delete.retention.ms": "0"}})
    log = world.opened["prices"]
    lead(log, keyed([(b"gone", None)]))
    world.fill("prices", 80)
    stable = world.marks[TopicPartition("prices", 0)]
    world.round()
    point = log.cleaning.clean_point
    for low in (0, log.segments.all[1].base_offset):
        world.marks[TopicPartition("prices", 0)] = Offset(low)
        world.round()
    assert (world.metric("runs_total"), log.cleaning.clean_point) == (1, point)
    world.marks[TopicPartition("prices", 0)] = stable
    world.round()
    assert b"gone" not in [key for _, key, _ in rows_of(log)]
    world.logs.close()


async def test_a_cleaner_goes_on_after_an_unexpected_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(path, {"prices": COMPACT})
    clean_all, rounds, done = world.cleaner._clean_all, 0, threading.Event()

    def fails_once(directory: int, jobs: list[Job]) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise RuntimeError("as the test wants")
        clean_all(directory, jobs)
        done.set()

    monkeypatch.setattr(world.cleaner, "_clean_all", fails_once)
    world.cleaner.start()
    assert await asyncio.to_thread(done.wait, 20)
    await world.cleaner.stop()
    assert world.metric("failures_total") == 1
    assert "the log cleaner failed" in caplog.messages
    world.logs.close()


def test_no_record_past_the_high_watermark_is_cleaned(path: Path) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    before = rows_of(world.opened["prices"])
    world.marks[TopicPartition("prices", 0)] = Offset(0)
    world.round()
    assert rows_of(world.opened["prices"]) == before
    world.marks = {}
    world.round()
    assert rows_of(world.opened["prices"]) == before
    world.logs.close()


def test_a_high_watermark_from_before_a_truncation_is_ignored(path: Path) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    log = world.opened["prices"]
    jobs = world.cleaner._jobs(0)
    log.truncate(Offset(5))
    world.fill("prices", 80)
    before = rows_of(log)
    world.cleaner._clean_all(0, jobs)
    assert rows_of(log) == before
    world.round()
    assert set(latest_of(before, below=before[-1][0] + 1)) <= set(rows_of(log)) < set(before)
    world.logs.close()


def test_a_log_that_cannot_be_cleaned_delays_no_other(path: Path) -> None:
    world = World(path, {"broken": COMPACT, "prices": COMPACT})
    world.fill("broken", 80)
    world.fill("prices", 80)
    damaged = path / "broken-0" / f"{0:020d}.log"
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    world.round()
    assert world.metric("failures_total") == 1
    assert world.metric("runs_total") == 1
    assert damaged.read_bytes() == content
    world.logs.close()


def test_the_cleaner_leaves_a_damaged_log_until_its_repair_or_for_half_an_hour(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    damaged = path / "prices-0" / f"{0:020d}.log"
    content, later_s = damaged.read_bytes(), time.monotonic() + 1860
    for end in ("repaired", "later"):
        damaged.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        failures = world.metric("failures_total")
        for _ in range(3):
            world.round()
        assert world.metric("failures_total") == failures + 1, "each attempt reads the whole log"
        if end == "repaired":
            world.opened["prices"].segments.swaps += 2  # as the repair of a segment does
        else:
            monkeypatch.setattr(time, "monotonic", lambda: later_s)
    damaged.write_bytes(content)
    world.round()
    assert world.metric("runs_total") == 1
    world.logs.close()


def test_the_cleaner_leaves_a_log_with_rows_that_no_reader_can_decompress(path: Path) -> None:
    """Regression: a topic that was not always compacted has such a batch, and the log was read every 15 s."""
    world = World(path, {"prices": COMPACT})
    built = build_batch(from_columns([b"k"] * 200, [b"value"] * 200, [1] * 200), codec=Codec.LZ4)
    faulty = check_batch(seal(parse_envelope(built), built[ENVELOPE_BYTES:-40] + bytes(40)))
    lead(world.opened["prices"], faulty)
    world.fill("prices", 80)
    for _ in range(3):
        world.round()
    assert world.metric("failures_total") == 1
    world.opened["prices"].segments.swaps += 2
    world.round()
    assert world.metric("failures_total") == 2
    world.logs.close()


@pytest.mark.parametrize("code", [ErrorCode.DISK_FULL, ErrorCode.UNKNOWN_SCHEMA_VERSION, ErrorCode.STORAGE_ERROR])
def test_the_cleaner_searches_for_damage_unless_it_lacks_space_or_a_schema(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    searched: list[int] = []

    def fails(*arguments: object, **named: object) -> CleaningDone:
        raise TidemarkError(code, "as the test wants")

    def search(cleaning: object, segment: Segment, pace: object) -> list[DamagedRange]:
        searched.append(segment.base_offset)
        return []

    monkeypatch.setattr(cleaner_module, "clean_log", fails)
    monkeypatch.setattr(cleaner_module, "find_damage", search)
    for _ in range(3):
        world.round()
    if code is ErrorCode.STORAGE_ERROR:
        assert (searched[0], world.metric("failures_total")) == (0, 1)
    else:
        assert (searched, world.metric("failures_total")) == ([], 3)
    world.logs.close()


def test_the_cleaner_does_not_leave_a_log_that_was_truncated_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read across a truncation finds damage that is none."""
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)

    def fails(log: PartitionLog, *arguments: object, **named: object) -> CleaningDone:
        log.truncate(Offset(log.log_end_offset - 1))
        raise TidemarkError(ErrorCode.STORAGE_ERROR, "as the test wants")

    with monkeypatch.context() as patched:
        patched.setattr(cleaner_module, "clean_log", fails)
        world.round()
    world.round()
    assert (world.metric("failures_total"), world.metric("runs_total")) == (1, 1)
    world.logs.close()


def test_a_stop_ends_a_cleaning_between_two_reads_and_leaves_no_trace(path: Path) -> None:
    world = World(path, {"prices": COMPACT})
    world.fill("prices", 80)
    before = rows_of(world.opened["prices"])
    jobs = world.cleaner._jobs(0)
    world.cleaner._threads.stopping.set()
    world.cleaner._clean(0, jobs[0])
    assert rows_of(world.opened["prices"]) == before
    assert world.metric("runs_total") == world.metric("failures_total") == 0
    assert not list(path.rglob("*.cleaned"))
    world.logs.close()
