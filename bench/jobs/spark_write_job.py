# SPDX-License-Identifier: Apache-2.0
"""The job of `bench transactions` for Spark's sink, in a separate Python: needs PySpark only.

usage: python spark_write_job.py '{"bootstrap": {...}, "topic": "flights", ...}'; see `Task`. Its last line is JSON:
the rates of each round in rows a second.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import SparkSession

from bench.jobs.spark_job import session

WARM_UPS = 2


@dataclass
class Task:
    """The parameters of the measurement.

    Attributes:
        bootstrap: the option with the brokers' addresses.
        topic: the topic that gets the rows.
        rows: number of rows of each write.
        rounds: number of rounds after the warm-up; a round is a write of each kind.
        format: the format of the sink.
    """

    bootstrap: dict[str, str]
    topic: str
    rows: int
    rounds: int
    format: str = "tidemark"


def write_per_s(spark: SparkSession, task: Task, *, transactional: bool) -> float:
    """All rows written and acknowledged, and committed if the write is transactional."""
    started_s = time.perf_counter()
    table = spark.range(task.rows).selectExpr("cast(repeat('x', 100) as binary) as value")
    options = {**task.bootstrap, "topic": task.topic, "transactional": str(transactional).lower()}
    table.write.format(task.format).mode("append").options(**options).save()
    return task.rows / (time.perf_counter() - started_s)


def measure(task: Task) -> dict[str, list[float]]:
    """Rates by kind. The kinds take turns, and each is first in every other round."""
    spark = session([])
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(WARM_UPS + task.rounds):
        for transactional in (False, True) if number % 2 else (True, False):
            rate = write_per_s(spark, task, transactional=transactional)
            if number >= WARM_UPS:
                found[transactional].append(rate)
    spark.stop()
    return {"plain": found[False], "transactional": found[True]}


if __name__ == "__main__":
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))
