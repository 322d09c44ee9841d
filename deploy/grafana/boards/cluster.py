# SPDX-License-Identifier: Apache-2.0
"""The cluster at a glance: is it healthy, what goes through it, and what do its machines have left."""

from __future__ import annotations

from typing import Final

from deploy.grafana.boards.machines import DISKS, MACHINES, ZOOKEEPER
from deploy.grafana.panels import (
    BLUE,
    GREEN,
    NONE_IS_BEST,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    graph,
    quantile,
    rate,
    stat,
    table,
)

_HEALTH: Final = Row(
    "Health",
    (
        stat(
            "Brokers online",
            "Brokers that Prometheus reaches. Fewer than there should be: look at their logs and pods; partitions go "
            "on as long as min.insync.replicas are in sync.",
            'count(up{C,component="broker"} == 1) or vector(0)',
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Active controllers",
            "Exactly one is right. None: no leader is elected and no topic made until one is; start a controller, and "
            "look whether ZooKeeper answers.",
            "sum(tidemark_controller_active{C}) or vector(0)",
            steps=((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Offline partitions",
            "Partitions that nobody leads: neither written nor read. Start the brokers of their replicas; if those are "
            "gone for good, see `tidemark elect --last-known`.",
            "sum(tidemark_controller_offline_partitions{C})",
        ),
        stat(
            "Under-replicated",
            "Led partitions that lack an in-sync replica. Some during a restart are expected; for longer, see the "
            "dashboard ISR and high watermark.",
            "sum(tidemark_replica_under_replicated{B})",
            steps=NONE_IS_BEST,
        ),
        stat(
            "Under min ISR",
            "Led partitions with fewer in sync than min.insync.replicas: producers with acks=all are refused. Bring "
            "their followers back.",
            "sum(tidemark_replica_under_min_isr{B})",
        ),
        stat(
            "At min ISR",
            "One replica less, and producers with acks=all are refused. Do not restart another broker now.",
            "sum(tidemark_replica_at_min_isr{B})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Offline log directories",
            "Directories that a broker has given up after an error of the disk. Replace the disk; the broker's log "
            "names the error.",
            "sum(tidemark_offline_log_directories{B})",
        ),
        stat(
            "Unclean elections, 24 h",
            "Elections of a replica that was not in sync: acknowledged records may be lost. "
            "`tidemark elect --reports` says which.",
            'sum(increase(tidemark_controller_leader_elections_total{C,clean="false"}[24h])) or vector(0)',
            decimals=0,
        ),
        stat("Topics", "Topics of the cluster.", "sum(tidemark_controller_topics{C})", steps=PLAIN),
        stat("Partitions", "Partitions of all topics.", "sum(tidemark_controller_partitions{C})", steps=PLAIN),
        stat(
            "Replicas online",
            "Replicas that work.",
            "sum(tidemark_replica_count{B}) - sum(tidemark_replica_offline_count{B})",
            steps=PLAIN,
        ),
        stat(
            "Not preferred leaders",
            "Partitions led by another than the first of their replicas: load may be uneven. "
            "`tidemark elect --preferred` gives leadership back.",
            "sum(tidemark_controller_not_preferred_leaders{C})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Processes not scraped",
            "Services that Prometheus does not reach: they are down, or their metrics port is.",
            'count(up{C,component=~"broker|controller|admin"} == 0) or vector(0)',
        ),
        stat(
            "Full log directories",
            "Directories that lately had no space: replicas there take nothing in. Free space, or move replicas with "
            "`tidemark log-dirs move`.",
            "sum(tidemark_full_log_directories{B})",
        ),
        stat(
            "Reassignments",
            "Partitions whose replicas move now; see the dashboard Controller and reassignment.",
            "sum(tidemark_controller_reassignments{C})",
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Least disk space left",
            "Of all log directories the least share that is free.",
            "min(tidemark_log_directory_free_bytes{B} / tidemark_log_directory_total_bytes{B})",
            unit="percentunit",
            steps=((None, RED), (0.15, ORANGE), (0.3, GREEN)),
        ),
    ),
)

_TRAFFIC: Final = Row(
    "Traffic",
    (
        graph(
            "Bytes in",
            "What producers send, by broker. One broker far above the others leads too much: "
            "`tidemark elect --preferred`.",
            "Bps",
            rate("tidemark_broker_produced_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "What consumers are given, by broker.",
            "Bps",
            rate("tidemark_broker_fetched_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Records in",
            "Records that producers send, by broker.",
            "cps",
            rate("tidemark_broker_produced_records_total{B}"),
            stacked=True,
        ),
        graph(
            "Replication in",
            "What followers take in, by broker; moves of replicas are part of it.",
            "Bps",
            rate("tidemark_broker_replicated_in_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Replication out",
            "What leaders send to followers, by broker.",
            "Bps",
            rate("tidemark_broker_replicated_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Requests",
            "Produce requests, and fetches of consumers. A request carries many batches where there is load.",
            "reqps",
            ("sum(rate(tidemark_broker_produce_requests_total{B}[$__rate_interval]))", "produce"),
            ("sum(rate(tidemark_broker_fetch_requests_total{B}[$__rate_interval]))", "fetch"),
        ),
        graph(
            "Bytes in by topic",
            "The ten topics that are written most.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_produced_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Bytes out by topic",
            "The ten topics that are read most.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_fetched_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Refused",
            "Partitions of requests that were refused, by error code. NOT_LEADER comes with every change of leaders "
            "and clients handle it; NOT_ENOUGH_REPLICAS needs replicas back in sync.",
            "cps",
            rate("tidemark_broker_produce_errors_total{B}", by="code", legend="produce: {{code}}"),
            rate("tidemark_broker_fetch_errors_total{B}", by="code", legend="fetch: {{code}}"),
            empty_until="a request is refused",
        ),
        graph(
            "Connections",
            "Connections of clients with an open stream, by broker.",
            "short",
            ("sum by (instance) (tidemark_broker_connections{B})", "{{instance}}"),
        ),
        graph(
            "Streams",
            "Open streams, by kind.",
            "short",
            ("sum by (kind) (tidemark_broker_streams{B})", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "Reads of followers",
            "Bytes that consumers got from a replica in their rack instead of from the leader, and how often a leader "
            "sent one there.",
            "Bps",
            ("sum(rate(tidemark_broker_follower_fetched_bytes_total{B}[$__rate_interval]))", "bytes from followers"),
            ("sum(rate(tidemark_broker_preferred_read_replicas_total{B}[$__rate_interval]))", "sent to a follower"),
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        graph(
            "Produce, 99 of 100",
            "From a produce request to its answer; with acks=all that waits for all replicas in sync. High on one "
            "broker: its disk or its followers; on all: look at the event loop and at replication.",
            "s",
            (quantile(0.99, "tidemark_broker_produce_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Produce, all brokers",
            "The median, 99 and 999 of a thousand.",
            "s",
            *(
                (quantile(share, "tidemark_broker_produce_seconds{B}", "cluster"), f"{share:.1%}")
                for share in (0.5, 0.99, 0.999)
            ),
        ),
        graph(
            "Fetch, 99 of 100",
            "Work on a fetch, without the wait for records to come. Consumers that read old records wait for the disk.",
            "s",
            (quantile(0.99, "tidemark_broker_fetch_seconds{B}", "instance, kind"), "{{instance}} {{kind}}"),
        ),
        graph(
            "Append, 99 of 100",
            "From an append's queue to its write(2): the disk, or too few threads for it.",
            "s",
            (quantile(0.99, "tidemark_broker_append_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Flush, 99 of 100",
            "An fdatasync of a log whose topic asks for it (flush.policy): what acks=all costs there.",
            "s",
            (quantile(0.99, "tidemark_broker_flush_seconds{B}"), "{{instance}}"),
            empty_until="a topic is written whose flush.policy asks for it",
        ),
        Panel(
            "Produce, all requests",
            "How many requests took how long.",
            (Query("sum by (le) (increase(tidemark_broker_produce_seconds_bucket{B}[$__rate_interval]))", "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
    ),
)

_LED: Final = "and on (topic, partition, instance) tidemark_partition_is_leader{C} == 1"
_TOPICS: Final = Row(
    "Topics",
    (
        table(
            "Topics",
            "Partitions, replicas and how many of them are in sync, bytes of all replicas, and what is written a "
            "second. `tidemark topic describe` tells it by partition.",
            (("topic", "Topic"),),
            ("Partitions", "count by (topic) (tidemark_partition_leader{C})"),
            ("Replicas", "sum by (topic) (tidemark_partition_replicas{C})"),
            ("In sync", "sum by (topic) (tidemark_partition_in_sync_replicas{C})"),
            ("Under-replicated", "sum by (topic) (tidemark_partition_under_replicated{C})"),
            ("Size", "sum by (topic) (tidemark_partition_log_size_bytes{C})"),
            ("Records in", "sum by (topic) (rate(tidemark_topic_produced_records_total{C}[5m]))"),
            ("Bytes in", "sum by (topic) (rate(tidemark_topic_produced_bytes_total{C}[5m]))"),
            width=24,
            height=9,
            units={"Size": "bytes", "Records in": "cps", "Bytes in": "Bps"},
        ),
        table(
            "Partitions",
            "Leader, offsets and size of each partition, as its leader sees it.",
            (("topic", "Topic"), ("partition", "Partition")),
            ("Leader", "max by (topic, partition) (tidemark_partition_leader{C})"),
            ("Leader epoch", "max by (topic, partition) (tidemark_partition_leader_epoch{C})"),
            ("First offset", f"max by (topic, partition) (tidemark_partition_log_start_offset{{C}} {_LED})"),
            ("High watermark", f"max by (topic, partition) (tidemark_partition_high_watermark{{C}} {_LED})"),
            ("Log end", f"max by (topic, partition) (tidemark_partition_log_end_offset{{C}} {_LED})"),
            ("Size", f"max by (topic, partition) (tidemark_partition_log_size_bytes{{C}} {_LED})"),
            width=24,
            height=9,
            units={"Size": "bytes"},
        ),
        graph(
            "Leaders that are not preferred",
            "By topic. `tidemark elect --preferred` gives leadership back.",
            "short",
            ("sum by (topic) (1 - tidemark_partition_leader_is_preferred{C}) > 0", "{{topic}}"),
            width=12,
            empty_until="another than the first replica leads",
        ),
        graph(
            "Records in by topic",
            "The ten topics that are written most.",
            "cps",
            (
                "topk(10, sum by (topic) (rate(tidemark_topic_produced_records_total{C}[$__rate_interval])))",
                "{{topic}}",
            ),
            width=12,
        ),
    ),
)

CLUSTER: Final = Board(
    "cluster",
    "Tidemark: cluster",
    "Is the cluster healthy, what goes through it, and what do its machines have left.",
    (_HEALTH, _TRAFFIC, _LATENCY, _TOPICS, MACHINES, DISKS, ZOOKEEPER),
)
