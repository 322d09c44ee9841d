# SPDX-License-Identifier: Apache-2.0
"""Two log directories and a replica that moves between them, for the tests of rule M3."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidemark.model import EpochEntry
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import BROKER, CLUSTER, IDENTITY, PARTITION
from tests.unit.storage.log.test_cleaner import CONFIGS, batches_of

STEP_BYTES = 3000


class Content(NamedTuple):
    """The content that a move must keep."""

    start: int
    end: int
    data: bytes
    epochs: tuple[EpochEntry, ...]
    producers: dict[int, tuple[object, ...]]


def open_two(root: Path) -> LogManager:
    return open_logs(
        [root / "a", root / "b"], cluster_id=CLUSTER, broker_id=BROKER, stray_grace_ms=1 << 40, open_files_max=64
    )


def open_in(root: Path, directory: int = 0, configs: dict[str, str] = CONFIGS) -> tuple[LogManager, PartitionLog]:
    """The replica, made in this directory where there is none."""
    logs = open_two(root)
    logs.prefer(PARTITION, directory)
    return logs, logs.open(PARTITION, IDENTITY, configs)[0]


def content(log: PartitionLog) -> Content:
    state = log.state()
    data = b"".join(batch.data for batch in batches_of(log))
    producers = {one: (entry.producer_epoch, *entry.batches) for one, entry in state.producers.entries.items()}
    return Content(state.log_start_offset, state.log_end_offset, data, state.epochs, producers)


def begin(logs: LogManager, directory: int = 1) -> FutureLog:
    return logs.mover.begin(PARTITION, directory, CONFIGS)


def copy_all(future: FutureLog) -> None:
    while not future.copy(STEP_BYTES).caught_up:
        pass


def move(logs: LogManager, directory: int = 1) -> PartitionLog:
    """Run a whole move; returns the moved log."""
    future = begin(logs, directory)
    copy_all(future)
    return logs.mover.finish(future, future.source.log_end_offset)


def names_in(root: Path, directory: str) -> list[str]:
    """The directories of replicas and of copies."""
    return sorted(path.name for path in (root / directory).iterdir() if path.is_dir())
