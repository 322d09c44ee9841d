# SPDX-License-Identifier: Apache-2.0
"""A driver with a separate executor process, which is killed during copies of a topic.

losing_executors.py BOOTSTRAP TOPIC DIRECTORY; the copies are TOPIC-batch, TOPIC-plain and TOPIC-stream.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from tidemark.client.consuming.range_reader import RangeReader

MASTER = "local-cluster[1,2,512]"
"""One executor with two cores, in a process of its own; Spark starts another one after its end."""
ROWS_OF_A_BATCH = 1000
BATCHES_BEFORE = 7
"""Records before the kill: more than the 4 MiB that the sink sends together."""
_WAIT_S = 20.0


def copies(topic: str) -> list[str]:
    """The topics that the driver writes."""
    return [f"{topic}-{kind}" for kind in ("batch", "plain", "stream")]


def parent_of(process: Path) -> int:
    """The parent's id of a process below /proc."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def children_of(parent: int) -> list[int]:
    """The ids of the processes that a process has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(process) == parent:
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def kill_workers() -> None:
    """Kill the Python processes of all tasks of this executor: of the source, of this function and of the sink."""
    others = [child for child in children_of(os.getppid()) if child != os.getpid()]
    for process in [*others, os.getpid()]:
        os.kill(process, signal.SIGKILL)


def executor_killer(driver: int) -> Callable[[], None]:
    """A function that kills the executor, the only program that the driver's JVM has started by then."""

    def kill() -> None:
        for process in children_of(driver):
            if (Path("/proc") / str(process) / "comm").read_text().strip() == "java":
                os.kill(process, signal.SIGKILL)
        time.sleep(_WAIT_S)  # until Spark has ended this process, too

    return kill


def killing_once(
    bootstrap: str, target: str, marker: Path, kill: Callable[[], None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step of a query that passes all rows; the first task kills in the middle of them, once the target has some."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches, 1):
            yield batch
            context = TaskContext.get()
            if number < BATCHES_BEFORE or context is None or context.partitionId():
                continue
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            until_s = time.monotonic() + _WAIT_S
            with RangeReader(bootstrap, deadline_s=_WAIT_S) as reader:
                while not any(held.latest for held in reader.bounds(target, [0, 1]).values()):
                    assert time.monotonic() < until_s, "the sink has sent no rows"
                    time.sleep(0.02)
            kill()

    return run


def main(bootstrap: str, topic: str, directory: str) -> None:
    """Copy the topic three times."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_A_BATCH),
        "spark.executor.memory": "512m",
    }
    spark = SparkSession.builder.master(MASTER).config(map=settings).getOrCreate()
    assert spark.sparkContext._jvm is not None
    driver = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    batch, plain, stream = copies(topic)

    def table(read: DataFrame, target: str, kill: Callable[[], None]) -> DataFrame:
        step = killing_once(bootstrap, target, Path(directory, target), kill)
        return read.mapInArrow(step, read.schema)

    options = {"tidemark.bootstrap": bootstrap, "columns": "value, partition"}
    rows = spark.read.format("tidemark").options(**options).load(topic)
    for target, transactional, kill in (
        (batch, "true", executor_killer(driver)),
        (plain, "false", kill_workers),
    ):
        given = {"tidemark.bootstrap": bootstrap, "transactional": transactional}
        table(rows, target, kill).write.format("tidemark").mode("append").options(**given).save(target)
    given = {"tidemark.bootstrap": bootstrap, "transactional": "true", "checkpointLocation": f"{directory}/checkpoint"}
    stream_rows = spark.readStream.format("tidemark").options(**options, startingOffsets="earliest").load(topic)
    table(stream_rows, stream, kill_workers).writeStream.format("tidemark").options(**given).trigger(
        availableNow=True
    ).start(stream).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
