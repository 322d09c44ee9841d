# SPDX-License-Identifier: Apache-2.0
"""The contract of `Log` and `Logs`: run by the real ones on files and by the fakes in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import EpochEntry, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import Log, Logs, TimestampOffset
from tidemark.record.checks import check_batches
from tidemark.storage.directories.log_manager import LogManager

from tests.fakes.logs import MemoryLogs
from tests.refusals import raises_code
from tests.unit.storage.batches import (
    IDENTITY,
    PARTITION,
    at,
    follow,
    lead,
    make_batch,
    make_marker,
    make_pending,
    memory_directory,
    open_one,
    read_all,
)

SMALL = {"segment.bytes": "2000", "index.interval.bytes": "500"}


class World:
    """Logs that can be restarted as after a kill."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory = MemoryLogs()
        self.logs: Logs = self._memory if path is None else open_one(path)

    def restart(self) -> Logs:
        self.stop()
        if self._path is not None:
            self.logs = open_one(self._path)
        return self.logs

    def stop(self) -> None:
        if isinstance(self.logs, LogManager):
            self.logs.close()
        else:
            self._memory.stop_process()

    def open(self) -> tuple[Log, RecoveredLog]:
        return self.logs.open(PARTITION, IDENTITY, SMALL)

    def lose_the_last_batch(self) -> None:
        """The disk loses the last batch, even if it was synced."""
        self.stop()
        if self._path is None:
            stored = self._memory._stored[PARTITION]
            high_watermark = stored.high_watermark
            stored.cut(stored.batches[-1].envelope.base_offset)
            stored.high_watermark = high_watermark
        else:
            last = max((self._path / str(PARTITION)).glob("*.log"))
            os.truncate(last, last.stat().st_size - 8)


@pytest.fixture(params=["files", "memory"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with memory_directory() as path:
        made = World(path if request.param == "files" else None)
        yield made
        made.stop()


@pytest.fixture
def log(world: World) -> Log:
    return world.open()[0]


def test_a_new_log_is_fresh_and_empty(world: World) -> None:
    log, recovered = world.open()
    assert recovered.fresh
    assert recovered.damaged is None
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes()) == (0, 0, 0)
    assert log.read(Offset(0), end_offset=Offset(10), max_bytes=100) == b""


def test_a_leader_append_stamps_offsets_and_epoch(log: Log) -> None:
    assert lead(log, make_batch(["a", "b"]), make_batch(["c"]), epoch=7) == 3
    data = log.read(Offset(0), end_offset=Offset(3), max_bytes=1 << 20)
    assert data
    stamps = [(b.envelope.base_offset, b.envelope.leader_epoch) for b in check_batches(data)]
    assert stamps == [(0, 7), (2, 7)]


def test_a_follower_append_keeps_every_byte(log: Log) -> None:
    first, second = at(make_batch(["a", "b"]), 0, 3), at(make_batch(["c"]), 2, 4)
    assert follow(log, first, second) == 3
    assert read_all(log) == first.data + second.data


def test_a_read_gives_whole_batches_from_the_one_that_holds_the_offset(log: Log) -> None:
    for number in range(40):
        lead(log, make_batch([f"{number}"] * 3))
    for offset in range(120):
        data = log.read(Offset(offset), end_offset=Offset(120), max_bytes=1000)
        assert data
        batches = check_batches(data)
        assert batches[0].envelope.base_offset == offset - offset % 3


def test_the_first_batch_comes_even_when_larger_than_max_bytes_and_alone(log: Log) -> None:
    lead(log, *(make_batch(["a" * 300]) for _ in range(9)))
    for offset in range(9):
        data = log.read(Offset(offset), end_offset=Offset(9), max_bytes=1)
        assert data
        assert [b.envelope.base_offset for b in check_batches(data)] == [offset]


def test_a_read_stays_below_max_bytes_and_below_the_end_offset(log: Log) -> None:
    lead(log, *(make_batch(["a", "b"]) for _ in range(20)))
    size = log.size_bytes() // 20
    for end in range(41):
        for offset in range(0, 40, 3):
            data = log.read(Offset(offset), end_offset=Offset(end), max_bytes=3 * size + 10)
            assert data is not None
            assert len(data) <= 3 * size
            assert all(b.envelope.next_offset <= end for b in check_batches(data))
            assert bool(data) == (offset - offset % 2 + 2 <= end)


def test_outside_the_log_is_out_of_range_and_the_end_is_not(log: Log) -> None:
    lead(log, make_batch(["a", "b"]))
    assert log.read(Offset(2), end_offset=Offset(2), max_bytes=100) == b""
    for offset in (-1, 3):
        with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(Offset(offset), end_offset=Offset(2), max_bytes=100)


def test_holes_between_batches_are_read_over(log: Log) -> None:
    follow(log, at(make_batch(["a"]), 0), at(make_batch(["b", "c"]), 5))
    follow(log, at(make_batch(["d" * 1900]), 20))
    for offset, base in ((0, 0), (1, 5), (4, 5), (5, 5), (6, 5), (7, 20), (19, 20), (20, 20)):
        data = log.read(Offset(offset), end_offset=Offset(21), max_bytes=10)
        assert data
        assert check_batches(data)[0].envelope.base_offset == base


def test_truncation_cuts_before_the_batch_that_spans_the_offset(log: Log) -> None:
    lead(log, *(make_batch(["a", "b"]) for _ in range(30)))
    kept = read_all(log)
    log.truncate(Offset(41))
    assert log.log_end_offset == 40
    assert kept.startswith(read_all(log))
    lead(log, make_batch(["new"]), epoch=1)
    assert log.log_end_offset == 41
    read_all(log)


@pytest.mark.parametrize("end", [1, 4, 6, 7, 19, 20])
def test_a_log_that_is_truncated_in_a_hole_ends_where_its_last_batch_ends(world: World, end: int) -> None:
    """A log that ended in the hole would have nothing for a follower or a reader whose next offset is in the hole."""
    log, _ = world.open()
    first, second = at(make_batch(["a"]), 0), at(make_batch(["b", "c"]), 5)
    follow(log, first, second)
    follow(log, at(make_batch(["d" * 1900]), 20))
    log.truncate(Offset(end))
    kept = [batch for batch in (first, second) if batch.envelope.next_offset <= end]
    assert log.log_end_offset == kept[-1].envelope.next_offset
    assert read_all(log) == b"".join(batch.data for batch in kept)
    world.logs.checkpoint({PARTITION: log.log_end_offset})
    log, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.damaged, log.log_end_offset) == (None, kept[-1].envelope.next_offset)


