# SPDX-License-Identifier: Apache-2.0
"""`produce` and `consume` detect the format of a file by its extension, unless an option states it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.cli.produce.options import InputFormat, Job
from tidemark.client.outputs.shape import Shape
from typer.testing import CliRunner

EXTENSIONS = [
    ("a.json", "json"),
    ("a.JSONL", "json"),
    ("a.ndjson", "json"),
    ("a.csv", "csv"),
    ("a.b.parquet", "parquet"),
    ("a.tsv", "text"),
    ("parquet", "text"),
]


@pytest.mark.parametrize(("name", "expected"), EXTENSIONS)
def test_the_extension_tells_the_format(name: str, expected: str) -> None:
    assert Job("t", Path(name)).format == expected
    assert ConsumeOptions("t", file=Path(name)).shape == expected


def test_an_option_is_stronger_than_the_extension() -> None:
    assert Job("t", Path("a.parquet"), InputFormat.TEXT).format is InputFormat.TEXT
    assert ConsumeOptions("t", file=Path("a.parquet"), output=Shape.CSV).shape is Shape.CSV


def test_a_pipe_has_lines() -> None:
    assert (Job("t").format, ConsumeOptions("t").shape) == ("text", "text")


def test_a_key_separator_for_a_file_of_rows_is_bad_usage_with_both_ways_on(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("k,v\n1,2\n")
    ended = CliRunner().invoke(
        app,
        ["produce", "t", "--bootstrap", "127.0.0.1:1", "-f", str(file), "-k", ","],
        env={"COLUMNS": "400"},
    )
    assert ended.exit_code == 2
    assert "only for lines: use --key-column, or add --format text" in ended.stderr
