# SPDX-License-Identifier: Apache-2.0
"""Holds a topic's replicas against one another, and an archive against the topic: gaps, duplicates, mismatches.

Replicas are compared byte by byte, by the brokers' own reads of single replicas (LOG-MATCH); an archive row by row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tidemark.client.consuming.range_reader import Bounds, RangeReader
from tidemark.client.replicas.reader import ReplicaReader, addresses
from tidemark.client.replicas.verifier import PartitionVerifier, Verified
from tidemark.core.cluster_view import PartitionView
from tidemark.model import TopicPartition

from tidemark_spark.archive_layout import is_archive, read_archive
from tidemark_spark.jobs.common import EXIT_FOUND, add_bootstrap, job_parser, run_job, say

NAME = "audit"
_DEADLINE_S: Final = 60.0
_SHOWN: Final = 1000
_PLACE: Final = ["topic", "partition"]
_EXAMPLE = """
  spark-submit audit.py --bootstrap broker-0:9192 --topic orders                            its replicas
  spark-submit audit.py --bootstrap broker-0:9192 --topic orders --archive /data/archive    and what was archived of it
"""
_IDENTITY: Final = """xxhash64(
    key is null, key, value is null, value, unix_micros(timestamp),
    transform(headers, header -> struct(header.key, header.value is null as absent, header.value))
) as content"""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: gap, duplicate, mismatch, or unread (a replica that gave no answer).
        first, last: offsets, both inclusive; -1 where it is not about offsets.
        records: how many offsets of them.
    """

    kind: str
    topic: str
    partition: int
    first: int
    last: int
    records: int
    sentence: str


@dataclass(frozen=True)
class ReplicaTask:
    """One partition for one Spark task."""

    bootstrap: str
    partition: TopicPartition
    topic_id: str
    view: PartitionView
    addresses: dict[int, str]
    compacted: bool


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Reads a topic from every replica and, if there is one, its archive, and says what is not as it should be: "
        "gaps (an offset is not there), duplicates (it is there twice), mismatches (another record is there). Exit "
        "status 1 if there is anything, 0 if not.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument("--topic", required=True, help="which")
    made.add_argument("--archive", metavar="PATH", help="an archive that archive.py made, held against the topic")
    made.add_argument("--json", action="store_true", help="each finding as a line of JSON")
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Audit once."""
    findings = audit(spark, arguments.bootstrap, arguments.topic, arguments.archive)
    for finding in findings:
        if arguments.json:
            say(json.dumps(asdict(finding)))
        else:
            say(f"{finding.kind:<10} {finding.topic}-{finding.partition}: {finding.sentence}")
    if not arguments.json:
        say(f"{len(findings)} findings" if findings else "nothing is missing, doubled or different")
    return EXIT_FOUND if findings else 0


def audit(spark: SparkSession, bootstrap: str, topic: str, archive: str | None = None) -> list[Finding]:
    """What is not as it should be; at most 1,000 stretches of offsets.

    Raises:
        TidemarkError: UNKNOWN_TOPIC, BROKER_NOT_AVAILABLE.
        ValueError: there is no archive.
    """
    if archive is not None and not is_archive(spark, archive):
        raise ValueError(f"--archive {archive}: archive.py has made no archive there")
    archived = None
    if archive is not None:
        rows = read_archive(spark, archive).where(F.col("topic") == topic)
        archived = _held(rows.selectExpr("topic", "partition", "offset", _IDENTITY)).cache()
        archived.count()  # before the topic's ends are asked for: whatever is beyond them is in no topic
    try:
        return _audit(spark, bootstrap, topic, archived)
    finally:
        if archived is not None:
            archived.unpersist()


def _audit(spark: SparkSession, bootstrap: str, topic: str, archived: DataFrame | None) -> list[Finding]:
    with RangeReader(bootstrap, deadline_s=_DEADLINE_S) as reader:
        view = reader.topics([topic])[topic]
        compacted = "compact" in view.configs.get("cleanup.policy", "")
        bounds = dict(reader.bounds(topic, sorted(view.partitions)))
    findings = replica_findings(spark, bootstrap, topic, compacted=compacted)
    options = {"tidemark.bootstrap": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    table = (
        spark.read.format("tidemark").options(**options).load().selectExpr("topic", "partition", "offset", _IDENTITY)
    )
    ends = _ends(spark, topic, bounds)
    table = table.join(ends, _PLACE).where("offset < log_end").select(*_PLACE, "offset", "content")
    parts = [] if compacted else [_gaps(table, "log_start - 1", "log_end", ends, _NOT_IN_TOPIC)]
    if archived is not None:
        parts += archive_stretches(table, archived, ends, compacted=compacted)
    return findings + told(parts)


# -- replicas ----------------------------------------------------------------------------------------------------------


def replica_findings(spark: SparkSession, bootstrap: str, topic: str, *, compacted: bool) -> list[Finding]:
    """Each partition is one task, which reads all replicas of it side by side."""
    with ReplicaReader(bootstrap) as reader:
        cluster = reader.view([topic])
    view = cluster.topics[topic]
    tasks = [
        ReplicaTask(
            bootstrap, TopicPartition(topic, index), view.topic_id, partition, dict(addresses(cluster)), compacted
        )
        for index, partition in sorted(view.partitions.items())
    ]
    verified = spark.sparkContext.parallelize(tasks, len(tasks)).map(verify).collect()
    return [finding for one in verified for finding in _replica_findings(one)]


def verify(task: ReplicaTask) -> Verified:
    """Every byte of every replica below the high watermark."""
    with ReplicaReader(task.bootstrap) as reader:
        return PartitionVerifier(
            reader,
            task.partition,
            task.topic_id,
            task.view,
            task.addresses,
            compacted=task.compacted,
            whole_bytes=True,
        ).run()


def _replica_findings(one: Verified) -> list[Finding]:
    topic, partition = one.partition
    found = [
        Finding(
            "mismatch",
            topic,
            partition,
            difference.offset,
            difference.offset,
            1,
            f"offset {difference.offset} on broker {difference.broker}: {difference.sentence}",
        )
        for difference in one.differences
    ]
    for broker, why in sorted(one.away.items()):
        found.append(
            Finding("unread", topic, partition, -1, -1, 0, f"the replica on broker {broker} was not read: {why}")
        )
    return found


# -- offsets and archives ----------------------------------------------------------------------------------------------


def _ends(spark: SparkSession, topic: str, bounds: dict[int, Bounds]) -> DataFrame:
    rows = [(topic, index, held.earliest, held.latest) for index, held in bounds.items()]
    return F.broadcast(spark.createDataFrame(rows, "topic string, partition int, log_start bigint, log_end bigint"))


def _held(rows: DataFrame) -> DataFrame:
    """An archive's rows by offset, with how often each is there and what its copies hold."""
    return rows.groupBy(*_PLACE, "offset").agg(
        F.count("*").alias("copies"), F.min("content").alias("archived"), F.max("content").alias("archived_too")
    )


