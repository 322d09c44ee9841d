# SPDX-License-Identifier: Apache-2.0
"""Finds anomalies in the history of a typed topic: schema versions that no client requested, requested versions that
are missing, and rows whose values differ from those that were sent.

The checker reads only the clients' histories, and computes the values of a row by itself. The checker identifies a
column by the change that added the column, for names, types and defaults change. `checker` finds lost, duplicate and
refused rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.chaos.checks.history import Partition
from tests.chaos.checks.typed_history import (
    AT_THE_END,
    Change,
    ColumnSpec,
    Fate,
    ReadRow,
    StoredVersion,
    TypedHistory,
    every_column,
)


class TypedAnomaly(StrEnum):
    """Each anomaly has a forged history in the checker's own tests."""

    GAP = "gap"
    """The numbers of the versions are not 1, 2, 3 and so on."""
    UNASKED = "unasked"
    """A version that no client requested, or whose columns differ from the requested ones."""
    STALE = "stale"
    """A version was made from a version other than the previous one."""
    VERSION_LOST = "version lost"
    """A change got a version number; at the end that version has other columns."""
    TWO_WINNERS = "two winners"
    """Two changes made from one version were both answered with success."""
    NO_WINNER = "no winner"
    """A change was answered with a conflict, and no other change made that version."""
    REFUSED_MADE = "refused and made"
    """A change was refused, and its version exists."""
    WRONGLY_MADE = "wrongly made"
    """The policy does not allow the change, and its version exists."""
    WRONGLY_REFUSED = "wrongly refused"
    """The policy allows the change, and it was refused."""
    WRONG_VALUE = "wrong value"
    """A reader got a value that differs from the sent one; for a row without a value, from all defaults of the column.

    A producer stores the default of the version that it knows. If a batch lacks the column, a reader uses the default
    of its own version.
    """
    WRONG_COLUMNS = "wrong columns"
    """A reader got columns that no version has, or, at the end, other columns than the newest version has."""
    OLDER_COLUMNS = "older columns"
    """In one partition, a reader got the columns of a version, and later those of an earlier version."""


@dataclass(frozen=True, slots=True)
class TypedFinding:
    """One anomaly and its description."""

    anomaly: TypedAnomaly
    story: str

    def __str__(self) -> str:
        return f"typed topic, {self.anomaly}: {self.story}"


_Fault = tuple[TypedAnomaly, str]


def check_typed(history: TypedHistory) -> list[TypedFinding]:
    return [*_of_versions(history), *_of_changes(history), *_of_the_end(history), *_of_rows(history)]


def _of_versions(history: TypedHistory) -> Iterator[TypedFinding]:
    changes = {change.tag: change for change in history.changes}
    numbers = [stored.version for stored in history.versions]
    if numbers != list(range(1, len(numbers) + 1)):
        yield TypedFinding(TypedAnomaly.GAP, f"the versions are {numbers}")
    for stored in history.versions:
        change = changes.get(stored.tag)
        if change is None or _names_and_types(change) != stored.columns:
            yield TypedFinding(TypedAnomaly.UNASKED, f"{stored}; asked for was {change}")
            continue
        if change.follows != stored.version - 1:
            yield TypedFinding(TypedAnomaly.STALE, f"version {stored.version} was made from version {change.follows}")
        if not change.allowed:
            yield TypedFinding(TypedAnomaly.WRONGLY_MADE, f"{change} is version {stored.version}")
        if change.fate in (Fate.REFUSED, Fate.OUTRUN):
            yield TypedFinding(TypedAnomaly.REFUSED_MADE, f"{change} is version {stored.version}")


def _of_changes(history: TypedHistory) -> Iterator[TypedFinding]:
    stored = {one.version: one.tag for one in history.versions}
    winners: dict[int, str] = {}
    for change in history.changes:
        if change.fate is Fate.MADE:
            if stored.get(change.version) != change.tag:
                there = stored.get(change.version)
                yield TypedFinding(TypedAnomaly.VERSION_LOST, f"{change}: that version is {there!r}")
            first = winners.setdefault(change.follows, change.tag)
            if first != change.tag:
                story = f"{first} and {change.tag} both follow version {change.follows}"
                yield TypedFinding(TypedAnomaly.TWO_WINNERS, story)
        elif change.fate is Fate.OUTRUN and stored.get(change.follows + 1) in (None, change.tag):
            yield TypedFinding(
                TypedAnomaly.NO_WINNER, f"{change}, and no other change follows version {change.follows}"
            )
        elif change.fate is Fate.REFUSED and change.allowed:
            yield TypedFinding(TypedAnomaly.WRONGLY_REFUSED, f"{change}")


