# SPDX-License-Identifier: Apache-2.0
"""Files of the archive of a typed topic: Parquet with column ids, readable as one table by any engine.

    data/P/OFFSET.parquet         rows of partition P from this offset on, up to the end in its footer (exclusive)
    data/P/OFFSET-END.parquet     a merged file: it replaces all files that begin in [OFFSET, END)
    writing/, merging/RUN/        files that are not complete yet; the next run deletes those of an interrupted run
    lease, merging.lease          locked by the one run that may add rows, and by the one that may merge files
    tables                        ids and names of the Iceberg tables that have these files, one a line

Invariant: the valid files of a partition follow one another, and each row is in one of them. A complete file appears in
one step, by a link to a name with its first offset. The link fails if that name exists. So the files themselves show
which rows are archived and which files are replaced, and a second writer cannot archive a row twice, even without the
lease.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import Column, ColumnType, ListOf, MapOf, Primitive, StructOf, TopicSchema
from tidemark.core.schemas.text import from_text, to_text
from tidemark.model import NO_EPOCH, invalid_request

DATA: Final = "data"
WRITING: Final = "writing"
MERGING: Final = "merging"
_LEASES: Final = {WRITING: "lease", MERGING: "merging.lease"}
_TABLES: Final = "tables"
_SUFFIX: Final = ".parquet"
_NAME: Final = re.compile(r"(\d+)(?:-(\d+))?")
_PLACE: Final = re.compile(rf".*/{DATA}/(\d+)/(\d+(?:-\d+)?){re.escape(_SUFFIX)}")
FIELD_ID: Final = "PARQUET:field_id"

PARTITION, OFFSET, TIMESTAMP, HEADERS, DELETED = "_partition", "_offset", "_timestamp", "_headers", "_deleted"
_FIRST_ID: Final = 2_000_000_001
"""Ids of the system columns, which no column of a topic reaches."""
SYSTEM_COLUMNS: Final = (
    Column(_FIRST_ID, PARTITION, Primitive.INT32, nullable=False),
    Column(_FIRST_ID + 1, OFFSET, Primitive.INT64, nullable=False),
    Column(_FIRST_ID + 2, TIMESTAMP, Primitive.TIMESTAMP, nullable=False),
    Column(
        _FIRST_ID + 3,
        HEADERS,
        MapOf(
            Column(_FIRST_ID + 4, "key", Primitive.STRING, nullable=False),
            Column(_FIRST_ID + 5, "value", Primitive.BINARY),
        ),
    ),
    Column(_FIRST_ID + 6, DELETED, Primitive.BOOL, nullable=False),
)
"""Columns of each file after those of the topic."""


class Footer(NamedTuple):
    """Facts in the footer of a file.

    Attributes:
        topic: name of the topic.
        topic_id: id of the topic; a recreated topic has another one.
        incarnation: incarnation of the partition; a recreated partition has another one.
        partition: index of the partition.
        start: first offset, inclusive.
        end: end offset, exclusive. A compacted topic may have fewer rows than offsets.
        schema: version of the rows.
        end_epoch: upper bound of the leader epochs of the records before `end`; -1: unknown, as in older files.
    """

    topic: str
    topic_id: str
    incarnation: str
    partition: int
    start: int
    end: int
    schema: TopicSchema
    end_epoch: int = NO_EPOCH

    def as_metadata(self) -> dict[str, str]:
        """Keys and values of a Parquet footer."""
        facts = self._replace(schema=to_text(self.schema))._asdict()  # type: ignore[arg-type]
        return {f"tidemark.{name}": str(value) for name, value in facts.items()}


@dataclass(frozen=True)
class ArchiveFile:
    """A file of an archive, by its name.

    Attributes:
        path: path of the file.
        partition: index of the partition.
        start: first offset, inclusive.
        end: end offset of a merged file, exclusive; 0: not merged, only the footer has the end.
    """

    path: Path
    partition: int
    start: int
    end: int = 0

    @property
    def key(self) -> str:
        """Path of the file in the archive, as `key_of` gives it."""
        return f"{self.partition}/{self.path.stem}"

    @property
    def location(self) -> str:
        """URI of the file as Iceberg's file systems take it: they do not decode %20."""
        return f"file://{self.path}"

    def footer(self) -> Footer:
        """The footer of a file; raises the errors of `read_footer`."""
        return read_footer(self.path)

    def footer_with_rows(self) -> Footer | None:
        """The footer of a file that has rows, None for one without; raises the errors of `read_footer`."""
        with opened_file(self.path) as opened:
            return footer_of(opened, self.path) if opened.metadata.num_rows else None


def path_in(folder: Path) -> Path:
    """Path of a new file in a directory."""
    return folder / f"{uuid.uuid4()}{_SUFFIX}"


