# SPDX-License-Identifier: Apache-2.0
"""Compares the replicas of a topic, and an archive with its topic: gaps, duplicates, mismatches.

Replicas are compared byte by byte, read from each broker (LOG-MATCH); an archive is compared row by row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tidemark.client.consuming.range_reader import Bounds, RangeReader
from tidemark.client.replicas.reader import BrokerAddress, ReplicaReader, addresses
from tidemark.client.replicas.verifier import PartitionVerifier, Verified
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import ReplicaIdentity, TopicPartition

from tidemark_spark.archive_layout import is_archive, read_archive
from tidemark_spark.jobs import audit_archive
from tidemark_spark.jobs.audit_findings import (
    DIFFERS,
    LOST,
    NOT_ARCHIVED,
    NOT_IN_TOPIC,
    NOT_IN_TOPIC_BUT_ARCHIVED,
    TWICE,
    Finding,
    findings_of,
)
from tidemark_spark.jobs.common import EXIT_FOUND, add_bootstrap, job_parser, run_job, say
from tidemark_spark.typed.archive import is_typed_archive

NAME = "audit"
_DEADLINE_S: Final = 60.0
_PLACE: Final = ["topic", "partition"]
_EXAMPLE = """
  spark-submit audit.py --bootstrap broker-0:9192 --topic orders                            its replicas
  spark-submit audit.py --bootstrap broker-0:9192 --topic orders --archive /data/archive    its replicas and an archive
"""
_IDENTITY: Final = """xxhash64(
    key is null, key, value is null, value, unix_micros(timestamp),
    transform(headers, header -> struct(header.key, header.value is null as absent, header.value))
) as content"""


@dataclass(frozen=True)
class ReplicaTask:
    """One partition for one Spark task."""

    bootstrap: str
    partition: TopicPartition
    topic_id: str
    view: PartitionView
    addresses: dict[int, BrokerAddress]
    compacted: bool


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Reads a topic from every replica, and optionally its archive, and reports gaps (missing offsets), duplicates "
        "(an offset with several records) and mismatches (different records). Exit status 1 for any finding, 0 for "
        "none.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument("--topic", required=True, help="which")
    made.add_argument("--archive", metavar="PATH", help="an archive of archive.py, to compare with the topic")
    made.add_argument("--json", action="store_true", help="print each finding as a line of JSON")
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Audit a topic once, and print the findings."""
    findings = audit(spark, arguments.bootstrap, arguments.topic, arguments.archive)
    for finding in findings:
        if arguments.json:
            say(json.dumps(asdict(finding)))
        else:
            say(f"{finding.kind:<10} {finding.topic}-{finding.partition}: {finding.sentence}")
    if not arguments.json:
        say(f"{len(findings)} findings" if findings else "no gap, duplicate or mismatch")
    return EXIT_FOUND if findings else 0


def audit(spark: SparkSession, bootstrap: str, topic: str, archive: str | None = None) -> list[Finding]:
    """Findings, at most 1,000 ranges of offsets.

    Raises:
        TidemarkError: UNKNOWN_TOPIC, REQUEST_TIMED_OUT.
        ValueError: the archive does not exist.
    """
    has_columns = archive is not None and is_typed_archive(archive)
    if archive is not None and not has_columns and not is_archive(spark, archive):
        raise ValueError(f"--archive {archive}: not an archive of archive.py")
    if has_columns:
        return _audit(spark, bootstrap, topic, None, archive)
    archived = None
    if archive is not None:
        rows = read_archive(spark, archive).where(F.col("topic") == topic)
        archived = _held(rows.selectExpr("topic", "partition", "offset", _IDENTITY)).cache()
        archived.count()  # before the fetch of the topic's ends, so that an offset beyond them is a mismatch
    try:
        return _audit(spark, bootstrap, topic, archived)
    finally:
        if archived is not None:
            archived.unpersist()


def _audit(
    spark: SparkSession, bootstrap: str, topic: str, archived: DataFrame | None, typed_archive: str | None = None
) -> list[Finding]:
    with RangeReader(bootstrap, deadline_s=_DEADLINE_S) as reader:
        view = reader.topics([topic])[topic]
        compacted = "compact" in view.configs.get("cleanup.policy", "")
        bounds = dict(reader.bounds(topic, sorted(view.partitions)))
    if archived is not None and view.schema_version:
        raise ValueError(f"topic {topic} has a schema, and the archive is of topics without a schema")
    if typed_archive is not None and not view.schema_version:
        raise ValueError(f"topic {topic} has no schema, and {typed_archive} is the archive of a topic with a schema")
    tasks = tasks_of(bootstrap, topic, compacted=compacted)
    findings = replica_findings(spark, tasks)
    ends = _ends(spark, topic, bounds)
    parts = []
    if not compacted:
        offsets = _offsets(spark, bootstrap, view).join(ends, _PLACE).where("offset < log_end")
        taken = offsets.select(*_PLACE, "offset").unionByName(_markers(spark, tasks, bounds))
        parts.append(_gaps(taken, "log_start - 1", "log_end", ends, NOT_IN_TOPIC))
    if archived is not None:
        options = {"tidemark.bootstrap": bootstrap, "subscribe": topic, "includeHeaders": "true"}
        table = spark.read.format("tidemark").options(**options).load().selectExpr(*_PLACE, "offset", _IDENTITY)
        there = table.join(ends, _PLACE).where("offset < log_end").select(*_PLACE, "offset", "content")
        parts += archive_stretches(there, archived, ends, compacted=compacted)
    if typed_archive is not None:
        parts.append(audit_archive.archive_stretches(spark, bootstrap, topic, typed_archive, is_compacted=compacted))
    return findings + findings_of(parts)