def _gaps(rows: DataFrame, before: str, behind: str, ends: DataFrame, problem: str) -> DataFrame:
    """Stretches of offsets that are not there: between the rows, and between them and the offset on either side."""
    marks = [ends.selectExpr(*_PLACE, f"{mark} as offset") for mark in (before, behind) if mark]
    offsets = rows.select(*_PLACE, "offset")
    for mark in marks:
        offsets = offsets.unionByName(mark)
    spans = offsets.withColumn("before", F.lag("offset").over(Window.partitionBy(*_PLACE).orderBy("offset")))
    return spans.where("offset > before + 1").selectExpr(
        f"'{problem}' as problem",
        *_PLACE,
        "before + 1 as first",
        "offset - 1 as last",
        "offset - before - 1 as records",
    )


def archive_stretches(topic: DataFrame, held: DataFrame, ends: DataFrame, *, compacted: bool) -> list[DataFrame]:
    """An archive against its topic, from the archive's first offset to its last; for `told`.

    What retention has taken from the topic is only checked for gaps and duplicates; what was not archived yet is none.

    Args:
        topic: `topic, partition, offset, content` below log_end.
        held: of the archive, as `_held` gives it.
        ends: `topic, partition, log_start, log_end`.
        compacted: the topic has offsets that are not there, and the archive may have them.
    """
    reach = held.groupBy(*_PLACE).agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
    there = topic.join(F.broadcast(reach), _PLACE).where("offset between low and high").drop("low", "high")
    both = there.join(held.join(ends, _PLACE), [*_PLACE, "offset"], "full_outer")
    problems = f"""filter(array(
        if(copies > 1, '{_TWICE}', null),
        if(copies is null, '{_NOT_ARCHIVED}', null),
        if(content is null and offset >= log_start and not {compacted}, '{_NOT_IN_TOPIC_BUT_ARCHIVED}', null),
        if(content <> archived or content <> archived_too, '{_DIFFERS}', null)
    ), problem -> problem is not null)"""
    found = both.select(F.explode(F.expr(problems)).alias("problem"), *_PLACE, "offset")
    island = F.col("offset") - F.row_number().over(Window.partitionBy("problem", *_PLACE).orderBy("offset"))
    stretches = found.withColumn("island", island).groupBy("problem", *_PLACE, "island")
    ends_of = F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records")
    parts = [stretches.agg(*ends_of).drop("island")]
    if not compacted:
        old = held.join(ends, _PLACE).where("offset < log_start")
        begun = ends.join(old.select(*_PLACE).distinct(), _PLACE)
        parts.append(_gaps(old, "", "log_start", begun, _LOST))
    return parts


_NOT_IN_TOPIC: Final = "not in topic"
_NOT_IN_TOPIC_BUT_ARCHIVED: Final = "not in topic but archived"
_NOT_ARCHIVED: Final = "not archived"
_TWICE: Final = "twice"
_DIFFERS: Final = "differs"
_LOST: Final = "lost"
_SENTENCES: Final = {
    _NOT_IN_TOPIC: ("gap", "not in the topic"),
    _NOT_IN_TOPIC_BUT_ARCHIVED: ("mismatch", "in the archive and not in the topic"),
    _NOT_ARCHIVED: ("gap", "in the topic and not in the archive"),
    _TWICE: ("duplicate", "in the archive more than once"),
    _DIFFERS: ("mismatch", "one record in the topic and another in the archive"),
    _LOST: ("gap", "not in the archive, and in the topic no more"),
}
"""Of each problem: the kind of finding, and what is to be said of an offset."""


def told(parts: list[DataFrame]) -> list[Finding]:
    """The first 1,000 stretches, by partition and offset."""
    if not parts:
        return []
    rows = reduce(DataFrame.unionByName, parts).orderBy(*_PLACE, "first", "problem").limit(_SHOWN).collect()
    found = []
    for row in rows:
        kind, sentence = _SENTENCES[row["problem"]]
        one = row["records"] == 1
        where = f"offset {row['first']} is" if one else f"offsets {row['first']} to {row['last']} are each"
        place = row["topic"], row["partition"], row["first"], row["last"], row["records"]
        found.append(Finding(kind, *place, f"{where} {sentence}"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """What spark-submit runs."""
    return run_job(NAME, parser(), run, arguments)
