# SPDX-License-Identifier: Apache-2.0
"""Log directory moves of a broker: requested, refused, cancelled, continued; no record is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.broker.logs import log_dir_copier, log_dir_moves
from tidemark.broker.logs.disk_throttle import DiskThrottle
from tidemark.broker.logs.retention import Retention
from tidemark.core.reassignment.log_dir_placement import LOG_DIR_PENDING, PRESENT_LOG_DIR
from tidemark.core.replication.effects import AdvanceLogStart, AppendToLog, CloseLog, OpenLog
from tidemark.core.replication.events import LogAppended, LogFailed, LogMoved, LogOpened, LogStartRequested
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.rpc.codecs.alter_log_dirs import AlterLogDirs
from tidemark.runtime.configuration.settings import UNLIMITED
from tidemark.storage.directories import future_log as future_module
from tidemark.storage.directories import replica_mover as mover_module
from tidemark.storage.directories.future_log import Copied, FutureLog
from tidemark.storage.log.partition_log import PartitionLog

from tests.refusals import raises_code
from tests.unit.broker.logs.moves_world import CONFIGS, MovesWorld
from tests.unit.storage.batches import IDENTITY, PARTITION, make_batch, memory_directory, read_all
from tests.unit.storage.directories.moving import names_in

SLOW_BYTES_PER_S = 1024
"""The first step uses 16 s of this limit: such a move is in progress as long as a test needs."""


@pytest.fixture
async def world() -> AsyncIterator[MovesWorld]:
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        yield world
        await world.stop()


def offsets(world: MovesWorld) -> list[int]:
    log = world.threads.log(PARTITION)
    assert log is not None
    return [batch.envelope.base_offset for batch in check_batches(read_all(log))]


async def without_copy(world: MovesWorld) -> list[ErrorCode]:
    return [error.code for _, error in await world.moves.without_copy([PARTITION])]


async def slow_move(world: MovesWorld) -> None:
    """A move to the second directory that has begun and will not end soon."""
    world.append(300)
    await world.written()
    assert await world.alter(world.paths[1], throttle_bytes_per_s=SLOW_BYTES_PER_S) is None
    await world.until(lambda: any(future.log.log_end_offset for _, future in world.moves.futures()))


@pytest.fixture
async def again() -> AsyncIterator[MovesWorld]:
    """The next process of a broker that stopped during a slow move; the test starts and stops the process."""
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        await slow_move(world)
        await world.stop()
        yield MovesWorld(root)


async def test_appends_during_a_move_are_answered_in_order(world: MovesWorld) -> None:
    world.append(200)
    assert await world.alter(world.paths[1]) is None
    while world.where() == 0:
        world.append(5)
        await world.until(lambda: world.end() == world.next_offset or world.where() == 1)
    await world.moved_to(1)
    world.append(20)
    await world.written()
    answered = [event.log_end_offset for event in world.events if isinstance(event, LogAppended)]
    assert answered == list(range(1, world.next_offset + 1))
    assert offsets(world) == list(range(world.next_offset))
    assert [event.directory for event in world.events if isinstance(event, LogMoved)] == [1]
    assert names_in(world.root, "b") == [str(PARTITION)]
    assert world.metric("_done_total") == 1
    assert world.metric("_copied_bytes_total") > 0


async def test_a_move_waits_for_the_repair_of_a_damaged_batch(world: MovesWorld) -> None:
    world.append(200)
    await world.written()
    log = world.threads.log(PARTITION)
    assert isinstance(log, PartitionLog)
    path = log.segments.all[1].log_path
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    suspected: list[int] = []
    world.suspect_of = suspected.append

    assert await world.alter(world.paths[1]) is None
    await world.until(lambda: bool(suspected))
    assert world.metric("_failed_total") == 0
    path.write_bytes(whole)

    await world.moved_to(1)
    assert offsets(world) == list(range(200))


async def test_a_directory_may_be_named_by_its_uuid_and_a_replica_may_move_back(world: MovesWorld) -> None:
    world.append(50)
    await world.written()
    assert await world.alter(world.logs.directory_ids[1]) is None
    await world.moved_to(1)
    assert await world.alter(world.logs.directory_ids[0]) is None
    await world.moved_to(0)
    assert offsets(world) == list(range(50))


async def test_a_copy_in_progress_is_listed_in_its_directory_with_its_lag(world: MovesWorld) -> None:
    await slow_move(world)
    (here, replica), (there, copy) = await world.described()
    assert (here, replica.future, replica.log_end_offset) == (0, False, 300)
    assert (there, copy.future, copy.leader) == (1, True, False)
    assert copy.size_bytes > 0
    assert copy.log_end_offset + copy.offset_lag == 300
    assert world.metric("") == 1


async def test_a_request_for_the_current_directory_cancels_the_move(world: MovesWorld) -> None:
    await slow_move(world)
    assert await world.alter(world.paths[0]) is None
    await world.until(lambda: not list(world.moves.futures()))
    assert world.logs.mover.target_of(PARTITION) is None
    world.append(10)
    await world.written()
    assert offsets(world) == list(range(310))
    assert world.where() == 0


async def test_the_controller_ends_a_move_without_a_wait_for_the_deletion_of_its_copy(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slow_move(world)
    may_delete = threading.Event()
    abandon = world.logs.mover.abandon

    def slowly(partition: TopicPartition) -> None:
        may_delete.wait(20)
        abandon(partition)

    monkeypatch.setattr(world.logs.mover, "abandon", slowly)
    world.moves.want(PARTITION, PRESENT_LOG_DIR, IDENTITY)
    assert await without_copy(world) == [], "a disk that hangs must not delay the end of a reassignment"
    may_delete.set()
    await world.until(lambda: not world.moves._moves)
    assert world.where() == 0
    assert not names_in(world.root, "b")


async def test_the_controller_ends_a_move_whose_replica_is_not_open_yet(again: MovesWorld) -> None:
    again.moves.want(PARTITION, PRESENT_LOG_DIR, IDENTITY)
    assert await without_copy(again) == []
    await again.start()
    await again.until(lambda: not names_in(again.root, "b"))
    assert offsets(again) == list(range(300))
    again.moves.want(TopicPartition("none", 0), PRESENT_LOG_DIR, IDENTITY)
    assert again.moves._targets == {}
    await again.stop()


async def test_a_repeated_request_changes_the_throttle_of_the_running_move(world: MovesWorld) -> None:
    await slow_move(world)
    (move,) = world.moves._moves.values()
    assert await world.alter(world.paths[1], throttle_bytes_per_s=1 << 30) is None
    assert move.throttle.bytes_per_s == 1 << 30


async def test_cleaning_waits_while_a_replica_is_copied(world: MovesWorld) -> None:
    assert not world.moves.has_copied(PARTITION)
    await slow_move(world)
    assert world.is_copying()
    assert world.moves.has_copied(PARTITION)
    await world.alter(world.paths[0])
    await world.until(lambda: not world.is_copying())
    await world.until(lambda: not world.moves.has_copied(PARTITION))


async def test_retention_goes_on_while_a_replica_is_copied(world: MovesWorld) -> None:
    """Regression: a full or slow target ended the retention of the replica, on the disk that it was to leave."""
    world.table.update({PARTITION.topic: {**CONFIGS, "retention.bytes": "4096"}})
    core: Any = world.core
    requests: list[LogStartRequested] = []
    submit: Any = requests.append
    retention = Retention(core, world.threads, world.table, submit, 1000, lambda: 0, world.failures.append)
    await slow_move(world)
    await retention.check()
    (request,) = requests
    assert request.start_offset > next(copy for _, copy in world.moves.futures()).log.log_end_offset
    world.submit(AdvanceLogStart(PARTITION, IDENTITY, request.start_offset))
    await world.alter(world.paths[1], throttle_bytes_per_s=1 << 30)
    await world.moved_to(1)
    assert offsets(world)[0] <= request.start_offset
    log = world.threads.log(PARTITION)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (request.start_offset, 300)


async def test_cleaning_waits_while_a_copy_with_records_waits_for_another_move(again: MovesWorld) -> None:
    other = TopicPartition("other", 0)
    again.threads.start()
    again.logs.prefer(other, 0)
    await again.open(other)
    for number in range(300):
        batch = make_batch(["x" * 80])
        again.submit(AppendToLog(other, IDENTITY, Offset(number), LeaderEpoch(1), (batch,), stamp=True))
    await again.until(lambda: again.end() == 300)
    await again.moves.alter(AlterLogDirs(((other, again.paths[1]),), throttle_bytes_per_s=SLOW_BYTES_PER_S))
    await again.until(lambda: again.is_copying(other))
    await again.open()
    await again.until(lambda: len(list(again.moves.futures())) == 2)
    assert not again.is_copying(PARTITION)
    assert again.moves.has_copied(PARTITION), "a tombstone that is deleted now would be missing in the copy"
    await again.stop()


async def test_a_cancelled_request_leaves_its_copy_to_be_made_and_the_broker_stops(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin = threading.Event()
    begin = world.logs.mover.begin

    def slowly(*arguments: Any) -> FutureLog:
        may_begin.wait(20)
        return begin(*arguments)

    monkeypatch.setattr(world.logs.mover, "begin", slowly)
    request = asyncio.create_task(world.alter(world.paths[1], throttle_bytes_per_s=SLOW_BYTES_PER_S))
    await world.until(lambda: bool(world.moves._beginning))
    request.cancel()
    await asyncio.wait({request})
    may_begin.set()
    await world.until(lambda: not world.moves._beginning)
    await world.moves.stop()


async def test_impossible_requests_are_refused_and_change_nothing(world: MovesWorld) -> None:
    for nowhere in ("/nowhere", "/\0x", "x" * 5000):
        error = await world.alter(nowhere)
        assert error is not None
        assert error.code is ErrorCode.LOG_DIR_NOT_FOUND
        assert world.paths[1] in error.message
    world.logs._directories[1].fail("input/output error")
    error = await world.alter(world.paths[1])
    assert error is not None
    assert error.code is ErrorCode.LOG_DIR_OFFLINE
    world.core.role = "offline"
    error = await world.alter(world.paths[0])
    assert error is not None
    assert error.code is ErrorCode.REPLICA_OFFLINE
    assert not list(world.moves.futures())


async def test_each_replica_of_a_request_has_its_answer_and_validate_only_changes_nothing(world: MovesWorld) -> None:
    other = TopicPartition("other", 3)
    request = AlterLogDirs(((other, "/nowhere"), (PARTITION, world.paths[1])), validate_only=True)
    (one, refused), (two, fine) = await world.moves.alter(request)
    assert (one, two, fine) == (other, PARTITION, None)
    assert refused is not None
    assert not list(world.moves.futures())
    assert world.where() == 0


async def test_a_missing_directory_named_by_the_controller_is_counted_logged_and_ignored(
    world: MovesWorld,
) -> None:
    with raises_code(ErrorCode.LOG_DIR_NOT_FOUND):
        world.moves.want(PARTITION, "/nowhere", IDENTITY)
    assert world.metric("_refused_total") == 1
    assert not list(world.moves.futures())


async def test_a_new_replica_is_created_in_the_wanted_directory() -> None:
    with memory_directory() as root:
        world = MovesWorld(root)
        world.moves.want(PARTITION, world.paths[1], IDENTITY)
        await world.start()
        assert world.where() == 1
        assert world.moves._targets == {}
        world.append(3)
        await world.written()
        await world.stop()


async def test_a_replica_opened_in_another_directory_moves_to_the_wanted_one() -> None:
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        world.append(30)
        await world.written()
        await world.close_log()
        world.moves.want(PARTITION, world.paths[1], IDENTITY)
        await world.open()
        await world.moved_to(1)
        assert offsets(world) == list(range(30))
        await world.stop()


async def test_a_move_of_a_replica_that_is_not_open_is_refused(world: MovesWorld) -> None:
    """The broker opens its logs after a crash: another kill would lose a move that has no copy yet."""
    await world.close_log()
    refused = await world.alter(world.paths[1])
    assert refused is not None
    assert (refused.code, "is not open yet" in refused.message) == (ErrorCode.REPLICA_OFFLINE, True)
    assert await world.alter(world.paths[1], validate_only=True) is None
    await world.open()
    assert world.where() == 0
    assert await world.alter(world.paths[1]) is None
    await world.moved_to(1)


async def test_a_directory_wanted_by_the_controller_is_kept_once_its_copy_is_made(world: MovesWorld) -> None:
    world.append(30)
    await world.written()
    await world.close_log()
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    assert await without_copy(world) == [LOG_DIR_PENDING], "a kill would lose it"
    await world.open()
    await world.until(lambda: world.logs.mover.target_of(PARTITION) == 1 or world.where() == 1)
    assert await world.moves.without_copy([PARTITION]) == []
    await world.moved_to(1)
    assert await world.moves.without_copy([PARTITION]) == []


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        (ErrorCode.DISK_FULL, ErrorCode.DISK_FULL),
        (ErrorCode.STORAGE_ERROR, ErrorCode.LOG_DIR_OFFLINE),  # the replica itself did not fail
    ],
)
async def test_a_copy_that_cannot_be_made_is_reported_to_the_controller_once(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, reported: ErrorCode
) -> None:
    def fails(*_: object) -> None:
        raise TidemarkError(code, "no space")

    monkeypatch.setattr(world.logs.mover, "begin", fails)
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    ((partition, error),) = await world.moves.without_copy([PARTITION])
    assert (partition, error.code, "no space" in error.message) == (PARTITION, reported, True)
    assert world.metric("_failed_total") == 1
    assert await world.moves.without_copy([PARTITION]) == []


async def test_a_copy_that_fails_slowly_is_reported_when_its_directory_is_named_again(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller would name the directory without end, since each answer states that no copy has begun yet."""
    may_fail = threading.Event()

    def fails_slowly(*_: object) -> None:
        may_fail.wait(20)
        raise TidemarkError(ErrorCode.DISK_FULL, "no space")

    monkeypatch.setattr(world.logs.mover, "begin", fails_slowly)
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    assert await without_copy(world) == [LOG_DIR_PENDING]
    may_fail.set()
    await world.until(lambda: not world.moves._beginning)
    may_fail.clear()
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    assert not world.moves._beginning
    assert await without_copy(world) == [ErrorCode.DISK_FULL]
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    assert await without_copy(world) == [LOG_DIR_PENDING], "the next request tries again"
    may_fail.set()


