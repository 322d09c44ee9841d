"""Which metrics a broker has, as rows for the one table in `configuration_keys`."""

from __future__ import annotations

from typing import Final, NamedTuple


class MetricsSwitch(NamedTuple):
    """Something that can be switched off, of which there may be very many."""

    name: str
    default: str
    doc: str


METRICS_SWITCHES: Final = (
    MetricsSwitch("metrics.partitions", "true", "Whether metrics tell of each partition and its followers"),
    MetricsSwitch("metrics.groups", "true", "Whether metrics tell of each consumer group and topic"),
)
