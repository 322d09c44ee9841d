# SPDX-License-Identifier: Apache-2.0
"""Switches of metrics: rows for the table in `configuration_keys`."""

from __future__ import annotations

from typing import Final

METRICS_SWITCHES: Final = (
    ("metrics.partitions", "Whether a broker exports metrics of each partition and its followers"),
    ("metrics.groups", "Whether a broker exports metrics of each consumer group and topic"),
)
"""Keys and meanings: metrics that can be disabled because they may have very many series."""
