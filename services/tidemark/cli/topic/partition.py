# SPDX-License-Identifier: Apache-2.0
"""One partition for `tidemark topic describe --partition`: each replica's log, and the last changes of the ISR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemark.cli.common.output import listed, print_line, print_table, shown_time
from tidemark.client.units import shown_bytes
from tidemark.core.cluster_view import PartitionView
from tidemark.core.isr_change_reasons import MEANINGS, IsrChange, change_json, merged
from tidemark.model import IsrReasons

if TYPE_CHECKING:
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs
    from tidemark.rpc.log_dirs import ReplicaOnDisk

_REPLICAS: Final = ("broker", "role", "in sync", "directory", "log start", "log end", "high watermark", "lag", "size")
_CHANGES: Final = ("time (UTC)", "left", "joined", "ISR after", "leader epoch")

_Found = tuple[int, str, "ReplicaOnDisk"]


def partition_json(brokers: Sequence[BrokerLogDirs]) -> Mapping[str, object]:
    """Replicas and ISR changes of one partition, and its other facts."""
    return {
        "logs": [
            {
                "broker": broker,
                "log_dir": path,
                "leader": replica.leader,
                "log_start_offset": replica.log_start_offset,
                "log_end_offset": replica.log_end_offset,
                "high_watermark": replica.high_watermark,
                "size_bytes": replica.size_bytes,
                "offline": replica.offline,
                "future": replica.future,
            }
            for broker, path, replica in _replicas(brokers)
        ],
        "isr_changes": [change_json(change) for change in _changes(brokers)],
    }


def print_partition(partition: PartitionView, brokers: Sequence[BrokerLogDirs]) -> None:
    """Print the replicas and the ISR changes of one partition."""
    found = list(_replicas(brokers))
    ends = [replica.log_end_offset for _, _, replica in found if replica.leader and not replica.future]
    print_table(_REPLICAS, [_row(partition, one, max(ends, default=None)) for one in found])
    changes = _changes(brokers)
    if changes:
        print_table(_CHANGES, map(_change_row, changes))
    else:
        print_line("No leader has noted a change of the ISR since its broker started.")


def _replicas(brokers: Sequence[BrokerLogDirs]) -> Iterator[_Found]:
    for broker in brokers:
        for one in broker.log_dirs:
            for replica in one.replicas:
                yield broker.broker_id, one.path, replica


def _changes(brokers: Sequence[BrokerLogDirs]) -> list[IsrChange]:
    return merged(change for _, _, replica in _replicas(brokers) for change in replica.isr_changes)


def _row(partition: PartitionView, found: _Found, leader_end: int | None) -> Sequence[object]:
    broker, path, replica = found
    role = "copy of a move" if replica.future else "leader" if replica.leader else "follower"
    lag = "?" if leader_end is None or replica.offline else max(0, leader_end - replica.log_end_offset)
    size = "log failed" if replica.offline else shown_bytes(replica.size_bytes)
    in_sync = "yes" if broker in partition.in_sync_replicas else "no"
    ends = (replica.log_start_offset, replica.log_end_offset, replica.high_watermark)
    return (broker, role, in_sync, path, *ends, lag, size)


def _change_row(change: IsrChange) -> Sequence[object]:
    left, joined = _shown(change.left), _shown(change.joined)
    return (shown_time(change.changed_at_ms), left, joined, listed(change.isr), change.leader_epoch)


def _shown(reasons: IsrReasons) -> str:
    return ", ".join(f"{broker}: {MEANINGS.get(reason, reason) or 'not known'}" for broker, reason in reasons)
