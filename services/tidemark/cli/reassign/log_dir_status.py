# SPDX-License-Identifier: Apache-2.0
"""Where replicas lie on the disks of their brokers, beside where they are wanted; followed to the end (rule M3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from posixpath import normpath
from typing import TYPE_CHECKING, Final

from tidemark.cli.reassign.progress_view import MoveView, name_of
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.core.reassignment.progress import STALLED_AFTER_S, ReassignmentPhase, ReassignmentProgress
from tidemark.core.reassignment.request import named_log_dirs
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs
    from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk

_PAUSE_S: Final = 0.5
_PAUSE_EACH_S: Final = 0.001
"""Looks at thousands of replicas cost their brokers something."""
_GIVEN_UP_LOOKS: Final = 3
"""So many looks in a row without the copy: between its end and the new directory there is a moment without either."""
_NEW_WEIGHT: Final = 0.3
_ALL_BUT: Final = 99
"""Percent of a copy that has every byte and is not yet the replica."""


class PlaceState(StrEnum):
    """Of a replica, as its broker says."""

    THERE = "there"
    COPYING = "copying"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"  # its broker said nothing


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """A replica that is wanted in a directory, and where it is.

    Attributes:
        log_dir: path of the directory that it lies in; "" where it is not there yet, or its broker said nothing.
        target: path of the directory wanted; as it was named where the broker has no such directory.
        bytes_done: what a copy under way has.
        bytes_total: what the replica has; None: not known.
        why: what is in the way, where that is known.
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
        """Of the copy; None without one, or where nobody knows how much there is."""
        if self.state is not PlaceState.COPYING or self.bytes_done is None or self.bytes_total is None:
            return None
        return min(_ALL_BUT, 100 * self.bytes_done // self.bytes_total) if self.bytes_total else _ALL_BUT


def places_of(moves: Iterable[PartitionReassignment]) -> list[ReplicaLogDir]:
    """Every replica for which these moves name a directory, by partition and in the order of its replicas."""
    return [
        ReplicaLogDir(broker, move.partition, directory)
        for move in sorted(moves, key=lambda one: one.partition)
        for broker, directory in named_log_dirs(move).items()
    ]


def look(client: AdminClient, places: Sequence[ReplicaLogDir]) -> list[FoundReplica]:
    """Where each of them is now, in their order."""
    if not places:
        return []
    found = client.describe_log_dirs(
        sorted({place.broker_id for place in places}), partitions=sorted({place.partition for place in places})
    )
    brokers = {one.broker_id: one for one in found}
    return [find(place, brokers) for place in places]


def find(place: ReplicaLogDir, brokers: Mapping[BrokerId, BrokerLogDirs]) -> FoundReplica:
    """Where it is, by what brokers say."""
    broker = brokers.get(place.broker_id)
    if broker is None or broker.error is not None:
        why = None if broker is None else broker.error
        return FoundReplica(place, PlaceState.UNKNOWN, target=place.log_dir, why=why)
    lies_in, replica = _replica(broker.log_dirs, place.partition)
    wanted = next((one for one in broker.log_dirs if is_named(one, place.log_dir)), None)
    log_dir = "" if lies_in is None else lies_in.path
    if wanted is None:
        paths = ", ".join(one.path for one in broker.log_dirs)
        sentence = f"{place.log_dir!r} is no log directory of broker {place.broker_id}, which has {paths}"
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
        why = TidemarkError(ErrorCode.REPLICA_OFFLINE, f"its log in {log_dir} has failed, so nothing can be copied")
    return FoundReplica(place, PlaceState.ELSEWHERE, log_dir, wanted.path, bytes_total=total, why=why)


def is_named(log_dir: LogDirectoryContent, name: str) -> bool:
    """Whether this path or uuid means it."""
    return name == log_dir.directory_id or normpath(name) == normpath(log_dir.path)


def _replica(
    log_dirs: Iterable[LogDirectoryContent], partition: TopicPartition
) -> tuple[LogDirectoryContent | None, ReplicaOnDisk | None]:
    for one in log_dirs:
        for replica in one.replicas:
            if replica.partition == partition and not replica.future:
                return one, replica
    return None, None


@dataclass(slots=True)
class _Seen:
    """Of one replica: the last look at its copy."""

    at_s: float
    grew_at_s: float
    bytes_done: int | None = None
    rate_bytes_per_s: float | None = None
    missing_looks: int = 0


def placed(found: FoundReplica) -> str:
    """Where it lies now, for people."""
    return f"on broker {found.place.broker_id} in {found.log_dir or 'no directory yet'}"


class PlaceFollower:
    """Follows replicas into the directories that they are wanted in.

    Args:
        client: of the admin service.
        pause: for so many seconds.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        client: AdminClient,
        pause: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pause = pause
        self._now_s = now_s
        self._seen: dict[ReplicaLogDir, _Seen] = {}
        self._before: dict[tuple[TopicPartition, tuple[BrokerId, ...]], FoundReplica] = {}

    def ends(self, moved: ReassignmentProgress) -> tuple[str, str]:
        """For `MoveView`: broker and directory before, directory after."""
        found = self._before[moved.partition, moved.target]
        return f"broker {found.place.broker_id}, {found.log_dir or 'nowhere yet'}", found.target

    def follow(
        self, places: Sequence[ReplicaLogDir], view: MoveView
    ) -> list[tuple[FoundReplica, TidemarkError | None]]:
        """How each ended, when all have: it is there, or will not come there."""
        ended: list[tuple[FoundReplica, TidemarkError | None]] = []
        left = list(places)
        while left:
            moves, ends = [], []
            for found in look(self._client, left):
                why = self._failure(found)
                if found.state is PlaceState.THERE or why is not None:
                    ended.append((found, why))
                    ends.append(found)
                else:
                    moves.append(self._progress(found))
            done = {one.place for one in ends}
            left = [place for place in left if place not in done]
            for found in ends:
                there = found.state is PlaceState.THERE
                view.say(f"{name_of(found.place.partition)} {'is' if there else 'stays'} {placed(found)}")
            view.show(moves, ())
            if left:
                self._pause(max(_PAUSE_S, len(left) * _PAUSE_EACH_S))
        return ended

    def _failure(self, found: FoundReplica) -> TidemarkError | None:
        """Why it will not come there; None: it is there, or may come."""
        if found.state is not PlaceState.ELSEWHERE:
            return None
        if found.why is not None:
            return found.why
        seen = self._seen.get(found.place)
        if seen is None or seen.bytes_done is None:
            return None
        seen.missing_looks += 1
        if seen.missing_looks < _GIVEN_UP_LOOKS:
            return None
        partition, broker = found.place.partition, found.place.broker_id
        sentence = f"the copy of {partition} on broker {broker} was given up: it lies in {found.log_dir}"
        return TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence)

    def _progress(self, found: FoundReplica) -> ReassignmentProgress:
        now_s, broker = self._now_s(), found.place.broker_id
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
        )
        self._before.setdefault((moved.partition, moved.target), found)
        seen = self._look_at(found, now_s)
        eta_s = None
        if seen.rate_bytes_per_s and found.bytes_done is not None and found.bytes_total is not None:
            eta_s = max(0, found.bytes_total - found.bytes_done) / seen.rate_bytes_per_s
        rate = seen.rate_bytes_per_s
        return replace(moved, rate_bytes_per_s=rate, eta_s=eta_s, waiting_for=_waits_for(found, now_s - seen.grew_at_s))

    def _look_at(self, found: FoundReplica, now_s: float) -> _Seen:
        seen = self._seen.setdefault(found.place, _Seen(now_s, now_s))
        if found.bytes_done is None:
            return seen
        seen.missing_looks = 0
        if seen.bytes_done is None:
            seen.at_s = seen.grew_at_s = now_s
            seen.bytes_done = found.bytes_done
        elif now_s > seen.at_s:
            grown = max(0, found.bytes_done - seen.bytes_done)
            rate, before = grown / (now_s - seen.at_s), seen.rate_bytes_per_s
            seen.rate_bytes_per_s = rate if before is None else _NEW_WEIGHT * rate + (1 - _NEW_WEIGHT) * before
            seen.at_s, seen.bytes_done = now_s, found.bytes_done
            seen.grew_at_s = now_s if grown else seen.grew_at_s
        return seen


def _waits_for(found: FoundReplica, silent_s: float) -> str:
    broker = found.place.broker_id
    if found.state is PlaceState.UNKNOWN:
        why = "it said nothing" if found.why is None else found.why.message
        return f"broker {broker} does not tell: {why}"
    if silent_s < STALLED_AFTER_S:
        return ""
    if found.state is PlaceState.COPYING:
        return f"nothing was copied for {silent_s:.0f} s: it is throttled, or look at the log of broker {broker}"
    return f"broker {broker} has not begun it for {silent_s:.0f} s: others are copied first, or it was started again"