def _of_the_end(history: TypedHistory) -> Iterator[TypedFinding]:
    newest = history.versions[-1].columns if history.versions else ()
    if history.last_columns != newest:
        story = f"{AT_THE_END} the columns are {history.last_columns}, those of the newest version {newest}"
        yield TypedFinding(TypedAnomaly.WRONG_COLUMNS, story)


def _of_rows(history: TypedHistory) -> Iterator[TypedFinding]:
    columns = _Columns(history)
    with_names: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for stored in history.versions:
        with_names[frozenset(name for name, _ in stored.columns)].append(stored.version)
    least: dict[tuple[str, Partition], int] = {}
    for row in history.read:
        versions = with_names.get(frozenset(row.columns))
        if versions is None:
            yield TypedFinding(TypedAnomaly.WRONG_COLUMNS, f"{row} has the columns of no version")
            continue
        before = least.get((row.reader, row.partition), 0)
        if max(versions) < before:
            yield TypedFinding(TypedAnomaly.OLDER_COLUMNS, f"{row} has those of {versions}, after version {before}")
        least[row.reader, row.partition] = max(before, min(versions))
        sent = history.rows.get(row.value)
        if sent is not None:
            yield from _of_values(row, sent, columns)


class _Columns:
    """The columns of all versions, fields included; no two columns have the same name."""

    def __init__(self, history: TypedHistory) -> None:
        tags = {stored.tag for stored in history.versions}
        self.by_name: dict[str, ColumnSpec] = {}
        self.defaults: defaultdict[str, list[Any]] = defaultdict(list)
        self.field_names: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        for change in history.changes:
            for column in every_column(change.columns):
                self.by_name[column.name] = column
                if change.tag in tags:
                    self.defaults[column.origin].append(column.default)
                    self.field_names[column.origin].add(frozenset(field.name for field in column.fields))


def _of_values(row: ReadRow, sent: dict[str, Any], columns: _Columns) -> Iterator[TypedFinding]:
    where = f"{row.reader}, partition {row.partition}, offset {row.offset}"
    for anomaly, story in _of_fields(row.columns, sent, columns):
        yield TypedFinding(anomaly, f"{row.value!r} has {story} ({where})")


def _of_fields(read: Mapping[str, Any], sent: dict[str, Any], columns: _Columns) -> Iterator[_Fault]:
    """Faults of the columns of a row, or of the fields of a struct."""
    for name, value in read.items():
        column = columns.by_name[name]
        if column.origin in sent:
            yield from _of_value(column, value, sent[column.origin], columns)
        elif value not in columns.defaults[column.origin]:
            defaults = columns.defaults[column.origin]
            yield TypedAnomaly.WRONG_VALUE, f"{name}={value!r}, not one of the defaults {defaults!r}"


def _of_value(column: ColumnSpec, value: Any, sent: Any, columns: _Columns) -> Iterator[_Fault]:
    pairs = zip(value, sent, strict=True) if isinstance(sent, list) and _alike(value, sent) else [(value, sent)]
    for one, expected in pairs:
        if not isinstance(expected, dict) or not isinstance(one, dict):
            if one != expected:
                yield TypedAnomaly.WRONG_VALUE, f"{column.name}={one!r}, not {expected!r}"
        elif frozenset(one) not in columns.field_names[column.origin]:
            yield TypedAnomaly.WRONG_COLUMNS, f"{column.name} with the fields {sorted(one)} of no version"
        else:
            yield from _of_fields(one, expected, columns)


def _alike(value: Any, sent: list[Any]) -> bool:
    return isinstance(value, list) and len(value) == len(sent)


def _names_and_types(change: Change) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.shape) for column in change.columns)


def stored_of(change: Change, version: int) -> StoredVersion:
    """The version that a change makes."""
    return StoredVersion(version, change.tag, _names_and_types(change))
