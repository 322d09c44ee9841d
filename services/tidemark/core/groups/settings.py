# SPDX-License-Identifier: Apache-2.0
"""The settings of the broker that the group coordinator uses."""

from __future__ import annotations

from typing import NamedTuple


class GroupSettings(NamedTuple):
    """Settings of the group coordinator, see docs/configuration.md.

    `assignors`: by name; the first one is the default.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_size: int = 10_000
    assignors: tuple[str, ...] = ("sticky", "uniform", "range")
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    metadata_bytes_max: int = 4096
