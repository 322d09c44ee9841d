# SPDX-License-Identifier: Apache-2.0
"""Settings of a member of a consumer group, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from tidemark.client.argument_types import integer, text
from tidemark.client.settings import ConsumerOptions, check_bounds
from tidemark.model import ErrorCode, TidemarkError

RESETS: Final = ("earliest", "latest", "fail")


class GroupOptions(TypedDict, total=False):
    """The keyword arguments of `group_settings`, and of a consumer with a group."""

    instance_id: str
    assignor: str
    auto_commit_interval_ms: int
    rebalance_timeout_ms: int
    max_poll_interval_ms: int
    offset_reset: str


class ConsumerAndGroupOptions(ConsumerOptions, GroupOptions, total=False):
    """The keyword arguments of the consumers."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Checked settings of a group; times are in milliseconds. See `group_settings`."""

    group: str
    instance_id: str
    assignor: str
    auto_commit_interval_ms: int
    rebalance_timeout_ms: int
    max_poll_interval_ms: int
    offset_reset: str
    client_id: str = ""


def group_settings(
    group: str,
    *,
    instance_id: str = "",
    assignor: str = "",
    auto_commit_interval_ms: int = 5_000,
    rebalance_timeout_ms: int = 60_000,
    max_poll_interval_ms: int = 300_000,
    offset_reset: str = "earliest",
) -> GroupSettings:
    """Check the settings of a member of a group.

    Args:
        group: id of the group, 1 to 249 characters.
        instance_id: makes the member static: if it rejoins with this id within the session timeout, it gets its
            partitions back.
        assignor: "range", "uniform" or "sticky"; "": the broker's default.
        auto_commit_interval_ms: interval of automatic commits, which also happen at rebalances; 0: only `commit`.
        rebalance_timeout_ms: time to release revoked partitions, after which the coordinator evicts the member.
        max_poll_interval_ms: time that the application may process records before other members get its partitions.
        offset_reset: start in a partition without a committed offset: "earliest", "latest" or "fail".

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_GROUP_ID.
        TypeError: a setting has a wrong type.
    """
    names = {"group": group, "instance_id": instance_id, "assignor": assignor}
    for name, given in names.items():
        text(name, given)
    if not 1 <= len(group) <= 249:
        raise TidemarkError(ErrorCode.INVALID_GROUP_ID, f"the group id has {len(group)} characters: expected 1 to 249")
    if text("offset_reset", offset_reset) not in RESETS:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"offset_reset is {offset_reset!r}: expected {', '.join(RESETS[:-1])} or {RESETS[-1]}",
        )
    check_bounds(
        ("auto_commit_interval_ms", integer("auto_commit_interval_ms", auto_commit_interval_ms), 0, 86_400_000),
        ("rebalance_timeout_ms", integer("rebalance_timeout_ms", rebalance_timeout_ms), 1, 86_400_000),
        ("max_poll_interval_ms", integer("max_poll_interval_ms", max_poll_interval_ms), 1, 86_400_000),
    )
    return GroupSettings(
        group,
        instance_id,
        assignor,
        auto_commit_interval_ms,
        rebalance_timeout_ms,
        max_poll_interval_ms,
        offset_reset,
    )
