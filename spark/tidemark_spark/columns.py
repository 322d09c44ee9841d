# SPDX-License-Identifier: Apache-2.0
"""Columns of a read: those of Spark's Kafka source, optionally fewer, and with decoded values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from tidemark_spark.common_options import parse_boolean

_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}
_BY_LOWER: Final = {name.lower(): name for name in _TYPES}
DEAD_LETTER: Final = "deadLetter"
"""Column with the bytes of a malformed value; null for a valid value."""


class ValueFormat(StrEnum):
    """Formats of the values of a read."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    ARROW = "arrow"


class Malformed(StrEnum):
    """Policy for a value that is not in its format, or does not fit its schema."""

    FAIL = "fail"
    NULL = "null"
    DEAD_LETTER = "deadletter"


_Kind = TypeVar("_Kind", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a read returns.

    Attributes:
        names: names in order; a dead-letter column comes after them.
        value_format: format of the values.
        value_schema: fields of the values, as DDL; None: the job gives the schema of the whole read.
        malformed: policy for malformed values.
    """

    names: tuple[str, ...]
    value_format: ValueFormat = ValueFormat.BYTES
    value_schema: str | None = None
    malformed: Malformed = Malformed.FAIL

    @property
    def has_dead_letters(self) -> bool:
        """Whether there is a dead-letter column: a read without values has no such column."""
        return self.malformed is Malformed.DEAD_LETTER and "value" in self.names

    @property
    def all_names(self) -> tuple[str, ...]:
        """Columns, including the dead-letter column."""
        return (*self.names, DEAD_LETTER) if self.has_dead_letters else self.names

    def ddl(self) -> str:
        """The schema as DDL; raises ValueError if values need a schema and do not have one."""
        value = self._value_type() if "value" in self.names else ""
        # A session may choose what the word timestamp means.
        types = _TYPES | {"value": value, "timestamp": "timestamp_ltz", DEAD_LETTER: "binary"}
        return ", ".join(f"{name} {types[name]}" for name in self.all_names)

    def type_of(self, name: str) -> str | None:
        """Spark's name of a column's type, e.g. "bigint"; None: depends on the schema of the values."""
        if name == "value" and self.value_format in (ValueFormat.JSON, ValueFormat.ARROW):
            return None
        kind = self._value_type() if name == "value" else {**_TYPES, DEAD_LETTER: "binary"}[name]
        return kind.replace(": ", ":").replace(", ", ",")

    def _value_type(self) -> str:
        if self.value_format is ValueFormat.BYTES:
            return "binary"
        if self.value_format is ValueFormat.STRING:
            return "string"
        if self.value_schema is None:
            raise ValueError(
                f"valueFormat={self.value_format} needs the option 'valueSchema', the fields of a value, "
                "e.g. carrier STRING, delay INT"
            )
        fields = f"struct<{self.value_schema}>"
        return f"array<{fields}>" if self.value_format is ValueFormat.ARROW else fields


def parse_columns(given: Mapping[str, str]) -> Columns:
    """Columns from options with lower-case names; ValueError names the valid form."""
    value_format = _one_of("valueFormat", given, ValueFormat, ValueFormat.BYTES)
    malformed = _one_of("malformedValues", given, Malformed, Malformed.FAIL)
    schema = given.get("valueschema")
    if schema is not None and value_format not in (ValueFormat.JSON, ValueFormat.ARROW):
        raise ValueError(f"option 'valueSchema' is for valueFormat=json and arrow; valueFormat is {value_format}")
    if schema is not None and not schema.strip():
        raise ValueError(
            "option 'valueSchema' is empty; expected the fields of a value, e.g. carrier STRING, delay INT"
        )
    if malformed is not Malformed.FAIL and value_format is ValueFormat.BYTES:
        raise ValueError("option 'malformedValues' needs a valueFormat: bytes are never malformed")
    return Columns(_names(given), value_format, schema and schema.strip(), malformed)


def _names(given: Mapping[str, str]) -> tuple[str, ...]:
    has_headers = parse_boolean("includeHeaders", given.get("includeheaders", "false"))
    text = given.get("columns")
    if text is None:
        return tuple(name for name in _TYPES if name != "headers" or has_headers)
    asked = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in asked if name not in _BY_LOWER]
    if unknown or not asked or len(set(asked)) < len(asked):
        wrong = f"names {unknown[0]!r}" if unknown else ("names a column twice" if asked else "names none")
        raise ValueError(f"option 'columns' {wrong}; it takes some of {', '.join(_TYPES)}")
    if has_headers and "headers" not in asked:
        asked.append("headers")
    return tuple(_BY_LOWER[name] for name in asked)


def _one_of(name: str, given: Mapping[str, str], kind: type[_Kind], default: _Kind) -> _Kind:
    text = given.get(name.lower())
    if text is None:
        return default
    found = next((one for one in kind if one.value == text.strip().lower()), None)
    if found is None:
        shown = ["deadLetter" if one.value == Malformed.DEAD_LETTER else one.value for one in kind]
        raise ValueError(f"option {name!r} is {text!r}; expected one of {', '.join(shown)}")
    return found
