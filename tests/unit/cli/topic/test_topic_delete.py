# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic delete` needs a confirmation, or --yes in a pipe."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
import typer
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.model import ErrorCode, TidemarkError
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


class Cluster(FakeAdmin):
    """Records the deleted topics."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete_topic(self, name: str) -> None:
        self.deleted.append(name)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    return made


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["topic", "delete", "t", *arguments], input="y\n")


def test_in_a_pipe_nothing_is_deleted_and_the_error_names_the_option(cluster: Cluster) -> None:
    ended = run()
    assert isinstance(ended.exception, TidemarkError)
    assert ended.exception.code is ErrorCode.INVALID_REQUEST
    assert ended.exception.message == (
        "nothing was changed: stdin is not a terminal, so no answer can confirm the change; add --yes"
    )
    assert cluster.deleted == []


def test_with_yes_the_topic_is_deleted(cluster: Cluster) -> None:
    assert run("--yes").stdout == "deleted topic t\n"
    assert json.loads(run("-y", "-o", "json").stdout) == {"topic": "t", "deleted": True}
    assert cluster.deleted == ["t", "t"]


def test_json_output_without_yes_is_bad_usage(cluster: Cluster) -> None:
    assert run("-o", "json").exit_code == 2
    assert cluster.deleted == []


class Terminal(io.StringIO):
    """Stdin as a terminal gives it, with the answer `y`."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "delete", "t"),
        ("topic", "delete-records", "t", "--partition", "0", "--before", "1"),
        ("transaction", "abort", "loader"),
    ],
)
def test_a_command_without_an_address_asks_no_question(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: the missing address was noticed after the answer."""
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    with pytest.raises(typer.BadParameter, match="no cluster is given"):
        app(list(words), standalone_mode=False)
    assert "[y/N]" not in capsys.readouterr().err
