# SPDX-License-Identifier: Apache-2.0
"""Reads types and columns from texts, in the names of Tidemark and of Spark, in any case.

    column: NAME [:] TYPE [NOT NULL] [DEFAULT LITERAL] [COMMENT 'TEXT'] [RENAMED FROM NAME]
    TYPE:   a primitive one, DECIMAL(p,s), ARRAY<TYPE>, MAP<TYPE, TYPE>, STRUCT<column, ...>, DICTIONARY<TYPE>

Spark's DDL lacks DEFAULT in a struct, NOT NULL in ARRAY and MAP, DICTIONARY and RENAMED FROM.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
    StructOf,
)
from tidemark.core.schemas.refusals import ColumnBudget, check_size, invalid, shown
from tidemark.core.schemas.type_names import INSTEAD, TYPES
from tidemark.model import TidemarkError

_TOKEN: Final = re.compile(
    r"""\s*+(?:
    (?P<word>[^\W\d]\w*+)
  | (?P<name>`(?:[^`]|``)*+`)
  | (?P<text>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
  | (?P<number>[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)
  | (?P<sign>[<>(),:])
  | (?P<end>\Z)
  | (?P<other>.)
)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = {quote: re.compile(rf"\\(u[0-9a-fA-F]{{4}}|.)|{quote}{quote}", re.DOTALL) for quote in ("'", '"')}
"""Escapes of a text, by its quote, which may be doubled."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0"}
_NUMBER_CHARACTERS_MAX: Final = 400
_LISTS: Final = frozenset({"array", "list"})
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})


class Token(NamedTuple):
    """A token; `value` is the name or text without its quotes, a word in lower case."""

    kind: str
    value: str
    raw: str
    position: int


class Clauses(NamedTuple):
    """The optional part of a column."""

    nullable: bool | None = None
    default: Default | None = None
    doc: str = ""
    renamed_from: str = ""


class TypeParser:
    """Reads one text, from the left.

    Args:
        text: a type of at most TEXT_BYTES_MAX bytes.
        budget: budget that all texts of one schema share.
    """

    def __init__(self, text: str, budget: ColumnBudget) -> None:
        check_size(text)
        self._budget = budget
        self._tokens = _tokens(text)
        self._next = [next(self._tokens)]

    def whole_type(self, path: Path) -> ColumnType:
        """The text as one type; the caller counted its column."""
        found = self._type(path)
        self.expect_end(path)
        return found

    def column(self, above: Path) -> Column:
        """One column of the columns below `above`."""
        path = (*above, self.name(above))
        self._budget.take(path)
        self._accept_sign(":")
        column_type = self._type(path)
        clauses = self._clauses(path, column_type)
        nullable = clauses.nullable is not False
        return Column(NO_ID, path[-1], column_type, nullable, clauses.default, clauses.doc, clauses.renamed_from)

    def name(self, path: Path) -> str:
        """A name, in backticks or not."""
        token = self._take()
        if token.kind not in ("word", "name"):
            raise self._expected("a column's name", token, path)
        return token.value if token.kind == "name" else token.raw

    def names(self, path: Path) -> tuple[str, ...]:
        """Read names in parentheses."""
        self._expect_sign("(", path)
        found = [self.name(path)]
        while self.accept_comma():
            found.append(self.name(path))
        self._expect_sign(")", path)
        return tuple(found)

    def accept_comma(self) -> bool:
        """Read a comma, if there is one; returns whether there was one."""
        return self._accept_sign(",")

    def accept_words(self, *words: str, sign: str = "") -> bool:
        """Whether these words come, and after them the sign; the words are read, the sign is not."""
        wanted = [*(("word", word) for word in words), *([("sign", sign)] if sign else [])]
        if [(token.kind, token.value) for token in self._peek(len(wanted))] != wanted:
            return False
        for _ in words:
            self._take()
        return True

    def at_end(self) -> bool:
        """Whether all of the text is read."""
        return self._peek(1)[0].kind == "end"

    def expect_end(self, path: Path) -> None:
        """Raise INVALID_SCHEMA unless the text is read."""
        if not self.at_end():
            raise self._expected("the end", self._take(), path)

    def _type(self, path: Path) -> ColumnType:
        token = self._take()
        name = token.value
        if token.kind != "word":
            raise self._expected("a type", token, path)
        if name in _LISTS:
            self._expect_sign("<", path)
            element = self._unnamed(path, ELEMENT)
            self._expect_sign(">", path)
            return ListOf(element)
        if name == "map":
            return self._map(path)
        if name == "struct":
            self._expect_sign("<", path)
            columns = [self.column(path)]
            while self.accept_comma():
                columns.append(self.column(path))
            self._expect_sign(">", path)
            return StructOf(tuple(columns))
        if name == "dictionary":
            self._expect_sign("<", path)
            value = self._plain_type(self._take(), path)
            self._expect_sign(">", path)
            return Dictionary(value)
        return self._plain_type(token, path)

    def _map(self, path: Path) -> MapOf:
        self._expect_sign("<", path)
        key = self._unnamed(path, MAP_KEY)
        self._expect_sign(",", path)
        value = self._unnamed(path, MAP_VALUE)
        self._expect_sign(">", path)
        return MapOf(key, value)

    def _plain_type(self, token: Token, path: Path) -> Primitive | Decimal:
        name = token.value
        if token.kind != "word":
            raise self._expected("a type", token, path)
        if name in _DECIMALS:
            numbers = self._numbers(path)
            if len(numbers) > 2:
                raise invalid("a decimal must have two numbers, precision and scale", path)
            return Decimal(*(*numbers, *(10, 0)[len(numbers) :]))
        if name not in TYPES:
            known = "bool, int32, decimal(10,2), string, list<...>"
            instead = f"Spark has no such type; {INSTEAD[name]}" if name in INSTEAD else f"types are {known} and so on"
            raise invalid(f"there is no type {shown(token.raw)!r}: {instead}", path)
        if TYPES[name] is Primitive.STRING:
            self._numbers(path)  # the length of a varchar
        return TYPES[name]

    def _numbers(self, path: Path) -> list[int]:
        if not self._accept_sign("("):
            return []
        found = [self._number(path)]
        while self.accept_comma():
            found.append(self._number(path))
        self._expect_sign(")", path)
        return found

    def _number(self, path: Path) -> int:
        token = self._take()
        if token.kind == "number" and token.raw.isascii() and token.raw.isdigit() and len(token.raw) < 10:
            return int(token.raw)
        raise self._expected("a whole number", token, path)

    def _unnamed(self, above: Path, name: str) -> Column:
        path = (*above, name)
        self._budget.take(path)
        column_type = self._type(path)
        clauses = self._clauses(path, column_type)
        nullable = name != MAP_KEY if clauses.nullable is None else clauses.nullable
        return Column(NO_ID, name, column_type, nullable, clauses.default, clauses.doc, clauses.renamed_from)

    def _clauses(self, path: Path, column_type: ColumnType) -> Clauses:
        found = Clauses()
        while True:
            if self.accept_words("not", "null"):
                found = found._replace(nullable=False)
            elif self.accept_words("null"):
                found = found._replace(nullable=True)
            elif self.accept_words("default"):
                found = found._replace(default=self._default(path, column_type))
            elif self.accept_words("comment"):
                found = found._replace(doc=self._text(path))
            elif self.accept_words("renamed", "from"):
                found = found._replace(renamed_from=self.name(path))
            else:
                return found

    def _default(self, path: Path, column_type: ColumnType) -> Default | None:
        if self.accept_words("null"):
            return None
        try:
            return Default(fitted(column_type, self._literal(path)))
        except ValueError as error:
            raise invalid(str(error), path) from None

    def _literal(self, path: Path) -> object:
        token = self._take()
        if token.kind == "text":
            return token.value
        if token.kind == "number":
            if len(token.raw) > _NUMBER_CHARACTERS_MAX:
                raise invalid(f"a number has more than {_NUMBER_CHARACTERS_MAX} characters", path)
            whole = token.raw.lstrip("+-").isdigit()
            try:
                return int(token.raw) if whole else decimal.Decimal(token.raw)
            except decimal.InvalidOperation:
                raise invalid(f"no type has the number {shown(token.raw)}", path) from None
        if token.kind == "word":
            match token.value:
                case "true" | "false":
                    return token.value == "true"
                case "x":
                    return self._hex(path)
                case "date" | "timestamp" | "timestamp_ltz" | "timestamp_ntz":
                    return self._text(path)
                case "array" | "map":
                    self._expect_sign("(", path)
                    self._expect_sign(")", path)
                    return ()
        raise self._expected("a default such as 0, 'text', TRUE, DATE '2026-11-24' or NULL", token, path)

    def _hex(self, path: Path) -> bytes:
        text = self._text(path)
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise invalid(f"X{shown(repr(text))} has no pairs of hex digits", path) from None

    def _text(self, path: Path) -> str:
        token = self._take()
        if token.kind != "text":
            raise self._expected("a text in quotes", token, path)
        return token.value

    def _peek(self, count: int) -> list[Token]:
        while len(self._next) < count and self._next[-1].kind != "end":
            self._next.append(next(self._tokens))
        return self._next[:count]

    def _take(self) -> Token:
        (token,) = self._peek(1)
        if token.kind != "end":
            del self._next[0]
            if not self._next:
                self._next.append(next(self._tokens))
        return token

    def _accept_sign(self, sign: str) -> bool:
        (token,) = self._peek(1)
        if token.kind != "sign" or token.value != sign:
            return False
        self._take()
        return True

    def _expect_sign(self, sign: str, path: Path) -> None:
        token = self._take()
        if token.kind != "sign" or token.value != sign:
            raise self._expected(repr(sign), token, path)

    def _expected(self, wanted: str, token: Token, path: Path) -> TidemarkError:
        found = "the end of the text" if token.kind == "end" else repr(shown(token.raw))
        return invalid(f"expected {wanted}, found {found} at character {token.position + 1}", path)


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while True:
        found = _TOKEN.match(text, position)
        assert found is not None, "the pattern matches anything"
        kind = found.lastgroup or ""
        raw = found[kind]
        yield Token(kind, _value(kind, raw), raw, found.start(kind))
        if kind == "end":
            return
        position = found.end()


def _value(kind: str, raw: str) -> str:
    match kind:
        case "word":
            return raw.lower()
        case "name":
            return raw[1:-1].replace("``", "`")
        case "text":
            return _ESCAPE[raw[0]].sub(_unescaped, raw[1:-1])
        case _:
            return raw


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1] or found[0][0]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)
