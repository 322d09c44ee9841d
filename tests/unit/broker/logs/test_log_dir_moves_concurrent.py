# SPDX-License-Identifier: Apache-2.0
"""A replica moves between directories during appends, flushes, reads and checkpoints; no call fails (rule M3)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from tidemark.core.replication.effects import TruncateLog
from tidemark.core.replication.events import LogAppended, LogFailed, LogFlushed, LogMoved, LogTruncated
from tidemark.model import Offset, TidemarkError
from tidemark.record.checks import check_batches

from tests.unit.broker.logs.moves_world import CONFIGS, MovesWorld
from tests.unit.storage.batches import IDENTITY, PARTITION, memory_directory, read_all

ROUNDS = 6


class Beside:
    """Threads that run their work once for each turn; their errors are raised at the end."""

    def __init__(self) -> None:
        self._ending = False
        self._turns: list[threading.Semaphore] = []
        self._threads: list[threading.Thread] = []
        self._met: list[BaseException] = []

    def run(self, work: Callable[[], None]) -> None:
        turns = threading.Semaphore(0)

        def loop() -> None:
            try:
                while turns.acquire() and not self._ending:
                    work()
            except BaseException as error:  # noqa: BLE001 - raised at the end
                self._met.append(error)

        self._turns.append(turns)
        self._threads.append(threading.Thread(target=loop))
        self._threads[-1].start()

    def turn(self) -> None:
        for turns in self._turns:
            turns.release()

    async def end(self) -> None:
        self._ending = True
        self.turn()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        for error in self._met:
            raise error


def reading(world: MovesWorld, rng: random.Random) -> None:
    """Read some batches at random offsets, through a reader that was opened earlier."""
    log = world.threads.log(PARTITION)
    assert log is not None
    for _ in range(5):
        end = int(log.log_end_offset)
        offset = rng.randrange(end) if end else 0
        data = log.read(Offset(offset), end_offset=Offset(end), max_bytes=rng.choice((1, 700, 5000)))
        assert data or not end
        for number, batch in enumerate(check_batches(data or b"")):
            assert batch.envelope.base_offset == offset + number
        log.max_timestamp(end_offset=Offset(end))


@pytest.mark.parametrize("seed", range(3))
async def test_appends_reads_flushes_and_checkpoints_continue_through_repeated_moves(seed: int) -> None:
    with memory_directory() as root:
        world = MovesWorld(root)
        world.table.update({PARTITION.topic: {**CONFIGS, "flush.policy": "group-commit"}})
        await world.start()
        world.append(50)
        await world.written()
        beside = Beside()
        rng = random.Random(seed)
        beside.run(lambda: reading(world, rng))
        beside.run(lambda: world.logs.checkpoint({PARTITION: Offset(world.end())}))
        for number in range(ROUNDS):
            target = (number + 1) % 2
            assert await world.alter(world.paths[target]) is None
            while world.where() != target:
                world.append(3)
                beside.turn()
                await world.until(lambda: world.end() == world.next_offset or world.where() == target)  # noqa: B023
            await world.written()
        await world.until(lambda: flushed(world) == world.next_offset)
        await beside.end()
        log = world.threads.log(PARTITION)
        assert log is not None
        found = [batch.envelope.base_offset for batch in check_batches(read_all(log))]
        assert found == list(range(world.next_offset))
        answered = [event.log_end_offset for event in world.events if isinstance(event, LogAppended)]
        assert answered == list(range(1, world.next_offset + 1))
        assert world.count(LogMoved) == ROUNDS
        assert world.count(LogFailed) == 0
        await world.stop()


async def test_a_log_that_is_truncated_repeatedly_during_moves_is_truncated_in_its_new_directory() -> None:
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        world.append(60)
        await world.written()
        rng = random.Random(7)
        cuts = 0
        for number in range(ROUNDS):
            target = (number + 1) % 2
            assert await world.alter(world.paths[target]) is None
            while world.where() != target:
                before = world.count(LogTruncated)
                cuts += 1
                world.next_offset -= rng.randrange(10)
                world.submit(TruncateLog(PARTITION, IDENTITY, Offset(world.next_offset)))
                world.append(rng.randrange(15))
                await world.until(lambda: world.count(LogTruncated) > before or world.where() == target)  # noqa: B023
            log = world.threads.log(PARTITION)
            assert log is not None
            # The records after the last truncation may equal the removed ones: the log's end alone does not prove it.
            await world.until(lambda: world.count(LogTruncated) == cuts)  # noqa: B023
            await world.until(lambda log=log: log.log_end_offset == world.next_offset)  # type: ignore[misc]
            found = [batch.envelope.base_offset for batch in check_batches(read_all(log))]
            assert found == list(range(world.next_offset))
        await world.stop()


def flushed(world: MovesWorld) -> int:
    offsets = [event.flushed_offset for event in world.events if isinstance(event, LogFlushed)]
    return max(offsets, default=0)


async def test_a_reader_of_a_closed_log_that_did_not_move_is_refused() -> None:
    with memory_directory() as root:
        world = MovesWorld(root)
        await world.start()
        world.append(3)
        await world.written()
        log = world.threads.log(PARTITION)
        assert log is not None
        log.close()
        with pytest.raises(TidemarkError):
            log.read(Offset(0), end_offset=Offset(3), max_bytes=100)
        await world.stop()
