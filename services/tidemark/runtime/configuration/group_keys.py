# SPDX-License-Identifier: Apache-2.0
"""Settings of consumer groups and of transactions: rows for the table in `keys`."""

from __future__ import annotations

from typing import Final, NamedTuple

_YEAR_MINUTES: Final = 366 * 24 * 60
_DAY_MS: Final = 24 * 3600 * 1000


class GroupNumber(NamedTuple):
    """A static whole-number setting of brokers."""

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
        "Partitions of `__consumer_offsets`, which the first use of a group creates; fixed from then on",
        1,
        1000,
    ),
    GroupNumber(
        "offsets.topic.replication.factor",
        3,
        "replicas",
        "Replication factor of `__consumer_offsets`; fewer if the cluster has fewer brokers when it is created",
        1,
        100,
    ),
    GroupNumber(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "min",
        "Time for which committed offsets are kept while no member of the group subscribes to the topic",
        1,
        50 * _YEAR_MINUTES,
    ),
    GroupNumber(
        "offsets.retention.check.interval.ms",
        600_000,
        "ms",
        "Interval at which coordinators expire committed offsets",
        100,
        _DAY_MS,
    ),
    GroupNumber("offset.metadata.max.bytes", 4096, "B", "Largest metadata text of a committed offset", 0, 1 << 20),
    GroupNumber(
        "offsets.commit.timeout.ms",
        5000,
        "ms",
        "Time limit for a change of a group to be committed in `__consumer_offsets`, after which the request fails",
        1,
        _DAY_MS,
    ),
    GroupNumber(
        "group.consumer.session.timeout.ms",
        45_000,
        "ms",
        "Time without a heartbeat after which the coordinator evicts a member",
        100,
        _DAY_MS,
    ),
    GroupNumber(
        "group.consumer.heartbeat.interval.ms",
        3000,
        "ms",
        "Heartbeat interval that the coordinator sends to members",
        10,
        _DAY_MS,
    ),
    GroupNumber("group.consumer.max.size", 10_000, "members", "Largest number of members of a group", 1, 1_000_000),
)

TRANSACTION_NUMBERS: Final = (
    GroupNumber(
        "transaction.state.log.num.partitions",
        16,
        "partitions",
        "Partitions of `__transaction_state`, which the first use of a transactional id creates; fixed from then on",
        1,
        1000,
    ),
    GroupNumber(
        "transaction.state.log.replication.factor",
        3,
        "replicas",
        "Replication factor of `__transaction_state`; fewer if the cluster has fewer brokers when it is created",
        1,
        100,
    ),
    GroupNumber(
        "transaction.max.timeout.ms",
        900_000,
        "ms",
        "Longest transaction timeout that a producer may request",
        1,
        7 * _DAY_MS,
    ),
    GroupNumber(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        1000,
        "ms",
        "Interval at which coordinators abort transactions whose timeout has passed",
        10,
        _DAY_MS,
    ),
    GroupNumber(
        "transactional.id.expiration.ms",
        7 * _DAY_MS,
        "ms",
        "Time without a transaction after which a transactional id is deleted",
        1,
        50 * 366 * _DAY_MS,
    ),
    GroupNumber(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "ms",
        "Interval at which coordinators delete expired transactional ids",
        100,
        _DAY_MS,
    ),
)

ASSIGNORS_DEFAULT: Final = "sticky,uniform,range"
ASSIGNORS_DOC: Final = "Assignors that members may choose, separated by commas; the first one is the default"
