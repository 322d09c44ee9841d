# SPDX-License-Identifier: Apache-2.0
"""Records of a typed topic, one by one: checked when they are sent, built into columns a batch at a time.

A record costs a look-up of its values and one of their types. The checks that remain for a combination of types are
found once. All integers of a record are checked by one call, and all its texts: `struct` refuses an integer out of
range, UTF-8 refuses half a surrogate pair. Only a record that these refuse is checked column by column, for its error.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from tidemark.client.typed.mismatches import MisfitError
from tidemark.client.typed.record_arrays import array_of
from tidemark.client.typed.record_values import (
    EPOCH,
    Convert,
    Deletion,
    converter,
    fields_of,
    missing,
    size_bytes,
    stand_in,
    struct_value,
    superfluous,
)
from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import INT_BITS, Column, Primitive, TopicSchema, children, plain_type
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.typed.key_bytes import key_encoder

_PLANS_MAX: Final = 1_000
"""Combinations of types that are remembered."""
_VALIDITY_BYTES: Final = 1
_STRUCT_CODES: Final = {8: "b", 16: "h", 32: "i", 64: "q"}

Values = tuple[Any, ...]
"""Checked values of a record, in the order of the columns."""


CheckedRow = tuple[Values, int]
"""A record that fits its schema version, and about its share of a batch in bytes; a plain tuple is made fastest."""


class _NoTimeZoneError(Exception):
    """A datetime has no time zone, and its column needs one."""


_join: Final = "".join
_MISFITS: Final = (struct.error, UnicodeEncodeError, _NoTimeZoneError)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The work that remains for records whose values have these types.

    Attributes:
        kinds: the types, in the order of the columns.
        fixed_bytes: about the bytes of a record without `texts` and `sized`.
        integers: picks the values of class int.
        pack: takes `integers`; raises struct.error for one out of range.
        texts: picks the values of class str.
        instants: places of datetimes that need a time zone.
        is_whole: whether these checks are all the work.
        converts: of the other values that need a check.
        sized: places of the other values of any length.
        all_converts: of every value that needs a check, for the error.
    """

    kinds: list[type]
    fixed_bytes: int
    integers: Callable[[Values], Values]
    pack: Callable[..., bytes]
    texts: Callable[[Values], Values]
    instants: tuple[int, ...]
    is_whole: bool
    converts: tuple[tuple[int, Convert], ...]
    sized: tuple[int, ...]
    all_converts: tuple[tuple[int, Convert], ...]


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
        self._last: _Plan | None = None
        self._getters: dict[type, Callable[[Any], Values]] = {}
        places = [self._names.index(column.name) for column in schema.key_columns]
        self._key = None if not places else key_encoder([arrow_type(column.type) for column in schema.key_columns])
        self._key_places = places
        self.key_values: Callable[[Values], Any] = operator.itemgetter(*places) if places else _no_key
        """The values of the key columns of a checked record, hashable, equal if their key is; None without key columns.

        A key column is never null, so None stands for nothing else.
        """
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
        try:
            return self.fit_deletion(key, timestamp_us)
        except MisfitError as misfit:
            raise misfit.error(self.topic, self.schema.version) from None

    def fit_deletion(self, key: Any, timestamp_us: int) -> CheckedRow:
        """As `deletion`, but raises MisfitError."""
        wanted = self.schema.key_columns
        if not wanted:
            raise MisfitError("the schema has no key columns, so no row can be deleted by its key")
        given = fields_of(key)
        if given is None and len(wanted) == 1:
            given = {wanted[0].name: key}
        chosen = struct_value({} if given is None else given, wanted)
        if self.schema.event_time_column is not None:
            chosen.setdefault(self.schema.event_time_column.name, EPOCH + timedelta(microseconds=timestamp_us))
        values = (
            chosen[column.name] if column.name in chosen else None if column.nullable else stand_in(column)
            for column in self._columns
        )
        return Deletion(values), sum(map(size_bytes, chosen.values())) + 9 * self._count

    def fit(self, record: Any) -> CheckedRow:
        """As `check`, but raises MisfitError."""
        if type(record) is dict and len(record) == self._count:
            try:
                values = self._items(record)
            except KeyError:
                values = self._completed(record)
        else:
            values = self._values_of(record)
        kinds = [*map(type, values)]
        plan = self._last
        if plan is None or plan.kinds != kinds:
            plan = self._last = self._plans.get(tuple(kinds)) or self._plan(kinds)
        try:
            plan.pack(*plan.integers(values))
            for at in plan.instants:
                if values[at].tzinfo is None:
                    raise _NoTimeZoneError
            text = _join(plan.texts(values))
            size = plan.fixed_bytes + (len(text) if text.isascii() else len(text.encode()))
        except _MISFITS:
            return self._converted(values, plan, plan.all_converts, 0)
        return (values, size) if plan.is_whole else self._converted(values, plan, plan.converts, size)

    def key(self, values: Values) -> bytes | None:
        """The key bytes of a checked record; None for a topic without key columns."""
        if self._key is None:
            return None
        return self._key([values[place] for place in self._key_places])

    def columns(self, rows: Sequence[Values]) -> list[pa.Array[Any]]:
        """The arrays of checked records, in the order of the schema's columns."""
        try:
            return [array_of(values, made) for values, made in zip(zip(*rows, strict=True), self.types, strict=True)]
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise TidemarkError(
                ErrorCode.SCHEMA_MISMATCH,
                f"topic {self.topic}, schema version {self.schema.version}: the records make no columns: {error}",
                {"topic": self.topic, "version": str(self.schema.version)},
            ) from error

    def _converted(
        self, values: Values, plan: _Plan, converts: tuple[tuple[int, Convert], ...], fixed_bytes: int
    ) -> CheckedRow:
        changed = list(values)
        at = 0
        try:
            for at, convert in converts:
                changed[at] = convert(changed[at])
        except MisfitError as misfit:
            raise misfit.below(self._names[at]) from None
        return tuple(changed), fixed_bytes + sum(size_bytes(changed[at]) for at in plan.sized)

    def _plan(self, kinds: list[type]) -> _Plan:
        integers, texts, instants, converts, sized = [], [], [], [], []
        all_converts, codes, fixed = [], "", 0
        for at, (column, kind) in enumerate(zip(self._columns, kinds, strict=True)):
            try:
                convert = converter(column, kind)
            except MisfitError as misfit:
                raise misfit.below(column.name) from None
            if convert is not None:
                all_converts.append((at, convert))
            fixed += _VALIDITY_BYTES + _width_bytes(column)
            stored = plain_type(column.type)
            if kind is int and stored in INT_BITS:
                integers.append(at)
                codes += _STRUCT_CODES[INT_BITS[stored]]
            elif kind is str and stored is Primitive.STRING:
                texts.append(at)
            elif kind is datetime and stored is Primitive.TIMESTAMP:
                instants.append(at)
            elif convert is not None:
                converts.append((at, convert))
            if kind is not type(None) and kind is not str and _is_of_any_length(column):
                sized.append(at)
        plan = _Plan(
            kinds,
            fixed,
            _picker(integers),
            struct.Struct(f"={codes}").pack,
            _picker(texts),
            tuple(instants),
            not converts and not sized,
            tuple(converts),
            tuple(sized),
            tuple(all_converts),
        )
        if len(self._plans) < _PLANS_MAX:
            self._plans[tuple(kinds)] = plan
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


def _no_key(values: Values) -> None:
    return None


def _picker(places: Sequence[int]) -> Callable[[Values], Values]:
    if not places:
        return lambda values: ()
    return _getter(operator.itemgetter, places)


def _getter(make: Any, names: Sequence[Any]) -> Callable[[Any], Values]:
    if len(names) == 1:
        get = make(names[0])
        return lambda record: (get(record),)
    found: Callable[[Any], Values] = make(*names)
    return found


def _is_of_any_length(column: Column) -> bool:
    return bool(children(column.type)) or plain_type(column.type) in (Primitive.STRING, Primitive.BINARY)


def _width_bytes(column: Column) -> int:
    made: Any = arrow_type(column.type)
    try:
        return int(made.bit_width // 8)
    except ValueError:
        return 4
