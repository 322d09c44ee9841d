# SPDX-License-Identifier: Apache-2.0
"""The versions of a schema: the first one, the next one, and the differences between two.

A column keeps its id from version to version, by its name or by `renamed_from`. A new column gets an id that no column
of the topic ever had, even if it has the name of a dropped column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidemark.core.schemas.checks import check_draft, check_schema
from tidemark.core.schemas.compatibility import Compatibility, check_compatible, continues, incompatible
from tidemark.core.schemas.differences import Difference as Difference
from tidemark.core.schemas.differences import DifferenceKind as DifferenceKind
from tidemark.core.schemas.differences import differences as differences
from tidemark.core.schemas.model import (
    Column,
    ListOf,
    MapOf,
    Path,
    SchemaDraft,
    StructOf,
    TopicSchema,
    children,
    plain_type,
    with_children,
)
from tidemark.core.schemas.refusals import invalid, shown
from tidemark.core.schemas.text import to_text
from tidemark.core.schemas.type_names import type_name

_KEY_RULE: Final = "the key is the same in every version, since it decides partition and compaction; use another topic"
_EVENT_TIME_RULE: Final = "the event time is the same in every version; use another topic"


class _Ids:
    """Assigns column ids, each once."""

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


class _Siblings:
    """Columns below the same column: of the current version, and of a draft."""

    def __init__(self, old: Sequence[Column], new: Sequence[Column]) -> None:
        self.old = {it.name: it for it in old}
        self.new = {it.name: it for it in new}
        self.renames = Counter(it.renamed_from for it in new)
        self.renamed = {it.renamed_from for it in new if it.name not in self.old}
        """Old names of columns that this step renames."""


def first_version(draft: SchemaDraft) -> TopicSchema:
    """Version 1 of a topic's schema; `renamed_from` is ignored. Raises INVALID_SCHEMA."""
    check_draft(draft)
    ids = _Ids(0)
    columns = tuple(_with_new_ids(column, ids) for column in draft.columns)
    by_name = {column.name: column.id for column in columns}
    event_time = None if draft.event_time is None else by_name[draft.event_time]
    return _storable(TopicSchema(1, columns, tuple(by_name[name] for name in draft.key), event_time, ids.last))


def next_version(current: TopicSchema, draft: SchemaDraft, compatibility: Compatibility) -> TopicSchema:
    """The version after `current` that has the draft's columns; `current` if there is no difference.

    A draft that states no key and no event time keeps those of `current`: they never change. With policy `none`, a
    column whose type changes to a type that is not wider becomes a new column of the same name.

    Args:
        current: the newest version.
        draft: all columns of the next version. `renamed_from` names a column of `current`; a rename that was done
            before is ignored.
        compatibility: compatibility rule of the topic.

    Raises:
        TidemarkError: INVALID_SCHEMA for a draft that no topic can have, or a rename without its column.
            INCOMPATIBLE_SCHEMA, with both versions, the column and the rule, for a change that the policy forbids.
    """
    check_draft(draft)
    step = _Step(current, compatibility)
    columns = step.siblings(current.columns, draft.columns, ())
    key, event_time = step.key(columns, draft), step.event_time(columns, draft)
    never_null = {*key, event_time}
    columns = tuple(replace(it, nullable=it.nullable and it.id not in never_null) for it in columns)
    if columns == current.columns:
        return current
    following = _storable(TopicSchema(step.version, columns, key, event_time, step.ids.last))
    check_compatible(current, following, compatibility)
    return following


