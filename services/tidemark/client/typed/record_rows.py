# SPDX-License-Identifier: Apache-2.0
"""Records of a typed topic, one by one: checked when they are sent, built into columns a batch at a time.

A record costs a look-up of its values and one of their types. The checks that remain for a combination of types, such
as the range of an integer, are found once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.client.typed.mismatches import MisfitError
from tidemark.client.typed.record_values import (
    EPOCH,
    Convert,
    converter,
    fields_of,
    missing,
    size_bytes,
    stand_in,
    struct_value,
    superfluous,
)
from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import Column, Primitive, TopicSchema, children, plain_type
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.typed.key_bytes import key_encoder

_PLANS_MAX: Final = 1_000
"""Combinations of types that are remembered."""
_VALIDITY_BYTES: Final = 1

Values = tuple[Any, ...]
"""Checked values of a record, in the order of the columns."""


class Deletion(tuple[Any, ...]):
    """Values of a record that deletes the earlier rows of its key; readers see its key only."""


class CheckedRow(NamedTuple):
    """A record that fits its schema version.

    Attributes:
        values: see Values.
        size_bytes: about its share of a batch.
    """

    values: Values
    size_bytes: int


class _Plan(NamedTuple):
    """The work that remains for records with the same types."""

    converts: tuple[tuple[int, Convert], ...]
    texts: tuple[int, ...]
    nested: tuple[int, ...]
    fixed_bytes: int


class RecordRows:
    """Checks and builds the records of one schema version; any thread may call it.

    Args:
        topic: name of the topic, for errors.
        schema: the version.
    """

    def __init__(self, topic: str, schema: TopicSchema) -> None:
        self.topic = topic
        self.schema = schema
        self._columns = schema.columns
        self._names = [column.name for column in schema.columns]
        self._items = _getter(operator.itemgetter, self._names)
        self._count = len(self._names)
        self._plans: dict[tuple[type, ...], _Plan] = {}
        self._getters: dict[type, Callable[[Any], Values]] = {}
        places = [self._names.index(column.name) for column in schema.key_columns]
        self._key = None if not places else key_encoder([arrow_type(column.type) for column in schema.key_columns])
        self._key_places = places
        self.types = [arrow_type(column.type) for column in schema.columns]

    def check(self, record: Any) -> CheckedRow:
        """Check a mapping, a dataclass, a named tuple or a pydantic model.

        Raises:
            TidemarkError: SCHEMA_MISMATCH with topic, version and column.
        """
        try:
            return self.fit(record)
        except MisfitError as misfit:
            raise misfit.error(self.topic, self.schema.version) from None

    def deletion(self, key: Any, timestamp_us: int) -> CheckedRow:
        """The record that deletes the rows of a key.

        Args:
            key: a mapping, a dataclass or a model with the key columns; or the value of the only key column.
            timestamp_us: of the record: its event time, if the schema has one.

        Raises:
            TidemarkError: SCHEMA_MISMATCH with topic, version and column.
        """
        wanted = self.schema.key_columns
        try:
            if not wanted:
                raise MisfitError("the schema has no key columns, so no row can be deleted by its key")
            given = fields_of(key)
            if given is None and len(wanted) == 1:
                given = {wanted[0].name: key}
            chosen = struct_value({} if given is None else given, wanted)
        except MisfitError as misfit:
            raise misfit.error(self.topic, self.schema.version) from None
        if self.schema.event_time_column is not None:
            chosen.setdefault(self.schema.event_time_column.name, EPOCH + timedelta(microseconds=timestamp_us))
        values = (
            chosen[column.name] if column.name in chosen else None if column.nullable else stand_in(column)
            for column in self._columns
        )
        return CheckedRow(Deletion(values), sum(map(size_bytes, chosen.values())) + 9 * self._count)

    def fit(self, record: Any) -> CheckedRow:
        """As `check`, but raises MisfitError."""
        if type(record) is dict and len(record) == self._count:
            try:
                values = self._items(record)
            except KeyError:
                values = self._completed(record)
        else:
            values = self._values_of(record)
        return self._checked(values)

    def key(self, values: Values) -> bytes | None:
        """The key bytes of a checked record; None for a topic without key columns."""
        if self._key is None:
            return None
        return self._key([values[place] for place in self._key_places])

    def columns(self, rows: Sequence[Values]) -> list[pa.Array[Any]]:
        """The arrays of checked records, in the order of the schema's columns."""
        try:
            return [pa.array(values, made) for values, made in zip(zip(*rows, strict=True), self.types, strict=True)]
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise TidemarkError(
                ErrorCode.SCHEMA_MISMATCH,
                f"topic {self.topic}, schema version {self.schema.version}: the records make no columns: {error}",
                {"topic": self.topic, "version": str(self.schema.version)},
            ) from error

    def _checked(self, values: Values) -> CheckedRow:
        kinds = tuple(map(type, values))
        plan = self._plans.get(kinds)
        if plan is None:
            plan = self._plan(kinds)
        if plan.converts:
            changed = list(values)
            at = 0
            try:
                for at, convert in plan.converts:
                    changed[at] = convert(changed[at])
            except MisfitError as misfit:
                raise misfit.below(self._names[at]) from None
            values = tuple(changed)
        size = plan.fixed_bytes
        for at in plan.texts:
            size += len(values[at])
        for at in plan.nested:
            size += size_bytes(values[at])
        return CheckedRow(values, size)

    def _plan(self, kinds: tuple[type, ...]) -> _Plan:
        converts, texts, nested, fixed = [], [], [], 0
        for at, (column, kind) in enumerate(zip(self._columns, kinds, strict=True)):
            try:
                convert = converter(column, kind)
            except MisfitError as misfit:
                raise misfit.below(column.name) from None
            if convert is not None:
                converts.append((at, convert))
            fixed += _VALIDITY_BYTES + _width_bytes(column)
            if kind is type(None):
                continue
            if children(column.type):
                nested.append(at)
            elif plain_type(column.type) in (Primitive.STRING, Primitive.BINARY):
                texts.append(at)
        plan = _Plan(tuple(converts), tuple(texts), tuple(nested), fixed)
        if len(self._plans) < _PLANS_MAX:
            self._plans[kinds] = plan
        return plan

    def _values_of(self, record: Any) -> Values:
        getter = self._getters.get(type(record))
        if getter is not None:
            return getter(record)
        given = fields_of(record)
        if given is None:
            hint = " (this topic has a schema)" if isinstance(record, bytes | bytearray | memoryview | str) else ""
            raise MisfitError(
                f"a record is a mapping, a dataclass or a model, not of type {type(record).__name__}{hint}"
            )
        if not isinstance(record, Mapping) and len(given) == self._count and all(name in given for name in self._names):
            self._getters[type(record)] = _getter(operator.attrgetter, self._names)
        return self._completed(given)

    def _completed(self, given: Mapping[str, Any]) -> Values:
        """Values of a record with other fields than the columns: the default for those that are missing."""
        values = []
        for column in self._columns:
            try:
                values.append(given[column.name] if column.name in given else missing(column))
            except MisfitError as misfit:
                raise misfit.below(column.name) from None
        if given.keys() - set(self._names):
            raise superfluous(given, self._columns)
        return tuple(values)


def _getter(make: Any, names: Sequence[str]) -> Callable[[Any], Values]:
    if len(names) == 1:
        get = make(names[0])
        return lambda record: (get(record),)
    found: Callable[[Any], Values] = make(*names)
    return found


def _width_bytes(column: Column) -> int:
    made: Any = arrow_type(column.type)
    try:
        return int(made.bit_width // 8)
    except ValueError:
        return 4
