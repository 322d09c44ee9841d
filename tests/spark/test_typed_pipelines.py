# SPDX-License-Identifier: Apache-2.0
"""The jobs of spark/pipelines on typed topics and their archives, on a real session and a real cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tidemark.client import AdminClient, Producer, archive_topic, read_table
from tidemark.client.tables.archive_files import Archive
from tidemark.local.cluster import LocalCluster
from tidemark_spark.archive_layout import read_archive
from tidemark_spark.jobs import archive

SALES = "shop STRING NOT NULL, euros INT DEFAULT 0, lines ARRAY<STRUCT<sku: STRING, n: INT>>, PRIMARY KEY (shop)"
WIDER = (
    "store STRING NOT NULL RENAMED FROM shop, euros BIGINT DEFAULT 0, lines ARRAY<STRUCT<sku: STRING, n: INT>>, "
    "city STRING NOT NULL DEFAULT '?', share DOUBLE, PRIMARY KEY (store)"
)
pytestmark = pytest.mark.timeout(120)


def make(cluster: LocalCluster, topic: str, schema: str, partitions: int = 2, **configs: str) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=3, schema=schema, configs=configs)


def send(cluster: LocalCluster, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    with Producer(cluster.bootstrap) as producer:  # a new one knows the newest version
        producer.send_table(topic, pa.Table.from_pylist(list(rows))).result(30)


def sales(first: int, count: int) -> list[dict[str, Any]]:
    """Rows of the first version."""
    return [{"shop": f"s{n}", "euros": n, "lines": [{"sku": "a", "n": n}]} for n in range(first, first + count)]


def run(spark: SparkSession, job: Any, cluster: LocalCluster, *words: str) -> int:
    found: int = job.run(spark, job.parser().parse_args(["--bootstrap", cluster.bootstrap, *words]))
    return found


def test_the_files_of_a_typed_archive_are_merged_by_tasks(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cluster, "small-files", SALES)
    root = str(tmp_path)
    for first in (0, 8, 16):
        send(cluster, "small-files", sales(first, 8))
        archive_topic(cluster.bootstrap, "small-files", root)
    assert run(spark, archive, cluster, "--to", root, "--compact") == 0, "three files are too few"
    assert run(spark, archive, cluster, "--to", root, "--compact", "--min-files", "3", "--grace-hours", "0") == 0
    assert capsys.readouterr().out.splitlines() == [
        "merged 0 files into 0, and deleted 0 that were replaced before",
        "merged 6 files into 2, and deleted 6 that were replaced before",
    ]
    assert [len(files) for files in Archive(root).files().values()] == [1, 1]
    assert sorted(row["shop"] for row in read_archive(spark, root).collect()) == sorted(f"s{n}" for n in range(24))
    send(cluster, "small-files", sales(24, 1))
    assert archive_topic(cluster.bootstrap, "small-files", root) == 1
    assert read_table(cluster.bootstrap, "small-files", history=root).read_all().num_rows == 25
