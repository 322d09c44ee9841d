# SPDX-License-Identifier: Apache-2.0
"""Records of a typed topic, one by one: checked when they are sent, and built into columns batch by batch.

A record costs a lookup of its values and one call of a function that is generated for their types. All integers of a
record are checked by one call, and all its texts by another. `struct` refuses an integer out of range, UTF-8 refuses
half a surrogate pair. Only a record that these refuse is checked column by column, for its error.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import pyarrow as pa

from tidemark.client.typed.mismatches import MisfitError
from tidemark.client.typed.record_arrays import array_of
from tidemark.client.typed.record_values import (
    Convert,
    Deletion,
    converter,
    fields_of,
    is_outside,
    missing,
    size_bytes,
    stand_in,
    struct_value,
    superfluous,
)
from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import INT_BITS, Column, Primitive, TopicSchema, children, plain_type
from tidemark.model import UNIX_EPOCH, ErrorCode, TidemarkError
from tidemark.record.typed.key_bytes import key_encoder

_PLANS_MAX: Final = 1_000
"""Combinations of types that are remembered."""
_STRUCT_CODES: Final = {8: "b", 16: "h", 32: "i", 64: "q"}

Values = tuple[Any, ...]
"""Checked values of a record, in the order of the columns."""


CheckedRow = tuple[Values, int]
"""A record that fits its schema version, and about its share of a batch in bytes; a plain tuple is made fastest."""


SizeOf = Callable[[Values], int | None]
"""About the bytes of values in a batch, counted for columns of texts and numbers only; None: a check fails."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The checks of records whose values have certain types.

    Attributes:
        size_of: checks the types, the integers, the texts and the datetimes.
        is_whole: whether these checks are all the work.
        converts: conversions of the other values that need a check.
        sized: places of the other values of any length.
        all_converts: of every value that needs a check, for the error.
    """

    size_of: SizeOf
    is_whole: bool
    converts: tuple[tuple[int, Convert], ...]
    sized: tuple[int, ...]
    all_converts: tuple[tuple[int, Convert], ...]


def _unknown(values: Values) -> int | None:
    return None


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
        self._size_of: SizeOf = _unknown
        """`size_of` of the last used plan, if that plan is complete."""
        self._getters: dict[type, Callable[[Any], Values]] = {}
        places = [self._names.index(column.name) for column in schema.key_columns]
        self._key = None if not places else key_encoder([arrow_type(column.type) for column in schema.key_columns])
        self._key_places = places
        self.key_values: Callable[[Values], Any] = operator.itemgetter(*places) if places else _no_key
        """The values of the key columns of a checked record, hashable, equal if their key is; None without key columns.

        A key column is never null, so None has no other meaning.
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
            timestamp_us: timestamp of the record: its event time, if the schema has an event time.

        Raises:
            TidemarkError: SCHEMA_MISMATCH with topic, version and column.
        """
        try:
            return self.fit_deletion(key, timestamp_us)
        except MisfitError as misfit:
            raise misfit.error(self.topic, self.schema.version) from None

    def fit_deletion(self, key: Any, timestamp_us: int) -> CheckedRow:
        """Like `deletion`, but raises MisfitError."""
        wanted = self.schema.key_columns
        if not wanted:
            raise MisfitError("the schema has no key columns, so no row can be deleted by its key")
        given = fields_of(key)
        if given is None and len(wanted) == 1:
            given = {wanted[0].name: key}
        chosen = struct_value({} if given is None else given, wanted)
        event_time = self.schema.event_time_column
        if event_time is not None and event_time.name not in chosen:
            try:
                chosen[event_time.name] = UNIX_EPOCH + timedelta(microseconds=timestamp_us)
            except OverflowError:
                sentence = f"{timestamp_us} us since 1970 is outside of the years 1 to 9999"
                raise MisfitError(sentence, [event_time.name]) from None
        values = (
            chosen[column.name] if column.name in chosen else None if column.nullable else stand_in(column)
            for column in self._columns
        )
        return Deletion(values), sum(map(size_bytes, chosen.values())) + 9 * self._count

    def fit(self, record: Any) -> CheckedRow:
        """Like `check`, but raises MisfitError."""
        if type(record) is dict and len(record) == self._count:
            try:
                values = self._items(record)
            except KeyError:
                values = self._completed(record)
        else:
            values = self._values_of(record)
        size = self._size_of(values)
        return self.fit_values(values) if size is None else (values, size)

    def fit_values(self, values: Values) -> CheckedRow:
        """Like `fit`, for one value of each column, of any types."""
        kinds = (*map(type, values),)
        plan = self._plans.get(kinds) or self._plan(kinds)
        size = plan.size_of(values)
        if size is None:
            return self._converted(values, plan, plan.all_converts, 0)
        if not plan.is_whole:
            return self._converted(values, plan, plan.converts, size)
        self._size_of = plan.size_of
        return values, size

    def key(self, values: Values) -> bytes | None:
        """The key bytes of a checked record; None for a topic without key columns."""
        if self._key is None:
            return None
        return self._key([values[place] for place in self._key_places])

    def columns(self, values: Sequence[Any]) -> list[pa.Array[Any]]:
        """The arrays of the values of checked records, one record after another, in the order of the columns."""
        count = self._count
        try:
            return [array_of(values[at::count], made) for at, made in enumerate(self.types)]
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

    def _plan(self, kinds: tuple[type, ...]) -> _Plan:
        converts, sized, all_converts = [], [], []
        for at, (column, kind) in enumerate(zip(self._columns, kinds, strict=True)):
            try:
                convert = converter(column, kind)
            except MisfitError as misfit:
                raise misfit.below(column.name) from None
            if convert is not None:
                all_converts.append((at, convert))
                if not _is_generated(column, kind):
                    converts.append((at, convert))
            if kind is not type(None) and kind is not str and _is_of_any_length(column):
                sized.append(at)
        size_of = _generated(self._columns, kinds)
        plan = _Plan(size_of, not converts and not sized, tuple(converts), tuple(sized), tuple(all_converts))
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
        """Values of a record with other fields than the columns: the default for missing fields."""
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


def _is_generated(column: Column, kind: type) -> bool:
    """Whether `_generated` checks values of this type completely."""
    stored = plain_type(column.type)
    return (
        (kind is int and stored in INT_BITS)
        or (kind is str and stored is Primitive.STRING)
        or (kind is datetime and stored is Primitive.TIMESTAMP)
    )


def _generated(columns: Sequence[Column], kinds: Sequence[type]) -> SizeOf:
    """The function for values of these types, with one local name for each column: no loop, and no list of types."""
    places: dict[type, list[int]] = {}
    integers, texts, instants, codes = [], [], [], "="
    for at, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        places.setdefault(kind, []).append(at)
        if not _is_generated(column, kind):
            continue
        if kind is int:
            integers.append(f"v{at}")
            codes += _STRUCT_CODES[INT_BITS[cast(Primitive, plain_type(column.type))]]
        elif kind is str:
            texts.append(f"{{v{at}}}")
        else:
            instants.append(f"v{at}.tzinfo is None or not 1 < v{at}.year < 9999 and is_outside(v{at})")
    misfits = (struct.error, UnicodeEncodeError)
    names: dict[str, Any] = {"pack": struct.Struct(codes).pack, "MISFITS": misfits, "is_outside": is_outside}
    wrong = []
    for index, (kind, of_kind) in enumerate(places.items()):
        names[f"kind_{index}"] = kind
        wrong.append(f"not {' is '.join(f'type(v{at})' for at in of_kind)} is kind_{index}")
    fixed_bytes = -(sum(_width_bits(column) + column.nullable for column in columns) // -8)
    source = f"""
def size_of(values):
    {", ".join(f"v{at}" for at in range(len(kinds)))}, = values
    if {" or ".join(wrong + instants)}:
        return None
    try:
        pack({", ".join(integers)})
        text = f"{"".join(texts)}"
        return {fixed_bytes} + (len(text) if text.isascii() else len(text.encode()))
    except MISFITS:
        return None
"""
    exec(source, names)
    found: SizeOf = names["size_of"]
    return found


def _getter(make: Any, names: Sequence[Any]) -> Callable[[Any], Values]:
    if len(names) == 1:
        get = make(names[0])
        return lambda record: (get(record),)
    found: Callable[[Any], Values] = make(*names)
    return found


def _is_of_any_length(column: Column) -> bool:
    return bool(children(column.type)) or plain_type(column.type) in (Primitive.STRING, Primitive.BINARY)


def _width_bits(column: Column) -> int:
    made: Any = arrow_type(column.type)
    try:
        return int(made.bit_width)
    except ValueError:
        return 32  # the end of a value in the column's content
