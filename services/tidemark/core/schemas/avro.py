# SPDX-License-Identifier: Apache-2.0
"""Turns Avro schemas into drafts, so that a subject of a schema registry becomes a typed topic.

A union with null is a nullable column, an enum a dictionary of strings, the first alias of a field its `renamed_from`.
Source: the Avro 1.12 specification.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple, cast

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.defaults import fitted
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Decimal,
    Default,
    Dictionary,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
    plain_type,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown
from tidemark.core.schemas.text import parse_json
from tidemark.core.schemas.type_names import INSTEAD, type_name
from tidemark.model import UNIX_EPOCH

_PRIMITIVES: Final = {
    "boolean": Primitive.BOOL,
    "int": Primitive.INT32,
    "long": Primitive.INT64,
    "float": Primitive.FLOAT32,
    "double": Primitive.FLOAT64,
    "bytes": Primitive.BINARY,
    "string": Primitive.STRING,
}
_TIME: Final = INSTEAD["time"]
_LOGICAL: Final[Mapping[tuple[str, str], Primitive | str]] = {
    ("int", "date"): Primitive.DATE,
    ("int", "time-millis"): _TIME,
    ("long", "time-micros"): _TIME,
    **{("long", f"timestamp-{unit}"): Primitive.TIMESTAMP for unit in ("millis", "micros", "nanos")},
    **{("long", f"local-timestamp-{unit}"): Primitive.TIMESTAMP_NTZ for unit in ("millis", "micros", "nanos")},
    ("fixed", "duration"): INSTEAD["duration"],
}
"""Types by Avro's type and logical type, or an alternative to a type that Spark lacks."""
_PER_MICROSECOND: Final = {"millis": Fraction(1, 1000), "micros": Fraction(1), "nanos": Fraction(1000)}
_DIGITS: Final = decimal.Context(prec=80)


class _Found(NamedTuple):
    """The type of a column, and the Avro schema that it comes from, without the union with null."""

    type: ColumnType
    nullable: bool
    avro: object


