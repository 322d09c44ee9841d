# SPDX-License-Identifier: Apache-2.0
"""For spark-submit: runs the queries of the archive job and of the rollup job, until the driver is killed.

doomed_driver.py BOOTSTRAP TOPIC TO_TOPIC ARCHIVE CHECKPOINT RECORDS_AT_A_TIME
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from tidemark_spark.jobs import archive, rollup

ROLLUP = ("--schema", "shop string, euros long", "--by", "shop", "--window", "30 minutes", "--watermark", "5 minutes")
SUMS = ("--aggregate", "sum(euros) as euros", "--aggregate", "count(*) as sold")


def archive_words(bootstrap: str, topic: str, root: str) -> list[str]:
    """Flags of the archive job."""
    return ["--bootstrap", bootstrap, "--topic", topic, "--to", root]


def rollup_words(bootstrap: str, topic: str, to_topic: str, checkpoint: str) -> list[str]:
    """Flags of the rollup job."""
    places = ["--bootstrap", bootstrap, "--topic", topic, "--to-topic", to_topic, "--checkpoint", checkpoint]
    return [*places, *ROLLUP, *SUMS]


def main(bootstrap: str, topic: str, to_topic: str, root: str, checkpoint: str, at_a_time: str) -> None:
    """Run both queries until the driver is killed."""
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    going_on = ["--every", "0 seconds", "--max-offsets", at_a_time]
    archive.start(spark, archive.parser().parse_args([*archive_words(bootstrap, topic, root), *going_on]))
    words = rollup_words(bootstrap, topic, to_topic, checkpoint)
    rollup.start(spark, rollup.parser().parse_args([*words, *going_on]))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
