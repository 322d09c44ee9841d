# SPDX-License-Identifier: Apache-2.0
"""A driver is killed with kill -9 during a query; its jobs are started again, from their checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster
from tidemark_spark.archive_layout import read_archive
from tidemark_spark.jobs import archive, rollup

from tests.spark.harness import doomed_driver
from tests.spark.harness.doomed_driver import archive_words, rollup_words
from tests.spark.harness.reading import committed_records, needs_read_limits
from tests.spark.harness.submitted import batches, driver

SCRIPT = Path(doomed_driver.__file__)
COUNT = 3000
AT_A_TIME = 150
FIRST_US = 1_700_003_600_000_000
STEP_US = 10_000_000
HALF_HOUR_US = 1_800_000_000
PATIENCE_S = 200.0


def wait_until_in_mid_batch(process: subprocess.Popen[bytes], log: Path, checkpoints: list[Path]) -> None:
    """Wait until each query has completed at least two micro-batches, and at least one query is in another."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        done = [batches(checkpoint, "commits") for checkpoint in checkpoints]
        if all(len(one) >= 2 for one in done) and any(
            batches(checkpoint, "offsets") - one for checkpoint, one in zip(checkpoints, done, strict=True)
        ):
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < until_s, log.read_text()[-2000:]
        time.sleep(0.05)


@needs_read_limits
@pytest.mark.timeout(420)
def test_an_archive_and_a_rollup_are_whole_although_their_driver_was_killed_in_mid_query(
    spark: SparkSession, spark_python: Path, cluster: LocalCluster, tmp_path: Path
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        for name in ("doomed", "doomed-sums"):
            admin.create_topic(name, partitions=3, replication_factor=3, configs={"retention.ms": "-1"})
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            value = json.dumps({"shop": f"s{number % 5}", "euros": number}).encode()
            producer.send("doomed", value, partition=number % 3, timestamp_us=FIRST_US + number * STEP_US)
    root, checkpoint, log = tmp_path / "archive", tmp_path / "checkpoint", tmp_path / "driver.log"
    where = [cluster.bootstrap, "doomed", "doomed-sums", str(root), str(checkpoint)]
    with driver(log, SCRIPT, *where, str(AT_A_TIME), python=spark_python) as process:
        wait_until_in_mid_batch(process, log, [root / "checkpoint", checkpoint])
        os.killpg(process.pid, signal.SIGKILL)
    assert len(batches(root / "checkpoint", "commits")) < COUNT // AT_A_TIME, "the query ended before the kill"

    again = archive.parser().parse_args(archive_words(cluster.bootstrap, "doomed", str(root)))
    assert archive.run(spark, again) == 0
    places = [(row["partition"], row["offset"]) for row in read_archive(spark, str(root)).collect()]
    assert sorted(places) == [(partition, offset) for partition in range(3) for offset in range(COUNT // 3)]

    words = rollup_words(cluster.bootstrap, "doomed", "doomed-sums", str(checkpoint))
    assert rollup.run(spark, rollup.parser().parse_args(words)) == 0
    assert dict(windows(cluster)) == expected_windows()


def windows(cluster: LocalCluster) -> dict[bytes, bytes]:
    """Results of the rollup by key; each row must count once."""
    found: dict[bytes, bytes] = {}
    for record in committed_records(cluster.bootstrap, "doomed-sums"):
        assert record.key is not None
        assert record.value is not None
        assert record.key not in found, "a window counts twice"
        found[record.key] = record.value
    return found


def expected_windows() -> dict[bytes, bytes]:
    """The windows that end before the watermark, which is five minutes before the last record."""
    sums: Counter[tuple[int, str]] = Counter()
    counts: Counter[tuple[int, str]] = Counter()
    for number in range(COUNT):
        place = (FIRST_US + number * STEP_US) // HALF_HOUR_US, f"s{number % 5}"
        sums[place] += number
        counts[place] += 1
    closed = (FIRST_US + (COUNT - 1) * STEP_US - 300_000_000) // HALF_HOUR_US
    return {
        json.dumps({"start": at(window), "shop": shop}, separators=(",", ":")).encode(): json.dumps(
            {"start": at(window), "end": at(window + 1), "shop": shop, "euros": euros, "sold": counts[window, shop]},
            separators=(",", ":"),
        ).encode()
        for (window, shop), euros in sums.items()
        if window < closed
    }


def at(window: int) -> str:
    """The start of a window, as a rollup writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(window * HALF_HOUR_US // 1_000_000))
