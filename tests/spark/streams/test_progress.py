# SPDX-License-Identifier: Apache-2.0
"""The progress of each partition, as the source reports it; pure, no Spark."""

from __future__ import annotations

import json
from typing import Any

from tidemark_spark.progress import PartitionProgress, partition_progress, read_bytes


def offset(partitions: dict[str, dict[str, Any]]) -> str:
    entries = {index: {"leaderEpoch": 1, "incarnation": "i", **entry} for index, entry in partitions.items()}
    return json.dumps({"version": 1, "cluster": "c", "topics": {"flights": {"id": "f", "partitions": entries}}})


def test_each_partition_reports_read_lagging_and_skipped_records() -> None:
    source = {
        "startOffset": offset({"0": {"offset": 5}}),
        "endOffset": offset({"0": {"offset": 9, "skipped": 2}, "1": {"offset": 30, "begin": 10}}),
        "latestOffset": offset({"0": {"offset": 9}, "1": {"offset": 70}}),
    }
    assert partition_progress(source) == [
        PartitionProgress("flights", 0, 9, 4, 0, 2, 2),
        PartitionProgress("flights", 1, 30, 20, 40, 0),
    ]


def test_figures_that_spark_omits_stay_absent() -> None:
    assert partition_progress({"endOffset": offset({"0": {"offset": 9}}), "startOffset": None}) == [
        PartitionProgress("flights", 0, 9, None, None, 0)
    ]


def test_other_sources_have_none() -> None:
    assert partition_progress({"endOffset": json.dumps({"flights": {"0": 5}})}) == []
    assert partition_progress({"endOffset": "7"}) == []


def test_bytes_are_those_that_were_measured() -> None:
    assert read_bytes({"observedMetrics": {"tidemark_read": {"bytes": 77}}}) == 77
    assert read_bytes({"observedMetrics": {"tidemark_read": {"bytes": None}}}) == 0, "no rows have no sum"
    assert read_bytes({"observedMetrics": {"mine": {"bytes": 77}}}) is None
    assert read_bytes({}) is None