@pytest.mark.parametrize("end", [0, 1, 2, 59, 60, 61, 200])
def test_truncation_at_any_offset_leaves_a_prefix(log: Log, end: int) -> None:
    lead(log, *(make_batch(["a", "b"]) for _ in range(30)))
    whole = read_all(log)
    log.truncate(Offset(end))
    assert log.log_end_offset == min(end - end % 2, 60)
    left = read_all(log)
    assert left == whole[: len(left)]
    assert len(left) == log.size_bytes()


@pytest.mark.parametrize("end", [10, 11])
def test_after_a_truncation_at_the_log_start_missing_records_below_are_no_damage(world: World, end: int) -> None:
    """After an unclean election: the damage is of a later epoch than the records above the truncation."""
    log, _ = world.open()
    lead(log, *(make_batch(["a", "b"]) for _ in range(10)), epoch=2)
    log.trim(Offset(end))
    log.truncate(Offset(end))
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    follow(log, at(make_batch(["c", "d"]), 10, leader_epoch=0), at(make_batch(["e"]), 12, leader_epoch=1))
    log, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.log_start_offset, recovered.log_end_offset, recovered.damaged) == (10, 13, None)
    assert [batch.envelope.leader_epoch for batch in check_batches(read_all(log))] == [0, 1]


def test_truncation_returns_the_producer_state_of_the_remaining_records(log: Log) -> None:
    for number in range(20):
        lead(log, make_batch(["a", "b"], producer_id=5, producer_epoch=1, sequence=2 * number))
    states = log.truncate(Offset(31))
    entry = states.entries[5]
    assert [batch.first_offset for batch in entry.batches] == list(range(10, 30, 2))
    assert entry.batches[-1].last_sequence == 29
    assert log.truncate(Offset(0)).entries == {}


