# SPDX-License-Identifier: Apache-2.0
"""Streaming queries of Spark that read from Tidemark, as `tidemark_spark.progress_metrics` tells of them."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import (
    CLUSTER,
    GREEN,
    NAMESPACE,
    NONE_IS_BEST,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    RED,
    Board,
    Row,
    Variable,
    graph,
    rate,
    stat,
    table,
)

_QUERY: Final = Variable("query", "Query", 'tidemark_spark_query_active{namespace=~"$namespace"}', "query")
_BEHIND: Final = (
    "clamp_min(-(tidemark_spark_partition_offset{S} - on (topic, partition) group_left () "
    "max by (topic, partition) (tidemark_partition_high_watermark{C})), 0)"
)

_NOW: Final = Row(
    "Now",
    (
        stat(
            "Queries running",
            "Streaming queries that run.",
            "sum(tidemark_spark_query_active{S})",
            width=4,
            steps=PLAIN,
        ),
        stat(
            "Queries ended",
            "Queries that do not run any more, in a driver that does. If it was not meant so: the driver's log has the "
            "error; started again, the query goes on from its checkpoint.",
            "count(tidemark_spark_query_active{S} == 0) or vector(0)",
            width=4,
            steps=NONE_IS_BEST,
        ),
        stat(
            "Failures, 24 h",
            "Runs that ended with an error.",
            "sum(increase(tidemark_spark_query_failures_total{S}[24h]))",
            width=4,
            decimals=0,
        ),
        stat(
            "Records behind",
            "From where the queries are to the high watermarks.",
            f"sum({_BEHIND})",
            width=4,
            steps=((None, GREEN), (1_000_000, ORANGE)),
        ),
        stat(
            "Longest without progress",
            "Since a running query last ended a micro-batch or saw that there was nothing new.",
            "max(time() - (tidemark_spark_last_progress_timestamp_seconds{S} and tidemark_spark_query_active{S} == 1))",
            unit="s",
            width=4,
            steps=((None, GREEN), (300, ORANGE), (1800, RED)),
        ),
        stat(
            "Skipped offsets",
            "Offsets that were gone before they were read, with failOnDataLoss=false: retention is shorter than the "
            "query's lag.",
            "sum(tidemark_spark_partition_skipped_offsets{S})",
            width=4,
        ),
    ),
)

_PROGRESS: Final = Row(
    "Progress",
    (
        graph(
            "Records behind",
            "From where a query is to the high watermark, by topic. Between micro-batches it rises; it has to come "
            "back.",
            "short",
            (f"sum by (query, topic) ({_BEHIND})", "{{query}} {{topic}}"),
            width=12,
        ),
        graph(
            "Behind when planned",
            "What there was beyond a micro-batch when Spark planned it. Far above one micro-batch: raise "
            "maxOffsetsPerTrigger, or give it more executors.",
            "short",
            ("sum by (query, topic) (tidemark_spark_partition_lag_offsets{S})", "{{query}} {{topic}}"),
            width=12,
        ),
        graph(
            "Rows read",
            "From all sources of the query.",
            "cps",
            rate("tidemark_spark_input_rows_total{S}", by="query"),
        ),
        graph(
            "Micro-batches",
            "Done in a second.",
            "cps",
            rate("tidemark_spark_batches_total{S}", by="query"),
        ),
        graph(
            "Last micro-batch",
            "How long it took. Above the trigger's interval the query is late.",
            "s",
            ("max by (query) (tidemark_spark_batch_seconds{S})", "{{query}}"),
        ),
        graph(
            "Where the time goes",
            "Seconds a second that a query is in each phase. addBatch is reading, computing and writing; latestOffset "
            "and queryPlanning ask Tidemark; walCommit and commitOffsets write the checkpoint.",
            "percentunit",
            (
                'sum by (query, phase) (rate(tidemark_spark_phase_seconds_total{S,phase!="triggerExecution"}'
                "[$__rate_interval]))",
                "{{query}} {{phase}}",
            ),
            stacked=True,
            width=12,
        ),
        graph(
            "Skipped",
            "Offsets that were gone before they were read.",
            "short",
            ("sum by (query, topic) (tidemark_spark_partition_skipped_offsets{S})", "{{query}} {{topic}}"),
            width=12,
            steps=NONE_IS_GOOD,
        ),
        table(
            "Partitions",
            "Where each query is, and how far behind.",
            (("query", "Query"), ("topic", "Topic"), ("partition", "Partition")),
            ("Offset", "max by (query, topic, partition) (tidemark_spark_partition_offset{S})"),
            ("Behind", f"max by (query, topic, partition) ({_BEHIND})"),
            ("Skipped", "max by (query, topic, partition) (tidemark_spark_partition_skipped_offsets{S})"),
            width=24,
        ),
    ),
)

_CLUSTER_SIDE: Final = Row(
    "What Spark costs the cluster",
    (
        graph(
            "Bytes out",
            "What brokers give to all consumers, Spark among them.",
            "Bps",
            rate("tidemark_broker_fetched_bytes_total{C}"),
            stacked=True,
            width=12,
        ),
        graph(
            "Fetches",
            "Fetches of all consumers.",
            "reqps",
            rate("tidemark_broker_fetch_requests_total{C}"),
            width=12,
        ),
    ),
)

SPARK: Final = Board(
    "spark",
    "Tidemark: Spark",
    "Streaming queries that read from Tidemark. Their drivers serve these metrics once "
    "tidemark_spark.progress_metrics.MetricsListener is added to the session.",
    (_NOW, _PROGRESS, _CLUSTER_SIDE),
    (NAMESPACE, CLUSTER, _QUERY),
)
