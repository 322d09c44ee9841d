# SPDX-License-Identifier: Apache-2.0
"""Log directory moves of one broker between two directories in memory, with the real threads and a core of one
replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidemark.broker.clients.describe_log_dirs import LogDirs
from tidemark.broker.logs.append_threads import LogEffect, LogThreads
from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.node.isr_history import IsrHistory
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.effects import AppendToLog, CloseLog, OpenLog
from tidemark.core.replication.events import Event, LogAppended, LogFailed, LogMoved, LogOpened
from tidemark.model import LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.rpc.codecs.alter_log_dirs import AlterLogDirs
from tidemark.rpc.log_dirs import ReplicaOnDisk, Wanted
from tidemark.runtime.metrics import Metrics

from tests.unit.storage.batches import IDENTITY, PARTITION, make_batch
from tests.unit.storage.directories.moving import open_two

CONFIGS = {"segment.bytes": "4096", "index.interval.bytes": "700"}
DEADLINE_S = 20.0


class Core:
    """The core's part: one replica, whose high watermark follows its log."""

    def __init__(self, world: MovesWorld) -> None:
        self._world = world
        self.role = "leader"
        self.identity = IDENTITY

    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._world.threads._replicas)

    def replica(self, partition: TopicPartition) -> Any:
        log = self._world.threads.log(partition)
        if log is None and (partition != PARTITION or self.role != "offline"):
            return None
        end = log.log_end_offset if log is not None else Offset(0)
        replica = self._world.threads.replica(partition)
        return SimpleNamespace(
            partition=partition,
            identity=self.identity,
            role=self.role,
            leader_epoch=LeaderEpoch(1),
            high_watermark=end,
            log_start_offset=Offset(0),
            log_end_offset=end,
            directory=replica.directory if replica is not None else 0,
            offset_lag=0,
            bytes_in_per_s=0.0,
        )


class MovesWorld:
    """Runs on the event loop of the test; `events` are those for the core."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = open_two(root)
        self.logs.prefer(PARTITION, 0)
        self.table = TopicTable()
        self.events: list[Event] = []
        self.failures: list[BaseException] = []
        self._news = asyncio.Event()
        self.threads = LogThreads(
            self.logs, self.table, self._deliver, self.failures.append, lambda _: None, lambda _: None
        )
        self.table.update({PARTITION.topic: CONFIGS})
        self.core = Core(self)
        self.metrics = Metrics()
        core: Any = self.core
        self.moves = DirMoves(
            core, self.logs, self.threads, self.table, self.metrics, self.failures.append, self.suspect
        )
        self.suspect_of: Callable[[int], None] = lambda offset: None
        self.dirs = LogDirs(core, self.logs, self.threads, self.moves, IsrHistory(lambda: 0))
        self.paths = [str(root / "a"), str(root / "b")]
        self.next_offset = 0

    def suspect(self, partition: TopicPartition, offset: int) -> None:
        """A copy has met a damaged batch."""
        self.suspect_of(offset)

    async def start(self) -> None:
        self.threads.start()
        await self.open()

    async def open(self, partition: TopicPartition = PARTITION) -> None:
        before = self.count(LogOpened)
        self.threads.submit(OpenLog(partition, IDENTITY))
        await self.until(lambda: self.count(LogOpened) > before)
        if partition != PARTITION:
            return
        log = self.threads.log(PARTITION)
        assert log is not None
        self.next_offset = log.log_end_offset

    async def stop(self) -> None:
        await self.moves.stop()
        await asyncio.to_thread(self.threads.stop)
        self.logs.close()
        assert self.failures == []

    def _deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until the condition holds, checked at every event and whenever the loop is idle."""
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self._news.clear()
                try:
                    async with asyncio.timeout(0.01):
                        await self._news.wait()
                except TimeoutError:
                    continue

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def submit(self, effect: LogEffect) -> None:
        self.threads.submit(effect)

    def append(self, count: int = 1) -> None:
        """Append this number of batches, with one record each, as a leader does."""
        for _ in range(count):
            batch = make_batch([f"record {self.next_offset} " + "x" * 80])
            offset = Offset(self.next_offset)
            self.submit(AppendToLog(PARTITION, IDENTITY, offset, LeaderEpoch(1), (batch,), stamp=True))
            self.next_offset += 1

    async def written(self) -> None:
        """Wait until all appends are answered, or the replica has failed."""
        await self.until(lambda: self.count(LogFailed) > 0 or self.end() == self.next_offset)

    def end(self) -> int:
        ends = (event.log_end_offset for event in reversed(self.events) if isinstance(event, LogAppended))
        return next(ends, 0)

    async def alter(self, log_dir: str, **more: Any) -> TidemarkError | None:
        ((_, error),) = await self.moves.alter(AlterLogDirs(((PARTITION, log_dir),), **more))
        return error

    def where(self) -> int | None:
        replica = self.threads.replica(PARTITION)
        return replica.directory if replica is not None else None

    async def moved_to(self, directory: int) -> None:
        await self.until(lambda: self.where() == directory and not list(self.moves.futures()))
        assert self.count(LogMoved) > 0

    def is_copying(self, partition: TopicPartition = PARTITION) -> bool:
        """Whether the move of the replica has begun to copy."""
        move = self.moves._moves.get(partition)
        return move is not None and move.copying

    async def close_log(self) -> None:
        self.submit(CloseLog(PARTITION, IDENTITY, None))
        await self.until(lambda: self.threads.replica(PARTITION) is None)

    async def described(self) -> list[tuple[int, ReplicaOnDisk]]:
        contents = await self.dirs.describe(Wanted())
        return [(index, replica) for index, one in enumerate(contents) for replica in one.replicas]

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"tidemark_broker_log_dir_moves{name}") or 0.0
