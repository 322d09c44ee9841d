# SPDX-License-Identifier: Apache-2.0
"""ISR and high watermark: who left an ISR and why, who lags, and whether what is written gets committed."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    BROKER,
    CLUSTER,
    GREEN,
    NAMESPACE,
    NONE_IS_BEST,
    NONE_IS_GOOD,
    ORANGE,
    RED,
    TOPIC,
    YELLOW,
    Board,
    Row,
    graph,
    increase,
    quantile,
    stat,
    table,
    ten_partitions,
)

_WHO: Final = (("topic", "Topic"), ("partition", "Partition"))
_HERE: Final = Row(
    "In sync?",
    (
        stat(
            "Under-replicated",
            "Led partitions that lack an in-sync replica.",
            "sum(tidemark_replica_under_replicated{B})",
            width=4,
            steps=NONE_IS_BEST,
        ),
        stat(
            "Under min ISR",
            "Producers with acks=all are refused there. Bring the followers back.",
            "sum(tidemark_replica_under_min_isr{B})",
            width=4,
        ),
        stat(
            "At min ISR",
            "No replica more may be lost there. Do not restart another broker now.",
            "sum(tidemark_replica_at_min_isr{B})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Furthest follower",
            "Longest time since a follower was caught up. At replica.lag.time.max.ms (10 s) it leaves the ISR.",
            "max(tidemark_replica_lag_seconds_max{B})",
            unit="s",
            width=4,
            steps=((None, GREEN), (5, ORANGE), (10, RED)),
        ),
        stat(
            "HW stands still for",
            "Longest time that a high watermark has not moved though records wait above it: they are written, not "
            "committed, and no consumer sees them. A replica in sync does not answer: see who lags below.",
            "max(tidemark_replica_high_watermark_stalled_seconds_max{B})",
            unit="s",
            width=4,
            steps=((None, GREEN), (5, ORANGE), (30, RED)),
        ),
        stat(
            "Farthest HW from LEO",
            "Most records of a partition that are written and not committed.",
            "max(tidemark_replica_uncommitted_records_max{B})",
            width=4,
            steps=((None, GREEN), (100_000, ORANGE)),
        ),
    ),
)

_ISR: Final = Row(
    "ISR: who left and why",
    (
        graph(
            "Shrinks by reason",
            "Replicas taken out of an ISR. lagging: the follower, its disk or the network is too slow; silent, "
            "disconnected: it hangs or is cut off; broker_failed: its process ended; suspected: it does not answer the "
            "controller; shutdown, reassigned: meant so.",
            "short",
            increase("tidemark_replica_isr_shrinks_total{C}", by="reason"),
            stacked=True,
            width=12,
        ),
        graph(
            "Expands by reason",
            "Replicas taken back, caught up, or new by a reassignment. As many as shrinks, again and again: the ISR "
            "flaps; find the slow follower before it takes min.insync.replicas away.",
            "short",
            increase("tidemark_replica_isr_expands_total{C}", by="reason"),
            stacked=True,
            width=12,
        ),
        graph(
            "Under-replicated by leader",
            "Led partitions that lack an in-sync replica. The same on all leaders: one follower is down.",
            "short",
            ("tidemark_replica_under_replicated{B}", "{{instance}}"),
            stacked=True,
            steps=NONE_IS_BEST,
        ),
        graph(
            "Under and at min ISR",
            "Partitions that refuse acks=all, and partitions that would with one replica less.",
            "short",
            ("sum(tidemark_replica_under_min_isr{B})", "under"),
            ("sum(tidemark_replica_at_min_isr{B})", "at"),
            steps=NONE_IS_GOOD,
        ),
        graph(
            "ISR changes that could not be written",
            "The leader goes on with the ISR there was, and tries again. Many: ZooKeeper is slow, or the leader is an "
            "old one.",
            "cps",
            (
                "sum by (instance) "
                '(rate(tidemark_replica_observed_total{B,kind="isr_write_failed"}[$__rate_interval]))',
                "{{instance}}",
            ),
            empty_until="a write of an ISR fails",
        ),
        table(
            "Not in sync now",
            "Partitions that lack a replica in sync: how many there are, and how many of them are in sync.",
            _WHO,
            (
                "Replicas",
                "max by (topic, partition) (tidemark_partition_replicas{C} and "
                "tidemark_partition_under_replicated{C} == 1)",
            ),
            (
                "In sync",
                "max by (topic, partition) "
                "(tidemark_partition_in_sync_replicas{C} and tidemark_partition_under_replicated{C} == 1)",
            ),
            (
                "min.insync.replicas",
                "max by (topic, partition) "
                "(tidemark_partition_min_in_sync_replicas{C} and tidemark_partition_under_replicated{C} == 1)",
            ),
            width=12,
            empty_until="a follower is gone",
        ),
        table(
            "Under min ISR now",
            "Partitions that refuse producers with acks=all.",
            _WHO,
            ("", "max by (topic, partition) (tidemark_partition_under_min_isr{C} == 1)"),
            width=12,
            empty_until="more followers are gone than min.insync.replicas allows",
        ),
    ),
)

_LAG: Final = Row(
    "Lag of followers",
    (
        graph(
            "Time since caught up, by follower",
            "The worst of all partitions that it follows. One follower: look at its machine. All followers of one "
            "leader: look at the leader's.",
            "s",
            ("max by (follower) (tidemark_replica_lag_seconds{B})", "follower {{follower}}"),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Records behind, by follower",
            "Of all partitions that it follows together.",
            "short",
            ("sum by (follower) (tidemark_replica_lag_records{B})", "follower {{follower}}"),
        ),
        graph(
            "Bytes behind, by follower",
            "Of all partitions that it follows together: divided by what it takes in a second, when it is back.",
            "bytes",
            ("sum by (follower) (tidemark_replica_lag_bytes{B})", "follower {{follower}}"),
        ),
        graph(
            "Time since caught up, by leader",
            "The worst follower of each leader.",
            "s",
            ("tidemark_replica_lag_seconds_max{B}", "leader {{instance}}"),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Followers of partitions: records behind",
            "The ten that are furthest behind, of the chosen topics.",
            "short",
            (
                "topk(10, max by (topic, partition, follower) (tidemark_replica_follower_lag_records{T}))",
                "{{topic}}-{{partition}} on {{follower}}",
            ),
        ),
        graph(
            "Followers of partitions: time since caught up",
            "The ten that are furthest behind, of the chosen topics.",
            "s",
            (
                "topk(10, max by (topic, partition, follower) (tidemark_replica_follower_lag_seconds{T}))",
                "{{topic}}-{{partition}} on {{follower}}",
            ),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Records behind, by leader",
            "What the worst follower of a partition of each leader lacks.",
            "short",
            ("tidemark_replica_lag_records_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Bytes behind, by leader",
            "What the worst follower of a partition of each leader lacks.",
            "bytes",
            ("tidemark_replica_lag_bytes_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Being moved, by leader",
            "Led partitions to which a move adds replicas: those may lag, and are not counted as under-replicated.",
            "short",
            ("tidemark_replica_reassigning{B}", "leader {{instance}}"),
        ),
        graph(
            "Fetch of followers, 99 of 100",
            "From a follower's turn until what it is sent was read.",
            "s",
            (quantile(0.99, 'tidemark_broker_fetch_seconds{B,kind="follower"}'), "leader {{instance}}"),
        ),
        graph(
            "Taken in by followers",
            "By broker. A follower that lags and takes nothing in is cut off; one that takes in as much as ever is "
            "slow.",
            "Bps",
            ("rate(tidemark_broker_replicated_in_bytes_total{B}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Behind the leader's high watermark",
            "As followers see it: most committed records that one of their replicas lacks.",
            "short",
            ("tidemark_replica_fetch_lag_records_max{B}", "{{instance}}"),
        ),
    ),
)

_HW: Final = Row(
    "High watermark against log end",
    (
        graph(
            "Time since the HW moved, records waiting",
            "Longest of the partitions of each leader; 0 where all is committed. More than a second or two: a replica "
            "that is in sync does not answer, and every producer with acks=all waits for it.",
            "s",
            ("tidemark_replica_high_watermark_stalled_seconds_max{B}", "leader {{instance}}"),
            steps=((None, GREEN), (30, RED)),
        ),
        graph(
            "Distance from HW to LEO",
            "Most records of a partition of each leader that are written and not committed.",
            "short",
            ("tidemark_replica_uncommitted_records_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Partitions: time since the HW moved",
            "The ten that have waited longest, of the chosen topics.",
            "s",
            ten_partitions("tidemark_partition_high_watermark_stalled_seconds{T}"),
            steps=((None, GREEN), (30, RED)),
        ),
        graph(
            "Written and committed",
            "How fast log ends and high watermarks of the chosen topics grow. They go together; where they part, "
            "records are written and not committed.",
            "cps",
            (
                "sum(rate(tidemark_partition_log_end_offset{T}[$__rate_interval]) "
                "and on (topic, partition, instance) tidemark_partition_is_leader{T} == 1)",
                "LEO",
            ),
            (
                "sum(rate(tidemark_partition_high_watermark{T}[$__rate_interval]) "
                "and on (topic, partition, instance) tidemark_partition_is_leader{T} == 1)",
                "HW",
            ),
        ),
        graph(
            "LEO and HW of partitions",
            "The ten with the highest log ends of the chosen topics: choose one topic to see its own. A HW that goes "
            "back would be a bug of ours.",
            "short",
            ten_partitions("tidemark_partition_log_end_offset{T}", prefix="LEO "),
            ten_partitions("tidemark_partition_high_watermark{T}", prefix="HW "),
        ),
        graph(
            "Partitions: distance from HW to LEO",
            "The ten with the most records that are written and not committed, as their leaders see it.",
            "short",
            (
                "topk(10, max by (topic, partition) (tidemark_partition_uncommitted_records{T} "
                "and tidemark_partition_is_leader{T} == 1))",
                "{{topic}}-{{partition}}",
            ),
        ),
    ),
)

REPLICATION: Final = Board(
    "replication",
    "Tidemark: ISR and high watermark",
    "Who left an ISR and why, who lags, and whether what is written gets committed.",
    (_HERE, _ISR, _LAG, _HW),
    (NAMESPACE, CLUSTER, BROKER, TOPIC),
)
