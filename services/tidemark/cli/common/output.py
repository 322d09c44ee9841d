# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: tables and lines as text, JSON for scripts, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from rich.console import Console
from rich.table import Table

from tidemark.model import TidemarkError, TopicPartition

_WIDTH_WITHOUT_TERMINAL: Final = 10_000
"""Width of a table, large enough that rich does not wrap cells."""


class Output(StrEnum):
    """Format of a command's output."""

    TEXT = "text"
    JSON = "json"


def print_line(text: str) -> None:
    """Write one line to stdout, unchanged."""
    sys.stdout.write(f"{text}\n")


def counted(count: int, noun: str) -> str:
    """The count with its noun: "1 record", "2 records"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def name_of(partition: TopicPartition) -> str:
    """A partition as commands take it: TOPIC:PARTITION."""
    return f"{partition.topic}:{partition.partition}"


def listed(brokers: Iterable[int]) -> str:
    """Broker ids as "1,2"; "none" if the list is empty."""
    return ",".join(str(broker) for broker in brokers) or "none"


def shown_time(at_ms: int) -> str:
    """A time in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def print_json(value: object) -> None:
    """Write one JSON document on one line."""
    print_line(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table, or nothing without rows; cells are not truncated or folded if stdout is not a terminal."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*("\n".join(map(_escaped, str(cell).split("\n"))) for cell in row))
    if not table.row_count:
        return
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    console.print(table, soft_wrap=not console.is_terminal)


def print_error(error: TidemarkError) -> None:
    """Write `error CODE: sentence` to stderr, always on one line."""
    sys.stderr.write(f"error {error.code}: {_escaped(' '.join(error.message.split()))}\n")


def raise_all(refused: Sequence[TidemarkError]) -> None:
    """Print every refusal except the last, and raise the last, if any."""
    for error in refused[:-1]:
        print_error(error)
    if refused:
        raise refused[-1]


def print_warning(sentence: str) -> None:
    """Write `warning: sentence` to stderr; the command continues."""
    sys.stderr.write(f"warning: {_escaped(sentence)}\n")


def _escaped(text: str) -> str:
    """One line with escapes for control characters: names that others chose must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def error_json(error: TidemarkError | None) -> Mapping[str, object] | None:
    """An error as JSON; null for None."""
    if error is None:
        return None
    return {"code": str(error.code), "message": error.message, "metadata": dict(error.metadata)}
