# SPDX-License-Identifier: Apache-2.0
"""The history of one consumer group in a round: the journals of its members, and the records of its coordinators.

A member writes a journal, one line for each event. Each line is a single write, so that the journal of a killed process
is complete. Times are of the machine's monotonic clock, the same for every process. Coordinators write to
`__consumer_offsets`: the assignments of every epoch, and every commit, in one order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.core.groups.state import Change

from tests.chaos.checks.history import Offset, Partition

MemberId = str
Epoch = int


@dataclass(frozen=True, slots=True)
class Named:
    """A process or thread became this member; `instance_id` if it is a static one."""

    at_s: float
    member_id: MemberId
    instance_id: str = ""
    commits_by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """The callback that the member reads these partitions from now on; it precedes their first record."""

    at_s: float
    epoch: Epoch
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class LetGo:
    """The callback that the member no longer reads these partitions; `lost`: other members may read them already."""

    at_s: float
    epoch: Epoch
    partitions: tuple[Partition, ...]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """Records of [first, end) that the member got; its member epoch before and after the request."""

    at_s: float
    asked_s: float
    epochs: tuple[Epoch, Epoch]
    partition: Partition
    first: Offset
    end: Offset

    @property
    def epoch(self) -> Epoch | None:
        """The generation of these records; None if it is not visible from outside."""
        before, after = self.epochs
        return before if before == after and before > 0 else None


@dataclass(frozen=True, slots=True)
class Processed:
    """The member has processed [first, end)."""

    at_s: float
    partition: Partition
    first: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class CommittedByHand:
    """The coordinator acknowledged the commit of `offset`."""

    at_s: float
    partition: Partition
    offset: Offset


@dataclass(frozen=True, slots=True)
class Troubled:
    """The client warned, or refused a commit; the processed records are possibly not committed."""

    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The member has left the group without an error."""

    at_s: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The client raised an error that no client should raise."""

    at_s: float
    why: str


Event = Named | Taken | LetGo | Given | Processed | CommittedByHand | Troubled | Closed | GaveUp
_KINDS: dict[str, Callable[..., Event]] = {
    kind.__name__: kind for kind in (Named, Taken, LetGo, Given, Processed, CommittedByHand, Troubled, Closed, GaveUp)
}


class Journal:
    """Writes events; an added event is in the file even if the process is killed right after."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, kind: type[Event], *values: Any, at_s: float | None = None) -> None:
        """An event of this kind, now."""
        moment_s = time.monotonic() if at_s is None else at_s
        os.write(self._file, json.dumps([kind.__name__, moment_s, *values]).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path) -> list[Event]:
    """All events; a line that a kill cut short does not count."""
    events: list[Event] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if line.endswith(b"\n"):
            name, *values = json.loads(line)
            events.append(_KINDS[name](*(tuple(one) if isinstance(one, list) else one for one in values)))
    return events


@dataclass(slots=True)
class GroupHistory:
    """One group that reads one topic.

    Attributes:
        journals: journals by the name of a process run; a restarted process has another name.
        coordinator: the group's records in `__consumer_offsets`, in order.
        final: the records of each partition at the end.
        unfinished: the conditions that did not become true in time.
    """

    topic: str
    journals: dict[str, Sequence[Event]] = field(default_factory=dict)
    coordinator: list[Change] = field(default_factory=list)
    final: dict[Partition, Iterable[Offset]] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
