# SPDX-License-Identifier: Apache-2.0
"""The dashboard of the cluster: health, traffic, and the remaining resources of its machines."""

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
            "Brokers that Prometheus reaches. If some are missing, check their logs and pods. Partitions remain "
            "available while min.insync.replicas are in sync.",
            'count(up{C,component="broker"} == 1) or vector(0)',
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Active controllers",
            "Must be exactly one. At 0, no leader is elected and no topic is created: start a controller, "
            "and check whether ZooKeeper answers.",
            "sum(tidemark_controller_active{C}) or vector(0)",
            steps=((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Offline partitions",
            "Partitions without a leader: they can be neither written nor read. Start the brokers of their "
            "replicas; if these are lost, see `tidemark elect --last-known`.",
            "sum(tidemark_controller_offline_partitions{C})",
        ),
        stat(
            "Under-replicated",
            "Led partitions that lack an in-sync replica. During a restart this is normal. If it lasts longer, see "
            "the dashboard ISR and high watermark.",
            "sum(tidemark_replica_under_replicated{B})",
            steps=NONE_IS_BEST,
        ),
        stat(
            "Under min ISR",
            "Led partitions whose ISR is smaller than min.insync.replicas: producers with acks=all are refused. "
            "Bring their followers back.",
            "sum(tidemark_replica_under_min_isr{B})",
        ),
        stat(
            "At min ISR",
            "If one more replica leaves, producers with acks=all are refused. Do not restart another broker now.",
            "sum(tidemark_replica_at_min_isr{B})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Offline log directories",
            "Directories that a broker took offline after a disk error. Replace the disk; the broker's log names "
            "the error.",
            "sum(tidemark_offline_log_directories{B})",
        ),
        stat(
            "Unclean elections, 24 h",
            "Elections of a replica that was not in sync: acknowledged records may be lost. `tidemark elect "
            "--reports` shows the offsets.",
            'sum(tidemark_controller_leader_elections_total{C,clean="false"} > 0 '
            "and on (namespace, cluster, component, instance) time() - process_start_time_seconds < 86400 or "
            'increase(tidemark_controller_leader_elections_total{C,clean="false"}[24h])) or vector(0)',
            decimals=0,
        ),
        stat("Topics", "Topics of the cluster.", "sum(tidemark_controller_topics{C})", steps=PLAIN),
        stat("Partitions", "Partitions of all topics.", "sum(tidemark_controller_partitions{C})", steps=PLAIN),
        stat(
            "Replicas online",
            "Replicas whose log has not failed.",
            "sum(tidemark_replica_count{B}) - sum(tidemark_replica_offline_count{B})",
            steps=PLAIN,
        ),
        stat(
            "Not preferred leaders",
            "Partitions whose leader is not the first of their replicas: the load may be uneven. `tidemark elect "
            "--preferred` moves leadership back.",
            "sum(tidemark_controller_not_preferred_leaders{C})",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Processes not scraped",
            "Services that Prometheus does not reach: the process is down, or its metrics port is unreachable.",
            'count(up{C,component=~"broker|controller|admin|console"} == 0) or vector(0)',
        ),
        stat(
            "Full log directories",
            "Directories that recently had no space: their replicas accept no records. Free space, or move replicas "
            "with `tidemark log-dirs move`.",
            "sum(tidemark_full_log_directories{B})",
        ),
        stat(
            "Reassignments",
            "Partitions that are being reassigned; see the dashboard Controller and reassignment.",
            "sum(tidemark_controller_reassignments{C})",
            steps=((None, GREEN), (1, BLUE)),
        ),
        stat(
            "Least disk space left",
            "The smallest free share of a log directory.",
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
            "Bytes from producers, by broker. If one broker is far above the others, it leads too many partitions: "
            "`tidemark elect --preferred`.",
            "Bps",
            rate("tidemark_broker_produced_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "Bytes sent to consumers, by broker.",
            "Bps",
            rate("tidemark_broker_fetched_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Records in",
            "Records from producers, by broker.",
            "cps",
            rate("tidemark_broker_produced_records_total{B}"),
            stacked=True,
        ),
        graph(
            "Replication in",
            "Bytes that followers append, by broker, including reassignments.",
            "Bps",
            rate("tidemark_broker_replicated_in_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Replication out",
            "Bytes that leaders send to followers, by broker.",
            "Bps",
            rate("tidemark_broker_replicated_bytes_total{B}"),
            stacked=True,
        ),
        graph(
            "Requests",
            "Produce requests, and fetch requests of consumers. Under load a request carries many batches.",
            "reqps",
            ("sum(rate(tidemark_broker_produce_requests_total{B}[$__rate_interval]))", "produce"),
            ("sum(rate(tidemark_broker_fetch_requests_total{B}[$__rate_interval]))", "fetch"),
        ),
        graph(
            "Bytes in by topic",
            "The ten topics with the most writes.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_produced_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Bytes out by topic",
            "The ten topics with the most reads.",
            "Bps",
            ("topk(10, sum by (topic) (rate(tidemark_topic_fetched_bytes_total{C}[$__rate_interval])))", "{{topic}}"),
        ),
        graph(
            "Refused",
            "Refused partitions of requests, by error code. NOT_LEADER follows every leader election, and clients "
            "handle it. For NOT_ENOUGH_REPLICAS, bring replicas back in sync.",
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
            "Connections at a limit",
            "Connections that a service closed because of a limit, by limit. The log of the service names an address.",
            "cps",
            rate("tidemark_connections_ended_total{C}", by="limit"),
        ),
        graph(
            "Throttled by quotas",
            "Share of the time for which users and client ids had to wait, by kind of quota. Raise the quota, or "
            "reduce the load.",
            "percentunit",
            (
                "topk(10, sum by (kind, user, client_id) "
                "(rate(tidemark_quota_throttle_seconds_total{C}[$__rate_interval])))",
                "{{kind}}: {{user}} {{client_id}}",
            ),
            empty_until="a client goes beyond a quota",
        ),
        graph(
            "Streams",
            "Open streams, by kind.",
            "short",
            ("sum by (kind) (tidemark_broker_streams{B})", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "Follower fetching",
            "Bytes that consumers read from a replica in their rack instead of the leader, and how often a leader "
            "redirected them.",
            "Bps",
            ("sum(rate(tidemark_broker_follower_fetched_bytes_total{B}[$__rate_interval]))", "bytes from followers"),
            (
                "sum(rate(tidemark_broker_preferred_read_replicas_total{B}[$__rate_interval]))",
                "redirected to a follower",
            ),
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        graph(
            "Produce, p99",
            "Time from a produce request to its answer; with acks=all this includes all in-sync replicas. If high "
            "on one broker: check its disk and followers. If high on all: check the event loop and replication.",
            "s",
            (quantile(0.99, "tidemark_broker_produce_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Produce, all brokers",
            "The median, the 99th and the 99.9th percentile.",
            "s",
            *(
                (quantile(share, "tidemark_broker_produce_seconds{B}", "cluster"), f"{share:.1%}")
                for share in (0.5, 0.99, 0.999)
            ),
        ),
        graph(
            "Fetch, p99",
            "Time to serve a fetch, without the wait for new records. Consumers that read old records wait for the "
            "disk.",
            "s",
            (quantile(0.99, "tidemark_broker_fetch_seconds{B}", "instance, kind"), "{{instance}} {{kind}}"),
        ),
        graph(
            "Append, p99",
            "Time of an append from its queue to its write(2). If high: the disk is slow, or has too few threads.",
            "s",
            (quantile(0.99, "tidemark_broker_append_seconds{B}"), "{{instance}}"),
        ),
        graph(
            "Flush, p99",
            "Time of an fdatasync of a log whose topic requires flushes (flush.policy): the cost of acks=all there.",
            "s",
            (quantile(0.99, "tidemark_broker_flush_seconds{B}"), "{{instance}}"),
            empty_until="a topic whose flush.policy requires flushes is written",
        ),
        Panel(
            "Produce, all requests",
            "Number of requests by duration.",
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
            "Partitions, replicas and in-sync replicas, bytes of all replicas, and writes per second. `tidemark "
            "topic describe` shows each partition.",
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
            "Leader, offsets and size of each partition, reported by its leader.",
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
            "By topic. `tidemark elect --preferred` moves leadership back.",
            "short",
            ("sum by (topic) (1 - tidemark_partition_leader_is_preferred{C}) > 0", "{{topic}}"),
            width=12,
            empty_until="a replica other than the first one leads",
        ),
        graph(
            "Records in by topic",
            "The ten topics with the most writes.",
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
    "Health of the cluster, its traffic, and the remaining resources of its machines.",
    (_HEALTH, _TRAFFIC, _LATENCY, _TOPICS, MACHINES, DISKS, ZOOKEEPER),
)