def _offsets(spark: SparkSession, bootstrap: str, view: TopicView) -> DataFrame:
    """Offsets of all records, including those of open and aborted transactions."""
    options = {"tidemark.bootstrap": bootstrap, "tidemark.isolation.level": "read_uncommitted"}
    reader = spark.read.format("tidemark").options(**options)
    if not view.schema_version:
        return reader.option("subscribe", view.topic).option("columns", "topic, partition, offset").load()
    rows = reader.option("columns", "_partition, _offset").load(view.topic)
    return rows.selectExpr(f"'{view.topic}' as topic", "_partition as partition", "_offset as offset")


# -- replicas ----------------------------------------------------------------------------------------------------------


def tasks_of(bootstrap: str, topic: str, *, compacted: bool) -> list[ReplicaTask]:
    """One task for each partition, by the present metadata."""
    with ReplicaReader(bootstrap) as reader:
        cluster = reader.view([topic])
    view = cluster.topics[topic]
    return [
        ReplicaTask(
            bootstrap, TopicPartition(topic, index), view.topic_id, partition, dict(addresses(cluster)), compacted
        )
        for index, partition in sorted(view.partitions.items())
    ]


def replica_findings(spark: SparkSession, tasks: Sequence[ReplicaTask]) -> list[Finding]:
    """Compare replicas in one task per partition."""
    verified = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(verify).collect()
    return [finding for one in verified for finding in _replica_findings(one)]


def _markers(spark: SparkSession, tasks: Sequence[ReplicaTask], bounds: Mapping[int, Bounds]) -> DataFrame:
    """Offsets of the markers of transactions, which no reader shows."""
    ends = {index: held.latest for index, held in bounds.items()}
    found = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).flatMap(lambda task: markers(task, ends))
    return spark.createDataFrame(found, "topic string, partition int, offset bigint")


def markers(task: ReplicaTask, ends: Mapping[int, int]) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and offset of each control record below the end, by the leader's envelopes."""
    topic, partition = task.partition
    address, end = task.addresses.get(task.view.leader), ends.get(partition, 0)
    if address is None:
        return
    identity = ReplicaIdentity(task.topic_id, task.view.incarnation)
    with ReplicaReader(task.bootstrap) as reader:
        position = reader.read(address, task.partition, identity, end=0).log_start_offset
        while position < end:
            pieces = reader.read(address, task.partition, identity, start=position, end=end).pieces
            if not pieces:
                return
            for envelope in (piece.envelope for piece in pieces if piece.envelope.is_control):
                yield from ((topic, partition, offset) for offset in range(envelope.base_offset, envelope.next_offset))
            position = pieces[-1].envelope.next_offset


def verify(task: ReplicaTask) -> Verified:
    """Compare all bytes of all replicas below the high watermark."""
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
    """Rows of an archive by offset, with the number and the hashes of copies."""
    return rows.groupBy(*_PLACE, "offset").agg(
        F.count("*").alias("copies"), F.min("content").alias("archived"), F.max("content").alias("archived_too")
    )


def _gaps(rows: DataFrame, before: str, behind: str, ends: DataFrame, problem: str) -> DataFrame:
    """Ranges of missing offsets: between the rows, and between the rows and the bounds."""
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
    """Compare an archive with its topic, from the archive's first offset to its last.

    Records that retention deleted from the topic are only checked for gaps and duplicates. Records that are not
    archived yet are not findings.

    Args:
        topic: `topic, partition, offset, content` below log_end.
        held: rows of the archive, from `_held`.
        ends: `topic, partition, log_start, log_end`.
        compacted: the topic is compacted: it has holes, and the archive may have records there.
    """
    reach = held.groupBy(*_PLACE).agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
    there = topic.join(F.broadcast(reach), _PLACE).where("offset between low and high").drop("low", "high")
    both = there.join(held.join(ends, _PLACE), [*_PLACE, "offset"], "full_outer")
    problems = f"""filter(array(
        if(copies > 1, '{TWICE}', null),
        if(copies is null, '{NOT_ARCHIVED}', null),
        if(content is null and offset >= log_start and not {compacted}, '{NOT_IN_TOPIC_BUT_ARCHIVED}', null),
        if(content <> archived or content <> archived_too, '{DIFFERS}', null)
    ), problem -> problem is not null)"""
    found = both.select(F.explode(F.expr(problems)).alias("problem"), *_PLACE, "offset")
    island = F.col("offset") - F.row_number().over(Window.partitionBy("problem", *_PLACE).orderBy("offset"))
    stretches = found.withColumn("island", island).groupBy("problem", *_PLACE, "island")
    ends_of = F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records")
    parts = [stretches.agg(*ends_of).drop("island")]
    if not compacted:
        old = held.join(ends, _PLACE).where("offset < log_start")
        begun = ends.join(old.select(*_PLACE).distinct(), _PLACE)
        parts.append(_gaps(old, "", "log_start", begun, LOST))
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, as spark-submit does; returns the exit status."""
    return run_job(NAME, parser(), run, arguments)
