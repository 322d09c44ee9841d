# SPDX-License-Identifier: Apache-2.0
"""`tidemark token`: names of tokens for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.cli.token import create
from tidemark.model import ErrorCode
from tidemark.rpc.security import token_file
from typer.testing import CliRunner

from tests.refusals import raises_code


def test_names_of_tokens_are_listed_as_lines_or_as_json(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    for name in ("alice", "bob"):
        assert CliRunner().invoke(app, ["token", "create", name, "--file", path]).exit_code == 0
    listed = CliRunner().invoke(app, ["token", "list", "--file", path])
    assert listed.stdout == "alice\nbob\n"
    shown = CliRunner().invoke(app, ["token", "list", "--file", path, "-o", "json"])
    assert json.loads(shown.stdout) == ["alice", "bob"]


def test_a_token_that_cannot_be_printed_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is stored nowhere else."""
    path = tmp_path / "tokens"
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        with raises_code(ErrorCode.STORAGE_ERROR, "cannot be printed, and was not added to .*: No space left"):
            create("alice", path)
        monkeypatch.undo()
    assert token_file.read(path) == {}