class _Step:
    """One step of the evolution: which columns of a draft are columns of the current version."""

    def __init__(self, current: TopicSchema, compatibility: Compatibility) -> None:
        self.ids = _Ids(current.last_column_id)
        self.version = current.version + 1
        self._current = current
        self._replaces = compatibility is Compatibility.NONE

    def siblings(self, old: Sequence[Column], new: Sequence[Column], above: Path) -> tuple[Column, ...]:
        """The columns `new` of a draft with ids, below the same column as `old`."""
        beside = _Siblings(old, new)
        matched = [self._match(column, beside, (*above, column.name)) for column in new]
        taken = {found.id for found in matched if found is not None}
        left = {it.name.lower(): it.name for it in old if it.id not in taken}
        columns = []
        for column, found in zip(new, matched, strict=True):
            path = (*above, column.name)
            if found is not None:
                columns.append(self._column(found, column, path))
                continue
            if column.name.lower() in left:
                other = shown(left[column.name.lower()])
                raise invalid(
                    f"version {self._current.version} has {other!r}, the same but for the case; to rename, state "
                    f"renamed_from: {other}",
                    path,
                )
            columns.append(_with_new_ids(column, self.ids))
        return tuple(columns)

    def key(self, columns: Sequence[Column], draft: SchemaDraft) -> tuple[int, ...]:
        """The key of the next version; raises INCOMPATIBLE_SCHEMA unless the key is the current version's key."""
        by_name, by_id = {it.name: it for it in columns}, {it.id: it for it in columns}
        current, rule = self._current, _KEY_RULE
        for column in current.key_columns:
            found = by_id.get(column.id, by_name.get(column.name))
            if found is None:
                raise self._incompatible(column, f"is in the key of version {current.version}, and is dropped", rule)
            if plain_type(found.type) != plain_type(column.type):
                types = [shown(type_name(it.type)) for it in (column, found)]
                change = f"is in the key, is {types[0]} in version {current.version} and {types[1]} in the next"
                raise self._incompatible(column, change, rule)
        stated = [by_name[name] for name in draft.key]
        if stated and tuple(it.id for it in stated) != current.key:
            names = ", ".join(shown(it.name) for it in current.key_columns) or "no columns"
            change = f"is in another key than that of version {current.version}, which has {names}"
            raise self._incompatible(stated[0], change, rule)
        return current.key

    def event_time(self, columns: Sequence[Column], draft: SchemaDraft) -> int | None:
        """The event time of the next version, which is the event time of the current version."""
        current, rule = self._current, _EVENT_TIME_RULE
        before = current.event_time_column
        stated = next((it for it in columns if it.name == draft.event_time), None)
        if stated is not None and stated.id != current.event_time:
            name = "no column" if before is None else f"column {shown(before.name)}"
            raise self._incompatible(stated, f"has the event time; in version {current.version} {name} has it", rule)
        found = next((it for it in columns if it.id == current.event_time), None)
        if before is not None and (found is None or found.type != before.type):
            change = f"has the event time in version {current.version}, and is dropped or of another type"
            raise self._incompatible(before, change, rule)
        return current.event_time

    def _incompatible(self, column: Column, change: str, rule: str) -> Exception:
        sentence = f"column {shown(column.name)}: {change}"
        return incompatible(self._current.version, self.version, (column.name,), sentence, rule)

    def _match(self, column: Column, beside: _Siblings, path: Path) -> Column | None:
        """The column of the current version that a draft's column continues."""
        same, source = beside.old.get(column.name), column.renamed_from
        if not source or source == column.name:
            return None if column.name in beside.renamed else same
        version, shown_source = self._current.version, shown(source)
        if beside.renames[source] > 1:
            raise invalid(f"two columns have renamed_from: {shown_source}", path)
        if same is None:
            if source not in beside.old:
                raise invalid(f"renamed_from: version {version} has no column {shown_source!r} here", path)
            return beside.old[source]
        again = beside.new.get(source)
        if source in beside.old and (again is None or again.renamed_from):
            raise invalid(f"version {version} has {shown_source!r} and this name, too; rename in two steps", path)
        return same  # the rename was done before; another column may have got its old name since

    def _column(self, old: Column, new: Column, path: Path) -> Column:
        """The draft's column with the id of `old`, or with a new id if policy `none` replaces the column."""
        if self._replaces and not continues(old.type, new.type):
            return _with_new_ids(new, self.ids)
        match old.type, new.type:
            case StructOf(columns), StructOf(others):
                below = self.siblings(columns, others, path)
            case (ListOf(), ListOf()) | (MapOf(), MapOf()):
                pairs = zip(children(old.type), children(new.type), strict=True)
                below = tuple(self._column(it, other, (*path, other.name)) for it, other in pairs)
            case _:
                below = tuple(_with_new_ids(it, self.ids) for it in children(new.type))
        return replace(new, id=old.id, type=with_children(new.type, below), renamed_from="")


def _storable(schema: TopicSchema) -> TopicSchema:
    check_schema(schema)
    to_text(schema)  # refuses a text that is too large
    return schema


def _with_new_ids(column: Column, ids: _Ids) -> Column:
    own = ids.next()
    below = [_with_new_ids(child, ids) for child in children(column.type)]
    return replace(column, id=own, type=with_children(column.type, below), renamed_from="")
