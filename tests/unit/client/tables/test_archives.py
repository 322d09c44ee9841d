# SPDX-License-Identifier: Apache-2.0
"""Archives of typed topics: files that other engines read as one table, and reads across the boundary to the log."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from tidemark.client import Timestamp, archive_topic, compact_archive, read_table, scan
from tidemark.client.tables import archiver, table_scan
from tidemark.client.tables.archive_files import FIELD_ID, SYSTEM_COLUMNS, Archive, Footer, parquet_schema
from tidemark.client.tables.archive_rows import archived_rows
from tidemark.client.tables.archiver import ArchiveTask, write_batches
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.schemas.arrow_types import arrow_schema
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import draft_of, walk
from tidemark.core.schemas.text import to_text
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.client.tables.logs import FIRST, NAME, NOON, SECOND, TOPIC, Logs, flights
from tests.unit.core.schemas.drafts import RANDOMS, draft
from tests.unit.core.schemas.rows import batch, projected, rows
from tests.unit.core.schemas.test_evolution_random import changed


def archived(logs: Logs, root: Path, **options: Any) -> int:
    return archive_topic(None, TOPIC, str(root), **options)


@pytest.fixture
def evolved(logs: Logs, tmp_path: Path) -> Path:
    """An archive of three rows of the first version and two of the second one."""
    logs.append(0, flights(0, 3))
    assert archived(logs, tmp_path) == 3
    logs.evolve(SECOND)
    logs.append(0, flights(3, 2, "airline"))
    assert archived(logs, tmp_path) == 2
    return tmp_path


def test_files_have_the_ids_of_all_columns_and_the_newest_version_of_their_time(evolved: Path) -> None:
    paths = [file.path for file in Archive(evolved).files()[0]]
    assert [path.relative_to(evolved).as_posix() for path in paths] == [
        "data/0/00000000000000000000.parquet",
        "data/0/00000000000000000003.parquet",
    ]
    for path, schema in zip(paths, (FIRST, SECOND), strict=True):
        with pq.ParquetFile(path) as opened:
            assert ids_of(opened.schema_arrow)[:-7] == [(one.name, one.id) for _, one in walk(schema.columns)]
            assert opened.schema_arrow.equals(parquet_schema(schema))
    assert [file.footer().schema for file in Archive(evolved).files()[0]] == [FIRST, SECOND]


def test_each_run_states_the_leader_epoch_of_the_archived_rows(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log refuses the read if an unclean election replaced these rows."""
    as_metadata = Footer.as_metadata
    with monkeypatch.context() as older:  # files of earlier versions do not have the epoch

        def older_metadata(footer: Footer) -> dict[str, str]:
            return {name: fact for name, fact in as_metadata(footer).items() if name != "tidemark.end_epoch"}

        older.setattr(Footer, "as_metadata", older_metadata)
        logs.append(0, flights(0, 2))
        archived(logs, tmp_path)
    for epoch in (3, 7):
        logs.epoch = epoch
        logs.append(0, flights(logs.end(0), 2))
        archived(logs, tmp_path)
    assert logs.last_epochs == [-1, -1, 3]
    assert [file.footer().end_epoch for file in Archive(tmp_path).files()[0]] == [-1, 3, 7]
    compact_archive(str(tmp_path), min_files=3, grace_hours=0)
    assert [file.footer().end_epoch for file in Archive(tmp_path).files()[0]] == [7]
    logs.append(0, flights(6, 5))
    assert read_table(None, TOPIC, history=tmp_path).read_all().num_rows == 11
    assert logs.last_epochs[-1] == 7, "a reader of archive and log states the epoch, too"
    logs.starts[0] = 9
    archived(logs, tmp_path, skip_lost=True)
    assert logs.last_epochs[-1] == -1, "the records before the start are not archived"


def test_offsets_between_files_are_a_gap_once_a_file_is_missing(logs: Logs, evolved: Path) -> None:
    logs.append(0, flights(5, 1, "airline"))
    archived(logs, evolved)
    files = Archive(evolved).files()[0]
    assert Archive(evolved).gaps() == []
    files[1].path.unlink()
    assert Archive(evolved).gaps() == [(0, 3, 5)]


