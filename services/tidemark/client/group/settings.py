# SPDX-License-Identifier: Apache-2.0
"""What a member of a consumer group can be told, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

RESETS: Final = ("earliest", "latest", "fail")


GROUP_SETTINGS: Final = (
    "instance_id",
    "assignor",
    "client_id",
    "auto_commit_interval_ms",
    "rebalance_timeout_ms",
    "max_poll_interval_ms",
    "offset_reset",
)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times in milliseconds; see `group_settings`."""

    group: str
    instance_id: str
    assignor: str
    client_id: str
    auto_commit_interval_ms: int
    rebalance_timeout_ms: int
    max_poll_interval_ms: int
    offset_reset: str


def group_settings(
    group: str,
    *,
    instance_id: str = "",
    assignor: str = "",
    client_id: str = "",
    auto_commit_interval_ms: int = 5_000,
    rebalance_timeout_ms: int = 60_000,
    max_poll_interval_ms: int = 300_000,
    offset_reset: str = "earliest",
) -> GroupSettings:
    """Check; raises INVALID_CONFIG.

    Args:
        group: its id, 1 to 249 characters.
        instance_id: of a static member: who comes back under it within the session gets its partitions back.
        assignor: "range", "uniform" or "sticky"; empty: the broker's choice.
        client_id: shown to people who look at the group.
        auto_commit_interval_ms: how often what was processed is remembered, beside hand-overs; 0: only by `commit`.
        rebalance_timeout_ms: how long giving up partitions may take before the group goes on without this member.
        max_poll_interval_ms: so long the application may work on what it was given before others get its partitions.
        offset_reset: where to begin in a partition that the group has read nothing of: earliest, latest, or fail.
    """
    if not 1 <= len(group) <= 249:
        raise TidemarkError(ErrorCode.INVALID_GROUP_ID, f"the group id has {len(group)} characters: want 1 to 249")
    if offset_reset not in RESETS:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG, f"offset_reset is {offset_reset!r}: want {', '.join(RESETS[:-1])} or {RESETS[-1]}"
        )
    bounds = (
        ("auto_commit_interval_ms", auto_commit_interval_ms, 0, 86_400_000),
        ("rebalance_timeout_ms", rebalance_timeout_ms, 1, 86_400_000),
        ("max_poll_interval_ms", max_poll_interval_ms, 1, 86_400_000),
    )
    for name, value, smallest, largest in bounds:
        if not smallest <= value <= largest:
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{name} is {value}: want {smallest} to {largest}")
    return GroupSettings(
        group,
        instance_id,
        assignor,
        client_id,
        auto_commit_interval_ms,
        rebalance_timeout_ms,
        max_poll_interval_ms,
        offset_reset,
    )
