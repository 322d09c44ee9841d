# SPDX-License-Identifier: Apache-2.0
"""The checkpoint files of a log directory: high watermark, recovery point, log start (rules R5, T5).

Lines of (topic, partition, incarnation, offset): because of the incarnation, a recreated partition does not get the
offsets of the deleted partition.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import TopicPartition
from tidemark.storage.files import BadFile, pack_lines, read_lines, write_temporary
from tidemark.storage.recovery.damage import UNKNOWN

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"

_log = logging.getLogger(__name__)

CheckpointKey = tuple[TopicPartition, str]
"""A partition and its incarnation."""


class CheckpointOffsets(NamedTuple):
    """The offsets of one partition: high watermark and recovery point (exclusive), log start (inclusive)."""

    high_watermark: int
    recovery_point: int
    log_start: int


@dataclass(slots=True)
class Checkpoints:
    """The content of the three files; offsets are exclusive, log starts inclusive. `changed`: the files are outdated.

    -1 (`UNKNOWN`) means an offset that was lost with a damaged file. Invariant: no recovery point and no log start is
    above the one on disk, because a log that is opened again trusts them.
    """

    high_watermarks: dict[CheckpointKey, int] = field(default_factory=dict)
    recovery_points: dict[CheckpointKey, int] = field(default_factory=dict)
    log_starts: dict[CheckpointKey, int] = field(default_factory=dict)
    changed: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Held while a partition is entered or dropped: a replica that is set aside meanwhile gets no offsets back."""

    def has(self, key: CheckpointKey, offsets: CheckpointOffsets) -> bool:
        """Whether the files have these offsets of a partition."""
        return offsets == (self.high_watermarks.get(key), self.recovery_points.get(key), self.log_starts.get(key))

    def put(self, key: CheckpointKey, offsets: CheckpointOffsets) -> None:
        """Enter a partition in all three; the caller has made its offsets durable, and holds `guard`."""
        self.high_watermarks[key], self.recovery_points[key], self.log_starts[key] = offsets

    def forget(self, key: CheckpointKey) -> None:
        """Drop a partition from all three; its log is closed, if it was open."""
        with self.guard:
            for offsets in (self.high_watermarks, self.recovery_points, self.log_starts):
                self.changed = offsets.pop(key, None) is not None or self.changed

    def write_temporaries(
        self, directory: Path, newer: Mapping[CheckpointKey, CheckpointOffsets]
    ) -> list[tuple[Path, Path]]:
        """Write all three, with the `newer` offsets, to temporary files; (temporary, final) paths to rename after the
        next syncfs.
        """
        return [
            (write_temporary(directory / name, pack_lines(_lines(offsets, newer, number))), directory / name)
            for number, (name, offsets) in enumerate(
                (
                    (HIGH_WATERMARKS, self.high_watermarks),
                    (RECOVERY_POINTS, self.recovery_points),
                    (LOG_STARTS, self.log_starts),
                )
            )
        ]


def read_checkpoints(directory: Path, known: Iterable[CheckpointKey]) -> Checkpoints:
    """Read the three files; for a missing or damaged file, UNKNOWN for each partition in `known`."""
    partitions = list(known)
    checkpoints = Checkpoints()
    for name, offsets in (
        (HIGH_WATERMARKS, checkpoints.high_watermarks),
        (RECOVERY_POINTS, checkpoints.recovery_points),
        (LOG_STARTS, checkpoints.log_starts),
    ):
        try:
            found = _read(directory / name)
        except BadFile as bad:
            _log.error("damaged checkpoint ignored: logs are recovered in full", extra={"why": str(bad)})
            found = None
        offsets.update(dict.fromkeys(partitions, UNKNOWN) if found is None else found)
    return checkpoints


def _read(path: Path) -> dict[CheckpointKey, int] | None:
    """The offsets of a file; None where there is no file. Raises BadFile."""
    lines = read_lines(path)
    if lines is None:
        return None
    found: dict[CheckpointKey, int] = {}
    try:
        for line in lines:
            topic, partition, incarnation, offset = line.split(" ")
            found[TopicPartition(topic, int(partition)), incarnation] = int(offset)
    except ValueError:
        raise BadFile(f"{path.name} has lines that do not parse as checkpoints") from None
    return found


def _lines(
    offsets: dict[CheckpointKey, int], newer: Mapping[CheckpointKey, CheckpointOffsets], number: int
) -> list[str]:
    # Other threads set replicas aside. A copy of a dict is atomic.
    merged = offsets.copy()
    merged.update((key, one[number]) for key, one in newer.items())
    return [f"{key[0].topic} {key[0].partition} {key[1]} {offset}" for key, offset in merged.items()]
