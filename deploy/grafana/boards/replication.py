# SPDX-License-Identifier: Apache-2.0
"""The dashboard of replication: ISR changes and their reasons, lag of followers, and uncommitted records."""

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

_PARTITION: Final = (("topic", "Topic"), ("partition", "Partition"))
_NOW: Final = Row(
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
            "Partitions that refuse producers with acks=all. Bring the followers back.",
            "sum(tidemark_replica_under_min_isr{B})",
            width=4,
        ),
        stat(
            "At min ISR",
            "Partitions without a replica to spare. Do not restart another broker now.",
            "sum(tidemark_replica_at_min_isr{B})",
            width=4,
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Furthest follower",
            "Longest time since a follower was caught up. At replica.lag.time.max.ms (10 s) the follower leaves the "
            "ISR.",
            "max(tidemark_replica_lag_seconds_max{B})",
            unit="s",
            width=4,
            steps=((None, GREEN), (5, ORANGE), (10, RED)),
        ),
        stat(
            "HW stalled for",
            "Longest time since a high watermark advanced, with records above it: they are appended but not "
            "committed, and no consumer gets them. An in-sync replica does not answer: see the lag of followers "
            "below.",
            "max(tidemark_replica_high_watermark_stalled_seconds_max{B})",
            unit="s",
            width=4,
            steps=((None, GREEN), (5, ORANGE), (30, RED)),
        ),
        stat(
            "Farthest HW from LEO",
            "Most uncommitted records of a partition.",
            "max(tidemark_replica_uncommitted_records_max{B})",
            width=4,
            steps=((None, GREEN), (100_000, ORANGE)),
        ),
    ),
)

_ISR: Final = Row(
    "ISR: shrinks, expands and reasons",
    (
        graph(
            "Shrinks by reason",
            "Replicas removed from an ISR. lagging: the follower, its disk or the network is too slow. silent, "
            "disconnected: the follower is stuck or cut off. broker_failed: its process ended. suspected: it does "
            "not answer the controller. shutdown, reassigned: intended.",
            "short",
            increase("tidemark_replica_isr_shrinks_total{C}", by="reason"),
            stacked=True,
            width=12,
        ),
        graph(
            "Expands by reason",
            "Replicas added to an ISR: caught up, or new by a reassignment. If shrinks and expands repeat, the ISR "
            "flaps: find the slow follower before the ISR is smaller than min.insync.replicas.",
            "short",
            increase("tidemark_replica_isr_expands_total{C}", by="reason"),
            stacked=True,
            width=12,
        ),
        graph(
            "Under-replicated by leader",
            "Led partitions that lack an in-sync replica. If all leaders have some, one follower is down.",
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
            "The leader continues with the old ISR, and retries. If there are many, ZooKeeper is slow, or the "
            "leader was deposed.",
            "cps",
            (
                "sum by (instance) "
                '(rate(tidemark_replica_observed_total{B,kind="isr_write_failed"}[$__rate_interval]))',
                "{{instance}}",
            ),
            empty_until="a write of an ISR change fails",
        ),
        table(
            "Not in sync now",
            "Partitions that lack an in-sync replica, with the numbers of their replicas and in-sync replicas.",
            _PARTITION,
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
            empty_until="a follower is missing",
        ),
        table(
            "Under min ISR now",
            "Partitions that refuse producers with acks=all.",
            _PARTITION,
            ("", "max by (topic, partition) (tidemark_partition_under_min_isr{C} == 1)"),
            width=12,
            empty_until="more followers are missing than min.insync.replicas allows",
        ),
    ),
)

