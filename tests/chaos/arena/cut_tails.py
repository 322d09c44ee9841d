# SPDX-License-Identifier: Apache-2.0
"""Once in a round, kills every broker and cuts the last writes off the logs of one broker (rule T7)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tidemark.record.envelope import ENVELOPE_BYTES, end_of_batches
from tidemark.storage.directories.checkpoint_files import read_checkpoints

from tests.chaos.arena.names import BROKERS

CUT_BYTES_MAX = 40
"""Fewer bytes than any batch has, so that the cut leaves a torn tail."""
ALONE_S = 4.0
"""Largest time by which the broker with the cut tails starts before the others."""


class CutTails:
    """A fault of `Nemesis`: the first one in a round cuts tails, later ones only kill the brokers."""

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
    """Cut the end off the newest segment of each log in a log directory of a dead broker.

    Returns the number of cut logs.

    A batch below the recovery point stays, because a flush covered the batch. A loss of the batch would be damage,
    which only another replica can repair. After earlier faults, the partition may have no other replica.
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
    """Position after the last complete batch; a killed broker may have left part of a further batch."""
    return end_of_batches(segment.read_bytes())
