# SPDX-License-Identifier: Apache-2.0
"""Settings that the protocol's core reads; filled by the shell from the configuration table."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model import BrokerId, ControllerEpoch


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Defaults as Apache Kafka's where it has them."""

    replica_lag_time_max_ms: int = 10_000
    replica_lag_max_bytes: int = 0
    """Who is further behind throughout half of that time lags too (rule R7); 0: nobody does."""
    replica_fetch_max_bytes: int = 1 << 20
    """Soft limit of one chunk."""
    replica_directory_credit_bytes: int = 8 << 20
    """What a leader may have under way to one log directory of a follower."""
    replica_heartbeat_interval_ms: int = 500
    rack_aware_reads: bool = True
    """Consumers that state a rack may read from followers in it (rule K1); off: from leaders alone."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """An idempotent producer silent for so long may be forgotten (rule P4)."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the core needs of the settings."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    cluster_id: str
    session_timeout_ms: int = 6_000
    moves_per_broker_max: int = 50
    """Moves that copy to or from one broker at a time."""
    leader_rebalance_interval_ms: int = 0
    """How often leadership is compared with the preferred one; 0: never."""
    leader_imbalance_percent: int = 10
    """Of the partitions that prefer a broker, so many may be led elsewhere."""
