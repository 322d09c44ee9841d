# SPDX-License-Identifier: Apache-2.0
"""Settings of brokers: each field is a row of the table of all settings (`keys`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.runtime.configuration.key import I32_MAX, UNLIMITED, setting
from tidemark.runtime.configuration.service_settings import ClientFacingSettings
from tidemark.runtime.host_port import Listeners

_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class BrokerSettings(ClientFacingSettings):
    """Settings of `python -m tidemark.broker`."""

    owner = "broker"

    advertised_check_timeout_ms: int = setting(
        30_000,
        "Time limit for the broker to reach itself at its advertised address. A broker that fails this check does not "
        "start. 0 skips the check, for an address that only works from other hosts",
        maximum=_DAY_MS,
    )
    broker_id: int = setting(None, "Id of the broker, stored in its log directories", maximum=I32_MAX)
    broker_rack: str = setting("", "Rack of the broker; replicas of a partition are spread over racks")
    log_dirs: tuple[Path, ...] = setting(None, "Log directories, one per disk")
    log_dir_choice: str = setting(
        "fewest-replicas",
        "Rule that chooses the log directory of a new replica",
        choices=("fewest-replicas", "most-free-bytes"),
    )
    log_dirs_trust_boot_id: bool = setting(
        True, "Whether the page cache survives until the kernel reboots; set false on network volumes"
    )
    admin_address: Listeners | None = setting(
        "",
        "Address of the admin service, sent to clients in metadata; with names, each client gets that of its listener",
    )
    replica_lag_time_max_ms: int = setting(
        10_000,
        "Time after which a follower that is not caught up leaves the ISR. At least twice "
        "replica.heartbeat.interval.ms, and 200 above it",
        minimum=100,
        dynamic=True,
    )
    replica_lag_max_bytes: int = setting(
        0,
        "A follower that lags by more for half of replica.lag.time.max.ms leaves the ISR too; 0 disables this",
        dynamic=True,
    )
    replica_fetch_max_bytes: int = setting(
        1 << 20,
        "Soft limit of one chunk on a replication stream; above 4 MiB it has no further effect",
        minimum=1024,
        dynamic=True,
    )
    replica_heartbeat_interval_ms: int = setting(
        500, "Longest time without a message on a replication stream", minimum=10
    )
    replica_selector_class: str = setting(
        "rack-aware",
        "Replica that a consumer with a rack reads from: an in-sync replica in its rack, or always the leader",
        choices=("rack-aware", "leader"),
        dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000,
        "Interval of checkpoints: the broker syncs its logs, then writes high watermarks and recovery points",
        minimum=10,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "Time without a batch after which a broker may expire an idempotent producer; the producer then gets a new id",
        minimum=1000,
    )
    log_cleaner_enable: bool = setting(True, "Whether the cleaner compacts logs of compacted topics")
    log_cleaner_backoff_ms: int = setting(
        15_000, "Interval at which the cleaner searches for logs to compact", minimum=10
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        "Memory of the cleaner for keys, all log directories together; more keys take more passes",
        unit="bytes",
        minimum=1 << 20,
        maximum=1 << 31,
    )
    log_cleaner_io_buffer_size: int = setting(
        32 << 20,
        "Bytes of a log that are compacted at a time; the cleaner needs a few times this memory, per log directory",
        unit="bytes",
        minimum=1 << 16,
        maximum=1 << 30,
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        UNLIMITED,
        "Throttle of the cleaner's reads and writes together, per log directory",
        minimum=1024,
        unlimited=True,
    )
    log_scrub_interval_ms: int = setting(
        7 * _DAY_MS,
        "Interval in which the scrubber reads every sealed batch once, and has damaged ones repaired; 0: never",
    )
    log_scrub_io_max_bytes_per_second: int = setting(
        10 << 20, "Throttle of the scrubber's reads, per log directory", minimum=1024, unlimited=True
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        UNLIMITED,
        "Throttle of log directory moves, for all moves without a throttle of their own together",
        minimum=1024,
        unlimited=True,
        dynamic=True,
    )
    num_read_threads: int = setting(2, "Threads that read from disk", minimum=1, maximum=256)
    num_recovery_threads_per_data_dir: int = setting(
        2,
        "Threads per log directory that open logs at the start, and recover logs that were not closed cleanly",
        minimum=1,
        maximum=64,
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "Interval at which leaders apply retention, and roll segments by age without an append", minimum=10
    )
    stray_grace_ms: int = setting(3_600_000, "Time after which a stray replica is deleted")
    controlled_shutdown_max_wait_ms: int = setting(
        30_000,
        "Time limit of controlled shutdown, in which the controller moves leadership away; 0 skips controlled shutdown",
    )
    offsets_topic_num_partitions: int = setting(
        16,
        "Partitions of `__consumer_offsets`, which the first use of a group creates; fixed from then on",
        unit="partitions",
        minimum=1,
        maximum=1000,
    )
    offsets_topic_replication_factor: int = setting(
        3,
        "Replication factor of `__consumer_offsets`; fewer if the cluster has fewer brokers when it is created",
        unit="replicas",
        minimum=1,
        maximum=100,
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        "Time for which committed offsets are kept while no member of the group subscribes to the topic",
        minimum=1,
        maximum=50 * 366 * 24 * 60,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval at which coordinators expire committed offsets", minimum=100, maximum=_DAY_MS
    )
    offset_metadata_max_bytes: int = setting(4096, "Largest metadata text of a committed offset", maximum=1 << 20)
    offsets_commit_timeout_ms: int = setting(
        5000,
        "Time limit for a change of a group to be committed in `__consumer_offsets`, after which the request fails",
        minimum=1,
        maximum=_DAY_MS,
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which the coordinator evicts a member", minimum=100, maximum=_DAY_MS
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        3000, "Heartbeat interval that the coordinator sends to members", minimum=10, maximum=_DAY_MS
    )
    group_consumer_max_size: int = setting(
        10_000, "Largest number of members of a group", unit="members", minimum=1, maximum=1_000_000
    )
    transaction_state_log_num_partitions: int = setting(
        16,
        "Partitions of `__transaction_state`, which the first use of a transactional id creates; fixed from then on",
        unit="partitions",
        minimum=1,
        maximum=1000,
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "Replication factor of `__transaction_state`; fewer if the cluster has fewer brokers when it is created",
        unit="replicas",
        minimum=1,
        maximum=100,
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "Longest transaction timeout that a producer may request", minimum=1, maximum=7 * _DAY_MS
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        1000, "Interval at which coordinators abort transactions whose timeout has passed", minimum=10, maximum=_DAY_MS
    )
    transactional_id_expiration_ms: int = setting(
        7 * _DAY_MS,
        "Time without a transaction after which a transactional id is deleted",
        minimum=1,
        maximum=50 * 366 * _DAY_MS,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Interval at which coordinators delete expired transactional ids", minimum=100, maximum=_DAY_MS
    )
    metrics_partitions: bool = setting(
        True, "Whether a broker exports metrics of each partition and its followers", dynamic=True
    )
    metrics_groups: bool = setting(
        True, "Whether a broker exports metrics of each consumer group and topic", dynamic=True
    )
    group_consumer_assignors: str = setting(
        "sticky,uniform,range", "Assignors that members may choose, separated by commas; the first one is the default"
    )
