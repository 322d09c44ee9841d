# SPDX-License-Identifier: Apache-2.0
"""For spark-submit: a topic to Parquet and to another topic, side by side, as a user would write it.

driver.py BOOTSTRAP FROM_TOPIC TO_TOPIC DIRECTORY RECORDS_AT_A_TIME

DIRECTORY has `parquet` and the checkpoints `to-parquet` and `to-topic`; `session` and `queries` appear once these
exist. Once the file `stop` exists, the driver copies the remaining records and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(bootstrap: str, source: str, target: str, place: str, at_a_time: str) -> None:
    """Copy until a signal stops this driver."""
    directory = Path(place)
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    (directory / "session").touch()
    table = (
        spark.readStream.format("tidemark")
        .option("tidemark.bootstrap", bootstrap)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=at_a_time)
        .load()
    )
    to_parquet = table.writeStream.format("parquet").option("checkpointLocation", str(directory / "to-parquet"))
    to_topic = table.writeStream.format("tidemark").option("checkpointLocation", str(directory / "to-topic"))
    queries = [
        to_parquet.start(str(directory / "parquet")),
        to_topic.option("tidemark.bootstrap", bootstrap).option("topic", target).start(),
    ]
    (directory / "queries").touch()
    while not (directory / "stop").exists():
        spark.streams.awaitAnyTermination(1)
    for query in queries:
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
