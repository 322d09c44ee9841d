# SPDX-License-Identifier: Apache-2.0
"""Copies a topic to Parquet by date and hour, exactly once, by Spark's file sink; compacts the files on request."""

from __future__ import annotations

import argparse
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tidemark.client.tables.iceberg_catalog import catalog_properties

from tidemark_spark.archive_layout import (
    COMPACTED,
    LANDING,
    Files,
    Manifest,
    check_root,
    is_archive,
    landed_files,
    read_files,
    read_manifest,
    read_manifests,
    write_manifest,
)
from tidemark_spark.jobs.common import (
    add_bootstrap,
    add_stream,
    amount,
    job_parser,
    read_stream,
    run_job,
    run_stream,
    say,
    start_stream,
    whole,
    whole_from_1,
)
from tidemark_spark.typed.archive import archive_with, compact_with, is_typed_archive, is_typed_topic

NAME = "archive"
_HOUR: Final = re.compile(r"date=([^/]+)/hour=(\d+)/")
_SCRATCH: Final = "scratch"
"""Directories of running compactions; a compaction deletes those of interrupted ones after a day."""
_ABANDONED_MS: Final = 24 * 3_600_000
_MIB: Final = 1 << 20
_ELSEWHERE: Final = "name another directory, since readers find one of the two archives only"
_EXAMPLE = """
  spark-submit archive.py --bootstrap broker-0:9192 --topic orders --to /data/archive              all current records
  spark-submit archive.py --bootstrap broker-0:9192 --topic orders --to /data/archive --every "1 minute"
  spark-submit archive.py --to /data/archive --compact                                             merge small files
  spark-submit archive.py --bootstrap broker-0:9192 --topic flights --to /data/flights \\
    --iceberg lake.flights --catalog uri=https://catalog --catalog token-file=/run/catalog-token   an Iceberg table, too
"""


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Copies topics to Parquet files by date and hour of their records (UTC), each record exactly once. A later run "
        "continues, even after a failure. A topic with a schema keeps its columns, with their ids, in files by "
        "partition and offset. --compact merges the files of each hour, or of each partition; a compaction may run "
        "at the same time as the copy. Read an archive with replay.py, audit.py, or read_archive of "
        "tidemark_spark.archive_layout.",
        _EXAMPLE,
    )
    add_bootstrap(made, required=False)
    made.add_argument("--to", required=True, metavar="PATH", help="directory of the archive; any Hadoop path")
    made.add_argument("--topic", metavar="TOPIC[,TOPIC...]", help="topics to copy; not with --compact")
    add_stream(made)
    made.add_argument(
        "--iceberg",
        metavar="NAMESPACE.TABLE",
        help="an Iceberg table that has the files, too; for a topic with a schema; needs tidemark[lake]",
    )
    made.add_argument(
        "--catalog",
        action="append",
        metavar="KEY=VALUE",
        help="a property of its pyiceberg catalog: type=rest, uri=https://..., warehouse=NAME, token-file=PATH; "
        "default: SQLite in the archive's directory",
    )
    made.add_argument("--compact", action="store_true", help="do not copy: merge the files of each hour, or partition")
    made.add_argument(
        "--min-files",
        type=whole,
        default=4,
        help="uncompacted files of an hour, or neighbouring files of a partition, that start a compaction (4)",
    )
    made.add_argument("--file-mib", type=whole_from_1, default=128, help="approximate size of a compacted file (128)")
    made.add_argument(
        "--grace-hours",
        type=amount,
        default=24.0,
        help="time for which superseded files stay for running readers; a later --compact deletes them (24)",
    )
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Copy the current records, or continuously; or compact once."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    if arguments.compact and is_typed_archive(arguments.to):
        return _compact_typed(spark, arguments)
    if arguments.compact:
        if not is_archive(spark, arguments.to):
            raise ValueError(f"{arguments.to} is not an archive: there are no files to merge")
        compact(
            spark,
            arguments.to,
            min_files=arguments.min_files,
            file_bytes=arguments.file_mib * _MIB,
            grace_ms=int(arguments.grace_hours * 3_600_000),
        )
        return 0
    for flag in ("bootstrap", "topic"):
        if not getattr(arguments, flag):
            raise ValueError(f"--{flag} is missing: expected the topics and the cluster to copy, or --compact")
    typed = [name for name in arguments.topic.split(",") if is_typed_topic(arguments.bootstrap, name.strip())]
    if typed:
        if arguments.topic.strip() != typed[0].strip():
            raise ValueError(f"topic {typed[0].strip()} has a schema: archive it separately, in another directory")
        if is_archive(spark, arguments.to):
            raise ValueError(f"{arguments.to} is the archive of topics without a schema: {_ELSEWHERE}")
        return _run_typed(spark, arguments)
    if is_typed_archive(arguments.to):
        raise ValueError(f"{arguments.to} is the archive of a topic with a schema: {_ELSEWHERE}")
    if arguments.iceberg is not None:
        raise ValueError(f"--iceberg needs a topic with a schema, and {arguments.topic} has none")
    read = run_stream(spark, lambda: start(spark, arguments))
    say(f"archived {read.rows} records of {arguments.topic}, {read.size_bytes} bytes, in {arguments.to}")
    return 0


