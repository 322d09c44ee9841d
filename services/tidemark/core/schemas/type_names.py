# SPDX-License-Identifier: Apache-2.0
"""Names of types and columns in texts: Tidemark's, as in documents and sentences, and Spark's, as in DDL."""

from __future__ import annotations

import datetime
import decimal
import re
from dataclasses import dataclass
from typing import Final

from tidemark.core.schemas.model import (
    Column,
    ColumnType,
    Decimal,
    DefaultValue,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    StructOf,
)

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Style:
    """The names of types in one kind of text.

    Attributes:
        names: names of the primitive types.
        list_name: name of a list.
        upper: whether keywords are in capital letters.
    """

    names: dict[Primitive, str]
    list_name: str
    upper: bool

    def word(self, text: str) -> str:
        """Read a keyword, or several."""
        return text.upper() if self.upper else text


TIDEMARK: Final = Style({primitive: primitive.value for primitive in Primitive}, "list", upper=False)
SPARK: Final = Style(
    {
        Primitive.BOOL: "BOOLEAN",
        Primitive.INT8: "TINYINT",
        Primitive.INT16: "SMALLINT",
        Primitive.INT32: "INT",
        Primitive.INT64: "BIGINT",
        Primitive.FLOAT32: "FLOAT",
        Primitive.FLOAT64: "DOUBLE",
        Primitive.STRING: "STRING",
        Primitive.BINARY: "BINARY",
        Primitive.DATE: "DATE",
        Primitive.TIMESTAMP: "TIMESTAMP",
        Primitive.TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    },
    "ARRAY",
    upper=True,
)

TYPES: Final[dict[str, Primitive]] = {
    **{name.lower(): primitive for style in (TIDEMARK, SPARK) for primitive, name in style.names.items()},
    "byte": Primitive.INT8,
    "short": Primitive.INT16,
    "integer": Primitive.INT32,
    "long": Primitive.INT64,
    "real": Primitive.FLOAT32,
    "varchar": Primitive.STRING,
    "char": Primitive.STRING,
    "character": Primitive.STRING,
    "timestamp_ltz": Primitive.TIMESTAMP,
}
"""Primitive types by each of their names, in lower case."""

INSTEAD: Final = {
    "uint8": "use int16",
    "uint16": "use int32",
    "uint32": "use int64",
    "uint64": "use decimal(20,0), or int64 if it fits",
    "float16": "use float32",
    "halffloat": "use float32",
    "null": "drop the column, or name its type",
    "void": "drop the column, or name its type",
    "time": "use int64 with the microseconds of the day, or a timestamp",
    "duration": "use int64 with the unit in the name",
    "interval": "use int64 with the unit in the name",
    "union": "use a struct with a nullable column for each kind of value",
    "variant": "use string with JSON, or a struct",
    "decimal256": "use decimal(p,s) with at most 38 digits",
}
"""Types that Spark, Polars, DuckDB and pandas do not share, and an alternative for each."""


def type_name(column_type: ColumnType, style: Style = TIDEMARK) -> str:
    """The type as a text that `type_parser` parses, such as "list<struct<origin: string not null>>"."""
    match column_type:
        case Primitive():
            return style.names[column_type]
        case Decimal(precision, scale):
            return f"{style.word('decimal')}({precision},{scale})"
        case Dictionary(value):
            return f"{style.word('dictionary')}<{type_name(value, style)}>"
        case ListOf(element):
            return f"{style.list_name}<{_unnamed(element, style)}>"
        case MapOf(key, value):
            key_name = type_name(key.type, style) + _comment(key, style)
            return f"{style.word('map')}<{key_name}, {_unnamed(value, style)}>"
        case StructOf(columns):
            inner = ", ".join(column_text(column, style, ":") for column in columns)
            return f"{style.word('struct')}<{inner}>"


def column_text(column: Column, style: Style, colon: str = "") -> str:
    """A column as in DDL: name and type, then NOT NULL, default, doc and the earlier name if the column has them."""
    text = f"{quoted_name(column.name)}{colon} {_unnamed(column, style, default=True)}"
    if column.renamed_from:
        text += f" {style.word('renamed from')} {quoted_name(column.renamed_from)}"
    return text


def quoted_name(name: str) -> str:
    """The name, in backticks if it is not plain."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _unnamed(column: Column, style: Style, default: bool = False) -> str:
    text = type_name(column.type, style)
    if not column.nullable:
        text += f" {style.word('not null')}"
    if default and column.default is not None:
        text += f" {style.word('default')} {_literal(column.type, column.default.value)}"
    return text + _comment(column, style)


def _comment(column: Column, style: Style) -> str:
    return f" {style.word('comment')} {_quoted_text(column.doc)}" if column.doc else ""


def _quoted_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(column_type: ColumnType, value: DefaultValue) -> str:
    match value:
        case ():
            return "MAP()" if isinstance(column_type, MapOf) else "ARRAY()"
        case bool():
            return str(value).upper()
        case str():
            return _quoted_text(value)
        case bytes():
            return f"X'{value.hex().upper()}'"
        case datetime.datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} '{value.isoformat().replace('+00:00', 'Z')}'"
        case datetime.date():
            return f"DATE '{value.isoformat()}'"
        case decimal.Decimal():
            return format(value, "f")
        case int() | float():
            return repr(value)
        case _:
            raise AssertionError(value)
