# SPDX-License-Identifier: Apache-2.0
"""The phases of a transactional id: the table (phase, input) → next phase (rules X10-X13). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Final


class Phase(StrEnum):
    """Phases of a transactional id. The names are stored, and shown to operators."""

    EMPTY = "EMPTY"  # its producer has started, and has no transaction yet
    ONGOING = "ONGOING"  # has a partition or a member; no other phase accepts writes
    PREPARE_COMMIT = "PREPARE_COMMIT"  # commit is decided and final; some partition may lack its marker
    PREPARE_ABORT = "PREPARE_ABORT"  # abort is decided and final; some partition may lack its marker
    COMPLETE_COMMIT = "COMPLETE_COMMIT"  # every partition has its marker; the next transaction may begin
    COMPLETE_ABORT = "COMPLETE_ABORT"  # every partition has its marker; the next transaction may begin


class Input(StrEnum):
    """Inputs that change the phase of a transactional id."""

    INIT = auto()  # a producer starts (X10)
    WRITE = auto()  # a partition is added (X11), or a member joins (X16)
    COMMIT = auto()  # the producer commits (X12), or commits members (X16)
    ABORT = auto()  # the producer (X12), the timeout (X13) or an operator aborts
    MARKED = auto()  # every partition of the transaction has its marker (X12)


CLOSED: Final = (Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)
"""Phases in which no transaction is open, and none is being completed."""
PREPARED: Final = (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)
"""The decision is stored; markers are sent until every partition has its marker."""

TRANSITIONS: Final[Mapping[tuple[Phase, Input], Phase]] = {
    # A producer starts: it gets a new epoch. A transaction that is open is aborted first, and the producer asks again.
    **{(phase, Input.INIT): Phase.EMPTY for phase in CLOSED},
    (Phase.ONGOING, Input.INIT): Phase.PREPARE_ABORT,
    # A transaction begins with its first write.
    **{(phase, Input.WRITE): Phase.ONGOING for phase in CLOSED},
    (Phase.ONGOING, Input.WRITE): Phase.ONGOING,
    # A transaction is decided. The decision is stored before its answer and its markers leave.
    (Phase.ONGOING, Input.COMMIT): Phase.PREPARE_COMMIT,
    (Phase.ONGOING, Input.ABORT): Phase.PREPARE_ABORT,
    # A transaction without writes is decided, too; MARKED follows immediately.
    **{(phase, Input.COMMIT): Phase.PREPARE_COMMIT for phase in CLOSED},
    **{(phase, Input.ABORT): Phase.PREPARE_ABORT for phase in CLOSED},
    # A transaction is complete.
    (Phase.PREPARE_COMMIT, Input.MARKED): Phase.COMPLETE_COMMIT,
    (Phase.PREPARE_ABORT, Input.MARKED): Phase.COMPLETE_ABORT,
}
"""A request whose input has no row here is refused with CONCURRENT_TRANSACTIONS: a decision is being completed."""