def _compact_typed(spark: SparkSession, arguments: argparse.Namespace) -> int:
    found = compact_with(
        spark,
        arguments.to,
        file_mib=arguments.file_mib,
        min_files=arguments.min_files,
        grace_hours=arguments.grace_hours,
        catalog=_properties(arguments.catalog),
    )
    say(f"merged {found.sources} files into {found.merged}, and deleted {found.deleted} that were replaced before")
    return 0


def _run_typed(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Copy a topic with a schema; its files are their own checkpoint."""
    if arguments.starting != "earliest" or arguments.max_offsets is not None:
        raise ValueError("--starting and --max-offsets are for topics without a schema")
    topic = arguments.topic.strip()
    pause_s = None if arguments.every is None else _seconds(arguments.every)
    catalog = _properties(arguments.catalog)
    while True:
        rows = archive_with(
            spark,
            arguments.bootstrap,
            topic,
            arguments.to,
            file_mib=arguments.file_mib,
            iceberg=arguments.iceberg,
            catalog=catalog,
        )
        say(f"archived {rows} rows of {topic} in {arguments.to}")
        if pause_s is None:
            return 0
        time.sleep(pause_s)


def _properties(pairs: Sequence[str] | None) -> dict[str, str] | None:
    return catalog_properties(pairs) if pairs else None


def _seconds(interval: str) -> float:
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(second|minute|hour)s?\s*", interval)
    if found is None:
        raise ValueError(f'--every is {interval!r}; expected "30 seconds", "1 minute", "2 hours"')
    return int(found[1]) * {"second": 1.0, "minute": 60.0, "hour": 3600.0}[found[2]]


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that copies the topic to the archive."""
    return land(read_stream(spark, arguments, includeHeaders="true"), arguments.to, arguments.every)


def land(table: DataFrame, root: str, every: str | None = None) -> StreamingQuery:
    """Write the rows of a read to landing/; the checkpoint is in the archive, so both stay together."""
    check_root(root)
    writer = (
        with_hours(table)
        .writeStream.format("parquet")
        .partitionBy("date", "hour")
        .option("path", f"{root}/{LANDING}")
        .option("checkpointLocation", f"{root}/checkpoint")
    )
    return start_stream(writer, every)


def with_hours(table: DataFrame) -> DataFrame:
    """Add the columns of the directories; the session's time zone is UTC."""
    columns = "topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers"
    return table.selectExpr(*columns, "to_date(timestamp) as date", "hour(timestamp) as hour")


def compact(spark: SparkSession, root: str, *, min_files: int, file_bytes: int, grace_ms: int) -> list[str]:
    """Rewrite hours with many uncompacted files, and delete files that were superseded long enough ago.

    Returns:
        The directories of the hours that were rewritten.
    """
    check_root(root)
    files = Files(spark, root)
    _delete_abandoned(files)
    hours = {directory: Manifest(one.date, one.hour) for directory, one in read_manifests(files).items()}
    landed: defaultdict[str, list[str]] = defaultdict(list)
    for path in landed_files(spark, files):
        hour = manifest_of(path)
        if hour is None:
            raise ValueError(f"{root} is not an archive: {path} is not in a date=D/hour=H directory")
        hours.setdefault(hour.directory, hour)
        landed[hour.directory].append(path)
    rewritten = []
    for directory, hour in sorted(hours.items()):
        _sweep(files, hour, grace_ms)
        if _rewrite(spark, files, hour, landed[directory], min_files=min_files, file_bytes=file_bytes):
            rewritten.append(directory)
        if grace_ms == 0:
            _sweep(files, hour, grace_ms)
    say(f"compacted {len(rewritten)} hours of {len(hours)}")
    return rewritten


def manifest_of(path: str) -> Manifest | None:
    """An empty manifest of the hour of a landed file; None: the file is in no directory of an hour."""
    hour = _HOUR.search(path)
    return None if hour is None else Manifest(hour[1], int(hour[2]))


def _rewrite(
    spark: SparkSession, files: Files, hour: Manifest, landed: Sequence[str], *, min_files: int, file_bytes: int
) -> bool:
    """Write all rows of an hour to new files, then the manifest that makes them valid; False: the hour stays."""
    before = read_manifest(files, hour)
    covered = set(before.covers)
    waiting = [path for path in landed if path not in covered]
    if len(waiting) < max(1, min_files):
        return False
    replaced = [*waiting, *before.files]
    size_bytes = sum(files.size_bytes(path) for path in replaced)
    table = read_files(spark, files, LANDING, waiting).unionByName(read_files(spark, files, COMPACTED, before.files))
    fresh = _write(spark, files, hour, table, max(1, -(-size_bytes // file_bytes)))
    superseded = [*before.superseded, *((path, _now_ms()) for path in replaced)]
    after = replace(before, files=fresh, covers=[*before.covers, *waiting], superseded=superseded)
    if not (all(map(files.exists, fresh)) and _put(files, before, after)):
        say(f"{hour.directory}: another compaction has rewritten the hour meanwhile")
        for path in fresh:
            files.delete(path)
        return False
    say(f"{hour.directory}: {len(fresh)} files of {len(replaced)}")
    return True


def _write(spark: SparkSession, files: Files, hour: Manifest, table: DataFrame, parts: int) -> list[str]:
    """Write the rows to new files of an hour, which no manifest names yet."""
    order, count = ("topic", "partition", "offset"), table.count()
    scratch = f"{_SCRATCH}/{_now_ms()}-{uuid.uuid4()}"
    ranged = table.drop("date", "hour").repartitionByRange(parts, *order).sortWithinPartitions(*order)
    ranged.write.parquet(f"{files.root}/{scratch}")
    names = files.names(scratch)
    written = read_files(spark, files, scratch, [f"{scratch}/{name}" for name in names]).count()
    if written != count:
        raise ValueError(f"{hour.directory} has {count} rows, and its merged files {written}: nothing was replaced")
    fresh = []
    for name in names:
        target = f"{COMPACTED}/{hour.directory}/{name}"
        files.move(f"{scratch}/{name}", target)
        fresh.append(target)
    files.delete(scratch)
    return fresh


def _put(files: Files, before: Manifest, after: Manifest) -> bool:
    """Replace the manifest of an hour; False if another compaction has replaced it since."""
    if read_manifest(files, before) != before:
        return False
    write_manifest(files, after)
    return True


def _delete_abandoned(files: Files) -> None:
    """Delete the directories of compactions that began a day ago; they do not run any more."""
    for name in files.names(_SCRATCH):
        began = name.partition("-")[0]
        if not began.isdecimal() or int(began) < _now_ms() - _ABANDONED_MS:
            files.delete(f"{_SCRATCH}/{name}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _sweep(files: Files, hour: Manifest, grace_ms: int) -> None:
    """Delete files that were superseded more than `grace_ms` ago, and equally old files that no manifest names.

    Newer files without a manifest may belong to a compaction that runs.
    """
    until_ms = _now_ms() - grace_ms
    names = files.names(f"{COMPACTED}/{hour.directory}")  # before the manifest, which names all of them that are valid
    before = read_manifest(files, hour)
    known = {*before.files, *(path for path, _ in before.superseded)}
    for name in names:
        path = f"{COMPACTED}/{hour.directory}/{name}"
        if path not in known and files.modified_ms(path) <= until_ms:
            files.delete(path)
    due = {path for path, at_ms in before.superseded if at_ms <= until_ms}
    for path in due:
        files.delete(path)
    if due:
        _put(files, before, replace(before, superseded=[one for one in before.superseded if one[0] not in due]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, as spark-submit does; returns the exit status."""
    return run_job(NAME, parser(), run, arguments)