def key_of(path: str) -> str | None:
    """The path of a file relative to its archive, for any mount point.

    None: the path is not one of an archive's file.
    """
    found = _PLACE.fullmatch(path)
    return None if found is None else f"{int(found[1])}/{found[2]}"


def opened_file(path: Path) -> pq.ParquetFile:
    """Open a file; raises INVALID_REQUEST for a damaged one."""
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise invalid_request(f"{path} is damaged: {error}") from None


def read_footer(path: Path) -> Footer:
    """The footer of a file; raises INVALID_REQUEST as `opened_file` and `footer_of`."""
    with opened_file(path) as opened:
        return footer_of(opened, path)


def footer_of(opened: pq.ParquetFile, path: Path) -> Footer:
    """The footer of an open file; raises INVALID_REQUEST for a file that no archive wrote."""
    found = opened.metadata.metadata or {}
    keys = {name: f"tidemark.{name}".encode() for name in Footer._fields}
    facts: dict[str, Any] = {name: found[key].decode() for name, key in keys.items() if key in found}
    if keys.keys() - facts.keys() - Footer._field_defaults.keys():
        raise invalid_request(f"{path} is not a file of an archive: its footer names no topic")
    for name in facts.keys() & {"partition", "start", "end", "end_epoch"}:
        facts[name] = int(facts[name])
    return Footer(**{**facts, "schema": from_text(facts["schema"])})


