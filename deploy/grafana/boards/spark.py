# SPDX-License-Identifier: Apache-2.0
"""The dashboard of Spark's streaming queries, from the metrics of `tidemark_spark.progress_metrics`."""

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
            "Running streaming queries.",
            "sum(tidemark_spark_query_active{S})",
            width=4,
            steps=PLAIN,
        ),
        stat(
            "Queries ended",
            "Queries that have ended, of drivers that still run. If this is not intended, the driver's log has the "
            "error. A restarted query resumes from its checkpoint.",
            "count(tidemark_spark_query_active{S} == 0) or vector(0)",
            width=4,
            steps=NONE_IS_BEST,
        ),
        stat(
            "Failures, 24 h",
            "Runs that ended with an error.",
            "sum(tidemark_spark_query_failures_total{S} unless tidemark_spark_query_failures_total{S} offset 24h or "
            "increase(tidemark_spark_query_failures_total{S}[24h]))",
            width=4,
            decimals=0,
        ),
        stat(
            "Records behind",
            "Records between the offsets of the queries and the high watermarks.",
            f"sum({_BEHIND})",
            width=4,
            steps=((None, GREEN), (1_000_000, ORANGE)),
        ),
        stat(
            "Longest without progress",
            "Time since a running query last ended a micro-batch or found no new records.",
            "max(time() - (tidemark_spark_last_progress_timestamp_seconds{S} and tidemark_spark_query_active{S} == 1))",
            unit="s",
            width=4,
            steps=((None, GREEN), (300, ORANGE), (1800, RED)),
        ),
        stat(
            "Skipped offsets",
            "Offsets that were deleted before the query read them, with failOnDataLoss=false: retention is shorter "
            "than the query's lag.",
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
            "Records between the offset of a query and the high watermark, by topic. The value rises between "
            "micro-batches, and must fall again.",
            "short",
            (f"sum by (query, topic) ({_BEHIND})", "{{query}} {{topic}}"),
            width=12,
        ),
        graph(
            "Behind when planned",
            "Records left after a micro-batch when Spark planned it. If far above one micro-batch, raise "
            "maxOffsetsPerTrigger, or add executors.",
            "short",
            ("sum by (query, topic) (tidemark_spark_partition_lag_offsets{S})", "{{query}} {{topic}}"),
            width=12,
        ),
        graph(
            "Rows read",
            "Rows from all sources of the query.",
            "cps",
            rate("tidemark_spark_input_rows_total{S}", by="query"),
        ),
        graph(
            "Micro-batches",
            "Micro-batches per second.",
            "cps",
            rate("tidemark_spark_batches_total{S}", by="query"),
        ),
        graph(
            "Last micro-batch",
            "Duration of the last micro-batch. Above the trigger's interval the query is late.",
            "s",
            ("max by (query) (tidemark_spark_batch_seconds{S})", "{{query}}"),
        ),
        graph(
            "Where the time goes",
            "Seconds per second that a query spends in each phase. addBatch reads, computes and writes. "
            "latestOffset and queryPlanning call Tidemark. walCommit and commitOffsets write the checkpoint.",
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
            "Offsets that were deleted before the query read them.",
            "short",
            ("sum by (query, topic) (tidemark_spark_partition_skipped_offsets{S})", "{{query}} {{topic}}"),
            width=12,
            steps=NONE_IS_GOOD,
        ),
        table(
            "Partitions",
            "Offset and lag of each query.",
            (("query", "Query"), ("topic", "Topic"), ("partition", "Partition")),
            ("Offset", "max by (query, topic, partition) (tidemark_spark_partition_offset{S})"),
            ("Behind", f"max by (query, topic, partition) ({_BEHIND})"),
            ("Skipped", "max by (query, topic, partition) (tidemark_spark_partition_skipped_offsets{S})"),
            width=24,
        ),
    ),
)

_CLUSTER_SIDE: Final = Row(
    "Load of Spark on the cluster",
    (
        graph(
            "Bytes out",
            "Bytes that brokers send to all consumers, including Spark.",
            "Bps",
            rate("tidemark_broker_fetched_bytes_total{C}"),
            stacked=True,
            width=12,
        ),
        graph(
            "Fetches",
            "Fetch requests of all consumers.",
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
