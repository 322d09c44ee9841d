# SPDX-License-Identifier: Apache-2.0
"""Which versions of a schema readers of another version can read, and the policies that promise it.

Readers match columns by id, so a rename, another order and another doc never matter. The rules compare only adjacent
versions, but hold for all earlier versions, because each rule is transitive. A log keeps batches of every version, so
the policies are the transitive ones of Confluent's registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.core.schemas.model import (
    Column,
    ColumnType,
    Decimal,
    ListOf,
    MapOf,
    Path,
    Primitive,
    StructOf,
    TopicSchema,
    children,
    plain_type,
    walk,
)
from tidemark.core.schemas.refusals import path_text, shown
from tidemark.core.schemas.type_names import type_name
from tidemark.model import ErrorCode, TidemarkError

COMPATIBILITY: Final = "schema.compatibility"
"""The topic setting."""


class Compatibility(StrEnum):
    """Values of the topic setting schema.compatibility."""

    BACKWARD = "backward"
    """Readers with the new version read batches of every earlier one."""
    FORWARD = "forward"
    """Readers with an earlier version read batches of the new one."""
    FULL = "full"
    """BACKWARD and FORWARD."""
    NONE = "none"
    """Neither BACKWARD nor FORWARD. Key and event time still cannot change."""

    @property
    def backward(self) -> bool:
        """Whether the policy covers readers with the new version."""
        return self in (Compatibility.BACKWARD, Compatibility.FULL)

    @property
    def forward(self) -> bool:
        """Whether the policy covers readers with an earlier version."""
        return self in (Compatibility.FORWARD, Compatibility.FULL)


class Problem(NamedTuple):
    """A column that a reader of `target` cannot read from a batch of `source`."""

    path: Path
    sentence: str


_WIDER: Final[Mapping[Primitive, frozenset[Primitive]]] = {
    Primitive.INT8: frozenset({Primitive.INT16, Primitive.INT32, Primitive.INT64, Primitive.FLOAT64}),
    Primitive.INT16: frozenset({Primitive.INT32, Primitive.INT64, Primitive.FLOAT64}),
    Primitive.INT32: frozenset({Primitive.INT64, Primitive.FLOAT64}),
    Primitive.FLOAT32: frozenset({Primitive.FLOAT64}),
}
_MISSING: Final = "column {}: version {} has no such column; in version {} the column is not null and has no default"


def widens(source: ColumnType, target: ColumnType) -> bool:
    """Whether each value of `source` is one of `target`; both without columns. Dictionaries count as their values."""
    source, target = plain_type(source), plain_type(target)
    if source == target:
        return True
    if isinstance(source, Decimal) and isinstance(target, Decimal):
        return source.scale == target.scale and source.precision <= target.precision
    return isinstance(source, Primitive) and target in _WIDER.get(source, frozenset())


def continues(old: ColumnType, new: ColumnType) -> bool:
    """Whether a column of type `old` can stay the same column with type `new` under every policy.

    Structs always can: their columns are matched one by one.
    """
    match old, new:
        case ListOf(element), ListOf(other):
            return continues(element.type, other.type)
        case MapOf(key, value), MapOf(other_key, other_value):
            return continues(key.type, other_key.type) and continues(value.type, other_value.type)
        case StructOf(), StructOf():
            return True
        case _:
            return not children(old) and not children(new) and widens(old, new)


def problems(source: TopicSchema, target: TopicSchema, columns: Sequence[Column] | None = None) -> Iterator[Problem]:
    """Reasons why a reader of version `target` cannot read batches of version `source`; empty: it can.

    Args:
        source: version of the batches.
        target: version of the reader.
        columns: columns that the reader reads; None: all columns of `target`.
    """
    wanted = target.columns if columns is None else columns
    return _siblings(source.columns, wanted, (), (source.version, target.version))


def check_compatible(current: TopicSchema, following: TopicSchema, compatibility: Compatibility) -> None:
    """Raise INCOMPATIBLE_SCHEMA unless the policy allows that `following` follows `current`.

    The message and the metadata name both versions, the column and the rule.
    """
    if compatibility.backward:
        rule = f"readers with version {following.version} read batches of every earlier version"
        found = [*problems(current, following), *_removed_defaults(current, following)]
        _refuse_first(found, current, following, compatibility, rule)
    if compatibility.forward:
        rule = f"readers with version {current.version} and earlier ones read batches of version {following.version}"
        found = [*problems(following, current), *_added_defaults(current, following)]
        _refuse_first(found, current, following, compatibility, rule)


def incompatible(current: int, following: int, path: Sequence[str], sentence: str, rule: str) -> TidemarkError:
    """INCOMPATIBLE_SCHEMA; `current` and `following` are versions."""
    return TidemarkError(
        ErrorCode.INCOMPATIBLE_SCHEMA,
        f"version {following} cannot follow version {current}: {sentence}. The rule: {rule}",
        {"column": path_text(path), "version": str(current), "next_version": str(following), "rule": rule},
    )


def _refuse_first(
    found: Sequence[Problem], current: TopicSchema, following: TopicSchema, compatibility: Compatibility, rule: str
) -> None:
    for path, sentence in found:
        whole = f"schema.compatibility is {compatibility}, so {rule}"
        raise incompatible(current.version, following.version, path, sentence, whole)


def _siblings(
    source: Sequence[Column], target: Sequence[Column], above: Path, versions: tuple[int, int]
) -> Iterator[Problem]:
    by_id = {column.id: column for column in source}
    for wanted in target:
        path = (*above, wanted.name)
        found = by_id.get(wanted.id)
        if found is not None:
            yield from _column(found, wanted, path, versions)
        elif not wanted.nullable and wanted.default is None:
            yield Problem(path, _MISSING.format(path_text(path), *versions))


def _column(source: Column, target: Column, path: Path, versions: tuple[int, int]) -> Iterator[Problem]:
    name = path_text(path)
    if source.nullable and not target.nullable:
        yield Problem(
            path, f"column {name}: may be null in version {versions[0]}, is not null in version {versions[1]}"
        )
    match source.type, target.type:
        case StructOf(columns), StructOf(others):
            yield from _siblings(columns, others, path, versions)
        case (ListOf(), ListOf()) | (MapOf(), MapOf()):
            for below, other in zip(children(source.type), children(target.type), strict=True):
                yield from _column(below, other, (*path, other.name), versions)
        case found, wanted:
            if children(found) or children(wanted) or not widens(found, wanted):
                types = (shown(type_name(found)), shown(type_name(wanted)))
                yield Problem(
                    path,
                    f"column {name}: is {types[0]} in version {versions[0]} and {types[1]} in version {versions[1]}, "
                    f"which does not hold all its values",
                )


def _removed_defaults(current: TopicSchema, following: TopicSchema) -> Iterator[Problem]:
    """Problems of removed defaults: a version before the column's first one has no value for the column."""
    before = current.by_id()
    for path, column in walk(following.columns):
        old = before.get(column.id)
        if old and old.default and not column.default and not column.nullable:
            sentence = f"version {current.version} has a default, which batches without the column need"
            yield Problem(path, f"column {path_text(path)}: {sentence}; version {following.version} has none")


def _added_defaults(current: TopicSchema, following: TopicSchema) -> Iterator[Problem]:
    """Problems of added defaults: once a version drops the column, readers of the first versions lack a value."""
    before = current.by_id()
    for path, column in walk(following.columns):
        old = before.get(column.id)
        if old and not old.default and column.default and not old.nullable:
            sentence = f"version {current.version} is not null and has no default, so no version may drop the column"
            yield Problem(path, f"column {path_text(path)}: {sentence}; version {following.version} adds a default")
