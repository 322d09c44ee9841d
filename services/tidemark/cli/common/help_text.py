# SPDX-License-Identifier: Apache-2.0
"""The help of commands: names and values in the words of Tidemark, without Typer's; commands under their tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

_PLAIN: Final = (
    (re.compile(r"<([\w|]+)>$"), r"\1"),  # --output <text|json>
    (re.compile(r"\b([\d.]+)<=x<=([\d.]+)"), r"\1 to \2"),
    (re.compile(r"\bx>=([\d.]+)"), r"\1 or more"),
    (re.compile(r"\bx<=([\d.]+)"), r"\1 or less"),
    (re.compile(r"\bdefault: \((.*?)\)"), r"default: \1"),
)


class PlainCommand(TyperCommand):
    """A command whose help shows metavars without types."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and options without Typer's types."""
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose help shows metavars without types."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the options and the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def by_task(tasks: Mapping[str, Sequence[str]]) -> type[PlainGroup]:
    """A group whose help lists its commands under these headings, in this order; each command has one heading."""

    class Sorted(PlainGroup):
        """Commands by task."""

        def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
            """Names in the order of the tasks."""
            return [name for names in tasks.values() for name in names]

        def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
            """Write a list of names and sentences for each task."""
            width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
            for task, names in tasks.items():
                with formatter.section(task):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])

    return Sorted


def _write_parameters(command: PlainCommand | PlainGroup, ctx: typer.Context, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            name = parameter.metavar if is_argument and parameter.metavar else record[0]
            sections["Arguments" if is_argument else "Options"].append((_plain(name), _plain(record[1])))
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _plain(text: str) -> str:
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    return text
