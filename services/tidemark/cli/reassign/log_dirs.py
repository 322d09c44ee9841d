# SPDX-License-Identifier: Apache-2.0
"""Current and wanted log directories of replicas, their output, and moves followed to their end (rule M3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from posixpath import normpath
from typing import TYPE_CHECKING, Final

import typer

from tidemark.cli.common.output import error_json, name_of, print_table
from tidemark.cli.common.process import EXIT_INTERRUPTED
from tidemark.cli.reassign.submit import Patience
from tidemark.cli.reassign.views import MoveView
from tidemark.client.units import shown_bytes
from tidemark.core.reassignment.copy_rates import CopyRates
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.core.reassignment.progress import (
    STALLED_AFTER_S,
    ReassignmentOutcome,
    ReassignmentPhase,
    ReassignmentProgress,
)
from tidemark.core.reassignment.request import ANY_LOG_DIR, named_log_dirs
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition
from tidemark.runtime.interrupts import signals_as_interrupt

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs
    from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk

_PAUSE_S: Final = 0.5
_PAUSE_EACH_S: Final = 0.001
"""Additional pause per replica, since DescribeLogDirs for thousands of replicas costs the brokers time."""
_MISSING_MAX: Final = 3
"""Answers in a row without the copy that mean a cancelled move; one such answer is possible at the end of a copy."""
_ALL_BUT: Final = 99
"""Percent of a copy that has every byte and did not replace the replica yet."""

Present = Mapping[tuple[BrokerId, TopicPartition], str]
"""Path of the log directory of each replica."""
Placed = tuple["FoundReplica", TidemarkError | None]
"""A replica at the end of its log directory move, and the error if the move failed."""


class PlaceState(StrEnum):
    """State of a replica, as its broker reports it."""

    THERE = "there"
    COPYING = "copying"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"  # the broker did not answer


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """A replica with its wanted and its current log directory.

    Attributes:
        log_dir: path of the current directory; "" if there is no replica yet, or its broker did not answer.
        target: path of the wanted directory; the name as given if the broker has no such directory.
        bytes_done: size of a copy in progress.
        bytes_total: size of the replica; None: unknown.
        why: the obstacle, if it is known.
    """

    place: ReplicaLogDir
    state: PlaceState
    log_dir: str = ""
    target: str = ""
    bytes_done: int | None = None
    bytes_total: int | None = None
    why: TidemarkError | None = None

    @property
    def percent(self) -> int | None:
        """Progress of the copy; None without a copy, or for an unknown size."""
        if self.state is not PlaceState.COPYING or self.bytes_done is None or self.bytes_total is None:
            return None
        return min(_ALL_BUT, 100 * self.bytes_done // self.bytes_total) if self.bytes_total else _ALL_BUT


def places_of(moves: Iterable[PartitionReassignment]) -> list[ReplicaLogDir]:
    """Replicas for which these reassignments name a log directory, by partition, in the order of the replicas."""
    return [
        ReplicaLogDir(broker, move.partition, directory)
        for move in sorted(moves, key=lambda one: one.partition)
        for broker, directory in named_log_dirs(move).items()
    ]


def look(client: AdminClient, places: Sequence[ReplicaLogDir]) -> list[FoundReplica]:
    """Current state of each replica, in the given order."""
    if not places:
        return []
    found = client.describe_log_dirs(
        sorted({place.broker_id for place in places}), partitions=sorted({place.partition for place in places})
    )
    brokers = {one.broker_id: one for one in found}
    return [find(place, brokers) for place in places]


def find(place: ReplicaLogDir, brokers: Mapping[BrokerId, BrokerLogDirs]) -> FoundReplica:
    """State of a replica from the answers of the brokers."""
    broker = brokers.get(place.broker_id)
    if broker is None or broker.error is not None:
        why = None if broker is None else broker.error
        return FoundReplica(place, PlaceState.UNKNOWN, target=place.log_dir, why=why)
    lies_in, replica = _replica(broker.log_dirs, place.partition)
    wanted = next((one for one in broker.log_dirs if is_named(one, place.log_dir)), None)
    log_dir = "" if lies_in is None else lies_in.path
    if wanted is None:
        paths = ", ".join(one.path for one in broker.log_dirs)
        sentence = f"broker {place.broker_id} has no log directory {place.log_dir!r}, only {paths}"
        why = TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, sentence)
        return FoundReplica(place, PlaceState.ELSEWHERE, log_dir, place.log_dir, why=why)
    if lies_in is wanted:
        return FoundReplica(place, PlaceState.THERE, log_dir, wanted.path)
    copy = next((one for one in wanted.replicas if one.future and one.partition == place.partition), None)
    total = None if replica is None or replica.size_bytes < 0 else replica.size_bytes
    if copy is not None and wanted.error is None:
        done = max(0, copy.size_bytes)
        return FoundReplica(place, PlaceState.COPYING, log_dir, wanted.path, done, total)
    why = None
    if wanted.error is not None:
        why = TidemarkError(ErrorCode.LOG_DIR_OFFLINE, f"{wanted.path} is offline: {wanted.error.message}")
    elif replica is not None and replica.offline:
        why = TidemarkError(ErrorCode.REPLICA_OFFLINE, f"its log in {log_dir} failed, so it cannot be copied")
    return FoundReplica(place, PlaceState.ELSEWHERE, log_dir, wanted.path, bytes_total=total, why=why)


def is_named(log_dir: LogDirectoryContent, name: str) -> bool:
    """Whether the path or uuid names this log directory."""
    return name == log_dir.directory_id or normpath(name) == normpath(log_dir.path)


def _replica(
    log_dirs: Iterable[LogDirectoryContent], partition: TopicPartition
) -> tuple[LogDirectoryContent | None, ReplicaOnDisk | None]:
    for one in log_dirs:
        for replica in one.replicas:
            if replica.partition == partition and not replica.future:
                return one, replica
    return None, None


def placed(found: FoundReplica) -> str:
    """Broker and log directory of a replica, as text."""
    return f"on broker {found.place.broker_id} in {found.log_dir or 'no directory yet'}"


class PlaceFollower:
    """Follows log directory moves to their end; `pause` sleeps for seconds, `now_s` is a monotonic clock."""

    def __init__(
        self,
        client: AdminClient,
        pause: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pause = pause
        self._now_s = now_s
        self._rates = CopyRates()
        self._missing: dict[ReplicaLogDir, int] = {}
        """Number of answers in a row without the copy, of each copy that a broker has reported."""
        self._before: dict[tuple[TopicPartition, tuple[BrokerId, ...]], FoundReplica] = {}

    def ends(self, moved: ReassignmentProgress) -> tuple[str, str]:
        """Source (broker and log directory) and target of a move, for `MoveView`."""
        found = self._before[moved.partition, moved.target]
        return f"broker {found.place.broker_id}, {found.log_dir or 'no directory yet'}", found.target

    def follow(self, places: Sequence[ReplicaLogDir], view: MoveView) -> list[Placed]:
        """Wait until all moves ended; returns each replica, with an error if its move failed."""
        ended: list[Placed] = []
        left = list(places)
        patience = Patience(self._pause)
        while left:
            moved: list[FoundReplica] = []
            try:
                replicas = look(self._client, left)
            except TidemarkError as error:
                patience.wait_after(error)
                continue
            patience = Patience(self._pause)
            for found in replicas:
                why, there = self._failure(found), found.state is PlaceState.THERE
                if there or why is not None:
                    ended.append((found, why))
                    view.say(f"{name_of(found.place.partition)} {'is' if there else 'stays'} {placed(found)}")
                else:
                    moved.append(found)
            left = [found.place for found in moved]
            self._rates.look({found.place: found.bytes_done for found in moved}, self._now_s())
            view.show([self._progress(found) for found in moved], ())
            if left:
                self._pause(max(_PAUSE_S, len(left) * _PAUSE_EACH_S))
        return ended

    def _failure(self, found: FoundReplica) -> TidemarkError | None:
        """The error that ends the move; None: the move completed, or may complete."""
        if found.state is PlaceState.COPYING:
            self._missing[found.place] = 0
        if found.state is not PlaceState.ELSEWHERE:
            return None
        if found.why is not None:
            return found.why
        if found.place not in self._missing:
            return None
        self._missing[found.place] += 1
        if self._missing[found.place] < _MISSING_MAX:
            return None
        partition, broker = found.place.partition, found.place.broker_id
        sentence = f"the copy of {partition} on broker {broker} was cancelled: the replica stays in {found.log_dir}"
        return TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence)

    def _progress(self, found: FoundReplica) -> ReassignmentProgress:
        broker = found.place.broker_id
        rate, eta_s = self._rates.rate_bytes_per_s(found.place), None
        if rate and found.bytes_done is not None and found.bytes_total is not None:
            eta_s = max(0, found.bytes_total - found.bytes_done) / rate
        moved = ReassignmentProgress(
            partition=found.place.partition,
            original=(broker,),
            target=(broker,),
            assigned=(broker,),
            adding=(),
            removing=(),
            replicas={broker: ReplicaState.ONLINE},
            phase=ReassignmentPhase.COPYING if found.state is PlaceState.COPYING else ReassignmentPhase.QUEUED,
            bytes_done=found.bytes_done,
            bytes_total=found.bytes_total,
            rate_bytes_per_s=rate,
            eta_s=eta_s,
            waiting_for=_waits_for(found, self._rates.silent_s(found.place)),
        )
        self._before.setdefault((moved.partition, moved.target), found)
        return moved


def _waits_for(found: FoundReplica, silent_s: float) -> str:
    broker = found.place.broker_id
    if found.state is PlaceState.UNKNOWN:
        why = "no answer" if found.why is None else found.why.message
        return f"state of broker {broker} unknown: {why}"
    if silent_s < STALLED_AFTER_S:
        return ""
    if found.state is PlaceState.COPYING:
        return f"nothing was copied for {silent_s:.0f} s: throttled, or see the log of broker {broker}"
    return (
        f"broker {broker} has not begun the copy for {silent_s:.0f} s: other copies run first, or the broker restarted"
    )


def present_directories(
    client: AdminClient, moves: Sequence[PartitionReassignment], outcomes: Sequence[ReassignmentOutcome]
) -> Present:
    """Current log directories of partitions for which a log directory is named; of brokers that answer."""
    named = {move.partition for move in moves if named_log_dirs(move)}
    brokers = {broker for one in outcomes if one.partition in named for broker in one.before}
    if not brokers:
        return {}
    return {
        (broker.broker_id, replica.partition): one.path
        for broker in client.describe_log_dirs(sorted(brokers), partitions=sorted(named))
        for one in broker.log_dirs
        for replica in one.replicas
        if not replica.future
    }


def back(outcomes: Sequence[ReassignmentOutcome], present: Present) -> list[PartitionReassignment]:
    """Reassignments that restore the assignment, with the log directories that are known."""
    moves = []
    for one in outcomes:
        if one.before and not one.cancelled:
            log_dirs = tuple(present.get((broker, one.partition), ANY_LOG_DIR) for broker in one.before)
            known = any(directory != ANY_LOG_DIR for directory in log_dirs)
            moves.append(PartitionReassignment(one.partition, one.before, log_dirs if known else ()))
    return moves


def follow_directories(
    client: AdminClient, moves: Sequence[PartitionReassignment], failed: Collection[TopicPartition], *, silent: bool
) -> list[Placed]:
    """Wait until each replica is in its named log directory, or its move failed; failed partitions are skipped."""
    places = [place for place in places_of(moves) if place.partition not in failed]
    if not places:
        return []
    return follow_places(client, places, silent=silent)


def follow_places(client: AdminClient, places: Sequence[ReplicaLogDir], *, silent: bool) -> list[Placed]:
    """Show the progress of log directory moves until their end, or until Ctrl-C."""
    follower = PlaceFollower(client)
    try:
        with signals_as_interrupt(), MoveView(silent=silent, ends=follower.ends) as view:
            return follower.follow(places, view)
    except KeyboardInterrupt:
        typer.echo("the copy continues; tidemark log-dirs describe --replicas shows its progress", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def directories_state(found: Sequence[FoundReplica]) -> str:
    """State of a partition that has its wanted replicas: "done", or the state of their log directories."""
    states = {one.state for one in found}
    if states <= {PlaceState.THERE}:
        return "done"
    if PlaceState.COPYING in states:
        return "copying directories"
    return "directories unknown" if states <= {PlaceState.THERE, PlaceState.UNKNOWN} else "other directories"


def print_places(found: Sequence[FoundReplica]) -> None:
    """Print replicas and their log directories; print nothing if no log directory is named."""
    if found:
        print_table(
            ("partition", "broker", "wanted directory", "directory", "state"),
            [
                (name_of(one.place.partition), one.place.broker_id, one.target, one.log_dir or "-", _state(one))
                for one in found
            ],
        )


def _state(found: FoundReplica) -> str:
    if found.state is PlaceState.COPYING:
        share = "" if found.percent is None else f", {found.percent}% of {shown_bytes(found.bytes_total)}"
        return f"{found.state}{share}"
    return f"{found.state}: {found.why.message}" if found.why is not None else str(found.state)


def found_json(found: FoundReplica) -> Mapping[str, object]:
    """A replica and its wanted log directory as JSON; null is unknown."""
    return {
        **found.place.partition._asdict(),
        "broker_id": found.place.broker_id,
        "wanted_log_dir": found.target,
        "log_dir": found.log_dir or None,
        "state": str(found.state),
        "bytes_done": found.bytes_done,
        "bytes_total": found.bytes_total,
        "percent": found.percent,
        "why": error_json(found.why),
    }
