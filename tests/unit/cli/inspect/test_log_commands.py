# SPDX-License-Identifier: Apache-2.0
"""`tidemark log`: output and exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common.output import Output
from tidemark.cli.inspect import log_dump
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.core.schemas.text import to_text
from tidemark.model import BrokerEpoch, ErrorCode, Offset, TidemarkError
from tidemark.record.envelope import Batch, Codec, parse_envelope, with_append_time
from tidemark.record.payload import build_batch, from_columns
from typer.testing import CliRunner

from tests.unit.client.typed.samples import FLIGHTS, from_checked, from_records
from tests.unit.storage.batches import (
    IDENTITY,
    PARTITION,
    lead,
    make_batch,
    make_marker,
    make_pending,
    memory_directory,
    open_one,
)

TIME_US = 1_700_000_000_000_000


@pytest.fixture
def directory() -> Iterator[Path]:
    """Two segments: a batch with text, key and header; a batch with bytes that are unsafe on a terminal."""
    with memory_directory() as made:
        logs = open_one(made / "data")
        log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "700", "index.interval.bytes": "600"})
        first = from_columns([b"k", None], [b"caf\xc3\xa9", None], [TIME_US, TIME_US + 1], [{"h": b"\x00"}, None])
        second = from_columns(None, [b"\xff\xfe", b"a\x1b[31m"], [TIME_US + 2, TIME_US + 3])
        for rows, codec in ((first, Codec.NONE), (second, Codec.LZ4)):
            data = bytes(build_batch(rows, codec=codec))
            lead(log, Batch(parse_envelope(data), data), epoch=3)
        logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(4)})
        yield made / "data"


def run(*arguments: object) -> tuple[str, TidemarkError | None]:
    """The output, and the refusal."""
    done = CliRunner().invoke(app, ["log", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, TidemarkError), done.exc_info
    return done.stdout, done.exception


def lines_of(*arguments: object) -> list[Any]:
    out, refused = run(*arguments, "--json")
    assert refused is None
    return [json.loads(line) for line in out.splitlines()]


def test_batches_have_offsets_epoch_size_and_position(directory: Path) -> None:
    first, second = lines_of("dump", directory, "flights-0")
    assert (first["base_offset"], first["last_offset"], first["leader_epoch"], first["codec"]) == (0, 1, 3, "none")
    assert (second["base_offset"], second["last_offset"], second["position"], second["codec"]) == (2, 3, 0, "lz4")
    assert first["file"] != second["file"]
    assert first["size_bytes"] == Path(first["file"]).stat().st_size
    out, _ = run("dump", first["file"])
    assert out.splitlines()[0] == first["file"]
    assert out.splitlines()[2].split()[:6] == ["0", "0-1", "3", "2", str(first["size_bytes"]), "none"]


def test_records_have_keys_values_and_headers_without_control_bytes(directory: Path) -> None:
    out, _ = run("dump", directory / "flights-0", "--records")
    assert out.splitlines() == [
        '0 2023-11-14T22:13:20Z key="k" value="café" headers: h="\\u0000"',
        "1 2023-11-14T22:13:20.000001Z key=null value=null",
        "2 2023-11-14T22:13:20.000002Z key=null value=b'\\xff\\xfe'",
        '3 2023-11-14T22:13:20.000003Z key=null value="a\\u001b[31m"',
    ]
    third, fourth = lines_of("dump", directory / "flights-0", "--records", "--from", 2)
    assert (third["offset"], third["value_base64"], fourth["value"]) == (2, "//4=", "a\x1b[31m")


def test_offsets_bound_the_output_on_both_sides(directory: Path) -> None:
    shown = lines_of("dump", directory / "flights-0", "--records", "--from", 1, "--to", 2)
    assert [one["offset"] for one in shown] == [1, 2]
    assert [one["base_offset"] for one in lines_of("dump", directory / "flights-0", "--from", 2)] == [2]


def spoil(directory: Path) -> Path:
    segment = sorted((directory / "flights-0").glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(bytes(data))
    return segment


def test_damage_is_shown_and_refused_only_with_verify(directory: Path) -> None:
    segment = spoil(directory)
    bad, good = lines_of("dump", directory / "flights-0")
    assert (bad["crc_ok"], bad["base_offset"], good["crc_ok"]) == (False, 0, True)
    out, refused = run("dump", segment, "--verify")
    assert "BAD offset 0: crc does not match" in out
    assert refused is not None
    assert refused.code is ErrorCode.CORRUPT_BATCH


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("replication-offset-checkpoint", {"topic": "flights", "partition": 0, "offset": 4}),
        ("flights-0/leader-epoch-checkpoint", {"leader_epoch": 3, "start_offset": 0}),
        ("flights-0/00000000000000000002.index", {"offset": 2, "position": 0}),
        ("flights-0/00000000000000000002.timeindex", {"newest_timestamp_us_before": None, "offset": 2}),
        ("flights-0/partition.json", {"name": "topic_id", "value": "topic-one"}),
        ("meta.json", {"name": "cluster_id", "value": "cluster-one"}),
        ("empty-replicas", {"sign": "+", "topic": "flights", "partition": 0, "topic_id": "topic-one"}),
    ],
)
def test_small_files_are_tables(directory: Path, name: str, row: dict[str, object]) -> None:
    assert any(row.items() <= shown.items() for shown in lines_of("dump", directory / name))
    out, refused = run("dump", directory / name)
    assert refused is None
    assert all(column in out for column in row)


def test_a_damaged_small_file_is_shown_and_refused(directory: Path) -> None:
    file = directory / "flights-0" / "leader-epoch-checkpoint"
    file.write_bytes(b"1\n7 70\ncrc 00000000\n")
    out, refused = run("dump", file)
    assert "70" in out
    assert refused is not None
    assert "checksum" in refused.message


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((".",), "name a replica"),
        ((".", "nope-1"), "nope-1"),
        (("nope",), "no file"),
        ((".lock",), "not the name of a log's file"),
    ],
)
def test_a_wrong_path_is_refused_with_a_sentence(directory: Path, arguments: tuple[str, ...], word: str) -> None:
    _, refused = run("dump", directory / arguments[0], *arguments[1:])
    assert refused is not None
    assert word in refused.message


def test_verify_of_an_intact_directory_succeeds_with_counts(directory: Path) -> None:
    (printed,) = lines_of("verify", directory)
    (replica,) = printed["directories"][0]["replicas"]
    assert (printed["error_count"], replica["records"], replica["log_end_offset"], replica["findings"]) == (0, 4, 4, [])
    out, refused = run("verify", directory)
    assert refused is None
    assert "; no error" in out


def test_verify_reports_damage_with_place_and_next_step(directory: Path) -> None:
    segment = spoil(directory)
    out, refused = run("verify", directory, "--deep")
    assert refused is not None
    assert refused.code is ErrorCode.STORAGE_ERROR
    lines = out.splitlines()
    assert lines[0].startswith(f"error batch: {segment} byte 0 offsets [0, 2): crc does not match")
    assert "--partition 0 --repair" in lines[1]
    out, _ = run("verify", directory, "--json")
    (printed,) = json.loads(out)["directories"]
    (finding,) = printed["replicas"][0]["findings"]
    assert (finding["kind"], finding["position"], finding["file"]) == ("batch", 0, str(segment))


def test_a_typed_batch_names_its_schema_version_and_has_rows_with_its_schema(tmp_path: Path) -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    at = datetime(2026, 11, 24, 12, tzinfo=UTC)
    rows = from_records(typed, [{"carrier": name, "scheduled_at": at, "price": Decimal("1.50")} for name in "AB"])
    data = typed.build(rows, timestamp_us=7, codec=Codec.ZSTD, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    schema = tmp_path / "v1.json"
    schema.write_text(to_text(FLIGHTS))
    with memory_directory() as made:
        logs = open_one(made / "data")
        log, _ = logs.open(PARTITION, IDENTITY, {})
        lead(log, Batch(parse_envelope(data), data), epoch=3)
        logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(2)})
        replica = made / "data" / "flights-0"
        out, _ = run("dump", replica, "--records")
        assert out.splitlines()[-1].endswith("schema-version:1  (rows are read with --schema FILE)")
        assert lines_of("dump", replica, "--records")[0]["schema_version"] == 1
        with_rows = ("dump", replica, "--records", "--verify", "--schema", schema, "--from", 1)
        out, _ = run(*with_rows)
        assert out.startswith('1 2026-11-24T12:00:00Z key="B" value={"carrier": "B", "flight": null')
        record = lines_of(*with_rows)[0]
        assert (record["offset"], record["schema_version"], record["key"]) == (1, 1, "B")
        assert (record["value"]["price"], record["value"]["scheduled_at"]) == ("1.50", "2026-11-24T12:00:00Z")


def test_a_row_that_deletes_others_has_the_columns_that_produce_needs(tmp_path: Path) -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    at = datetime(2026, 11, 24, 12, tzinfo=UTC)
    deletion = typed.records.deletion("A", int(at.timestamp()) * 1_000_000)[0]
    rows = from_checked(typed, [deletion, typed.records.check({"carrier": "B", "scheduled_at": at})[0]])
    data = typed.build(rows, timestamp_us=7, codec=Codec.NONE, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    schema = tmp_path / "v1.json"
    schema.write_text(to_text(FLIGHTS))
    logs = open_one(tmp_path / "data")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, Batch(parse_envelope(data), data), epoch=3)
    logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(2)})
    deleted, kept = lines_of("dump", log.path, "--records", "--schema", schema)
    assert (deleted["key"], deleted["value"]) == ("A", None)
    assert deleted["deleted"] == {"carrier": "A", "scheduled_at": "2026-11-24T12:00:00Z"}
    assert "deleted" not in kept


def test_control_batches_and_aborted_transactions_are_shown(tmp_path: Path) -> None:
    logs = open_one(tmp_path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_pending(["a"], producer_id=7), make_marker(producer_id=7, commit=False, coordinator_epoch=5))
    logs.close_clean(0, {PARTITION: Offset(2)})
    replica = log.path
    pending, marker = lines_of("dump", replica)
    assert (pending["attributes"], marker["attributes"]) == (["pending"], ["control", "pending"])
    assert "marker" not in pending
    assert (marker["marker"], marker["coordinator_epoch"], marker["producer_epoch"]) == ("abort", 5, 1)
    assert lines_of("dump", replica, "--records")[1]["marker"] == "abort"
    for arguments in ((), ("--records",)):
        out, _ = run("dump", replica, *arguments)
        assert out.splitlines()[-1].endswith("abort by coordinator epoch 5")
    [row] = lines_of("dump", next(replica.glob("*.txnindex")))
    assert row == {"producer_id": 7, "first_offset": 0, "last_offset": 1, "stable_offset": 2}
    [producer] = lines_of("dump", next(replica.glob("*.snapshot")))
    assert (producer["open_offset"], producer["coordinator_epoch"]) == (-1, 5)


def test_a_snapshot_with_append_times_is_shown_whole(tmp_path: Path) -> None:
    logs = open_one(tmp_path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    plain, timed = (make_batch(["a", "b"], producer_id=one, producer_epoch=0, sequence=4) for one in (7, 8))
    lead(log, plain, with_append_time(timed, timestamp_us=TIME_US))
    logs.close_clean(BrokerEpoch(0), {PARTITION: Offset(4)})
    rows = lines_of("dump", max(log.path.glob("*.snapshot")))
    found = [(row["producer_id"], row["sequences"], row["offsets"]) for row in rows]
    assert found == [(7, "4-5", "0-1"), (8, "4-5", "2-3")]


def test_records_that_readers_may_not_get_are_left_out_on_request(tmp_path: Path) -> None:
    logs = open_one(tmp_path)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "600"})
    lead(log, make_batch(["deleted", "kept"]), make_pending(["committed"], producer_id=7))
    lead(log, make_pending(["aborted"], producer_id=8), make_marker(producer_id=7))
    lead(log, make_pending(["open"], producer_id=7, producer_epoch=1), make_batch(["plain"]))
    lead(log, make_marker(producer_id=8, commit=False))
    log.trim(Offset(1))
    logs.close_clean(BrokerEpoch(0), {PARTITION: Offset(8)})
    assert log.segment_count() > 2
    done = CliRunner().invoke(app, ["log", "dump", str(log.path), "--committed"])
    assert done.stderr.startswith("warning: the transaction of producer 7 from offset 5 on has no end in this log")
    shown = lines_of("dump", log.path, "--records", "--committed")
    assert [(one["offset"], one["value"]) for one in shown] == [(1, "kept"), (2, "committed"), (6, "plain")]
    shown = lines_of("dump", log.path, "--records", "--committed", "--from", 2, "--to", 5)
    assert [one["value"] for one in shown] == ["committed"]
    assert [one["base_offset"] for one in lines_of("dump", log.path, "--committed")] == [0, 2, 6]
    assert [one["value"] for one in lines_of("dump", log.path, "--records")][:2] == ["deleted", "kept"]
    _, refused = run("dump", next(log.path.glob("*.log")), "--committed")
    assert refused is not None
    assert "name the replica's directory" in refused.message


def test_a_directory_without_segments_is_refused(tmp_path: Path) -> None:
    """Without a line, the command would look as if the log were empty."""
    (tmp_path / "notes.txt").touch()
    for option in ("--records", "--committed"):
        out, refused = run("dump", tmp_path, option)
        assert out == ""
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_REQUEST
        assert "has no segment" in refused.message


def test_a_full_disk_of_the_output_is_not_reported_as_a_damaged_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(OSError, match="No space left") as failed:
            log_dump.run(directory, "flights-0", log_dump.Wanted(0, 9, True, False), Output.TEXT)
        assert failed.value.filename is None
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_dump_refuses_a_fifo_in_place_of_a_file(directory: Path) -> None:
    """Regression: the command never ended."""
    path = directory / "flights-0" / "00000000000000000000.index"
    path.unlink()
    os.mkfifo(path)
    for arguments in ((directory, "flights-0"), (directory / "flights-0",), (path,)):
        _, refused = run("dump", *arguments)
        assert refused is not None
        assert (refused.code, "not a regular file" in refused.message) == (ErrorCode.STORAGE_ERROR, True)
    out, _ = run("verify", directory)
    assert str(path) in out
