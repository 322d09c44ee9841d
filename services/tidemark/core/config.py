# SPDX-License-Identifier: Apache-2.0
"""Settings of the core; the drivers fill them from the configuration table."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model import BrokerId, ControllerEpoch


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Settings of replication; defaults are Apache Kafka's, if Apache Kafka has the setting."""

    replica_lag_time_max_ms: int = 10_000
    replica_lag_max_bytes: int = 0
    """A follower that lags by more bytes throughout half of that time is out of sync too (rule R7); 0: off."""
    replica_fetch_max_bytes: int = 1 << 20
    """Soft limit of one chunk."""
    replica_directory_credit_bytes: int = 8 << 20
    """Bytes that a leader may have in flight to one log directory of a follower."""
    replica_heartbeat_interval_ms: int = 500
    rack_aware_reads: bool = True
    """Consumers that state a rack may fetch from followers in that rack (rule K1); off: from leaders only."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """The state of an idempotent producer may expire after this time without a batch (rule P4)."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Settings of the active controller, and its term."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    cluster_id: str
    session_timeout_ms: int = 6_000
    moves_per_broker_max: int = 50
    """Reassignments that copy to or from one broker at a time."""
    leader_rebalance_interval_ms: int = 0
    """Interval of the automatic preferred leader election; 0: off."""
    election_wait_ms: int = 5_000
    """Time that the first log reported after a crash of every candidate waits for the other logs (rule T7)."""
    leader_imbalance_percent: int = 10
    """Share of a broker's preferred partitions that other brokers may lead before the election acts."""
