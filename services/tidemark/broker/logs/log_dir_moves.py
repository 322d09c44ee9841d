# SPDX-License-Identifier: Apache-2.0
"""Replicas move from one log directory of this broker to another (rule M3).

What is wanted is remembered by partition: of a replica that is not there yet until it is made, in the directory wanted;
of one that lies elsewhere until it has moved. A copy that the last process left says what was wanted of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.log_dir_copier import Budget, CopyMetrics, DirCopier, DirMove, Outcome
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.alter_log_dirs_codec import Alteration, AlterLogDirs
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import LogManager

_log = logging.getLogger(__name__)


class _Wish(NamedTuple):
    """Where a replica is to lie, by the directory's index, and what its copying may use."""

    directory: int
    budget: Budget


class DirMoves:
    """Started and stopped with the broker.

    Args:
        fail: called with a mistake of ours.
    """

    def __init__(
        self,
        queries: BrokerQueries,
        logs: LogManager,
        threads: LogThreads,
        topics: TopicTable,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._queries = queries
        self._logs = logs
        self._threads = threads
        self._topics = topics
        self._fail = fail
        self._wishes: dict[TopicPartition, _Wish] = {}
        self._moves: dict[TopicPartition, DirMove] = {}
        self._beginning: dict[DirMove, asyncio.Task[TidemarkError | None]] = {}
        self._copiers: dict[tuple[int, int], DirCopier] = {}
        self._budget = Budget()
        self._stopping = False
        self._metrics = CopyMetrics(metrics)
        self._metrics.moves.set_function(lambda: len(self._moves))
        self._refused = metrics.counter(
            "broker_log_dir_moves_refused",
            "Directories named by the controller that are unknown to this broker, or offline",
        )
        threads.listen(self._consider)

    def use_throttle(self, bytes_per_s: int) -> None:
        """What all copying without a limit of its own may write in a second from now on; -1: no limit."""
        self._budget.bytes_per_s = bytes_per_s
        for move in self._moves.values():
            move.look_again()

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
        self._note(partition, _Wish(directory, self._budget))

    async def alter(self, request: AlterLogDirs) -> tuple[Alteration, ...]:
        """What an operator wants; the answer comes when the moves are noted, and their copies begun.

        Refused one by one: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE, REPLICA_OFFLINE, and what making a copy met.
        """
        budget = Budget(request.throttle_bytes_per_s) if request.throttle_bytes_per_s else self._budget
        answers: list[tuple[TopicPartition, TidemarkError | None, asyncio.Task[TidemarkError | None] | None]] = []
        for partition, log_dir in request.replicas:
            begun = None
            try:
                directory = self._directory(log_dir)
                self._check_replica(partition)
            except TidemarkError as error:
                answers.append((partition, error, None))
                continue
            if not request.validate_only:
                self._note(partition, _Wish(directory, budget))
                move = self._moves.get(partition)
                begun = self._beginning.get(move) if move is not None else None
            answers.append((partition, None, begun))
        return tuple([(partition, await begun if begun else error) for partition, error, begun in answers])

    def is_copying(self, partition: TopicPartition) -> bool:
        """Whether the replica has its turn to be copied: what is cleaned or let go now would be copied in vain."""
        move = self._moves.get(partition)
        return move is not None and move.copying

    def futures(self) -> Iterator[tuple[int, FutureLog]]:
        """The copies under way, each with the index of the directory it goes into."""
        for move in self._moves.values():
            if move.future is not None:
                yield move.directory, move.future

    async def stop(self) -> None:
        """End between two steps; the copies stay, and the next start goes on with them."""
        self._stopping = True
        for move in list(self._moves.values()):
            self._end(move, keeps_copy=True)
        await asyncio.gather(*self._beginning.values())
        await asyncio.gather(*(copier.stop() for copier in self._copiers.values()))

    # -- what is wanted and what is ----------------------------------------------------------------------------

    def _note(self, partition: TopicPartition, wish: _Wish) -> None:
        self._wishes[partition] = wish
        if self._threads.replica(partition) is None:
            self._logs.prefer(partition, wish.directory)
        else:
            self._consider(partition)

    def _consider(self, partition: TopicPartition) -> None:
        """Hold what is wanted of an open replica against where it lies."""
        replica = self._threads.replica(partition)
        if replica is None or replica.failed or self._stopping:
            return
        self._logs.prefer(partition, None)
        wish, move = self._wishes.get(partition), self._moves.get(partition)
        left = self._logs.mover.target_of(partition)
        if wish is None and move is None and left is not None:
            wish = self._wishes[partition] = _Wish(left, self._budget)
        if wish is None:
            return
        if move is not None:
            if move.directory != wish.directory or move.is_ended:
                self._end(move, keeps_copy=False)  # its end is the time to look again
            else:
                move.budget = wish.budget
                move.look_again()
        elif wish.directory != replica.directory:
            self._begin(replica, wish)
        else:
            del self._wishes[partition]
            if left is not None:
                self._begin_to_drop(replica, left)

    def _begin(self, replica: OpenReplica, wish: _Wish) -> None:
        move = self._moves[replica.partition] = DirMove(replica, wish.directory, wish.budget)
        copier = self._copier(replica.directory, wish.directory)
        task = asyncio.create_task(self._make_copy(move, copier), name=f"copy of {replica.partition}")
        self._beginning[move] = task

    def _begin_to_drop(self, replica: OpenReplica, target: int) -> None:
        """The last process left a copy in a directory that is not wanted any more."""
        move = self._moves[replica.partition] = DirMove(replica, target, self._budget)
        move.end(keeps_copy=False)
        copier = self._copier(replica.directory, target)
        task = asyncio.create_task(self._drop_copy(move, copier), name=f"end of a copy of {replica.partition}")
        self._beginning[move] = task

    async def _drop_copy(self, move: DirMove, copier: DirCopier) -> TidemarkError | None:
        try:
            await copier.run(partial(self._logs.mover.abandon, move.partition))
        except Exception as error:  # noqa: BLE001 - handed on: a task's death must not go unseen
            self._fail(error)
        del self._beginning[move]
        self._ended(move, Outcome.GIVEN_UP)
        return None

    def _copier(self, source: int, target: int) -> DirCopier:
        copier = self._copiers.get((source, target))
        if copier is None:
            copier = self._copiers[source, target] = DirCopier(
                f"{source}-{target}", self._queries, self._logs, self._threads, self._metrics, self._ended, self._fail
            )
        return copier

    async def _make_copy(self, move: DirMove, copier: DirCopier) -> TidemarkError | None:
        """Why there is none, and will be none; a replica that is being opened anew is looked at again then."""
        configs = self._topics.configs(move.partition.topic)
        refusal: TidemarkError | None = None
        try:
            move.future = await copier.run(partial(self._begin_copy, move, configs))
        except TidemarkError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - handed on: a task's death must not go unseen
            self._fail(error)
            refusal = TidemarkError(ErrorCode.INTERNAL, str(error))
        del self._beginning[move]
        if refusal is None:
            move.copier = copier
            copier.add(move)
            if move.is_ended:
                copier.end(move, keeps_copy=move.keeps_copy)
            return None
        if refusal.code is ErrorCode.REPLICA_OFFLINE:
            self._ended(move, Outcome.STOPPED)
            return None
        self._metrics.failures.inc()
        _log.error("a copy could not be made", extra={"partition": str(move.partition), "why": refusal.message})
        self._ended(move, Outcome.GIVEN_UP)
        return refusal

    def _begin_copy(self, move: DirMove, configs: Mapping[str, str]) -> FutureLog:
        """On the copier's thread; one that the last process left and that cannot be gone on with goes."""
        mover = self._logs.mover
        try:
            return mover.begin(move.partition, move.directory, configs)
        except TidemarkError as error:
            if error.code is not ErrorCode.REPLICA_OFFLINE:
                mover.abandon(move.partition)
            raise

    def _end(self, move: DirMove, *, keeps_copy: bool) -> None:
        if move in self._beginning:
            move.end(keeps_copy=keeps_copy)
        else:
            assert move.copier is not None, "a move that has begun has its copier"
            move.copier.end(move, keeps_copy=keeps_copy)

    def _ended(self, move: DirMove, outcome: Outcome) -> None:
        """Look again: something else may be wanted by now; what failed is not tried again by itself."""
        partition = move.partition
        if self._moves.get(partition) is move:
            del self._moves[partition]
        wish = self._wishes.get(partition)
        if outcome is Outcome.MOVED:
            self._metrics.moved.inc()
            where = str(self._logs.directories()[move.directory].path)
            _log.info("a replica has moved", extra={"partition": str(partition), "directory": where})
        fulfilled = wish is not None and wish.directory == move.directory
        if fulfilled and (outcome is Outcome.MOVED or (outcome is Outcome.GIVEN_UP and not move.is_ended)):
            del self._wishes[partition]
        elif outcome is Outcome.STOPPED and self._queries.replica(partition) is None:
            self._wishes.pop(partition, None)
        if outcome is not Outcome.STOPPED or self._threads.replica(partition) is not move.replica:
            self._consider(partition)  # else it has yet to be opened anew

    # -- checks ------------------------------------------------------------------------------------------------

    def _directory(self, log_dir: str) -> int:
        directory = None if "\0" in log_dir else self._logs.directory_named(log_dir)  # no path has one
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
        view = self._queries.replica(partition)
        if view is not None and view.role == "offline":
            raise TidemarkError(
                ErrorCode.REPLICA_OFFLINE,
                f"the log of {partition} on this broker has failed: move it when it is online again",
            )