class Archive:
    """The files of one topic below a directory.

    Args:
        root: path of the directory, or a file:// URI. The directory lies on a file system that is mounted on this
            machine.

    Raises:
        TidemarkError: INVALID_REQUEST: a URI of another scheme, or with a fragment or query.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        parts = urlsplit(text)
        if len(parts.scheme) > 1:  # a scheme of one letter is a drive
            if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
                raise invalid_request(
                    f"the archive {text!r} is not on a mounted file system: give a path, or file:///path"
                )
            if "#" in text or "?" in text:
                raise invalid_request(f"the archive {text!r} is a URI with # or ?: write # as %23 and ? as %3F in it")
            text = unquote(parts.path)
        self.root = Path(text).absolute()

    def files(self) -> dict[int, list[ArchiveFile]]:
        """The valid files now, by partition, in the order of offsets; {} without an archive."""
        found = {partition: _valid(files) for partition, files in self._listed().items()}
        return {partition: files for partition, files in sorted(found.items()) if files}

    def replaced(self) -> list[tuple[ArchiveFile, ArchiveFile]]:
        """Files that are not valid any more, each with the merged file that has its rows."""
        found = []
        for files in self._listed().values():
            valid = _valid(files)
            merged = [file for file in valid if file.end]
            for file in set(files) - set(valid):
                found.append((file, next(one for one in merged if one.start <= file.start < one.end)))
        return found

    def _listed(self) -> dict[int, list[ArchiveFile]]:
        found: dict[int, list[ArchiveFile]] = {}
        for folder in (self.root / DATA).glob("*"):
            if folder.name.isdecimal():
                named = ((path, _NAME.fullmatch(path.stem)) for path in folder.glob(f"*{_SUFFIX}"))
                found[int(folder.name)] = [
                    ArchiveFile(path, int(folder.name), int(name[1]), int(name[2] or 0)) for path, name in named if name
                ]
        return found

    def ends(self) -> dict[int, Footer]:
        """The last footer of each partition: its `end` is where the archive of the partition ends."""
        return {partition: files[-1].footer() for partition, files in self.files().items()}

    def gaps(self) -> list[tuple[int, int, int]]:
        """Partition, first offset and end offset (exclusive) of offsets between two files that no file covers.

        A file is missing then, or a run skipped rows that retention had deleted.
        """
        return [
            (partition, end, following.start)
            for partition, files in self.files().items()
            for file, following in pairwise(files)
            if (end := file.footer().end) < following.start
        ]

    def add(self, footer: Footer, path: Path) -> None:
        """Make a complete file valid, durably.

        Args:
            footer: the footer of the Parquet file.
            path: path from `new_path`; the call moves the file.

        Raises:
            TidemarkError: INVALID_REQUEST: another run archived these rows meanwhile.
        """
        try:
            self._link(path, f"{footer.start:020d}", footer.partition)
        except FileExistsError:
            sentence = f"another run archived {footer.topic}-{footer.partition} from offset {footer.start} on meanwhile"
            raise invalid_request(sentence) from None

    def add_merged(self, footer: Footer, path: Path) -> None:
        """Make a complete merged file valid, durably, in place of its source files.

        Args:
            footer: the footer of the Parquet file.
            path: path from `new_path`; the call moves the file.
        """
        with suppress(FileExistsError):  # an earlier attempt has created the directory
            self._link(path, f"{footer.start:020d}-{footer.end:020d}", footer.partition)

    def _link(self, path: Path, name: str, partition: int) -> None:
        folder = self.root / DATA / str(partition)
        folder.mkdir(parents=True, exist_ok=True)
        _sync(path)
        try:
            os.link(path, folder / f"{name}{_SUFFIX}")
        finally:
            path.unlink(missing_ok=True)
        for directory in (folder, folder.parent, self.root):
            _sync(directory)

    def new_path(self) -> Path:
        """Path of a file to be written."""
        folder = self.root / WRITING
        folder.mkdir(parents=True, exist_ok=True)
        return path_in(folder)

    def new_folder(self, work: str) -> Path:
        """Directory of one run for files to be written, until the lease ends: a late task then adds no file."""
        folder = self.root / work / str(uuid.uuid4())
        folder.mkdir(parents=True)
        return folder

    @property
    def tables_path(self) -> Path:
        """Path of the list of Iceberg tables."""
        return self.root / _TABLES

    def tables(self) -> dict[str, str]:
        """Names of the Iceberg tables that have files of this archive, by their ids."""
        text = self.tables_path.read_text(encoding="utf-8") if self.tables_path.exists() else ""
        lines = (line.partition(" ") for line in text.splitlines())
        return {table_id: name for table_id, _, name in lines if name}

    def note_table(self, table_id: str, name: str) -> None:
        """Note an Iceberg table that is to get files, durably."""
        with self.tables_path.open("a", encoding="utf-8") as file:
            file.write(f"{table_id} {name}\n")
        _sync(self.tables_path)
        _sync(self.root)

    @contextmanager
    def lease(self, work: str = WRITING) -> Iterator[None]:
        """Hold the lease of this work: WRITING adds rows, MERGING merges files.

        The system ends the lease with the process, even after a kill.

        Raises:
            TidemarkError: INVALID_REQUEST: another run holds the lease.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _LEASES[work]).open("a+", encoding="utf-8") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.seek(0)
                holder, verb = held.read(200) or "it has just started", "writes" if work == WRITING else "compacts"
                raise invalid_request(f"another run {verb} the archive {self.root}: {holder}") from None
            held.truncate(0)
            held.write(f"process {os.getpid()} on {socket.gethostname()}")
            held.flush()
            self._delete(work)
            try:
                yield
            finally:
                self._delete(work)

    def _delete(self, work: str) -> None:
        """Delete the files of a run that has ended. Its tasks that still run find no directory, at once."""
        with suppress(FileNotFoundError):
            (self.root / work).rename(self.root / f"{work}-{uuid.uuid4()}")
        for folder in self.root.glob(f"{work}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def _valid(files: Iterable[ArchiveFile]) -> list[ArchiveFile]:
    """The files without those that a merged file replaces, in the order of offsets."""
    found: list[ArchiveFile] = []
    merged_end = 0
    for file in sorted(files, key=lambda one: (one.start, -one.end)):
        if file.start >= merged_end:
            found.append(file)
            merged_end = file.end
    return found


def check_partition(archived: Footer, incarnation: str) -> None:
    """Check that the archive is of this partition; raises INVALID_REQUEST if the partition was created again."""
    if archived.incarnation != incarnation:
        raise invalid_request(
            f"{archived.topic}-{archived.partition} was created again after it was archived: archive the topic to "
            "another directory"
        )


def check_topic(root: Path, ends: Mapping[int, Footer], topic: str, topic_id: str) -> None:
    """Check that an archive is of this topic; raises INVALID_REQUEST."""
    for footer in ends.values():
        if footer.topic != topic:
            raise invalid_request(f"{root} is the archive of topic {footer.topic}, not of {topic}")
        if footer.topic_id != topic_id:
            raise invalid_request(
                f"{root} is the archive of a topic {topic} that was deleted: {topic} was created again since"
            )


def parquet_schema(schema: TopicSchema) -> pa.Schema:
    """The schema of a file: the columns of a version, then SYSTEM_COLUMNS, each with its id, nested ones too."""
    return pa.schema([_field(column) for column in (*schema.columns, *SYSTEM_COLUMNS)])


def _field(column: Column, name: str | None = None) -> pa.Field[Any]:
    ids = {FIELD_ID: str(column.id)}
    return pa.field(name or column.name, _type(column.type), column.nullable, metadata=ids)


def _type(column_type: ColumnType) -> pa.DataType:
    match column_type:
        case ListOf(element):
            return pa.list_(_field(element, "item"))
        case MapOf(key, value):
            made: Any = pa.map_
            found: pa.DataType = made(_field(key), _field(value))
            return found
        case StructOf(columns):
            return pa.struct([_field(column) for column in columns])
        case _:
            return arrow_type(column_type)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