def test_a_log_names_the_aborted_transactions_that_overlap_a_range_also_after_a_kill(world: World) -> None:
    log, _ = world.open()
    lead(log, make_pending(["a"], producer_id=1), make_pending(["b"], producer_id=2))
    lead(log, make_marker(producer_id=1, commit=False), make_marker(producer_id=2))
    lead(log, make_pending(["c"], producer_id=1, producer_epoch=1), make_batch(["d"]))
    lead(log, make_marker(producer_id=1, producer_epoch=2, commit=False))

    def named(log: Log, start: int, end: int) -> list[tuple[int, int, int]]:
        return [tuple(one) for one in log.aborted_transactions(Offset(start), Offset(end))]

    for _ in range(2):
        assert named(log, 0, 7) == [(1, 0, 2), (1, 4, 6)]
        assert named(log, 1, 4) == [(1, 0, 2)]
        assert named(log, 2, 4) == []
        assert named(log, 4, 5) == [(1, 4, 6)]
        assert named(log, 6, 7) == []
        log, _ = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert log.truncate(Offset(6)).first_open_offset == 4
    assert named(log, 0, 6) == [(1, 0, 2)]


def test_reset_drops_everything_and_starts_there(world: World) -> None:
    log, _ = world.open()
    lead(log, *(make_batch(["a", "b"]) for _ in range(30)))
    log.reset(Offset(100))
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes()) == (100, 100, 0)
    follow(log, at(make_batch(["c"]), 100, 2))
    log, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (100, 101)
    assert recovered.damaged is None
    assert recovered.epochs == ((-1, 100), (2, 100))


def test_a_reset_log_knows_of_which_epoch_the_record_below_its_start_was(world: World) -> None:
    log, _ = world.open()
    lead(log, make_batch(["a"]), epoch=7)
    log.reset(Offset(100), LeaderEpoch(5))
    _, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert recovered.epochs == ((5, 100),)


def test_an_empty_log_takes_the_batch_that_spans_its_start(world: World) -> None:
    log, _ = world.open()
    log.reset(Offset(100))
    spanning = at(make_batch(["a", "b", "c", "d"]), 98)
    assert follow(log, spanning) == 102
    assert log.log_start_offset == 100
    assert log.read(Offset(100), end_offset=Offset(102), max_bytes=1) == spanning.data
    world.logs.checkpoint({})
    _, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.log_start_offset, recovered.log_end_offset, recovered.damaged) == (100, 102, None)


def test_a_killed_process_loses_nothing_it_appended(world: World) -> None:
    log, _ = world.open()
    log.save_epochs([EpochEntry(LeaderEpoch(1), Offset(0))])
    for number in range(20):
        batch = make_batch(["a", "b"], producer_id=9, producer_epoch=0, sequence=2 * number)
        lead(log, batch, epoch=1 + number // 10)
    whole = read_all(log)
    log, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.fresh, recovered.damaged, recovered.log_end_offset) == (False, None, 40)
    assert recovered.epochs == ((1, 0), (2, 20))
    assert [batch.first_sequence for batch in recovered.producers.entries[9].batches] == list(range(20, 40, 2))
    assert read_all(log) == whole


def test_the_epoch_of_a_leader_without_records_is_kept(world: World) -> None:
    log, _ = world.open()
    lead(log, make_batch(["a", "b"]))
    entries = [EpochEntry(LeaderEpoch(0), Offset(0)), EpochEntry(LeaderEpoch(4), Offset(2))]
    log.save_epochs(entries)
    _, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert recovered.epochs == tuple(entries)


def test_the_high_watermark_comes_back_as_checkpointed(world: World) -> None:
    log, recovered = world.open()
    assert recovered.high_watermark == 0
    lead(log, make_batch(["a", "b", "c"]))
    world.logs.checkpoint({PARTITION: Offset(2)})
    lead(log, make_batch(["d"]))
    world.logs.checkpoint({})
    _, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.high_watermark, recovered.flushed_offset) == (2, 4)


def test_a_truncation_below_the_checkpoint_is_no_damage(world: World) -> None:
    log, _ = world.open()
    lead(log, *(make_batch(["a", "b"]) for _ in range(10)))
    world.logs.checkpoint({PARTITION: Offset(20)})
    log.truncate(Offset(6))
    lead(log, make_batch(["c"]), epoch=3)
    log, recovered = world.restart().open(PARTITION, IDENTITY, SMALL)
    assert (recovered.log_end_offset, recovered.damaged) == (7, None)
    assert recovered.high_watermark <= 6
    assert recovered.flushed_offset <= 6


