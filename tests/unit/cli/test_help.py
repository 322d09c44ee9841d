# SPDX-License-Identifier: Apache-2.0
"""Help: whole sentences in 80 columns, usage lines, examples, plain words, short options, and the version."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import pytest
from tidemark.cli.app import TASKS, app
from typer.main import get_command
from typer.testing import CliRunner

TOP: Any = get_command(app)
GROUPS = [(), *((name,) for name, one in TOP.commands.items() if hasattr(one, "commands"))]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: " ".join(group) or "tidemark")
def test_a_list_of_commands_truncates_no_sentence(group: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80"}).stdout
    listed = shown[shown.index("Commands:" if group else f"{next(iter(TASKS))}:") :].splitlines()
    assert len(listed) > 1
    assert [line for line in listed if line.endswith("...")] == []


def _commands() -> list[tuple[str, ...]]:
    return [
        (name, *inner)
        for name, one in TOP.commands.items()
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


@pytest.mark.parametrize("command", [*GROUPS, *_commands()], ids=lambda command: " ".join(command) or "tidemark")
def test_help_describes_each_option_on_a_line_of_its_own(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"]).stdout
    assert re.findall(r"^.*[.] --[a-z-]+(?: {2,}| [A-Z]).*$", shown, re.MULTILINE) == []


VERBS = {
    *("Abort", "Add", "Cancel", "Change", "Check", "Close", "Compare", "Create", "Delete", "Drain", "Elect", "Find"),
    *("Give", "Issue", "List", "Make", "Measure", "Move", "Open", "Print", "Propose", "Protect", "Reassign", "Remove"),
    *("Run", "Send", "Set", "Show", "Start", "Wait"),
}


@pytest.mark.parametrize("command", [*GROUPS[1:], *_commands()], ids=" ".join)
def test_help_begins_with_the_action_of_the_command(command: tuple[str, ...]) -> None:
    found = TOP
    for word in command:
        found = found.commands[word]
    for text in (found.help, found.short_help or found.help):
        assert re.match(r"\w+", text)[0] in VERBS, text  # type: ignore[index]


LISTINGS = [command for command in _commands() if command[-1] in {"list", "describe", "get", "history", "check"}]


@pytest.mark.parametrize("command", LISTINGS, ids=" ".join)
def test_each_listing_has_json_for_programs(command: tuple[str, ...]) -> None:
    assert len(LISTINGS) > 15
    assert "--output" in CliRunner().invoke(app, [*command, "--help"]).stdout


def test_the_help_lists_each_command_under_one_task() -> None:
    assert sorted(name for names in TASKS.values() for name in names) == sorted(TOP.commands)
    shown = CliRunner().invoke(app, ["--help"]).stdout
    headings = [line[:-1] for line in shown.splitlines() if line[:-1] in TASKS and line.endswith(":")]
    assert headings == list(TASKS)


FRAMEWORK = re.compile(r"<[^>]*>|\b(TEXT|INTEGER|FLOAT|DIRECTORY|FILENAME|RANGE)\b|[<>]=|\bx\b")
"""Types as Typer and Click print them."""


@pytest.mark.parametrize("command", [*GROUPS, *_commands()], ids=lambda command: " ".join(command) or "tidemark")
def test_arguments_and_options_are_described_without_words_of_the_framework(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout
    place = re.search(r"^(Arguments|Options):$", shown, re.MULTILINE)
    assert place is not None
    assert [line for line in shown[place.start() :].splitlines() if FRAMEWORK.search(line)] == []


def _options() -> list[Any]:
    found = []
    for words in [(), *GROUPS, *_commands()]:
        command = TOP
        for word in words:
            command = command.commands[word]
        found += [one for one in command.params if one.param_type_name == "option"]
    return found


def test_a_short_option_stands_for_one_long_option_in_all_commands() -> None:
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    for option in _options():
        names = [name for name in option.opts if name.startswith("--")]
        for short in set(option.opts) - set(names):
            meanings[short].add(names[0])
    assert "-o" in meanings
    assert {short: longs for short, longs in meanings.items() if len(longs) > 1} == {}


def test_a_long_option_has_the_same_short_option_in_all_commands() -> None:
    shorts: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for option in _options():
        long = next(name for name in option.opts if name.startswith("--"))
        shorts[long].add(tuple(name for name in option.opts if not name.startswith("--")))
    assert {long: found for long, found in shorts.items() if len(found) > 1} == {}


def test_one_visible_option_checks_without_a_change() -> None:
    names = {name for option in _options() for name in option.opts if not option.hidden}
    assert "--dry-run" in names
    assert "--validate-only" not in names


def test_version_is_printed() -> None:
    printed = CliRunner().invoke(app, ["--version"])
    assert (printed.exit_code, printed.stdout) == (0, f"tidemark {version('tidemark')}\n")
