# SPDX-License-Identifier: Apache-2.0
"""All invariants of a world."""

from __future__ import annotations

from tests.simulation.invariants.damage import Heals
from tests.simulation.invariants.log_start import DeletedStaysDeleted, LatestKept, StartReleased
from tests.simulation.invariants.reassignment import Led, ReplicaSet, ThrottleGone
from tests.simulation.invariants.replication import (
    AckedReadable,
    CommittedRead,
    EpochsMonotonic,
    ExactlyOnceAppend,
    Flushed,
    Healed,
    HighWatermarkMonotonic,
    Invariant,
    LeaderInIsr,
    LogMatch,
    OneLeader,
    StrongIsr,
    ValidHighWatermark,
)
from tests.simulation.invariants.schemas import SchemaFixed, SchemaKnown, TypedBatches
from tests.simulation.invariants.transactions import ReadCommitted, Stable


def all_invariants() -> list[Invariant]:
    """New invariants for one world: CommittedRead first, because others use its records; those of peace last."""
    committed, versions = CommittedRead(), SchemaFixed()
    return [
        committed,
        LeaderInIsr(),
        OneLeader(),
        ValidHighWatermark(),
        StrongIsr(committed),
        Flushed(committed),
        LogMatch(committed),
        HighWatermarkMonotonic(),
        Healed(),
        EpochsMonotonic(),
        AckedReadable(committed),
        ExactlyOnceAppend(committed),
        LatestKept(committed),
        StartReleased(committed),
        DeletedStaysDeleted(),
        versions,
        TypedBatches(versions),
        ReadCommitted(),
        Stable(),
        ReplicaSet(),
        ThrottleGone(),
        Led(),
        Heals(),
        SchemaKnown(),
    ]
