# SPDX-License-Identifier: Apache-2.0
"""An archive on disk: what Spark's file sink landed, what was compacted of it, and which of both to read.

    landing/date=D/hour=H/part-*.parquet      written by the file sink; landing/_spark_metadata says which files count
    compacted/date=D/hour=H/part-*.parquet    the same rows in fewer files
    manifests/D-H.json                        of that hour: compacted files that count, landed files they cover

Invariant: a row is in exactly one file that counts. A manifest is replaced in one rename, so a reader sees an hour
before or after its compaction and nothing between; files that no manifest names are left of a compaction cut short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession

LANDING: Final = "landing"
COMPACTED: Final = "compacted"
_MANIFESTS: Final = "manifests"

SCHEMA: Final = (
    "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>, date date, hour int"
)
"""Of an archive; `date` and `hour` are the record's in UTC, and directories on disk."""


@dataclass
class Manifest:
    """What a compacted hour is made of; paths are relative to the archive.

    Attributes:
        files: the compacted files that count.
        covers: landed files whose rows are in them.
        superseded: files that count no more and since when, in milliseconds since 1970: to be deleted.
    """

    date: str
    hour: int
    files: list[str] = field(default_factory=list)
    covers: list[str] = field(default_factory=list)
    superseded: list[tuple[str, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.date}-{self.hour:02d}.json"

    @property
    def directory(self) -> str:
        """Of the hour, in landing/ and in compacted/."""
        return f"date={self.date}/hour={self.hour}"


class Files:
    """The file system of an archive, whichever Hadoop knows: local, HDFS, an object store."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = cast("Any", spark._jvm)
        self._gateway: Any = spark.sparkContext._gateway
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()
        self._root = self._path(root)
        self._fs = self._root.getFileSystem(configuration)
        qualified = self._fs.makeQualified(self._root)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(qualified.toUri(), configuration)
        self.root: str = qualified.toString().rstrip("/")

    def of(self, relative: str) -> Any:
        """A Hadoop path."""
        return self._path(f"{self.root}/{relative}")

    def exists(self, relative: str) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._fs.exists(self.of(relative)))

    def names(self, relative: str) -> list[str]:
        """What is in a directory, [] where there is none; hidden files are not told."""
        if not self.exists(relative):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(self.of(relative))]
        return sorted(name for name in found if not name.startswith(("_", ".")))

    def size_bytes(self, relative: str) -> int:
        """Of a file."""
        return int(self._fs.getFileStatus(self.of(relative)).getLen())

    def delete(self, relative: str) -> None:
        """A file or a directory; one that is gone is fine."""
        self._fs.delete(self.of(relative), True)

    def move(self, source: str, target: str) -> None:
        """To another name, in place of what is there."""
        self._fs.mkdirs(self.of(target).getParent())
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        self._context.rename(self.of(source), self.of(target), how)

    def read(self, relative: str) -> str:
        """A small file."""
        stream = self._fs.open(self.of(relative))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, relative: str, text: str) -> None:
        """A small file, in one step: whoever reads sees what was there before, or all of this."""
        part = f"{relative}.part"
        stream = self._fs.create(self.of(part), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.move(part, relative)


def is_archive(spark: SparkSession, root: str) -> bool:
    """Whether an archive was begun there."""
    return Files(spark, root).exists(f"{LANDING}/_spark_metadata")


def read_archive(spark: SparkSession, root: str) -> DataFrame:
    """Every row of an archive once, in SCHEMA; a plan that stays good until what it reads is superseded and deleted."""
    files = Files(spark, root)
    manifests = read_manifests(files)
    covered = {path for manifest in manifests.values() for path in manifest.covers}
    landed = [path for path in landed_files(spark, files) if path not in covered]
    compacted = [path for manifest in manifests.values() for path in manifest.files]
    return read_files(spark, files, LANDING, landed).unionByName(read_files(spark, files, COMPACTED, compacted))


def read_files(spark: SparkSession, files: Files, part: str, paths: Sequence[str]) -> DataFrame:
    """Rows of some files of landing/ or compacted/, in SCHEMA."""
    reader = spark.read.schema(SCHEMA).option("basePath", f"{files.root}/{part}")
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    return reader.parquet(*(f"{files.root}/{path}" for path in paths))


def landed_files(spark: SparkSession, files: Files) -> list[str]:
    """What the file sink has committed, whether it is still there or was compacted and deleted since."""
    if not files.exists(f"{LANDING}/_spark_metadata"):
        return []
    found = spark.read.schema(SCHEMA).parquet(f"{files.root}/{LANDING}").inputFiles()
    return sorted(f"{LANDING}/" + path.rpartition(f"/{LANDING}/")[2] for path in found)


def read_manifests(files: Files) -> Mapping[str, Manifest]:
    """Of every compacted hour, by `Manifest.directory`."""
    found = {}
    for name in files.names(_MANIFESTS):
        if name.endswith(".json"):
            told = json.loads(files.read(f"{_MANIFESTS}/{name}"))
            manifest = Manifest(**{**told, "superseded": [(path, at_ms) for path, at_ms in told["superseded"]]})
            found[manifest.directory] = manifest
    return found


def write_manifest(files: Files, manifest: Manifest) -> None:
    """From here on readers see that."""
    files.write(f"{_MANIFESTS}/{manifest.name}", json.dumps(asdict(manifest)))
