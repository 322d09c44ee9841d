# SPDX-License-Identifier: Apache-2.0
"""An executor and its Python processes are killed with kill -9 in the middle of copies.

Spark runs their tasks again.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import LocalCluster

from tests.spark.harness import losing_executors
from tests.spark.harness.losing_executors import BATCHES_BEFORE, ROWS_OF_A_BATCH, copies
from tests.spark.harness.reading import committed_records, needs_read_limits
from tests.spark.harness.submitted import driver

PARTITIONS = 2
ROWS = (BATCHES_BEFORE + 1) * ROWS_OF_A_BATCH
VALUE_BYTES = 700


def written(cluster: LocalCluster, topic: str) -> int:
    """The number of offsets, including rows that do not count."""
    with RangeReader(cluster.bootstrap, deadline_s=30.0) as reader:
        return sum(held.latest - held.earliest for held in reader.bounds(topic, range(PARTITIONS)).values())


@pytest.mark.skipif(sys.platform != "linux", reason="the driver finds the processes to kill below /proc")
@needs_read_limits
@pytest.mark.long
@pytest.mark.timeout(420)
def test_the_loss_of_an_executor_or_of_its_python_processes_loses_no_row_and_repeats_none_in_a_transaction(
    spark_home: Path, spark_python: Path, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home))  # its executor writes a directory there, too
    topic = "lost-executors"
    with AdminClient(cluster.admin_address) as admin:
        for name in (topic, *copies(topic)):
            admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    expected = Counter[bytes | None]()
    with Producer(cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            values = [f"{partition}-{row}".encode().ljust(VALUE_BYTES) for row in range(ROWS)]
            producer.send_table(topic, pa.table({"value": values}), partition=partition)
            expected.update(values)
    log = tmp_path / "driver.log"
    script = Path(losing_executors.__file__)
    with driver(log, script, cluster.bootstrap, topic, str(tmp_path), python=spark_python) as process:
        assert process.wait(390) == 0, log.read_text()[-4000:]
    batch, plain, stream = copies(topic)
    for name in (batch, stream):
        assert Counter(one.value for one in committed_records(cluster.bootstrap, name)) == expected
        assert written(cluster, name) > expected.total() + PARTITIONS, "no rows of the killed attempt were in the log"
    found = Counter(one.value for one in committed_records(cluster.bootstrap, plain))
    assert found.keys() == expected.keys()
    assert found.total() > expected.total(), "no rows of the killed attempt were in the log"