def test_damage_stands_over_restarts_until_a_checkpoint_knows_that_it_is_over(world: World) -> None:
    log, _ = world.open()
    lead(log, make_batch(["a", "b", "c"]), make_batch(["d"]))
    world.logs.checkpoint({PARTITION: Offset(4)})
    world.lose_the_last_batch()
    world.restart()
    log, recovered = world.open()
    assert (recovered.log_end_offset, recovered.damaged is None) == (3, False)
    world.logs.checkpoint({PARTITION: Offset(3)})
    world.restart()
    log, recovered = world.open()
    assert recovered.damaged is not None, "no component has cleared the damage"
    log.end_damage()
    world.restart()
    log, recovered = world.open()
    assert recovered.damaged is not None, "no checkpoint covers the log as it was then"
    log.end_damage()
    world.logs.checkpoint({PARTITION: Offset(3)})
    world.restart()
    log, recovered = world.open()
    assert (recovered.log_end_offset, recovered.damaged) == (3, None)


def test_flush_returns_the_flushed_offset(log: Log) -> None:
    assert log.flush() == 0
    lead(log, *(make_batch(["a", "b"]) for _ in range(20)))
    assert log.flush() == 40


def test_concurrent_flushes_never_report_unwritten_records(log: Log) -> None:
    told: list[int] = []
    appended = threading.Event()

    def flush_all_the_time() -> None:
        while not appended.is_set():
            told.append(log.flush())

    flusher = threading.Thread(target=flush_all_the_time)
    flusher.start()
    ends = [lead(log, make_batch(["a", "b" * 50])) for _ in range(200)]
    appended.set()
    flusher.join()
    assert told == sorted(told)
    assert set(told) <= {0, *ends}
    assert log.flush() == ends[-1]


def test_another_identity_sets_the_old_log_aside(world: World) -> None:
    log, _ = world.open()
    lead(log, make_batch(["old"]))
    world.logs.checkpoint({PARTITION: Offset(1)})
    other = ReplicaIdentity("topic-two", "incarnation-two")
    log, recovered = world.logs.open(PARTITION, other, {})
    assert (recovered.fresh, recovered.damaged, recovered.log_end_offset, recovered.high_watermark) == (
        True,
        None,
        0,
        0,
    )
    assert world.logs.replicas() == {PARTITION: other}
    _, recovered = world.restart().open(PARTITION, other, {})
    assert (recovered.fresh, recovered.damaged) == (False, None)


@pytest.mark.parametrize("suffix", ["stray", "delete"])
def test_a_log_that_was_set_aside_is_gone_and_may_be_created_again(world: World, suffix: str) -> None:
    log, _ = world.open()
    lead(log, make_batch(["old"]))
    world.logs.set_aside(PARTITION, suffix)
    assert world.logs.replicas() == {}
    with raises_code(ErrorCode.STORAGE_ERROR):
        log.read(Offset(0), end_offset=Offset(1), max_bytes=10)
    assert world.open()[1].fresh
    world.logs.set_aside(TopicPartition("unknown", 3), suffix)


def test_a_record_is_found_by_time(log: Log) -> None:
    for number in range(30):
        lead(log, make_batch(["a", "b", "c"], timestamp_us=1000 + 100 * number))
    end = Offset(90)
    assert log.offset_for_timestamp(0, end_offset=end) == TimestampOffset(1000, Offset(0))
    assert log.offset_for_timestamp(1001, end_offset=end) == TimestampOffset(1001, Offset(1))
    assert log.offset_for_timestamp(1003, end_offset=end) == TimestampOffset(1100, Offset(3))
    assert log.offset_for_timestamp(3902, end_offset=end) == TimestampOffset(3902, Offset(89))
    assert log.offset_for_timestamp(3903, end_offset=end) is None
    assert log.offset_for_timestamp(3902, end_offset=Offset(87)) is None
    assert log.max_timestamp(end_offset=end) == TimestampOffset(3902, Offset(89))
    assert log.max_timestamp(end_offset=Offset(60)) == TimestampOffset(2902, Offset(59))
    assert log.max_timestamp(end_offset=Offset(0)) is None


