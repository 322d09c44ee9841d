# SPDX-License-Identifier: Apache-2.0
"""Differences between two versions of a schema, for `tidemark schema diff` and plans of `tidemark apply`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from tidemark.core.schemas.defaults import as_json
from tidemark.core.schemas.model import Column, Path, TopicSchema, children
from tidemark.core.schemas.refusals import path_text, shown
from tidemark.core.schemas.type_names import TIDEMARK, column_text, type_name


class DifferenceKind(StrEnum):
    """Kinds of differences between two versions."""

    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    TYPE = "type"
    NULLABLE = "nullable"
    DEFAULT = "default"
    DOC = "doc"
    ORDER = "order"
    KEY = "key"
    EVENT_TIME = "event_time"


class Difference(NamedTuple):
    """One difference between two versions of a schema.

    Attributes:
        kind: see DifferenceKind.
        path: path of the column in the newer version; for a dropped column, in the older version. Empty: the whole
            schema.
        sentence: sentence for the user that names the column.
    """

    kind: DifferenceKind
    path: Path
    sentence: str


def differences(old: TopicSchema, new: TopicSchema) -> tuple[Difference, ...]:
    """Differences between two versions of one topic, by column ids; nothing below an added or dropped column."""
    found = list(_siblings(old.columns, new.columns, ()))
    for kind, before, after in (
        (DifferenceKind.KEY, _names(old, old.key), _names(new, new.key)),
        (DifferenceKind.EVENT_TIME, _names(old, (old.event_time,)), _names(new, (new.event_time,))),
    ):
        if before != after:
            found.append(Difference(kind, (), f"{kind}: {before} becomes {after}"))
    return tuple(found)


def history(versions: Iterable[TopicSchema]) -> Iterator[tuple[Difference, ...]]:
    """The differences of each version to the previous version, in the order of `versions`; empty for the first
    version.
    """
    before = None
    for version in versions:
        yield () if before is None else differences(before, version)
        before = version


def _names(schema: TopicSchema, ids: Sequence[int | None]) -> str:
    by_id = {column.id: shown(column.name) for column in schema.columns}
    return ", ".join(by_id.get(found, "none") if found is not None else "none" for found in ids) or "none"


def _siblings(old: Sequence[Column], new: Sequence[Column], above: Path) -> Iterator[Difference]:
    before, after = {it.id: it for it in old}, {it.id: it for it in new}
    for column in old:
        if column.id not in after:
            path = (*above, column.name)
            yield Difference(DifferenceKind.DROPPED, path, f"column {path_text(path)} is dropped")
    for column in new:
        path = (*above, column.name)
        if column.id in before:
            yield from _column(before[column.id], column, path)
        else:
            text = column_text(column, TIDEMARK)
            yield Difference(DifferenceKind.ADDED, path, f"column {path_text(path)} is added: {shown(text)}")
    orders = [[it.id for it in side if it.id in before and it.id in after] for side in (old, new)]
    if orders[0] != orders[1]:
        names = ", ".join(shown(it.name) for it in new)
        where = f"columns below {path_text(above)}" if above else "columns"
        yield Difference(DifferenceKind.ORDER, above, f"{where} have another order: {shown(names)}")


def _column(old: Column, new: Column, path: Path) -> Iterator[Difference]:
    name = path_text(path)
    if old.name != new.name:
        sentence = f"column {path_text((*path[:-1], old.name))} is renamed to {shown(new.name)}"
        yield Difference(DifferenceKind.RENAMED, path, sentence)
    below = children(old.type), children(new.type)
    if type(old.type) is type(new.type) and below[0] and below[1]:
        yield from _siblings(*below, path)
    elif old.type != new.type:
        types = f"{shown(type_name(old.type))} becomes {shown(type_name(new.type))}"
        yield Difference(DifferenceKind.TYPE, path, f"column {name}: {types}")
    if old.nullable != new.nullable:
        change = "null is allowed" if new.nullable else "null is no longer allowed"
        yield Difference(DifferenceKind.NULLABLE, path, f"column {name}: {change}")
    if old.default != new.default:
        values = f"default {_default(old)} becomes {_default(new)}"
        yield Difference(DifferenceKind.DEFAULT, path, f"column {name}: {values}")
    if old.doc != new.doc:
        yield Difference(DifferenceKind.DOC, path, f"column {name}: doc becomes {shown(new.doc)!r}")


def _default(column: Column) -> str:
    if column.default is None:
        return "null" if column.nullable else "none"
    return shown(json.dumps(as_json(column.type, column.default.value), ensure_ascii=False))
