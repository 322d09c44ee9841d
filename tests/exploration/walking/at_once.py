# SPDX-License-Identifier: Apache-2.0
"""Messages without delay: a sent message is delivered before any other move.

While messages are in flight to live processes no other move happens, and they are delivered in every order. All
other moves come at any moment between: decisions of the controller, moves of processes by themselves, sessions,
batches, faults, and messages with delay. The walk sees a subset of all stories, which is small enough for complete
walks: of pairs of faults with batches if streams have no delay, and of the complete scope if no message has a delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tests.exploration.walking.moves import Moves, Successors
from tests.exploration.walking.partial import Group
from tests.exploration.walking.table import Rows

_STREAMS: Final = ("up", "down")
KINDS: Final = {
    "streams": _STREAMS,
    "commands": (*_STREAMS, "command"),
    "zookeeper": (*_STREAMS, "command", "coordination"),
}
"""Kinds of moves without delay: messages on streams; these and commands of the controller.

These and requests to ZooKeeper.
"""


def made(moves: Moves, rows: Rows, groups: Sequence[Group], kinds: Sequence[str]) -> Iterator[Successors]:
    """Successors of each row: its deliveries or, if nothing is to be delivered, all other moves.

    `kinds`: of those that have no delay. A stream breaks only while no message is in flight on it; an answer of
    ZooKeeper is lost at its delivery.

    Raises:
        BrokenError: one of the moves breaks an invariant.
    """
    quiet = np.ones(len(rows), bool)
    breaks: list[Successors] = []
    for group in groups:
        found = moves.successors(rows, group) if group.kind in kinds else None
        if found is None:
            continue
        is_heard = moves.left.array[found.which] < 0
        quiet[found.parents[is_heard]] = False
        if group.kind in _STREAMS:
            breaks.append(found.of(np.flatnonzero(~is_heard)))
            found = found.of(np.flatnonzero(is_heard))
        yield found
    for found in breaks:
        yield found.of(np.flatnonzero(quiet[found.parents]))
    silent = np.flatnonzero(quiet)
    for group in groups:
        if group.kind not in kinds:
            found = moves.successors(rows, group, silent)
            if found is not None:
                yield found