def test_time_may_go_back_from_batch_to_batch(log: Log) -> None:
    for number in (9, 2, 7, 3, 1, 8, 4, 0, 5, 6):
        lead(log, make_batch(["a" * 200], timestamp_us=1000 * number))
    assert log.offset_for_timestamp(9000, end_offset=Offset(10)) == TimestampOffset(9000, Offset(0))
    assert log.max_timestamp(end_offset=Offset(10)) == TimestampOffset(9000, Offset(0))
    log.truncate(Offset(5))
    log.truncate(Offset(0))
    lead(log, make_batch(["b"], timestamp_us=3))
    assert log.max_timestamp(end_offset=Offset(1)) == TimestampOffset(3, Offset(0))


def test_the_error_of_its_check_ends_a_search_by_time(log: Log) -> None:
    lead(log, make_batch(["a"], timestamp_us=1000), make_batch(["b"], timestamp_us=2000))

    def ended() -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        log.offset_for_timestamp(0, end_offset=Offset(2), check=ended)
    with pytest.raises(CancelledError):
        log.max_timestamp(end_offset=Offset(2), check=ended)


def test_a_closed_log_refuses(log: Log) -> None:
    lead(log, make_batch(["a"]))
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: lead(log, make_batch(["a"])),
        lambda: log.read(Offset(0), end_offset=Offset(1), max_bytes=1),
        lambda: log.truncate(Offset(0)),
        log.flush,
    ]
    for call in calls:
        with raises_code(ErrorCode.STORAGE_ERROR):
            call()


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(1, 700)),
        st.tuples(st.just("truncate"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 60), st.integers(1, 2000)),
        st.tuples(st.just("time"), st.integers(0, 60), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_steps)
@example([("reset", 0, 0), ("restart", 0, 0)])
def test_files_and_memory_do_the_same_for_any_calls(steps: list[tuple[str, int, int]]) -> None:
    with memory_directory() as path:
        worlds = [World(path), World(None)]
        logs = [world.open()[0] for world in worlds]
        for number, (step, first, second) in enumerate(steps):
            match step:
                case "append":
                    batch = make_batch(["v" * second] * first, timestamp_us=second)
                    outcomes: list[object] = [lead(log, batch, batch, epoch=number) for log in logs]
                case "truncate":
                    outcomes = [log.truncate(Offset(first)) for log in logs]
                case "reset":
                    outcomes = [log.reset(Offset(first), LeaderEpoch(number)) for log in logs]
                case "restart":
                    opened = [world.restart().open(PARTITION, IDENTITY, SMALL) for world in worlds]
                    logs = [log for log, _ in opened]
                    outcomes = [(r.log_start_offset, r.log_end_offset, r.epochs, r.damaged) for _, r in opened]
                case "checkpoint":
                    outcomes = [
                        world.logs.checkpoint({PARTITION: log.log_end_offset})
                        for world, log in zip(worlds, logs, strict=True)
                    ]
                case "read":
                    outcomes = [_read(log, first, second) for log in logs]
                case _:
                    outcomes = [log.offset_for_timestamp(first, end_offset=log.log_end_offset) for log in logs]
            assert outcomes[0] == outcomes[1], step
            assert logs[0].size_bytes() == logs[1].size_bytes()
        assert read_all(logs[0]) == read_all(logs[1])
        for world in worlds:
            world.stop()


def _read(log: Log, offset: int, max_bytes: int) -> object:
    """A read may end before a segment's end or at an index entry: only the required bytes are compared."""
    try:
        data = log.read(Offset(offset), end_offset=log.log_end_offset, max_bytes=max_bytes)
    except TidemarkError as error:
        return error.code
    assert data is not None
    batches = check_batches(data)
    assert len(batches) == 1 or len(data) <= max_bytes
    return batches[0] if batches else None


def test_changed_settings_apply_to_later_appends_only(world: World) -> None:
    log, _ = world.open()
    for number in range(10):
        lead(log, make_batch([f"{number}" * 100]))
    before = read_all(log)
    for configs in ({"segment.bytes": "100000", "index.interval.bytes": "64"}, {"segment.bytes": "1024"}, {}):
        log.configure(configs)
        lead(log, *(make_batch([f"{number}" * 100]) for number in range(20)))
    assert read_all(log)[: len(before)] == before
    everything, end = read_all(log), log.log_end_offset
    world.restart()
    again, found = world.open()
    assert (found.damaged, found.log_end_offset) == (None, end)
    assert read_all(again) == everything
