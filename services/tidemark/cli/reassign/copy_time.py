# SPDX-License-Identifier: Apache-2.0
"""The time that copies take under a --throttle, and a warning of a long one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemark.cli.common.output import print_warning
from tidemark.client.units import shown_bytes, shown_duration
from tidemark.model import BrokerId, PartitionReassignment, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient

LONG_S: Final = 3600.0
"""The command warns of copies that take this time or longer."""


def warn_of_long_copies(
    client: AdminClient,
    moves: Sequence[PartitionReassignment],
    before: Mapping[TopicPartition, Sequence[BrokerId]],
    throttle_bytes_per_s: int,
) -> None:
    """Warn if the new replicas take long to copy; the time is unknown if their leaders do not answer.

    Args:
        client: client that fetches leaders and sizes.
        moves: reassignments that are to start.
        before: assigned replicas before the reassignment.
        throttle_bytes_per_s: bytes that each broker sends; 0: no limit.
    """
    copies = {move.partition: len(set(move.replicas) - set(before.get(move.partition, ()))) for move in moves}
    wanted = sorted(partition for partition, count in copies.items() if count and before.get(partition))
    if not (throttle_bytes_per_s and wanted):
        return
    try:
        found = client.describe_log_dirs(
            sorted({broker for partition in wanted for broker in before[partition]}), partitions=wanted
        )
    except TidemarkError:  # only the warning is missing
        return
    sent_bytes: Counter[BrokerId] = Counter()
    for broker in found:
        for log_dir in broker.log_dirs:
            for replica in log_dir.replicas:
                if replica.leader and not replica.future:
                    sent_bytes[broker.broker_id] += max(0, replica.size_bytes) * copies.get(replica.partition, 0)
    if sent_bytes:
        broker_id, most = sent_bytes.most_common(1)[0]
        warn_of_long_copy(f"broker {broker_id} has {shown_bytes(most)} to send", most, throttle_bytes_per_s)


def warn_of_long_copy(reason: str, count_bytes: int, throttle_bytes_per_s: int) -> None:
    """Warn if `count_bytes` take long under the throttle (0: no limit)."""
    seconds = count_bytes / throttle_bytes_per_s if throttle_bytes_per_s else 0.0
    if seconds >= LONG_S:
        print_warning(
            f"the copy takes {shown_duration(seconds)} or longer: {reason}, and the throttle is "
            f"{shown_bytes(throttle_bytes_per_s)}/s; a higher --throttle makes it shorter"
        )
