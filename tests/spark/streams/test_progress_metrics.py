# SPDX-License-Identifier: Apache-2.0
"""Metrics of streaming queries for Prometheus."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster
from tidemark_spark.progress_metrics import MetricsListener, QueryMetrics

from tests.spark.harness.reading import needs_read_limits
from tests.spark.streams.test_progress import offset
from tests.spark.streams.test_stream import QUERY_S, fill

pytestmark = pytest.mark.timeout(300)


def progress(*, name: str | None = "copy", lag: bool = True) -> dict[str, Any]:
    source = {
        "numInputRows": 20,
        "startOffset": offset({"0": {"offset": 5, "skipped": 40}}),
        "endOffset": offset({"0": {"offset": 25, "skipped": 42}}),
    }
    if lag:
        source["latestOffset"] = offset({"0": {"offset": 70}})
    return {"id": "q1", "name": name, "durationMs": {"triggerExecution": 1500, "addBatch": 900}, "sources": [source]}


def values(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name, less the prefix, and its labels' values, the query's name omitted."""
    return {
        (
            sample.name.removeprefix("tidemark_spark_"),
            *(text for label, text in sample.labels.items() if label != "query"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_a_query_have_batches_rows_phases_and_partitions() -> None:
    metrics = QueryMetrics()
    metrics.started("q1", "copy", 90.0)
    metrics.progressed(progress(), 100.0)
    metrics.progressed(progress(), 103.5)
    assert values(metrics.text()) == {
        ("query_active",): 1,
        ("query_failures_total",): 0,
        ("batches_total",): 2,
        ("input_rows_total",): 40,
        ("phase_seconds_total", "triggerExecution"): 3.0,
        ("phase_seconds_total", "addBatch"): 1.8,
        ("batch_seconds",): 1.5,
        ("last_progress_timestamp_seconds",): 103.5,
        ("partition_offset", "flights", "0"): 25,
        ("partition_lag_offsets", "flights", "0"): 45,
        ("partition_skipped_offsets", "flights", "0"): 42,
        ("skipped_offsets_total", "flights"): 4,
    }


def test_a_lag_that_spark_does_not_report_is_left_out() -> None:
    metrics = QueryMetrics()
    metrics.progressed(progress(lag=False), 100.0)
    told = values(metrics.text())
    assert ("partition_offset", "flights", "0") in told
    assert ("partition_lag_offsets", "flights", "0") not in told


def test_a_failed_query_is_reported_as_stopped_until_its_restart() -> None:
    metrics = QueryMetrics()
    metrics.started("q1", "copy", 90.0)
    metrics.ended("q1", failed=True)
    assert (values(metrics.text())["query_active",], values(metrics.text())["query_failures_total",]) == (0, 1)
    metrics.started("q1", "copy", 95.0)
    metrics.ended("q1", failed=False)
    assert (values(metrics.text())["query_active",], values(metrics.text())["query_failures_total",]) == (0, 1)


def test_an_idle_query_is_alive() -> None:
    metrics = QueryMetrics()
    metrics.started("q1", "copy", 90.0)
    metrics.idle("q1", 120.0)
    assert values(metrics.text())["last_progress_timestamp_seconds",] == 120


def test_any_name_of_a_query_is_a_label_that_prometheus_reads_back() -> None:
    metrics = QueryMetrics()
    metrics.started("q1", 'a "b" \\ c\nd', 90.0)
    metrics.started("q2", None, 90.0)
    families = text_string_to_metric_families(metrics.text())
    active = next(family for family in families if family.name == "tidemark_spark_query_active")
    assert [sample.labels["query"] for sample in active.samples] == ['a "b" \\ c\nd', "q2"]


def test_a_streaming_query_is_served_from_the_driver(
    spark: SparkSession, cluster: LocalCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic("measured", partitions=2)
    fill(cluster, name, {0: 30, 1: 12})
    listener = MetricsListener("127.0.0.1", 0)
    spark.streams.addListener(listener)
    try:
        read = spark.readStream.format("tidemark").options(
            **{"tidemark.bootstrap": cluster.bootstrap, "subscribe": name}
        )
        write = read.option("startingOffsets", "earliest").load().writeStream.format("noop").queryName("copy")
        query = write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S), "it hangs"
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
            told = values(answer.read().decode())
        assert told["partition_offset", name, "0"] == 30
        assert told["partition_offset", name, "1"] == 12
        assert told["input_rows_total",] == 42
        assert told["batches_total",] >= 1
        assert told["phase_seconds_total", "addBatch"] > 0
        assert told["query_active",] == 0
        assert told["query_failures_total",] == 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/other")
    finally:
        spark.streams.removeListener(listener)
        listener.close()


@needs_read_limits
def test_a_new_driver_counts_the_records_that_were_deleted_since_the_last_run(
    spark: SparkSession, cluster: LocalCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic("expired", partitions=1)
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "failOnDataLoss": "false"}
    counted = []
    for _ in range(2):
        fill(cluster, name, {0: 30})
        listener = MetricsListener("127.0.0.1", 0)
        spark.streams.addListener(listener)
        try:
            read = spark.readStream.format("tidemark").options(startingOffsets="earliest", **options).load()
            write = read.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
            assert write.trigger(availableNow=True).start().awaitTermination(QUERY_S), "the query hangs"
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            counted.append(values(listener.metrics.text())["skipped_offsets_total", name])
        finally:
            spark.streams.removeListener(listener)
            listener.close()
        fill(cluster, name, {0: 12})
        with AdminClient(cluster.admin_address) as admin:
            admin.delete_records(name, 0, 42)
    assert counted == [0, 12]
