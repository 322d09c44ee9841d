"""Messages without delay: what is sent on a stream is heard before anything else happens.

While messages are on their way to processes that live nothing else happens, and they are heard in every order. All
else comes at any moment between: the controller's decisions and commands, requests to ZooKeeper and its answers, what
processes do by themselves, sessions, batches and misfortunes. A subset of all stories, small enough that pairs of
misfortunes with batches are walked to their end; and the whole scope, where commands of the controller have no delay
either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tests.exploration.moves import Moves, Successors
from tests.exploration.partial import Group
from tests.exploration.table import Rows

STREAMS: Final = ("up", "down")
"""Kinds of moves that deliver what was sent on a stream; among the latter are streams that break, a misfortune."""
MESSAGES: Final = (*STREAMS, "command")
"""And what the controller tells brokers."""


def made(moves: Moves, rows: Rows, groups: Sequence[Group], kinds: Sequence[str]) -> Iterator[Successors]:
    """What moves lead to, of each row either all that is heard or, with nothing to hear, all else.

    `kinds`: STREAMS or MESSAGES.

    Raises:
        BrokenError: one of the moves broke something.
    """
    quiet = np.ones(len(rows), bool)
    breaks: list[Successors] = []
    for group in groups:
        found = moves.successors(rows, group) if group.kind in kinds else None
        if found is None:
            continue
        is_heard = moves.left.array[found.which] < 0
        quiet[found.parents[is_heard]] = False
        breaks.append(found.of(np.flatnonzero(~is_heard)))
        yield found.of(np.flatnonzero(is_heard))
    for found in breaks:
        yield found.of(np.flatnonzero(quiet[found.parents]))
    silent = np.flatnonzero(quiet)
    for group in groups:
        if group.kind not in kinds:
            found = moves.successors(rows, group, silent)
            if found is not None:
                yield found