_LAG: Final = Row(
    "Lag of followers",
    (
        graph(
            "Time since caught up, by follower",
            "The largest value of all partitions of the follower. If one follower is high, check its machine. If "
            "all followers of one leader are high, check the leader's machine.",
            "s",
            ("max by (follower) (tidemark_replica_lag_seconds{B})", "follower {{follower}}"),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Records behind, by follower",
            "Sum over all partitions of the follower.",
            "short",
            ("sum by (follower) (tidemark_replica_lag_records{B})", "follower {{follower}}"),
        ),
        graph(
            "Bytes behind, by follower",
            "Sum over all partitions of the follower. Divided by its bytes per second, this is the time until it "
            "has caught up.",
            "bytes",
            ("sum by (follower) (tidemark_replica_lag_bytes{B})", "follower {{follower}}"),
        ),
        graph(
            "Time since caught up, by leader",
            "The slowest follower of each leader.",
            "s",
            ("tidemark_replica_lag_seconds_max{B}", "leader {{instance}}"),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Followers of partitions: records behind",
            "The ten followers that are furthest behind, of the selected topics.",
            "short",
            (
                "topk(10, max by (topic, partition, follower) (tidemark_replica_follower_lag_records{T}))",
                "{{topic}}-{{partition}} on {{follower}}",
            ),
        ),
        graph(
            "Followers of partitions: time since caught up",
            "The ten followers that are furthest behind, of the selected topics.",
            "s",
            (
                "topk(10, max by (topic, partition, follower) (tidemark_replica_follower_lag_seconds{T}))",
                "{{topic}}-{{partition}} on {{follower}}",
            ),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Records behind, by leader",
            "The largest lag of a follower of each leader.",
            "short",
            ("tidemark_replica_lag_records_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Bytes behind, by leader",
            "The largest lag of a follower of each leader.",
            "bytes",
            ("tidemark_replica_lag_bytes_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Being reassigned, by leader",
            "Led partitions to which a reassignment adds replicas. The new replicas may lag, and do not count as "
            "under-replicated.",
            "short",
            ("tidemark_replica_reassigning{B}", "leader {{instance}}"),
        ),
        graph(
            "Fetch of followers, p99",
            "Time from a follower's turn until its records are read.",
            "s",
            (quantile(0.99, 'tidemark_broker_fetch_seconds{B,kind="follower"}'), "leader {{instance}}"),
        ),
        graph(
            "Appended by followers",
            "By broker. A lagging follower that appends nothing is cut off; one that appends at its usual rate is "
            "slow.",
            "Bps",
            ("rate(tidemark_broker_replicated_in_bytes_total{B}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Behind the leader's high watermark",
            "Reported by followers: most committed records that one of their replicas lacks.",
            "short",
            ("tidemark_replica_fetch_lag_records_max{B}", "{{instance}}"),
        ),
    ),
)

_HW: Final = Row(
    "High watermark against log end",
    (
        graph(
            "Time since the HW advanced, records waiting",
            "The longest of the partitions of each leader; 0 if all records are committed. Above a second or two, "
            "an in-sync replica does not answer, and every producer with acks=all waits for it.",
            "s",
            ("tidemark_replica_high_watermark_stalled_seconds_max{B}", "leader {{instance}}"),
            steps=((None, GREEN), (30, RED)),
        ),
        graph(
            "Distance from HW to LEO",
            "Most uncommitted records of a partition of each leader.",
            "short",
            ("tidemark_replica_uncommitted_records_max{B}", "leader {{instance}}"),
        ),
        graph(
            "Partitions: time since the HW advanced",
            "The ten partitions with the longest time, of the selected topics.",
            "s",
            ten_partitions("tidemark_partition_high_watermark_stalled_seconds{T}"),
            steps=((None, GREEN), (30, RED)),
        ),
        graph(
            "Appended and committed",
            "Growth of log ends and high watermarks of the selected topics. If the lines separate, records are "
            "appended but not committed.",
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
            "The ten partitions with the highest log ends of the selected topics: select one topic to see its "
            "partitions. A HW that moves back is a bug of Tidemark.",
            "short",
            ten_partitions("tidemark_partition_log_end_offset{T}", prefix="LEO "),
            ten_partitions("tidemark_partition_high_watermark{T}", prefix="HW "),
        ),
        graph(
            "Partitions: distance from HW to LEO",
            "The ten partitions with the most uncommitted records, reported by their leaders.",
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
    "Which replicas left an ISR and why, lag of followers, and uncommitted records.",
    (_NOW, _ISR, _LAG, _HW),
    (NAMESPACE, CLUSTER, BROKER, TOPIC),
)
