"""The settings of consumer groups, as rows for the one table in `configuration_keys`."""

from __future__ import annotations

from typing import Final, NamedTuple

_YEAR_MINUTES: Final = 366 * 24 * 60
_DAY_MS: Final = 24 * 3600 * 1000


class GroupNumber(NamedTuple):
    """A whole number that brokers read at their start."""

    name: str
    default: int
    unit: str
    doc: str
    minimum: int
    maximum: int


GROUP_NUMBERS: Final = (
    GroupNumber(
        "offsets.topic.num.partitions",
        16,
        "partitions",
        "Partitions of `__consumer_offsets` when it is made, at the first use of a group; never changed after",
        1,
        1000,
    ),
    GroupNumber(
        "offsets.topic.replication.factor",
        3,
        "replicas",
        "Replicas of its partitions; fewer where the cluster has fewer brokers when it is made",
        1,
        100,
    ),
    GroupNumber(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "min",
        "How long offsets are kept that no member of the group reads from any more",
        1,
        50 * _YEAR_MINUTES,
    ),
    GroupNumber(
        "offsets.retention.check.interval.ms", 600_000, "ms", "How often it is looked for such offsets", 100, _DAY_MS
    ),
    GroupNumber("offset.metadata.max.bytes", 4096, "B", "Largest text that a commit may carry", 0, 1 << 20),
    GroupNumber(
        "offsets.commit.timeout.ms",
        5000,
        "ms",
        "How long a change of a group may take to reach its in-sync replicas before it is refused",
        1,
        _DAY_MS,
    ),
    GroupNumber(
        "group.consumer.session.timeout.ms",
        45_000,
        "ms",
        "Silence after which a member is taken out of its group",
        100,
        _DAY_MS,
    ),
    GroupNumber(
        "group.consumer.heartbeat.interval.ms", 3000, "ms", "How often members are told to send heartbeats", 10, _DAY_MS
    ),
    GroupNumber("group.consumer.max.size", 10_000, "members", "Members that a group may have", 1, 1_000_000),
)

ASSIGNORS_DEFAULT: Final = "sticky,uniform,range"
ASSIGNORS_DOC: Final = (
    "Assignors that groups may choose, separated by commas; the first is that of groups whose members name none"
)