async def test_a_cancellation_is_not_refused_with_the_old_error_of_an_operators_move(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise TidemarkError(ErrorCode.DISK_FULL, "no space")

    monkeypatch.setattr(world.logs.mover, "begin", fails)
    error = await world.alter(world.paths[1])
    assert error is not None
    monkeypatch.setattr(log_dir_moves, "_REFUSAL_S", 0.0)
    world.moves.want(PARTITION, PRESENT_LOG_DIR, IDENTITY)
    assert await without_copy(world) == []


async def test_a_replica_that_is_reopened_during_a_move_continues_it(world: MovesWorld) -> None:
    await slow_move(world)
    await world.close_log()
    await world.open()
    await world.alter(world.paths[1], throttle_bytes_per_s=1 << 30)
    await world.moved_to(1)
    world.append(5)
    await world.written()
    assert offsets(world) == list(range(305))


async def test_a_broker_that_stops_during_a_move_continues_it_after_its_start(again: MovesWorld) -> None:
    await again.start()
    await again.moved_to(1)
    assert offsets(again) == list(range(300))
    await again.stop()
    assert names_in(again.root, "a") == []


async def test_a_copy_of_an_earlier_process_is_deleted_when_the_replica_is_wanted_in_place(again: MovesWorld) -> None:
    again.moves.want(PARTITION, again.paths[0], IDENTITY)
    await again.start()
    await again.until(lambda: not names_in(again.root, "b"))
    assert again.logs.mover.target_of(PARTITION) is None
    assert offsets(again) == list(range(300))
    assert again.count(LogMoved) == 0
    await again.alter(again.paths[1])
    await again.moved_to(1)
    await again.stop()


async def test_deleting_a_replica_deletes_its_copy(world: MovesWorld) -> None:
    await slow_move(world)
    world.submit(CloseLog(PARTITION, IDENTITY, "delete"))
    await world.until(lambda: not names_in(world.root, "a") and not names_in(world.root, "b"))
    await world.alter(world.paths[1])
    assert not [name for name in names_in(world.root, "b") if "future" in name]


async def test_a_topic_that_is_created_again_takes_no_part_in_the_move_of_the_deleted_one(world: MovesWorld) -> None:
    """Regression: the new replica was moved to the directory that an operator had named for the old one."""
    await slow_move(world)
    (old,) = world.moves._moves.values()
    new = IDENTITY._replace(topic_id="new")
    world.core.role, world.core.identity = "offline", new  # the core has the new replica before its log is open
    world.logs.prefer(PARTITION, 0)
    world.submit(CloseLog(PARTITION, IDENTITY, "delete"))
    world.submit(OpenLog(PARTITION, new))
    await world.until(lambda: world.count(LogOpened) == 2)
    old.wake()  # the pause of its throttle is 16 s
    await world.until(lambda: old not in world.moves._moves.values())
    assert world.moves._targets == {}
    assert (world.where(), world.count(LogMoved)) == (0, 0)


async def test_a_directory_named_for_the_next_topic_is_kept_while_the_deleted_one_is_open(world: MovesWorld) -> None:
    new = IDENTITY._replace(topic_id="new")
    world.moves.want(PARTITION, world.paths[1], new)
    assert world.moves._moves == {}
    world.submit(CloseLog(PARTITION, IDENTITY, "delete"))
    world.submit(OpenLog(PARTITION, new))
    await world.until(lambda: world.count(LogOpened) == 2 and world.where() == 1)
    assert (world.moves._targets, world.count(LogMoved)) == ({}, 0)


async def test_a_target_that_goes_offline_ends_the_move_and_the_replica_continues(world: MovesWorld) -> None:
    await slow_move(world)
    world.logs._directories[1].fail("input/output error")
    world.moves._moves[PARTITION].throttle.bytes_per_s = UNLIMITED
    await world.alter(world.paths[0])
    await world.until(lambda: not list(world.moves.futures()))
    world.append(5)
    await world.written()
    assert offsets(world) == list(range(305))
    assert world.count(LogFailed) == 0


async def test_a_source_that_goes_offline_after_the_commit_does_not_fail_the_replica(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(50)
    await world.written()
    offline = TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline")
    loop = asyncio.get_running_loop()
    retire = world.logs.mover._retire

    def fails(*arguments: object) -> None:
        world.logs._directories[0].fail("input/output error")
        asyncio.run_coroutine_threadsafe(_fail_directory(world, offline), loop).result(5)
        retire(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(world.logs.mover, "_retire", fails)
    await world.alter(world.paths[1])
    await world.moved_to(1)
    world.append(5)
    await world.written()
    assert offsets(world) == list(range(55))
    assert world.count(LogFailed) == 0


async def _fail_directory(world: MovesWorld, error: TidemarkError) -> None:
    world.threads.fail_directory(0, error)


async def test_a_source_that_goes_offline_before_the_commit_fails_the_replica(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(50)
    await world.written()
    offline = TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline")
    loop = asyncio.get_running_loop()
    finish = world.logs.mover.finish

    def fails(*arguments: object) -> object:
        world.logs._directories[0].fail("input/output error")
        asyncio.run_coroutine_threadsafe(_fail_directory(world, offline), loop).result(5)
        return finish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(world.logs.mover, "finish", fails)
    await world.alter(world.paths[1])
    await world.until(lambda: world.count(LogFailed) == 1)
    assert world.count(LogMoved) == 0


async def test_replicas_move_one_after_another_and_a_waiting_move_can_be_cancelled(
    world: MovesWorld,
) -> None:
    others = [TopicPartition("other", index) for index in range(3)]
    for one in others:
        world.logs.prefer(one, 0)
        await world.open(one)
    await slow_move(world)
    wanted = tuple((one, world.paths[1]) for one in others)
    assert await world.moves.alter(AlterLogDirs(wanted)) == tuple((one, None) for one in others)
    copies = {replica.partition for index, replica in await world.described() if replica.future}
    assert copies == {PARTITION, *others}, "each has its copy, which records the wanted directory"
    assert [world.is_copying(one) for one in (PARTITION, *others)] == [True, False, False, False]
    await world.moves.alter(AlterLogDirs(((others[1], world.paths[0]),)))
    await world.until(lambda: others[1] not in world.moves._moves)
    assert world.is_copying(PARTITION), "a waiting move is cancelled at once"
    await world.alter(world.paths[1], throttle_bytes_per_s=1 << 30)
    await world.moved_to(1)
    places = {one: replica.directory for one in others if (replica := world.threads.replica(one)) is not None}
    assert places == {others[0]: 1, others[1]: 0, others[2]: 1}


async def test_a_full_target_delays_the_move_until_there_is_space(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir_copier, "_PAUSE_S", 0.0)
    world.append(50)
    await world.written()
    real, tries = FutureLog.copy, 0

    def full(future: FutureLog, max_bytes: int) -> Copied:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise TidemarkError(ErrorCode.DISK_FULL, "no space left on device")
        return real(future, max_bytes)

    monkeypatch.setattr(FutureLog, "copy", full)
    await world.alter(world.paths[1])
    await world.moved_to(1)
    assert tries > 4
    assert world.metric("_failed_total") == 0
    assert offsets(world) == list(range(50))


async def test_a_full_disk_at_the_swap_leaves_the_replica_in_place_and_is_retried(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir_copier, "_PAUSE_S", 0.0)
    world.append(50)
    await world.written()
    real, tries = world.logs.mover.finish, 0

    def full(future: FutureLog, high_watermark: Offset) -> PartitionLog:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise TidemarkError(ErrorCode.DISK_FULL, "no space left on device")
        return real(future, high_watermark)

    monkeypatch.setattr(world.logs.mover, "finish", full)
    await world.alter(world.paths[1])
    await world.until(lambda: tries > 0)
    world.append(5)
    await world.moved_to(1)
    await world.written()
    assert offsets(world) == list(range(55))


async def test_a_copy_that_differs_from_the_log_is_given_up_logged_and_not_retried(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(50)
    await world.written()
    monkeypatch.setattr(future_module, "disagreement", lambda copy, log: "it has leader epoch 9 at 3")
    await world.alter(world.paths[1])
    await world.until(lambda: world.metric("_failed_total") == 1 and not world.moves._moves)
    assert world.logs.mover.target_of(PARTITION) is None
    world.append(5)
    await world.written()
    assert offsets(world) == list(range(55))
    monkeypatch.undo()
    await world.alter(world.paths[1])
    await world.moved_to(1)


async def test_a_directory_in_which_no_copy_can_be_made_is_refused_with_the_cause(
    world: MovesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mover_module, "replace_file", full)
    error = await world.alter(world.paths[1])
    assert error is not None
    assert error.code is ErrorCode.DISK_FULL
    assert not world.moves._moves
    assert names_in(world.root, "b") == []
    monkeypatch.undo()
    assert await world.alter(world.paths[1]) is None
    await world.moved_to(1)


async def test_a_copy_of_an_earlier_process_that_cannot_be_continued_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A defect retried the move without a pause, some hundred times a second."""
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        await slow_move(world)
        await world.stop()
        tried: list[Path] = []

        def full(path: Path, *arguments: object, **named: object) -> None:
            tried.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(mover_module, "recover", full)
        again = MovesWorld(root)
        await again.start()
        await again.until(lambda: again.metric("_failed_total") == 1 and not again.moves._moves)
        assert again.logs.mover.target_of(PARTITION) is None
        assert len(tried) == 1
        monkeypatch.undo()
        assert offsets(again) == list(range(300))
        await again.alter(again.paths[1])
        await again.moved_to(1)
        await again.stop()


async def test_a_broker_whose_append_thread_has_failed_still_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_copier, "_STOP_S", 0.01)
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        pausing = asyncio.Event()

        async def never(replica: object) -> bool:
            pausing.set()
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(world.threads, "pause", never)
        await world.alter(world.paths[1])
        await pausing.wait()
        await world.stop()
        assert world.where() == 0


def test_a_throttle_spreads_copied_bytes_over_time_and_without_a_limit_allows_all() -> None:
    now_s = 5.0
    throttle = DiskThrottle(1000, now_s=lambda: now_s)
    assert throttle.take(500) == pytest.approx(0.5)
    assert throttle.take(500) == pytest.approx(1.0)
    now_s = 7.0
    assert throttle.take(100) == pytest.approx(0.1)
    assert DiskThrottle().take(1 << 40) == 0.0
    assert DiskThrottle(100_000).chunk_bytes() == 25_000


async def test_the_broker_wide_throttle_applies_to_moves_without_their_own(world: MovesWorld, tmp_path: Path) -> None:
    world.moves.use_throttle(SLOW_BYTES_PER_S)
    world.append(300)
    await world.written()
    world.moves.want(PARTITION, world.paths[1], IDENTITY)
    await world.until(lambda: any(future.log.log_end_offset for _, future in world.moves.futures()))
    (move,) = world.moves._moves.values()
    assert move.throttle.bytes_per_s == SLOW_BYTES_PER_S
    assert world.where() == 0