def draft_from_avro(text: str) -> SchemaDraft:
    """The draft of an Avro record, the content of an .avsc file. Raises INVALID_SCHEMA."""
    return check_draft(SchemaDraft(_Reader().record(parse_json(text))))


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, object], str]] = {}
        """Definition and namespace of each named type, by full name."""
        self._budget = ColumnBudget()

    def record(self, avro: object) -> tuple[Column, ...]:
        if not isinstance(avro, dict) or avro.get("type") != "record":
            raise invalid("the Avro schema of a topic must be a record")
        return self._fields(avro, self._define(avro, "", ()), ())

    def _define(self, avro: Mapping[str, object], namespace: str, path: Path) -> str:
        """Remember a definition by its name; returns its namespace."""
        name = avro.get("name")
        if not isinstance(name, str) or not name:
            raise invalid("records, enums and fixed types must have a name", path)
        own = avro.get("namespace", namespace)
        if not isinstance(own, str):
            raise invalid("a namespace must be a text", path)
        if "." in name:
            own, _, name = name.rpartition(".")
        self._named[f"{own}.{name}" if own else name] = (avro, own)
        return own

    def _fields(self, avro: Mapping[str, object], namespace: str, path: Path) -> tuple[Column, ...]:
        fields = avro.get("fields")
        if not isinstance(fields, list):
            raise invalid("a record must have a list of fields", path)
        return tuple(self._field(field, namespace, path) for field in fields)

    def _field(self, field: object, namespace: str, above: Path) -> Column:
        if not isinstance(field, dict) or not isinstance(field.get("name"), str):
            raise invalid("a field must be an object with name and type", above)
        path = (*above, cast("str", field["name"]))
        self._budget.take(path)
        found = self._type(field.get("type"), namespace, path)
        aliases, doc = field.get("aliases", []), field.get("doc", "")
        if not isinstance(doc, str) or not isinstance(aliases, list) or not all(isinstance(it, str) for it in aliases):
            raise invalid("doc must be a text, and aliases a list of names", path)
        default = None
        if field.get("default") is not None:
            default = _default(found, field["default"], path)
        return Column(NO_ID, path[-1], found.type, found.nullable, default, doc, aliases[0] if aliases else "")

    def _unnamed(self, avro: object, namespace: str, above: Path, name: str) -> Column:
        path = (*above, name)
        self._budget.take(path)
        found = self._type(avro, namespace, path)
        return Column(NO_ID, name, found.type, found.nullable)

    def _type(self, avro: object, namespace: str, path: Path) -> _Found:
        if isinstance(avro, list):
            return self._union(avro, namespace, path)
        if isinstance(avro, str):
            return self._named_type(avro, namespace, path)
        if not isinstance(avro, dict):
            raise invalid("it has no type", path)
        kind = avro.get("type")
        if not isinstance(kind, str):  # {"type": {"type": "long", ...}}
            return self._type(kind, namespace, path)
        logical = avro.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _Found(_decimal(avro, path), False, avro)
        by_logical = _LOGICAL.get((kind, logical)) if isinstance(logical, str) else None
        if isinstance(by_logical, Primitive):
            return _Found(by_logical, False, avro)
        if by_logical is not None:
            raise invalid(f"Spark has no type for {shown(str(logical))}; {by_logical}", path)
        return self._complex(kind, avro, namespace, path)

    def _complex(self, kind: str, avro: Mapping[str, object], namespace: str, path: Path) -> _Found:
        match kind:
            case "record":
                own = self._define(avro, namespace, path)
                return _Found(StructOf(self._fields(avro, own, path)), False, avro)
            case "enum":
                self._define(avro, namespace, path)
                return _Found(Dictionary(Primitive.STRING), False, avro)
            case "fixed":
                self._define(avro, namespace, path)
                return _Found(Primitive.BINARY, False, avro)
            case "array":
                return _Found(ListOf(self._unnamed(avro.get("items"), namespace, path, ELEMENT)), False, avro)
            case "map":
                key_path = (*path, MAP_KEY)
                self._budget.take(key_path)
                key = Column(NO_ID, MAP_KEY, Primitive.STRING, nullable=False)
                return _Found(MapOf(key, self._unnamed(avro.get("values"), namespace, path, MAP_VALUE)), False, avro)
            case _:
                return self._named_type(kind, namespace, path)

    def _named_type(self, name: str, namespace: str, path: Path) -> _Found:
        if name in _PRIMITIVES:
            return _Found(_PRIMITIVES[name], False, {"type": name})
        if name == "null":
            raise invalid(f"a type that is always null; {INSTEAD['null']}", path)
        for full in (f"{namespace}.{name}", name):
            if full in self._named:
                avro, own = self._named[full]
                return self._complex(cast("str", avro["type"]), avro, own, path)
        raise invalid(f"there is no Avro type {shown(name)!r}", path)

    def _union(self, branches: list[object], namespace: str, path: Path) -> _Found:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise invalid(f"a union of {len(others)} types besides null; {INSTEAD['union']}", path)
        return self._type(others[0], namespace, path)._replace(nullable=len(others) < len(branches))


def _decimal(avro: Mapping[str, object], path: Path) -> Decimal:
    precision, scale = avro.get("precision"), avro.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise invalid("a decimal must have a precision and a scale", path)
    return Decimal(precision, scale)


def _default(found: _Found, value: object, path: Path) -> Default:
    try:
        return Default(fitted(found.type, _native(found, value)))
    except (UnicodeEncodeError, OverflowError):
        raise invalid(f"the default {shown(repr(value))} is not a value of {type_name(found.type)}", path) from None
    except ValueError as error:
        raise invalid(str(error), path) from None


def _native(found: _Found, value: object) -> object:
    """The value that a default of an Avro field means, in Python; other values pass, and `fitted` refuses them."""
    column_type = plain_type(found.type)
    if isinstance(value, str) and column_type is Primitive.BINARY:
        return value.encode("latin-1")
    if isinstance(value, str) and isinstance(column_type, Decimal):
        unscaled = int.from_bytes(value.encode("latin-1"), "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-column_type.scale, _DIGITS)
    if isinstance(value, int) and not isinstance(value, bool):
        if column_type is Primitive.DATE:
            return (UNIX_EPOCH + datetime.timedelta(days=value)).date()
        if column_type in (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ):
            unit = str(cast("Mapping[str, object]", found.avro)["logicalType"]).rpartition("-")[2]
            instant = UNIX_EPOCH + datetime.timedelta(microseconds=value // _PER_MICROSECOND[unit])
            return instant if column_type is Primitive.TIMESTAMP else instant.replace(tzinfo=None)
    return value