def test_each_client_of_an_archive_has_the_deadline_of_the_call(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []

    def opened(*_: object, deadline_s: float, **__: object) -> Logs:
        deadlines.append(deadline_s)
        return logs

    monkeypatch.setattr(archiver, "RangeReader", opened)
    logs.append(0, flights(0, 3))
    assert archived(logs, tmp_path, deadline_s=7.0) == 3
    assert deadlines == [7.0, 7.0]


def test_offsets_of_aborted_records_are_archived_before_retention_deletes_them(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.append(0, flights(0, 3))
    assert archived(logs, tmp_path, iceberg=NAME) == 3
    monkeypatch.setattr(logs, "end", lambda _: 7)  # the rest are aborted records and their marker
    for start in (0, 7):
        logs.starts[0] = start
        assert archived(logs, tmp_path, iceberg=NAME) == 0
    assert [file.start for file in Archive(tmp_path).files()[0]] == [0, 3]
    assert read_table(None, TOPIC, history=tmp_path).read_all().num_rows == 3
    compact_archive(str(tmp_path), min_files=2, grace_hours=0)
    assert Archive(tmp_path).ends()[0].end == 7


def ids_of(fields: Any) -> list[tuple[str, int]]:
    """Names and ids in depth-first order; structs and lists of this test."""
    found = []
    for field in fields:
        found.append((field.name, int(field.metadata[FIELD_ID.encode()])))
        if pa.types.is_list(field.type):
            found += ids_of([field.type.value_field])
        elif pa.types.is_map(field.type):
            found += ids_of([field.type.key_field, field.type.item_field])
        elif pa.types.is_struct(field.type):
            found += ids_of(list(field.type))
    return found


def test_duckdb_reads_old_and_new_files_as_one_table_by_names_and_by_ids(evolved: Path) -> None:
    files = f"{evolved}/data/*/*.parquet"
    with duckdb.connect() as connection:
        by_name = f"SELECT delay, gate, _offset FROM read_parquet('{files}', union_by_name = true) ORDER BY _offset"
        found = connection.sql(by_name)
        assert str(found.types[0]) == "BIGINT"
        assert found.fetchall() == [(0, None, 0), (1, None, 1), (2, None, 2), (3, "?", 3), (4, "?", 4)]
        by_id = f"""SELECT airline, gate FROM read_parquet('{files}', schema = MAP {{
            1: {{name: 'airline', type: 'VARCHAR', default_value: NULL}},
            {SECOND.last_column_id}: {{name: 'gate', type: 'VARCHAR', default_value: '?'}}}}) ORDER BY airline"""
        assert connection.sql(by_id).fetchall() == [(f"c{number}", "?") for number in range(5)]


def test_history_and_log_are_one_table_in_the_newest_version(logs: Logs, evolved: Path) -> None:
    logs.append(0, flights(5, 1, "airline"))
    logs.starts[0] = 4
    table = read_table(None, TOPIC, history=evolved).read_all()
    assert table.schema.equals(arrow_schema(SECOND))
    assert table.to_pylist() == [
        {"airline": f"c{number}", "delay": number, "at": NOON + timedelta(minutes=number), "gate": "?"}
        | {"legs": [{"origin": "EWR", "miles": number}]}
        for number in range(6)
    ]
    assert logs.reads[-1] == (0, 5, 6)
    everything = ["legs.miles", "_key", "_partition", "_offset", "_timestamp", "_headers", "_deleted"]
    pruned = read_table(None, TOPIC, columns=everything, history=evolved, start=2).read_all()
    assert pruned.to_pylist() == [
        {"legs": [{"miles": number}], "_key": f"c{number}".encode(), "_partition": 0, "_offset": number}
        | {"_timestamp": NOON + timedelta(minutes=number), "_headers": None, "_deleted": False}
        for number in range(2, 6)
    ]
    frame = scan(None, TOPIC, history=evolved)
    assert frame.filter(pl.col("delay") > 2).select("airline").collect().rows() == [("c3",), ("c4",), ("c5",)]
    for minute, expected in [(0, 6), (1, 5), (3, 3), (5, 1), (6, 0)]:
        since = read_table(None, TOPIC, history=evolved, start=NOON + timedelta(minutes=minute))
        assert since.read_all().num_rows == expected
    for us, expected in [(-(10**18), 6), (10**18, 0)]:  # years that a datetime lacks
        assert read_table(None, TOPIC, history=evolved, start=Timestamp(us)).read_all().num_rows == expected


def test_offsets_by_partition_are_integers_of_partitions_of_the_topic(logs: Logs) -> None:
    logs.append(0, flights(0, 3))
    assert read_table(None, TOPIC, start={0: 1}, end={0: 2}).read_all().num_rows == 1
    by_text: Any = {"0": 1}
    for place in ({"start": by_text}, {"end": by_text}):
        with pytest.raises(TypeError, match="is '0', a str, not an integer"):
            read_table(None, TOPIC, **place)
    with raises_code(ErrorCode.UNKNOWN_PARTITION, "topic flights has no partition 1"):
        read_table(None, TOPIC, start={0: 1, 1: 1})


def test_a_time_is_an_integer_of_64_bits(logs: Logs) -> None:
    logs.append(0, flights(0, 3))
    assert read_table(None, TOPIC, start=Timestamp(-(1 << 63))).read_all().num_rows == 3
    with raises_code(ErrorCode.INVALID_REQUEST, "the time of start is 9223372036854775808"):
        read_table(None, TOPIC, start=Timestamp(1 << 63))
    seconds: Any = 1.5
    with pytest.raises(TypeError, match=r"the time of end is 1\.5, a float, not an integer"):
        read_table(None, TOPIC, end=Timestamp(seconds))


@pytest.mark.parametrize("run", [partial(archive_topic, None, TOPIC), compact_archive])
def test_the_size_of_a_file_is_a_number_of_mebibytes_from_1(
    run: Callable[..., Any], logs: Logs, tmp_path: Path
) -> None:
    logs.append(0, flights(0, 3))
    archive_topic(None, TOPIC, str(tmp_path))
    with raises_code(ErrorCode.INVALID_REQUEST, "file_mib is 0: give 1 or more"):
        run(str(tmp_path), file_mib=0)
    with pytest.raises(TypeError, match="file_mib is '128', a str"):
        run(str(tmp_path), file_mib="128")


def test_a_scan_takes_its_first_rows_before_the_filters_that_follow(logs: Logs) -> None:
    logs.append(0, flights(0, 6))
    frame = scan(None, TOPIC, columns=["delay", "at", "_offset"])
    delay, offset, late = pl.col("delay"), pl.col("_offset") >= 2, pl.col("at") >= NOON + timedelta(minutes=2)
    for condition in (delay >= 2, offset, late):
        assert frame.head(4).filter(condition).select(delay).collect().rows() == [(2,), (3,)]
        assert frame.filter(condition).head(3).select(delay).collect().rows() == [(2,), (3,), (4,)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=RANDOMS)
def test_no_row_is_missing_or_double_wherever_the_seams_are(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(FIRST, partitions=2)
    for module in (archiver, table_scan):
        monkeypatch.setattr(module, "RangeReader", logs)
    with tempfile.TemporaryDirectory() as root:
        for _ in range(random.randint(1, 12)):
            partition = random.randrange(2)
            match random.choice(["append", "append", "append", "archive", "archive", "compact", "trim", "evolve"]):
                case "append":
                    name = "airline" if len(logs.versions) > 1 else "carrier"
                    logs.append(partition, flights(logs.end(partition), random.randint(1, 4), name))
                case "archive":
                    archived(logs, Path(root))
                case "compact" if Archive(root).files():
                    compact_archive(root, min_files=2, grace_hours=random.choice([0.0, 1.0]))
                case "trim":
                    footer = Archive(root).ends().get(partition)
                    until = max(logs.starts[partition], 0 if footer is None else footer.end)
                    logs.starts[partition] = random.choice([until, random.randint(logs.starts[partition], until)])
                case "evolve":
                    logs.evolve(SECOND)
        begins = [random.randint(0, logs.end(index)) for index in range(2)]
        ends = {index: random.randint(begins[index], logs.end(index)) for index in range(2)}
        found = read_table(
            None,
            TOPIC,
            columns=["delay", "_partition", "_offset"],
            start=dict(enumerate(begins)),
            end=ends,
            history=root,
        ).read_all()
    expected = [(index, offset) for index in range(2) for offset in range(begins[index], ends[index])]
    assert [(row["_partition"], row["_offset"]) for row in found.to_pylist()] == expected
    assert found.column("delay").to_pylist() == [offset for _, offset in expected]


@settings(max_examples=40, deadline=None)
@given(random=RANDOMS)
def test_rows_of_any_schema_come_back_as_any_later_version_that_may_read_them(random: Random) -> None:
    source = first_version(draft(random))
    target = source
    for _ in range(3):
        later = draft_of(target)
        try:
            target = next_version(
                target, type(later)(changed(random, later.columns), later.key, later.event_time), Compatibility.BACKWARD
            )
        except TidemarkError:
            continue
    stored = rows(random, source)
    with tempfile.TemporaryDirectory() as root:
        if stored:
            write_batches(task(root, source, len(stored)), source, [with_system(batch(source, stored))])
        typed = BatchRows(TOPIC, {source.version: source, target.version: target}, system=(), dictionaries=False)
        found = [row for part in archived_rows(Archive(root), 0, 0, len(stored), typed) for row in part.to_pylist()]
    assert found == projected(source, target.columns, stored)


def test_a_reader_of_an_earlier_version_reads_files_of_a_version_that_it_does_not_know(evolved: Path) -> None:
    """A DataFrame of Spark keeps the versions that `load` found."""
    typed = BatchRows(TOPIC, {1: FIRST}, ["carrier", "_offset"], version=1)
    found = [row for part in archived_rows(Archive(evolved), 0, 0, 5, typed) for row in part.to_pylist()]
    assert found == [{"carrier": f"c{number}", "_offset": number} for number in range(5)]
    wider = BatchRows(TOPIC, {1: FIRST}, ["delay"], version=1)
    with raises_code(ErrorCode.INCOMPATIBLE_SCHEMA, "delay: is int64 in version 2 and int32 in version 1"):
        list(archived_rows(Archive(evolved), 0, 0, 5, wider))


def task(root: str, schema: Any, end: int, start: int = 0, file_bytes: int = 1 << 20) -> ArchiveTask:
    place = (root, TOPIC, "one", "first", 0, start, end)
    return ArchiveTask(None, *place, schema.version, {schema.version: to_text(schema)}, file_bytes)


def with_system(columns: pa.RecordBatch, start: int = 0) -> pa.RecordBatch:
    count = columns.num_rows
    named = {
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_offset": pa.array(range(start, start + count), pa.int64()),
        "_timestamp": pa.array([NOON] * count, pa.timestamp("us", "UTC")),
        "_headers": pa.nulls(count, pa.map_(pa.string(), pa.binary())),
        "_deleted": pa.repeat(pa.scalar(False), count),
    }
    arrays = [*columns.columns, *named.values()]
    return pa.RecordBatch.from_arrays(arrays, names=[*columns.schema.names, *named])


def test_a_large_partition_becomes_several_files_each_valid_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "_GROUP_ROWS", 4)
    schema = first_version(draft_from_ddl("n INT"))

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 20, 2):
            if first == 18:
                raise ConnectionError("the broker went away")
            yield with_system(pa.RecordBatch.from_pydict({"n": pa.array([first, first + 1], pa.int32())}), first)

    with pytest.raises(ConnectionError):
        write_batches(task(str(tmp_path), schema, 20, file_bytes=1), schema, batches())
    files = Archive(tmp_path).files()[0]
    assert [(file.start, file.footer().end) for file in files] == [(0, 4), (4, 8), (8, 12)]
    assert list((tmp_path / "writing").iterdir()) == []


def test_two_runs_never_archive_a_row_twice_even_without_the_lease(logs: Logs, tmp_path: Path) -> None:
    logs.append(0, flights(0, 2))
    (early,) = archiver.plan(Archive(tmp_path), None, TOPIC, 1 << 20, skip_lost=False, deadline_s=1)
    logs.append(0, flights(2, 2))
    assert archived(logs, tmp_path) == 4
    assert archiver.write_partition(early) == 0
    typed = BatchRows(TOPIC, logs.versions, system=[one.name for one in SYSTEM_COLUMNS], dictionaries=False)
    with pytest.raises(TidemarkError, match="another run archived flights-0 from offset 0 on meanwhile"):
        write_batches(early, FIRST, logs.read(TOPIC, 0, 0, 2, typed=typed))
    with Archive(tmp_path).lease(), pytest.raises(TidemarkError, match=r"another run writes the archive .*: process"):
        archived(logs, tmp_path)
    assert archived(logs, tmp_path) == 0
    assert read_table(None, TOPIC, columns=["delay"], history=tmp_path).read_all().num_rows == 4


def test_an_archive_that_does_not_fit_the_log_is_refused(logs: Logs, evolved: Path, tmp_path: Path) -> None:
    def refused(code: ErrorCode, sentence: str) -> None:
        for use in (lambda: archived(logs, evolved), lambda: read_table(None, TOPIC, history=evolved)):
            with raises_code(code, sentence):
                use()

    logs.incarnation = "second"
    refused(ErrorCode.INVALID_REQUEST, "flights-0 was created again after it was archived")
    logs.topic_id = "two"
    refused(ErrorCode.INVALID_REQUEST, "is the archive of a topic flights that was deleted")
    logs.topic_id, logs.incarnation = "one", "first"
    logs.append(0, flights(5, 3, "airline"))
    logs.starts[0] = 7
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, "flights-0: (retention deleted )?the offsets 5 to 6 ")
    assert read_table(None, TOPIC, history=evolved, end=5).read_all().num_rows == 5
    assert archived(logs, evolved, skip_lost=True) == 1
    offsets = read_table(None, TOPIC, columns=["_offset"], history=evolved).read_all().column("_offset").to_pylist()
    assert offsets == [0, 1, 2, 3, 4, 7]
    logs.batches[0] = logs.batches[0][:1]
    logs.starts[0] = 0
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, "the archive ends at offset 8 and the log at 3: the log lost archived rows")
    stray = Archive(evolved).files()[0][-1].path.with_name(f"{9:020d}.parquet")
    pq.write_table(pa.table({"n": [1]}), stray)
    refused(ErrorCode.INVALID_REQUEST, "is not a file of an archive: its footer names no topic")
    with pytest.raises(TidemarkError, match="'s3://bucket/flights' is not on a mounted file system"):
        read_table(None, TOPIC, history="s3://bucket/flights")
    for query in ("#b", "?b"):
        with pytest.raises(TidemarkError, match=r"write # as %23 and [?] as %3F"):
            read_table(None, TOPIC, history=f"file://{evolved}{query}")
    assert Archive("file:///a%23b;c").root == Path("/a#b;c")


