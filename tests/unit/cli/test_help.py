# SPDX-License-Identifier: Apache-2.0
"""Help: whole sentences in 80 columns, usage lines, examples, and the version."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from tidemark.cli.app import app
from typer.main import get_command
from typer.testing import CliRunner

GROUPS = [(), *((name,) for name, one in get_command(app).commands.items() if hasattr(one, "commands"))]  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: " ".join(group) or "tidemark")
def test_a_list_of_commands_truncates_no_sentence(group: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80"}).stdout
    listed = shown.split("Commands:")[1].splitlines()
    assert len(listed) > 1
    assert [line for line in listed if line.endswith("...")] == []


def _commands() -> list[tuple[str, ...]]:
    top = get_command(app).commands  # type: ignore[attr-defined]
    return [
        (name, *inner)
        for name, one in top.items()
        for inner in ([(under,) for under in one.commands] if hasattr(one, "commands") else [()])
    ]


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_usage_can_be_typed_and_help_has_an_example(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"]).stdout
    usage = shown.splitlines()[0]
    assert "[[" not in usage
    assert "...}" not in usage
    assert "Example" in shown
    assert f"  tidemark {' '.join(command)}" in shown


def test_version_is_printed() -> None:
    printed = CliRunner().invoke(app, ["--version"])
    assert (printed.exit_code, printed.stdout) == (0, f"tidemark {version('tidemark')}\n")
