# SPDX-License-Identifier: Apache-2.0
"""DescribeLogDirs: the replicas in this broker's log directories, for the planning of reassignments and for
operators."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.node.isr_history import IsrHistory
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk, Wanted
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import DirectoryState, LogManager

_SLICE = 500
"""Replicas that are described before the event loop gets control back."""


class LogDirs:
    """Reads replicas from the core, and figures of the file systems on a thread."""

    def __init__(
        self, queries: BrokerQueries, logs: LogManager, threads: LogThreads, moves: DirMoves, isr_history: IsrHistory
    ) -> None:
        self._queries = queries
        self._logs = logs
        self._threads = threads
        self._moves = moves
        self._isr_history = isr_history

    async def describe(self, wanted: Wanted) -> tuple[LogDirectoryContent, ...]:
        """Describe every directory, with the replicas of some topics and partitions, or with all if both are empty.

        A replica whose log is being opened has no size yet, and is omitted.
        """
        topics, partitions = wanted.topics, wanted.partitions
        everything = not topics and not partitions
        replicas: defaultdict[int, list[ReplicaOnDisk]] = defaultdict(list)
        for number, partition in enumerate(self._queries.partitions()):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if everything or partition.topic in topics or partition in partitions:
                view = self._queries.replica(partition)
                if view is not None:
                    self._place(view, replicas, include_isr_changes=wanted.include_isr_changes)
        for directory, future in self._moves.futures():
            if everything or future.partition.topic in topics or future.partition in partitions:
                replicas[directory].append(_copy_in_progress(future))
        return await asyncio.to_thread(_contents, self._logs.directories(), replicas)

    def _place(
        self, view: ReplicaView, replicas: defaultdict[int, list[ReplicaOnDisk]], *, include_isr_changes: bool
    ) -> None:
        log = self._threads.log(view.partition)
        offline = view.role == "offline"
        directory = self._logs.directory_of(view.partition) if offline or log is None else view.directory
        if view.role == "opening" or directory is None:
            return
        replicas[directory].append(
            ReplicaOnDisk(
                partition=view.partition,
                identity=view.identity,
                size_bytes=-1 if offline or log is None else log.size_bytes(),
                log_start_offset=view.log_start_offset,
                log_end_offset=view.log_end_offset,
                high_watermark=view.high_watermark,
                leader=view.role == "leader",
                offset_lag=view.offset_lag,
                bytes_in_per_s=view.bytes_in_per_s,
                offline=offline,
                isr_changes=self._isr_history.of(view.partition, view.identity) if include_isr_changes else (),
            )
        )


def _copy_in_progress(future: FutureLog) -> ReplicaOnDisk:
    log = future.log
    return ReplicaOnDisk(
        partition=future.partition,
        identity=future.identity,
        size_bytes=log.size_bytes(),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=Offset(0),
        leader=False,
        offset_lag=future.offset_lag,
        bytes_in_per_s=0.0,
        offline=False,
        future=True,
    )


def _contents(
    states: Iterable[DirectoryState], replicas: defaultdict[int, list[ReplicaOnDisk]]
) -> tuple[LogDirectoryContent, ...]:
    return tuple(_content(state, replicas[index]) for index, state in enumerate(states))


def _content(state: DirectoryState, replicas: Sequence[ReplicaOnDisk]) -> LogDirectoryContent:
    error = TidemarkError(ErrorCode.STORAGE_ERROR, state.failed) if state.failed is not None else None
    total_bytes = free_bytes = -1
    try:
        found = os.statvfs(state.path)
    except OSError as why:
        sentence = f"cannot read the file system of the log directory {state.path}: {why.strerror}"
        error = error or TidemarkError(ErrorCode.STORAGE_ERROR, sentence)
    else:
        total_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return LogDirectoryContent(state.directory_id, str(state.path), total_bytes, free_bytes, error, tuple(replicas))