def test_a_wrong_directory_hides_no_archived_row(logs: Logs, evolved: Path, tmp_path: Path) -> None:
    rows = read_table(None, TOPIC, history=evolved).read_all().num_rows
    empty = tmp_path / "empty"
    empty.mkdir()
    assert read_table(None, TOPIC, history=empty).read_all().num_rows == rows, "the log has all rows"
    with pytest.raises(TidemarkError, match=r"typo has no archive of topic flights: give the directory"):
        read_table(None, TOPIC, history=tmp_path / "typo")
    logs.starts[0] = 3
    assert read_table(None, TOPIC, history=evolved).read_all().num_rows == rows
    for wrong in (empty, evolved.parent):
        with raises_code(ErrorCode.INVALID_REQUEST, "the log of flights-0 lost its first rows"):
            read_table(None, TOPIC, history=wrong)


def test_deleted_rows_are_in_the_files_and_left_out_by_readers_that_do_not_name_them(tmp_path: Path) -> None:
    schema = first_version(draft_from_ddl("n INT"))
    stored = with_system(pa.RecordBatch.from_pydict({"n": pa.array([1, 2], pa.int32())}))
    place = stored.schema.get_field_index("_deleted")
    stored = stored.set_column(place, "_deleted", pa.array([False, True]))
    write_batches(task(str(tmp_path), schema, 2), schema, [stored])
    for columns, expected in [
        (["n"], [{"n": 1}]),
        (["n", "_deleted"], [{"n": 1, "_deleted": False}, {"n": 2, "_deleted": True}]),
    ]:
        typed = BatchRows(TOPIC, {1: schema}, columns)
        found = [row for part in archived_rows(Archive(tmp_path), 0, 0, 2, typed) for row in part.to_pylist()]
        assert found == expected
