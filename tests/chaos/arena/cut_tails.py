# SPDX-License-Identifier: Apache-2.0
"""Every broker is killed, and the disk of one lacks the end of its last writes (rule T7), once in a round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tidemark.record.envelope import ENVELOPE_BYTES, end_of_batches
from tidemark.storage.directories.checkpoint_files import read_checkpoints

from tests.chaos.arena.names import BROKERS

CUT_BYTES_MAX = 40
"""Less than any batch has, so that a start finds the cut."""
ALONE_S = 4.0
"""The broker with the cut tails is started so long before the others, at most."""


class CutTails:
    """A fault of `Nemesis`: the first one cuts tails, later ones of the round only kill."""

    def __init__(
        self,
        directories: Callable[[str], Sequence[Path]],
        chance: random.Random,
        kill: Callable[..., None],
        bring_back: Callable[[str], None],
    ) -> None:
        """`directories` gives the log directories of a broker."""
        self._directories = directories
        self._chance = chance
        self._kill = kill
        self._bring_back = bring_back
        self._has_cut = False

    def strike(self) -> Iterator[str]:
        """Inject this fault, as the generators of `Nemesis` do."""
        first, *others = self._chance.sample(BROKERS, len(BROKERS))
        self._kill(*BROKERS)
        logs = 0
        if not self._has_cut:
            self._has_cut = True
            logs = sum(cut(directory, self._chance) for directory in self._directories(first))
        yield f"kill -9 of every broker, and the tails of {logs} logs of {first} are cut"
        self._bring_back(first)
        time.sleep(self._chance.uniform(0.0, ALONE_S))
        for name in others:
            self._bring_back(name)


def cut(directory: Path, chance: random.Random) -> int:
    """Cut the end off the newest segment of each log in a log directory of a dead broker; gives how many.

    A batch below the recovery point stays: the disk has said that it is there. Its loss would be damage, which no
    replica but another one can heal, and the faults before may have taken all others from a partition.
    """
    logs, flushed = 0, read_checkpoints(directory, ()).recovery_points
    for log in sorted(path for path in directory.glob("*-*") if path.is_dir() and path.suffix == ""):
        segment = max(log.glob("*.log"), default=None)
        point = max((offset for (partition, _), offset in flushed.items() if str(partition) == log.name), default=0)
        if segment is not None and segment.stat().st_size > ENVELOPE_BYTES and _end(segment) > point:
            with segment.open("r+b", buffering=0) as file:
                file.truncate(segment.stat().st_size - chance.randint(1, CUT_BYTES_MAX))
            logs += 1
    return logs


def _end(segment: Path) -> int:
    """The offset behind the last batch, of which a killed broker may have left a part."""
    return end_of_batches(segment.read_bytes())
