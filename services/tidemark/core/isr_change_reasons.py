# SPDX-License-Identifier: Apache-2.0
"""Names of the reasons for an ISR change, for operators (rules R7, R8). The reasons change no decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from tidemark.model import BrokerId, IsrEntry, IsrReasons, LeaderEpoch

CAUGHT_UP: Final = "caught_up"
DISCONNECTED: Final = "disconnected"
FLUSH_HANGS: Final = "flush_hangs"
LAGGING: Final = "lagging"
REASSIGNED: Final = "reassigned"
SILENT: Final = "silent"

OF_LEAVING: Final = (LAGGING, SILENT, DISCONNECTED, FLUSH_HANGS, REASSIGNED)
OF_JOINING: Final = (CAUGHT_UP, REASSIGNED)


MEANINGS: Final = {
    CAUGHT_UP: "caught up",
    DISCONNECTED: "no stream to the leader",
    FLUSH_HANGS: "flushed nothing",
    LAGGING: "lagged",
    REASSIGNED: "reassigned",
    SILENT: "sent nothing",
    "broker_failed": "its broker failed",
    "elected": "elected",
    "replica_failed": "its log failed",
    "shutdown": "controlled shutdown of its broker",
    "suspected": "its broker did not answer the controller",
}
"""Reasons of leaders and of the controller in words."""


class IsrChange(NamedTuple):
    """A change of the ISR of a partition, as its leader noted the change.

    Attributes:
        changed_at_ms: milliseconds since 1970, UTC.
        partition_epoch: version of the leaderAndISR node with the change.
        isr: the ISR after the change.
        replicas: the replicas that joined or left.
    """

    changed_at_ms: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: IsrReasons

    @property
    def joined(self) -> IsrReasons:
        """The replicas that joined, with reasons."""
        return tuple(one for one in self.replicas if one[0] in self.isr)

    @property
    def left(self) -> IsrReasons:
        """The replicas that left, with reasons."""
        return tuple(one for one in self.replicas if one[0] not in self.isr)


def merged(changes: Iterable[IsrChange]) -> list[IsrChange]:
    """The changes of one partition that present and earlier leaders noted, each once, the newest first."""
    found = {change.partition_epoch: change for change in changes}
    return [found[epoch] for epoch in sorted(found, reverse=True)]


def change_json(change: IsrChange) -> dict[str, object]:
    """A change of an ISR as JSON."""
    return {
        "changed_at_ms": change.changed_at_ms,
        "leader_epoch": change.leader_epoch,
        "joined": [{"broker_id": broker, "reason": reason} for broker, reason in change.joined],
        "left": [{"broker_id": broker, "reason": reason} for broker, reason in change.left],
        "isr": list(change.isr),
    }


def reasons_text(reasons: Iterable[tuple[BrokerId, str]]) -> str:
    """Broker ids with their reasons, as in `2:lagging,3:disconnected`; `reasons_in` parses the text."""
    return ",".join(f"{broker_id}:{reason}" for broker_id, reason in reasons)


def join_reasons(joining: Iterable[IsrEntry], adding: Collection[BrokerId]) -> str:
    """`reasons_text` of the replicas that join the ISR, each with one of `OF_JOINING`."""
    return reasons_text((one.broker_id, REASSIGNED if one.broker_id in adding else CAUGHT_UP) for one in joining)


def reasons_in(text: str) -> list[str]:
    """The reasons in a `reasons_text`, one for each replica."""
    return [reason for _, reason in parsed(text)]


@lru_cache(1_024)
def parsed(text: str) -> IsrReasons:
    """The replicas and reasons of a `reasons_text`; thousands of partitions change alike, and share the result."""
    pairs = (one.partition(":") for one in text.split(",") if one)
    return tuple((BrokerId(int(broker_id)), reason) for broker_id, _, reason in pairs)


@lru_cache(1_024)
def of_change(before: tuple[BrokerId, ...], after: tuple[BrokerId, ...], *stated: IsrReasons) -> IsrReasons:
    """The replicas by which two ISRs differ, each with its reason in `stated`; partitions share equal results."""
    known = {broker_id: reason for reasons in stated for broker_id, reason in reasons}
    return tuple((broker_id, known.get(broker_id, "")) for broker_id in sorted({*before} ^ {*after}))


def ids(broker_ids: Iterable[BrokerId]) -> str:
    """Broker ids as text, separated by commas."""
    return ",".join(map(str, broker_ids))
