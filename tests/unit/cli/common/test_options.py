# SPDX-License-Identifier: Apache-2.0
"""Commands whose options are fields of dataclasses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from tidemark.cli.common.options import AdminOption, BootstrapOption, Commands, DryRunOption, confirm
from tidemark.model import ErrorCode
from typer.testing import CliRunner

from tests.refusals import raises_code


@dataclass(frozen=True)
class Source:
    """A required argument and an option."""

    name: Annotated[str, typer.Argument()]
    count: Annotated[int, typer.Option("--count", "-n")] = 1


@dataclass(frozen=True)
class Layout:
    """Options with defaults."""

    width: Annotated[int, typer.Option("--width")] = 80
    colour: Annotated[bool, typer.Option("--colour")] = False


app = Commands()
seen: list[object] = []


@app.command()
def show(
    source: Source,
    loud: Annotated[bool, typer.Option("--loud")] = False,
    layout: Layout = Layout(width=40),
) -> None:
    """Show a source."""
    seen.append((source, loud, layout))


def test_each_field_of_a_dataclass_is_an_option_in_the_place_of_its_parameter() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    places = [shown.output.index(word) for word in ("Show a source.", "--count", "--loud", "--width", "--colour")]
    assert places == sorted(places)
    assert CliRunner().invoke(app, ["-n", "2"]).exit_code == 2, "the argument is required"


def test_the_defaults_are_those_of_the_fields_or_of_the_default_instance() -> None:
    seen.clear()
    for words in (["a"], ["a", "-n", "3", "--loud", "--width", "9", "--colour"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert seen == [
        (Source("a"), False, Layout(width=40)),
        (Source("a", 3), True, Layout(width=9, colour=True)),
    ]


def test_the_decorated_function_takes_the_dataclasses() -> None:
    seen.clear()
    show(Source("b", 2), layout=Layout())
    assert seen == [(Source("b", 2), False, Layout())]


changing = Commands()


@changing.command()
def change(dry_run: DryRunOption = False) -> None:
    """Change something."""
    seen.append(dry_run)


def test_the_former_name_of_dry_run_works_with_a_warning_and_is_not_in_the_help() -> None:
    seen.clear()
    ended = [CliRunner().invoke(changing, words) for words in ([], ["--dry-run"], ["--validate-only"])]
    assert seen == [False, True, True]
    assert [bool(one.stderr) for one in ended] == [False, False, True]
    assert ended[2].stderr.startswith("warning: --validate-only is now --dry-run")
    assert "--validate-only" not in CliRunner().invoke(changing, ["--help"]).stdout


addressed = Commands()


@addressed.command()
def connect(bootstrap: BootstrapOption = "", admin: AdminOption = "") -> None:
    """Connect to a cluster."""
    seen.append((bootstrap, admin))


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ((), ("other:1", "other:2")),
        (("--bootstrap", "here:1"), ("here:1", "")),
        (("--admin", "here:2"), ("", "here:2")),
        (("--bootstrap", "here:1", "--admin", "here:2"), ("here:1", "here:2")),
    ],
)
def test_an_address_of_the_command_line_is_never_used_with_one_of_the_environment(
    words: tuple[str, ...], used: tuple[str, str]
) -> None:
    seen.clear()
    environment = {"TIDEMARK_BOOTSTRAP": "other:1", "TIDEMARK_ADMIN": "other:2"}
    assert CliRunner().invoke(addressed, words, env=environment).exit_code == 0
    assert seen == [used]


def terminal(monkeypatch: pytest.MonkeyPatch, readline: Callable[[], str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=readline))


def test_ctrl_c_at_a_question_ends_the_command_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the status was 1, without a line `error CODE: sentence`."""

    def press() -> str:
        raise KeyboardInterrupt

    terminal(monkeypatch, press)
    with pytest.raises(KeyboardInterrupt):
        confirm("Delete?")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yeah\n"])
def test_no_other_answer_than_yes_confirms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    terminal(monkeypatch, lambda: answer)
    with raises_code(ErrorCode.INVALID_REQUEST, "nothing was changed: not confirmed"):
        confirm("Delete?")
    assert capsys.readouterr() == ("", "Delete? [y/N]: " + "\n" * (not answer))


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes_confirms(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal(monkeypatch, lambda: answer)
    confirm("Delete?")
