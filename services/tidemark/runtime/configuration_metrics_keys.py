"""Which metrics a broker has, as rows for the one table in `configuration_keys`."""

from __future__ import annotations

from typing import Final

METRICS_SWITCHES: Final = (
    ("metrics.partitions", "Whether metrics tell of each partition and its followers"),
    ("metrics.groups", "Whether metrics tell of each consumer group and topic"),
)
"""Names and meanings of what can be switched off, as there may be very many of it."""
