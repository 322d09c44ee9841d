# SPDX-License-Identifier: Apache-2.0
"""Moves of replicas from one log directory of this broker to another (rule M3).

The wanted directory is kept by partition. For a replica that does not exist yet, the directory is kept until the
replica is created there. If the replica is in another directory, the choice is kept until the replica has moved. A copy
that an earlier process left states its target directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.disk_throttle import DiskThrottle
from tidemark.broker.logs.log_dir_copier import CopyMetrics, DirCopier, DirMove, Outcome
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.reassignment.log_dir_placement import LOG_DIR_PENDING, LOG_DIR_REFUSALS, PRESENT_LOG_DIR
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc.codecs.alter_log_dirs import Alteration, AlterLogDirs
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import LogManager

_PENDING: Final = TidemarkError(LOG_DIR_PENDING, "no copy in the named log directory has begun yet")

_log = logging.getLogger(__name__)
_BEGINNING_S: Final = 0.1
"""Time that an answer to the controller waits for copies: the next LeaderAndIsr is sent after the answer."""
_REFUSAL_S: Final = 10.0
"""Time for which a failure is kept for the controller, which names a directory again every 0.5 s while it waits."""


class _Target(NamedTuple):
    """The wanted directory of a replica, by index, and the throttle of its copy."""

    identity: ReplicaIdentity
    directory: int
    throttle: DiskThrottle


class _Refusal(NamedTuple):
    """The error of a copy that could not be made in this directory, and the time of the error."""

    directory: int
    error: TidemarkError
    at_s: float


class DirMoves:
    """Started and stopped with the broker.

    Args:
        fail: called with an unexpected error.
        suspect: called on the event loop with the offset of a damaged batch, to be repaired (rule T6).
    """

    def __init__(
        self,
        queries: BrokerQueries,
        logs: LogManager,
        threads: LogThreads,
        topics: TopicTable,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
        suspect: Callable[[TopicPartition, int], None] = lambda partition, offset: None,
    ) -> None:
        self._suspect = suspect
        self._queries = queries
        self._logs = logs
        self._threads = threads
        self._topics = topics
        self._fail = fail
        self._targets: dict[TopicPartition, _Target] = {}
        self._refusals: dict[TopicPartition, _Refusal] = {}
        self._moves: dict[TopicPartition, DirMove] = {}
        self._beginning: dict[DirMove, asyncio.Task[TidemarkError | None]] = {}
        self._copiers: dict[tuple[int, int], DirCopier] = {}
        self._throttle = DiskThrottle()
        self._stopping = False
        self._metrics = CopyMetrics(metrics)
        self._metrics.moves.set_function(lambda: len(self._moves))
        self._refused = metrics.counter(
            "broker_log_dir_moves_refused",
            "Directories named by the controller that are unknown to this broker, or offline",
        )
        threads.listen(self._consider)

    def use_throttle(self, bytes_per_s: int) -> None:
        """Set the limit of all moves without a throttle of their own, in bytes per second; -1: no limit."""
        self._throttle.bytes_per_s = bytes_per_s
        for move in self._moves.values():
            move.wake()

    def want(self, partition: TopicPartition, log_dir: str, identity: ReplicaIdentity) -> None:
        """Record the controller's choice of a directory, a path, a uuid or PRESENT_LOG_DIR; a repeated call changes
        nothing.

        A replica that does not exist yet is created there; one in another directory is moved. An unusable directory is
        ignored: a replica in another directory is better than none. A copy that has just failed is reported by
        `without_copy` before it is made again.

        Raises:
            TidemarkError: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE.
        """
        try:
            directory = self._present(partition) if log_dir == PRESENT_LOG_DIR else self._directory(log_dir)
        except TidemarkError as error:
            self._refused.inc()
            _log.error("log directory not usable", extra={"partition": str(partition), "why": error.message})
            raise
        if directory is not None and not self._has_refused(partition, directory):
            self._note(partition, _Target(identity, directory, self._throttle))

    def _present(self, partition: TopicPartition) -> int | None:
        """The directory of a replica, so that its move ends; None if there is no replica, or no move of it."""
        moves = (
            partition in self._targets or partition in self._moves or self._logs.mover.target_of(partition) is not None
        )
        return self._logs.directory_of(partition) if moves else None

    def _has_refused(self, partition: TopicPartition, directory: int) -> bool:
        self._forget_old_refusals()
        refusal = self._refusals.get(partition)
        if refusal is None:
            return False
        if refusal.directory == directory:
            return True
        del self._refusals[partition]
        return False

    def _forget_old_refusals(self) -> None:
        since_s = asyncio.get_running_loop().time() - _REFUSAL_S
        self._refusals = {one: refusal for one, refusal in self._refusals.items() if refusal.at_s > since_s}

    async def alter(self, request: AlterLogDirs) -> tuple[Alteration, ...]:
        """Record an operator's choices; answers when the moves are recorded and their copies made.

        Refused one by one: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE, REPLICA_OFFLINE, and errors of making a copy. A replica
        that is not open yet gets no copy, and a kill of the broker would lose the choice, so it is refused, too.
        """
        throttle = DiskThrottle(request.throttle_bytes_per_s) if request.throttle_bytes_per_s else self._throttle
        answers: list[tuple[TopicPartition, TidemarkError | None, asyncio.Task[TidemarkError | None] | None]] = []
        for partition, log_dir in request.replicas:
            begun = None
            try:
                directory = self._directory(log_dir)
                replica = self._checked_replica(partition, must_be_open=not request.validate_only)
            except TidemarkError as error:
                answers.append((partition, error, None))
                continue
            if replica is not None and not request.validate_only:
                self._refusals.pop(partition, None)
                self._note(partition, _Target(replica.identity, directory, throttle))
                move = self._moves.get(partition)
                begun = self._beginning.get(move) if move is not None else None
            answers.append((partition, None, begun))
        # A cancelled request must not cancel the making of a copy, which other requests and `stop` wait for, too.
        return tuple(
            [(partition, await asyncio.shield(begun) if begun else error) for partition, error, begun in answers]
        )

    async def without_copy(self, partitions: Collection[TopicPartition]) -> list[tuple[TopicPartition, TidemarkError]]:
        """The replicas on disk without a copy in their wanted directory, after a short wait for their copies.

        LOG_DIR_PENDING: the copy is not made yet, and a kill of the broker would lose the choice. Any other error:
        the copy could not be made. Such an error is returned once.
        """
        moves = [move for partition in partitions if (move := self._moves.get(partition)) is not None]
        beginning = [self._beginning[move] for move in moves if move in self._beginning]
        if beginning:
            await asyncio.wait(beginning, timeout=_BEGINNING_S)
        self._forget_old_refusals()
        refused = [(one, self._refusals.pop(one).error) for one in partitions if one in self._refusals]
        return refused + [(one, _PENDING) for one in partitions if not self._is_kept(one)]

    def _is_kept(self, partition: TopicPartition) -> bool:
        target, home = self._targets.get(partition), self._logs.directory_of(partition)
        if target is None or home in (None, target.directory):  # no request waits for the deletion of a copy
            return True
        return self._logs.mover.target_of(partition) == target.directory

    def has_copied(self, partition: TopicPartition) -> bool:
        """Whether the replica is being copied, or a copy with records waits; then cleaning waits.

        A copy does not follow a cleaning. A copy of an earlier process waits with its records while other replicas are
        copied.
        """
        move = self._moves.get(partition)
        return move is not None and (move.copying or (move.future is not None and move.future.log.size_bytes() > 0))

    def futures(self) -> Iterator[tuple[int, FutureLog]]:
        """The copies in progress, each with the index of its target directory."""
        for move in self._moves.values():
            if move.future is not None:
                yield move.directory, move.future

    async def stop(self) -> None:
        """End all moves between two steps; the copies stay, and the next start continues them."""
        self._stopping = True
        for move in list(self._moves.values()):
            self._end(move, keeps_copy=True)
        await asyncio.gather(*self._beginning.values())
        await asyncio.gather(*(copier.stop() for copier in self._copiers.values()))

    # -- wanted and actual directories -------------------------------------------------------------------------

    def _note(self, partition: TopicPartition, target: _Target) -> None:
        self._targets[partition] = target
        replica = self._threads.replica(partition)
        if replica is None or replica.identity != target.identity:  # of a deleted topic
            self._logs.prefer(partition, target.directory)
        else:
            self._consider(partition)

    def _consider(self, partition: TopicPartition) -> None:
        """Compare the wanted directory of an open replica with its actual one."""
        replica = self._threads.replica(partition)
        if replica is None or replica.failed or self._stopping:
            return
        self._logs.prefer(partition, None)
        target, move = self._targets.get(partition), self._moves.get(partition)
        left = self._logs.mover.target_of(partition)
        if target is None and move is None and left is not None:
            target = self._targets[partition] = _Target(replica.identity, left, self._throttle)
        if target is None or target.identity != replica.identity:
            return
        if move is not None:
            if move.directory != target.directory or move.is_ended:
                self._end(move, keeps_copy=False)  # `_ended` considers the partition again
            else:
                move.throttle = target.throttle
                move.wake()
        elif target.directory != replica.directory:
            self._begin(replica, target)
        else:
            del self._targets[partition]
            if left is not None:
                self._begin_to_drop(replica, left)

    def _begin(self, replica: OpenReplica, target: _Target) -> None:
        move = self._moves[replica.partition] = DirMove(replica, target.directory, target.throttle)
        copier = self._copier(replica.directory, target.directory)
        task = asyncio.create_task(self._make_copy(move, copier), name=f"copy of {replica.partition}")
        self._beginning[move] = task

    def _begin_to_drop(self, replica: OpenReplica, directory: int) -> None:
        """Delete a copy of an earlier process in a directory that is not wanted any more."""
        move = self._moves[replica.partition] = DirMove(replica, directory, self._throttle)
        move.end(keeps_copy=False)
        copier = self._copier(replica.directory, directory)
        task = asyncio.create_task(self._drop_copy(move, copier), name=f"end of a copy of {replica.partition}")
        self._beginning[move] = task

    async def _drop_copy(self, move: DirMove, copier: DirCopier) -> TidemarkError | None:
        try:
            await copier.run(partial(self._logs.mover.abandon, move.partition))
        except Exception as error:  # noqa: BLE001 - passed to `fail`: a task must not end unnoticed
            self._fail(error)
        del self._beginning[move]
        self._ended(move, Outcome.GIVEN_UP)
        return None

    def _copier(self, source: int, target: int) -> DirCopier:
        copier = self._copiers.get((source, target))
        if copier is None:
            copier = self._copiers[source, target] = DirCopier(
                f"{source}-{target}",
                self._queries,
                self._logs,
                self._threads,
                self._metrics,
                self._ended,
                self._suspect,
                self._fail,
            )
        return copier

    async def _make_copy(self, move: DirMove, copier: DirCopier) -> TidemarkError | None:
        """Make the copy; returns the refusal. A replica that is reopened is considered after its opening."""
        configs = self._topics.configs(move.partition.topic)
        refusal: TidemarkError | None = None
        try:
            move.future = await copier.run(partial(self._begin_copy, move, configs))
        except TidemarkError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - passed to `fail`: a task must not end unnoticed
            self._fail(error)
            refusal = TidemarkError(ErrorCode.INTERNAL, str(error))
        finally:
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
        _log.error("cannot make a copy", extra={"partition": str(move.partition), "why": refusal.message})
        self._forget_old_refusals()
        at_s = asyncio.get_running_loop().time()
        self._refusals[move.partition] = _Refusal(move.directory, _for_controller(refusal), at_s)
        self._ended(move, Outcome.GIVEN_UP)
        return refusal

    def _begin_copy(self, move: DirMove, configs: Mapping[str, str]) -> FutureLog:
        """Runs on the copier's thread; deletes a copy of an earlier process that cannot be continued."""
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
            assert move.copier is not None, "a move whose copy was made has its copier"
            move.copier.end(move, keeps_copy=keeps_copy)

    def _ended(self, move: DirMove, outcome: Outcome) -> None:
        """Consider the partition again, since another directory may be wanted now. A failed move is not retried."""
        partition = move.partition
        if self._moves.get(partition) is move:
            del self._moves[partition]
        target = self._targets.get(partition)
        if outcome is Outcome.MOVED:
            self._metrics.moved.inc()
            where = str(self._logs.directories()[move.directory].path)
            _log.info("a replica has moved", extra={"partition": str(partition), "directory": where})
        if target is not None and target.identity == move.replica.identity and self._is_over(move, target, outcome):
            del self._targets[partition]
        if outcome is not Outcome.STOPPED or self._threads.replica(partition) is not move.replica:
            self._consider(partition)  # otherwise the next opening considers the partition

    def _is_over(self, move: DirMove, target: _Target, outcome: Outcome) -> bool:
        """Whether the replica has moved, its copy failed, or its topic was deleted, and maybe created again."""
        if outcome is Outcome.STOPPED:
            view = self._queries.replica(move.partition)
            return view is None or view.identity != target.identity
        return target.directory == move.directory and (outcome is Outcome.MOVED or not move.is_ended)

    # -- checks ------------------------------------------------------------------------------------------------

    def _directory(self, log_dir: str) -> int:
        directory = None if "\0" in log_dir else self._logs.directory_named(log_dir)  # a path cannot contain a NUL
        states = self._logs.directories()
        if directory is None:
            have = ", ".join(str(state.path) for state in states)
            raise TidemarkError(
                ErrorCode.LOG_DIR_NOT_FOUND,
                f"{log_dir!r} is not a log directory of this broker; it has {have}: name one of these, or its uuid",
            )
        failed = states[directory].failed
        if failed is not None:
            raise TidemarkError(ErrorCode.LOG_DIR_OFFLINE, f"{failed}: repair it and start the broker, or name another")
        return directory

    def _checked_replica(self, partition: TopicPartition, *, must_be_open: bool) -> OpenReplica | None:
        view = self._queries.replica(partition)
        if view is not None and view.role == "offline":
            raise TidemarkError(
                ErrorCode.REPLICA_OFFLINE,
                f"the log of {partition} on this broker has failed: move the replica when it is online again",
            )
        replica = self._threads.replica(partition)
        if must_be_open and replica is None:
            sentence = f"the log of {partition} on this broker is not open yet: retry when its logs are open"
            raise TidemarkError(ErrorCode.REPLICA_OFFLINE, sentence)
        return replica


def _for_controller(error: TidemarkError) -> TidemarkError:
    """The error as the refusal of a log directory; other codes tell the controller that the replica itself failed."""
    return error if error.code in LOG_DIR_REFUSALS else TidemarkError(ErrorCode.LOG_DIR_OFFLINE, error.message)
