# SPDX-License-Identifier: Apache-2.0
"""Layout of an archive: files of Spark's file sink, compacted files, and manifests that state which files to read.

    landing/date=D/hour=H/part-*.parquet      written by the file sink; landing/_spark_metadata names the valid files
    compacted/date=D/hour=H/part-*.parquet    the same rows in fewer files
    manifests/D-H.json                        of that hour: valid compacted files, and the landed files they replace

Invariant: a row is in exactly one valid file. A manifest is replaced by one rename, so a reader sees an hour either
before or after its compaction. Files that no manifest names come from an interrupted compaction, or one that runs.
Two compactions may run at a time: the later one leaves an hour whose manifest has changed since it read the hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession

from tidemark_spark.typed.archive import OF_PATTERNS, is_typed_archive, read_typed_archive

LANDING: Final = "landing"
COMPACTED: Final = "compacted"
_LANDED: Final = f"{LANDING}/_spark_metadata"
_MANIFESTS: Final = "manifests"

SCHEMA: Final = (
    "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp_ltz, timestampType int, "
    "headers array<struct<key: string, value: binary>>, date date, hour int"
)
"""Schema of an archive; `date` and `hour` are of the record's timestamp in UTC, and directories on disk."""


@dataclass
class Manifest:
    """Files of a compacted hour; paths are relative to the archive.

    Attributes:
        files: valid compacted files.
        covers: landed files whose rows are in `files`.
        superseded: replaced files, to be deleted, with the time of replacement in milliseconds since 1970.
    """

    date: str
    hour: int
    files: list[str] = field(default_factory=list)
    covers: list[str] = field(default_factory=list)
    superseded: list[tuple[str, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the manifest's file."""
        return f"{self.date}-{self.hour:02d}.json"

    @property
    def directory(self) -> str:
        """Directory of the hour, in landing/ and in compacted/."""
        return f"date={self.date}/hour={self.hour}"


class Files:
    """The file system of an archive, any that Hadoop supports: local, HDFS, an object store."""

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
        """The Hadoop path of a text."""
        return self._path(f"{self.root}/{relative}")

    def exists(self, relative: str) -> bool:
        """Whether the file or directory exists."""
        return bool(self._fs.exists(self.of(relative)))

    def names(self, relative: str) -> list[str]:
        """Files of a directory, without hidden ones; [] for a missing directory."""
        if not self.exists(relative):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(self.of(relative))]
        return sorted(name for name in found if not name.startswith(("_", ".")))

    def size_bytes(self, relative: str) -> int:
        """Size of a file in bytes."""
        return int(self._fs.getFileStatus(self.of(relative)).getLen())

    def modified_ms(self, relative: str) -> int:
        """Time of the last change of a file in milliseconds since 1970."""
        return int(self._fs.getFileStatus(self.of(relative)).getModificationTime())

    def delete(self, relative: str) -> None:
        """Delete a file or a directory, if it exists."""
        self._fs.delete(self.of(relative), True)

    def move(self, source: str, target: str) -> None:
        """Rename a file, and replace an existing one."""
        self._fs.mkdirs(self.of(target).getParent())
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        self._context.rename(self.of(source), self.of(target), how)

    def read(self, relative: str) -> str:
        """The contents of a small file, as text."""
        stream = self._fs.open(self.of(relative))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, relative: str, text: str) -> None:
        """Write a small file atomically."""
        part = f"{relative}.part"
        stream = self._fs.create(self.of(part), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.move(part, relative)


def is_archive(spark: SparkSession, root: str) -> bool:
    """Whether there is an archive of topics without a schema; raises ValueError for an incomplete copy of one."""
    return _has_landed(Files(spark, root))


def _has_landed(files: Files) -> bool:
    if files.exists(_LANDED):
        return True
    if files.exists(LANDING) or files.exists(_MANIFESTS):
        raise ValueError(
            f"{files.root} is not a whole archive, because {_LANDED} is missing: copy all files, also those that begin "
            "with an underscore, or wait for the first files of a new archive"
        )
    return False


def check_root(root: str) -> None:
    """Raises ValueError for a path that Spark takes as a pattern, which may match other directories."""
    if OF_PATTERNS.search(root):
        raise ValueError(
            f"the archive {root!r} has one of []{{}}*?\\, which Spark takes as a pattern: name it otherwise"
        )


def read_archive(spark: SparkSession, root: str) -> DataFrame:
    """All rows of an archive, once each; valid until files of its plan are superseded and deleted.

    In SCHEMA, or for a typed topic in the newest version that the archive has. Raises ValueError for an incomplete copy
    of an archive.
    """
    if is_typed_archive(root):
        return read_typed_archive(spark, root)
    check_root(root)
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
    """Files that the file sink committed, including those that were compacted and deleted since."""
    if not _has_landed(files):
        return []
    found = spark.read.schema(SCHEMA).parquet(f"{files.root}/{LANDING}").inputFiles()
    return sorted(f"{LANDING}/" + path.rpartition(f"/{LANDING}/")[2] for path in found)


def read_manifests(files: Files) -> Mapping[str, Manifest]:
    """Manifests of the compacted hours, by `Manifest.directory`."""
    names = (name for name in files.names(_MANIFESTS) if name.endswith(".json"))
    found = [_parsed(files.read(f"{_MANIFESTS}/{name}")) for name in names]
    return {manifest.directory: manifest for manifest in found}


def read_manifest(files: Files, hour: Manifest) -> Manifest:
    """The manifest of that hour now; an empty one if the hour has none."""
    path = f"{_MANIFESTS}/{hour.name}"
    return _parsed(files.read(path)) if files.exists(path) else Manifest(hour.date, hour.hour)


def _parsed(text: str) -> Manifest:
    document = json.loads(text)
    return Manifest(**{**document, "superseded": [(path, at_ms) for path, at_ms in document["superseded"]]})


def write_manifest(files: Files, manifest: Manifest) -> None:
    """Write a manifest; readers use it from then on."""
    files.write(f"{_MANIFESTS}/{manifest.name}", json.dumps(asdict(manifest)))
