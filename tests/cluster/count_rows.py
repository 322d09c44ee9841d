# SPDX-License-Identifier: Apache-2.0
"""A Spark job: reads a topic and prints, as JSON, the number of its rows and the pods that read them.

spark-submit count_rows.py TOPIC
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa


def with_host(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The values of the rows, with the name of the pod that read them."""
    import pyarrow as pa

    for batch in batches:
        host = pa.array([socket.gethostname()] * batch.num_rows, pa.string())
        yield pa.record_batch({"value": batch["value"], "host": host})


def main(topic: str) -> None:
    """Read and count the rows, print the result."""
    spark = SparkSession.builder.appName("count-rows").getOrCreate()
    options = {"tidemark.bootstrap": os.environ["TIDEMARK_BOOTSTRAP"], "subscribe": topic, "valueFormat": "string"}
    rows = spark.read.format("tidemark").options(**options).load()
    read = rows.select("value").mapInArrow(with_host, "value string, host string").collect()
    found = {
        "rows": len(read),
        "distinct": len({row.value for row in read}),
        "hosts": sorted({row.host for row in read}),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
