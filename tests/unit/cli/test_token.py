# SPDX-License-Identifier: Apache-2.0
"""`tidemark token`: names of tokens for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.cli.app import app
from typer.testing import CliRunner


def test_names_of_tokens_are_listed_as_lines_or_as_json(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    for name in ("alice", "bob"):
        assert CliRunner().invoke(app, ["token", "create", name, "--file", path]).exit_code == 0
    listed = CliRunner().invoke(app, ["token", "list", "--file", path])
    assert listed.stdout == "alice\nbob\n"
    shown = CliRunner().invoke(app, ["token", "list", "--file", path, "-o", "json"])
    assert json.loads(shown.stdout) == ["alice", "bob"]
