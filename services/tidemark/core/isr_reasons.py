"""Why a leader takes a follower out of the ISR or in, as people are told of it (rules R7, R8). Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from tidemark.model import BrokerId, IsrEntry, Offset

if TYPE_CHECKING:
    from tidemark.core.remote_replica import RemoteReplica

CAUGHT_UP: Final = "caught_up"
DISCONNECTED: Final = "disconnected"
FLUSH_HANGS: Final = "flush_hangs"
LAGGING: Final = "lagging"
REASSIGNED: Final = "reassigned"
SILENT: Final = "silent"

OF_LEAVING: Final = (LAGGING, SILENT, DISCONNECTED, FLUSH_HANGS, REASSIGNED)
OF_JOINING: Final = (CAUGHT_UP, REASSIGNED)


def why_they_leave(
    leaving: Iterable[RemoteReplica], assigned: Collection[BrokerId], leader_end: Offset, now_ms: int, lag_max_ms: int
) -> str:
    """For each its id and one of `OF_LEAVING`: `2:lagging,3:disconnected`; `reasons_in` reads it."""
    return ",".join(
        f"{one.broker_id}:{_why_it_leaves(one, assigned, leader_end, now_ms, lag_max_ms)}" for one in leaving
    )


def _why_it_leaves(
    remote: RemoteReplica, assigned: Collection[BrokerId], leader_end: Offset, now_ms: int, lag_max_ms: int
) -> str:
    if remote.broker_id not in assigned:
        return REASSIGNED
    if remote.sending is None:
        return DISCONNECTED
    if now_ms - remote.sending.session.last_message_ms > lag_max_ms:
        return SILENT
    lagging = remote.far_since_ms is not None or now_ms - remote.last_caught_up_ms(leader_end) > lag_max_ms
    return LAGGING if lagging else FLUSH_HANGS


def why_they_join(joining: Iterable[IsrEntry], adding: Collection[BrokerId]) -> str:
    """For each its id and one of `OF_JOINING`, in the same way."""
    return ",".join(f"{one.broker_id}:{REASSIGNED if one.broker_id in adding else CAUGHT_UP}" for one in joining)


def reasons_in(text: str) -> list[str]:
    """The reasons alone, one for each replica."""
    return [one.partition(":")[2] for one in text.split(",") if one]


def ids(broker_ids: Iterable[BrokerId]) -> str:
    """As text."""
    return ",".join(map(str, broker_ids))
