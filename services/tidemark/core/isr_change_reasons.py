# SPDX-License-Identifier: Apache-2.0
"""Names of the reasons for an ISR change, in logs and metrics (rules R7, R8). They change no decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tidemark.model import BrokerId, IsrEntry

CAUGHT_UP: Final = "caught_up"
DISCONNECTED: Final = "disconnected"
FLUSH_HANGS: Final = "flush_hangs"
LAGGING: Final = "lagging"
REASSIGNED: Final = "reassigned"
SILENT: Final = "silent"

OF_LEAVING: Final = (LAGGING, SILENT, DISCONNECTED, FLUSH_HANGS, REASSIGNED)
OF_JOINING: Final = (CAUGHT_UP, REASSIGNED)


def reasons_text(reasons: Iterable[tuple[BrokerId, str]]) -> str:
    """Broker ids with their reasons, as in `2:lagging,3:disconnected`; `reasons_in` parses the text."""
    return ",".join(f"{broker_id}:{reason}" for broker_id, reason in reasons)


def join_reasons(joining: Iterable[IsrEntry], adding: Collection[BrokerId]) -> str:
    """`reasons_text` of the replicas that join the ISR, each with one of `OF_JOINING`."""
    return reasons_text((one.broker_id, REASSIGNED if one.broker_id in adding else CAUGHT_UP) for one in joining)


def reasons_in(text: str) -> list[str]:
    """The reasons in a `reasons_text`, one for each replica."""
    return [one.partition(":")[2] for one in text.split(",") if one]


def ids(broker_ids: Iterable[BrokerId]) -> str:
    """Broker ids as text, separated by commas."""
    return ",".join(map(str, broker_ids))
