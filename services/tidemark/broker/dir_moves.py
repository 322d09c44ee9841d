"""Replicas move from one log directory of this broker to another (seed 002, section 4.3; rule M3)."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tidemark.core.broker_queries import BrokerQueries
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.alter_log_dirs_codec import Alteration, AlterLogDirs
from tidemark.runtime.metrics import Metrics
from tidemark.storage.manager import LogManager

_log = logging.getLogger(__name__)


class _Wish(NamedTuple):
    """Where a replica is to lie, by the directory's index, and what its copying may write in a second; 0: default."""

    directory: int
    throttle_bytes_per_s: int


class DirMoves:
    """What is wanted, by partition: of replicas that are there and of those that are not there yet."""

    def __init__(self, core: BrokerQueries, logs: LogManager, metrics: Metrics) -> None:
        self._core = core
        self._logs = logs
        self._wishes: dict[TopicPartition, _Wish] = {}
        self._refused = metrics.counter(
            "broker_log_dir_moves_refused", "Log directories asked for that this broker has not, or not online"
        )

    def want(self, partition: TopicPartition, log_dir: str) -> None:
        """The controller wants the replica in this directory, a path or a uuid; again is fine.

        One that is not there yet is made there; one that lies elsewhere moves. Where the directory cannot be used
        nothing is changed: the replica matters more than where it lies.

        Raises:
            TidemarkError: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE.
        """
        try:
            directory = self._directory(log_dir)
        except TidemarkError as error:
            self._refused.inc()
            _log.error("log directory not usable", extra={"partition": str(partition), "why": error.message})
            raise
        self._note(partition, _Wish(directory, 0))

    async def alter(self, request: AlterLogDirs) -> tuple[Alteration, ...]:
        """What an operator wants; the answer comes when the moves are noted.

        Refused one by one, with nothing changed for it: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE, REPLICA_OFFLINE.
        """
        results: list[Alteration] = []
        for partition, log_dir in request.replicas:
            try:
                directory = self._directory(log_dir)
                self._check_replica(partition)
            except TidemarkError as error:
                results.append((partition, error))
                continue
            if not request.validate_only:
                self._note(partition, _Wish(directory, request.throttle_bytes_per_s))
            results.append((partition, None))
        return tuple(results)

    def _note(self, partition: TopicPartition, wish: _Wish) -> None:
        self._wishes[partition] = wish
        self._logs.prefer(partition, wish.directory)

    def _directory(self, log_dir: str) -> int:
        directory = self._logs.directory_named(log_dir)
        states = self._logs.directories()
        if directory is None:
            have = ", ".join(str(state.path) for state in states)
            raise TidemarkError(
                ErrorCode.LOG_DIR_NOT_FOUND,
                f"{log_dir!r} is no log directory of this broker, which has {have}: name one of these, or its uuid",
            )
        failed = states[directory].failed
        if failed is not None:
            raise TidemarkError(ErrorCode.LOG_DIR_OFFLINE, f"{failed}: repair it and start the broker, or name another")
        return directory

    def _check_replica(self, partition: TopicPartition) -> None:
        view = self._core.replica(partition)
        if view is not None and view.role == "offline":
            raise TidemarkError(
                ErrorCode.REPLICA_OFFLINE,
                f"the log of {partition} on this broker has failed: move it when it is online again",
            )
