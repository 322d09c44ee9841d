# SPDX-License-Identifier: Apache-2.0
"""Schemas as commands get them, checks against a saved file, and proposals; no cluster is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from tidemark.cli.app import app
from tidemark.cli.common.schema_source import document_yaml, draft_of
from tidemark.cli.schema import sample
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.text import to_text
from tidemark.model import ErrorCode, TidemarkError
from typer.testing import CliRunner

from tests.refusals import raises_code

DDL = "carrier STRING NOT NULL COMMENT 'IATA: \"code\"', delay INT DEFAULT 0, legs ARRAY<STRUCT<origin: STRING>>"
ARROW = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("delay", pa.int32()),
        pa.field("legs", pa.list_(pa.struct([("origin", pa.string())]))),
    ]
)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["schema", *arguments])


def names(source: str) -> list[str]:
    return [column.name for column in draft_of(source).columns]


def test_a_file_is_read_by_its_extension_and_another_text_is_a_ddl(tmp_path: Path) -> None:
    draft = draft_from_ddl(DDL)
    assert draft_of(DDL) == draft
    text = document_yaml(draft)
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "s.JSON").write_text(json.dumps(yaml.safe_load(text)))
    (tmp_path / "s.sql").write_text(DDL)
    for name in ("s.yaml", "s.JSON", "s.sql"):
        assert draft_of(str(tmp_path / name)) == draft
    table = ARROW.empty_table()
    parquet.write_table(table, tmp_path / "s.parquet")
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as file, pa.ipc.new_file(file, ARROW):
        pass
    with pa.OSFile(str(tmp_path / "s.arrows"), "wb") as file, pa.ipc.new_stream(file, ARROW):
        pass
    for name in ("s.parquet", "s.arrow", "s.arrows"):
        assert names(str(tmp_path / name)) == ["carrier", "delay", "legs"]
    avro = {"type": "record", "name": "R", "fields": [{"name": "carrier", "type": "string"}]}
    (tmp_path / "s.avsc").write_text(json.dumps(avro))
    (tmp_path / "j.json").write_text(json.dumps({"type": "object", "properties": {"carrier": {"type": "string"}}}))
    assert names(str(tmp_path / "s.avsc")) == names(str(tmp_path / "j.json")) == ["carrier"]


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("absent.yaml", None, ErrorCode.INVALID_REQUEST, "cannot read"),
        ("text.yaml", b"\xff\xfe", ErrorCode.INVALID_SCHEMA, "not UTF-8"),
        ("bad.yaml", b"columns: [", ErrorCode.INVALID_SCHEMA, "neither YAML nor JSON"),
        ("date.yaml", b"columns: 2026-13-01", ErrorCode.INVALID_SCHEMA, "neither YAML nor JSON"),
        ("deep.yaml", b"[" * 1_000, ErrorCode.INVALID_SCHEMA, "neither YAML nor JSON"),
        ("unsigned.yaml", b"columns: [{name: a, type: uint8}]", ErrorCode.INVALID_SCHEMA, "a"),
        ("bad.parquet", b"PAR1", ErrorCode.INVALID_SCHEMA, "no schema"),
        ("bad.arrow", b"ARROW1", ErrorCode.INVALID_SCHEMA, "no schema"),
        ("schema.txt", b"carrier STRING", ErrorCode.INVALID_REQUEST, "extension"),
    ],
)
def test_a_file_that_states_no_schema_is_refused_with_its_name(
    tmp_path: Path, name: str, content: bytes | None, code: ErrorCode, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with raises_code(code) as refused:
        draft_of(str(path))
    assert said in refused.value.message
    assert refused.value.message.count(name) == 1


@pytest.mark.parametrize("name", ["absent", "absent.txt", "."])
def test_a_proposal_from_a_file_that_is_not_there_is_refused_as_such(tmp_path: Path, name: str) -> None:
    done = run("infer", str(tmp_path / name))
    assert done.exception.code is ErrorCode.INVALID_REQUEST
    assert f"cannot read {tmp_path / name}: " in done.exception.message


def test_a_wrong_ddl_of_one_word_may_be_the_name_of_a_file() -> None:
    with raises_code(ErrorCode.INVALID_SCHEMA, "expected a type.*; there is no file flights"):
        draft_of("flights")


def test_key_and_event_time_are_options_for_sources_without_them(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}), tmp_path / "s.parquet")
    done = run("infer", str(tmp_path / "s.parquet"), "--key", "id", "--event-time", "at")
    assert done.exit_code == 0
    stated = yaml.safe_load(done.stdout)
    assert (stated["key"], stated["event_time"]) == (["id"], "at")
    assert all(column["nullable"] is False for column in stated["columns"])


@pytest.mark.parametrize("option", ["--key", "--event-time"])
def test_a_proposal_with_a_key_or_event_time_that_no_column_has_is_refused(tmp_path: Path, option: str) -> None:
    """No topic could be created with the proposal."""
    (tmp_path / "s.csv").write_text("id,at\n1,2\n")
    done = run("infer", str(tmp_path / "s.csv"), option, "ids")
    assert done.stdout == ""
    assert isinstance(done.exception, TidemarkError)
    assert done.exception.code is ErrorCode.INVALID_SCHEMA
    assert "there is no 'ids', only id, at" in done.exception.message


def test_a_check_against_a_saved_version_needs_no_cluster_and_its_status_is_for_ci(tmp_path: Path) -> None:
    saved, wanted = tmp_path / "flights.schema.json", tmp_path / "flights.yaml"
    saved.write_text(to_text(first_version(draft_from_ddl("carrier STRING NOT NULL, delay INT"))) + "\n")

    def check(columns: str, *more: str) -> Any:
        wanted.write_text(document_yaml(draft_from_ddl(columns)))
        return run("check", "--against", str(saved), "--schema", str(wanted), *more)

    same = check("carrier STRING NOT NULL, delay INT", "--exact")
    assert (same.exit_code, "nothing to change" in same.stdout) == (0, True)
    wider = check("carrier STRING NOT NULL, delay BIGINT")
    assert wider.exit_code == 0
    assert "version 2 of" in wider.stdout
    assert "delay" in wider.stdout
    assert check("carrier STRING NOT NULL, delay BIGINT", "--exact").exit_code == 2
    refused = check("carrier STRING NOT NULL, delay STRING")
    assert refused.exit_code == 1
    assert refused.exception.code is ErrorCode.INCOMPATIBLE_SCHEMA
    assert check("carrier STRING NOT NULL, delay STRING", "--compatibility", "none").exit_code == 0
    assert check("carrier STRING NOT NULL, delay BIGINT", "--compatibility", "full").exit_code == 1
    shown = json.loads(check("carrier STRING NOT NULL, delay BIGINT", "-o", "json").stdout)
    assert (shown["version"], shown["changed"], len(shown["differences"])) == (2, True, 1)


def test_a_check_names_either_a_topic_or_a_file(tmp_path: Path) -> None:
    for arguments in (("--schema", "a INT"), ("t", "--schema", "a INT", "--against", "f.json"), ("t",)):
        done = run("check", *arguments)
        assert done.exit_code == 2
        assert "expected" in done.stderr


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_a_proposal_from_rows_is_a_schema_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    separator = "\t" if name.endswith("tsv") else ","
    rows = [("carrier", "delay"), ("UA", "5"), ("AA", "-3")]
    lines = [separator.join(row) for row in rows]
    if name.endswith("jsonl"):
        lines = [json.dumps({"carrier": carrier, "delay": int(delay)}) for carrier, delay in rows[1:]]
    path.write_text("\n".join(lines) + "\n")
    done = run("infer", str(path))
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith("# proposed from 2 rows of ")
    assert yaml.safe_load(done.stdout)["columns"] == [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": "int64"},
    ]
    shown = json.loads(run("infer", str(path), "-o", "json").stdout)
    assert shown["schema"]["columns"][1]["type"] == "int64"
    assert run("infer", str(path), "--format", "ddl").stdout.count("BIGINT") == 1
    assert run("infer", str(path), "--format", "stored").exit_code == 2
    assert "stored" not in run("infer", "--help").stdout


def test_a_drifting_member_becomes_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"delay": 1}\n\n{"delay": "late"}\n')
    done = run("infer", str(path))
    assert any(line.startswith("# ") and "delay" in line for line in done.stdout.splitlines())


def test_a_proposal_from_csv_has_a_type_for_nanoseconds_and_for_a_late_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    path = tmp_path / "rows.csv"
    rows = "".join(f"{number},2026-01-01T00:00:00.12345600{number % 2},{'-' * 200}\n" for number in range(9_000))
    path.write_text(f"id,at,line\n{rows}late,2026-01-01T00:00:00.123456789,-\n")
    done = run("infer", str(path))
    assert [line.strip() for line in done.stdout.splitlines() if "name:" in line] == [
        "- {name: id, type: string}",
        "- {name: at, type: string}",
        "- {name: line, type: string}",
    ]


def test_a_proposal_from_csv_makes_no_more_rows_than_it_uses(tmp_path: Path) -> None:
    """The first block of a file may have a million rows, which need a gigabyte as Python's objects."""
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "1\n" * 9)
    assert len(list(sample._rows_of_table(path, 3))) == 3


def test_bad_rows_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"delay": 1}\n[1]\n')
    done = run("infer", str(path))
    assert done.exception.code is ErrorCode.INVALID_SCHEMA
    assert "line 2" in done.exception.message
    (tmp_path / "empty.csv").write_text("")
    assert run("infer", str(tmp_path / "empty.csv")).exception.code is ErrorCode.INVALID_SCHEMA
    assert run("infer", str(tmp_path / "absent.csv")).exception.code is ErrorCode.INVALID_REQUEST
    assert run("infer").exit_code == 2


def test_a_schema_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/zero, which would fill the memory."""
    large = tmp_path / "large.yaml"
    large.write_text("#" * (17 << 20))
    with raises_code(ErrorCode.INVALID_REQUEST, "large.yaml: it has more than 16 MiB"):
        draft_of(str(large))
    with large.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with raises_code(ErrorCode.INVALID_REQUEST, "stdin: it has more than 16 MiB"):
            draft_of("-")


def test_a_schema_from_stdin_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "binary").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with raises_code(ErrorCode.INVALID_SCHEMA, "stdin: it is not UTF-8 text"):
            draft_of("-")
