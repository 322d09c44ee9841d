# SPDX-License-Identifier: Apache-2.0
"""A reader of log directories by the tables of docs/formats.md: it imports no code of the storage.

A table belongs to the paragraph before it. Every function raises FormatError where file and table differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import google_crc32c

Row = dict[str, str]
Item = dict[str, Any]
Tables = dict[str, list[Row]]
"""The rows of each table by the paragraph before it; a row has its cells by heading."""

DIGITS = r"\d{20}"
PLACEHOLDERS = {
    "<topic>": r"(?P<topic>.+)",
    "<partition>": r"(?P<partition>\d+)",
    "<uuid>": "[0-9a-f]{32}",
    "<name>": ".+",
    "<base>": f"(?P<base>{DIGITS})",
    "<end>": f"(?P<end>{DIGITS})",
    "<offset>": f"(?P<offset>{DIGITS})",
    "<number>": r"\d*",
}
_CODE = re.compile(r"`([^`]+)`")
BYTE_TYPE = re.compile(r"([ui])(\d+)")
WORD_TYPES = {"text": r"\S+", "integer": r"-?\d+", "uuid": "[0-9a-f]{32}"}
MEMBER_TYPES: Mapping[str, type] = {"text": str, "integer": int, "uuid": str, "boolean": bool, "list": list}

DIRECTORY_FILES = "In the names below"
REPLICA_FILES = "The directory of a replica has these files"
ENVELOPE = "A batch is an envelope of 64 bytes"
BLOCK = "`<base>.index` and `<base>.timeindex` are blocks"
INDEX_ENTRY = "An entry of `<base>.index`"
TIME_INDEX_ENTRY = "An entry of `<base>.timeindex`"
ABORTED = "`<base>.txnindex` has a row of 40 bytes"
END_MARK = "An end mark of `<base>.timeindex`"
ROSTER = "The file begins with a line `1`"
PRODUCER = "An item of `producers`"
REMEMBERED = "An item of `batches`"


class FormatError(Exception):
    """A file differs from the tables."""


def read_tables(page: str) -> Tables:
    found: Tables = {}
    for block in re.finditer(r"^\|.*\n\| ---.*\n(?:\|.*\n)*", page, re.MULTILINE):
        paragraph = page[: block.start()].rstrip().rpartition("\n\n")[2].replace("\n", " ")
        headings, _, *rows = (_cells(line) for line in block[0].splitlines())
        found[paragraph] = [dict(zip(headings, row, strict=True)) for row in rows]
    return found


def _cells(line: str) -> list[str]:
    """The cells of a line; a cell that is wholly code has no backticks."""
    cells = (cell.strip() for cell in line.strip("|").split("|"))
    return [cell[1:-1] if cell[:1] == cell[-1:] == "`" and cell.count("`") == 2 else cell for cell in cells]


def refuse(path: Path, reason: str) -> NoReturn:
    raise FormatError(f"{path.name}: {reason}")


def crc(content: bytes) -> int:
    value: int = google_crc32c.value(content)
    return value


@dataclass
class ReplicaFiles:
    """The parsed files of a replica's directory: batches of each segment, blocks of each index, the rest by name."""

    segments: dict[str, list[Item]]
    blocks: dict[str, list[Item]]
    others: dict[str, Any]


class ReadDirectory(NamedTuple):
    """A parsed log directory, and the rows of the two tables of files that occurred."""

    files: dict[str, Any]
    replicas: dict[str, ReplicaFiles]
    seen: set[str]


class DirectoryReader:
    """Reads log directories by these tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._by_start: dict[str, list[Row]] = {}
        self._seen: set[str] = set()

    def read(self, directory: Path) -> ReadDirectory:
        """Parse every byte of every file, except of files that the page calls incomplete."""
        files: dict[str, Any] = {}
        replicas: dict[str, ReplicaFiles] = {}
        for path in sorted(directory.iterdir()):
            kind = self._format_of(path, DIRECTORY_FILES)
            if (kind == "directory") != path.is_dir():
                refuse(path, f"is listed as {kind}")
            if kind == "directory":
                replicas[path.name] = self._replica(path)
            else:
                files[path.name] = self._file(path, kind)
        return ReadDirectory(files, replicas, self._seen)

    def _replica(self, directory: Path) -> ReplicaFiles:
        found = ReplicaFiles({}, {}, {})
        for path in sorted(directory.iterdir()):
            kind = self._format_of(path, REPLICA_FILES)
            content = self._file(path, kind)
            place = {"batches": found.segments, "blocks": found.blocks}.get(kind, found.others)
            place[path.name] = content
        return found

    def _format_of(self, path: Path, table: str) -> str:
        for row in self.table(table):
            if _pattern(row["path"]).fullmatch(path.name):
                self._seen.add(row["path"])
                return row["format"]
        refuse(path, f'is not in the table after "{table}"')

    def _file(self, path: Path, kind: str) -> Any:
        readers = {
            "batches": self._batches,
            "blocks": self._blocks,
            "rows": self._aborted,
            "lines": self._lines,
            "JSON": self._json,
            "roster": self._roster,
            "empty": self._empty,
            "incomplete": lambda path: None,
        }
        if kind not in readers:
            refuse(path, f"has the unknown format {kind}")
        return readers[kind](path)

    def table(self, start: str) -> list[Row]:
        """The table after the paragraph that begins so."""
        if start in self._by_start:
            return self._by_start[start]
        for paragraph, rows in self._tables.items():
            if paragraph.startswith(start):
                self._by_start[start] = rows
                return rows
        raise FormatError(f'there is no table after "{start}"')

    # -- bytes

    def _struct(self, start: str, data: bytes, at: int) -> Item:
        """The fields of a table of bytes; `size_bytes_of_table` is where its payload begins, or its end."""
        found: Item = {}
        expected = 0
        for row in self.table(start):
            if int(row["offset"]) != expected:
                raise FormatError(f"{row['field']} is at {row['offset']}, the field before ends at {expected}")
            if not row["type"]:
                break
            match = BYTE_TYPE.fullmatch(row["type"])
            if match is None:
                raise FormatError(f"{row['type']} is not a type")
            size = int(match[2]) // 8
            field = data[at + expected : at + expected + size]
            if len(field) < size:
                raise FormatError(f"{row['field']} lies past the end")
            found[row["field"]] = int.from_bytes(field, "little", signed=match[1] == "i")
            expected += size
        found["size_bytes_of_table"] = expected
        return found

    def _covered(self, start: str, field: str, data: bytes) -> bytes:
        """The bytes of `data` that a CRC covers, from its meaning: "bytes 0–11 and 16–19", "bytes 24 to the end"."""
        (meaning,) = (row["meaning"] for row in self.table(start) if row["field"] == field)
        ranges = re.findall(r"(\d+)–(\d+)", meaning)
        open_end = re.search(r"bytes (\d+) to the end", meaning)
        if open_end is not None:
            return data[int(open_end[1]) :]
        return b"".join(data[int(first) : int(last) + 1] for first, last in ranges)

    def _check(self, path: Path, start: str, field: str, stated: int, data: bytes) -> None:
        if crc(self._covered(start, field, data)) != stated:
            refuse(path, f"{field} differs")

    def _batches(self, path: Path) -> list[Item]:
        data, at, found = path.read_bytes(), 0, []
        while at < len(data):
            batch = self._struct(ENVELOPE, data, at)
            if batch["size_bytes_of_table"] != 64:
                refuse(path, f"the envelope has {batch['size_bytes_of_table']} bytes")
            whole = data[at : at + batch["batch_length"]]
            if len(whole) < batch["batch_length"] or len(whole) < 64:
                refuse(path, "the last batch is incomplete")
            for field in ("header_crc", "crc"):
                self._check(path, ENVELOPE, field, batch[field], whole)
            found.append({**batch, "position": at})
            at += batch["batch_length"]
        return found

    def _blocks(self, path: Path) -> list[Item]:
        data, at, found = path.read_bytes(), 0, []
        entry = TIME_INDEX_ENTRY if ".timeindex" in path.name else INDEX_ENTRY
        while at < len(data):
            block = self._struct(BLOCK, data, at)
            payload_at = at + block["size_bytes_of_table"]
            end = payload_at + 16 * block["count"]
            if end > len(data):
                refuse(path, "the last block is incomplete")
            self._check(path, BLOCK, "crc", block["crc"], data[at:end])
            table = {1: entry, 2: END_MARK}.get(block["kind"])
            if table is None:
                refuse(path, f"a block of kind {block['kind']}")
            items = []
            while payload_at < end:
                items.append(self._struct(table, data, payload_at))
                payload_at += items[-1]["size_bytes_of_table"]
            if payload_at != end:
                refuse(path, "the block ends within an entry")
            found.append({"kind": block["kind"], "items": items})
            at = end
        return found

    def _aborted(self, path: Path) -> list[Item]:
        data, at, found = path.read_bytes(), 0, []
        while at < len(data):
            row = self._struct(ABORTED, data, at)
            end = at + row["size_bytes_of_table"]
            self._check(path, ABORTED, "crc", row["crc"], data[at:end])
            found.append(row)
            at = end
        if not found:
            refuse(path, "has no row")
        return found

    # -- text

    def _lines(self, path: Path) -> list[Item]:
        content = path.read_bytes()
        body, mark, stated = content.rpartition(b"crc ")
        if not mark or stated != b"%08x\n" % crc(body):
            refuse(path, "the CRC line differs")
        version, *lines = body.decode().splitlines()
        if version != "1":
            refuse(path, f"version {version}")
        return [self._words(path, line.split(" ")) for line in lines]

    def _words(self, path: Path, words: Sequence[str]) -> Item:
        rows = self._named(path)[0]
        if [row["word"] for row in rows] != [str(number + 1) for number in range(len(words))]:
            refuse(path, f"a line has {len(words)} words")
        return {row["field"]: _word(path, row["type"], word) for row, word in zip(rows, words, strict=True)}

    def _named(self, path: Path) -> list[list[Row]]:
        """The tables after paragraphs that name the file; a file has all members of a further table, or none."""
        named = [
            rows
            for paragraph, rows in self._tables.items()
            if rows and not {"word", "member"}.isdisjoint(rows[0])
            if any(_pattern(name).fullmatch(path.name) for name in _CODE.findall(paragraph))
        ]
        if not named:
            refuse(path, "no table of lines or members names it")
        return named

    def _json(self, path: Path) -> Item:
        document = json.loads(path.read_text(encoding="ascii"))
        if not isinstance(document, dict):
            refuse(path, "is not an object")
        stated = document.pop("crc", None)
        plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if stated != crc(plain.encode()):
            refuse(path, "crc differs")
        always, *also = self._named(path)
        members = {row["member"]: row["type"] for row in always}
        optional = {row["member"]: row["type"] for rows in also for row in rows}
        if not optional.keys().isdisjoint(document):
            members |= optional
        if document.keys() != members.keys():
            refuse(path, f"has {sorted(document)}, the table has {sorted(members)}")
        for name, kind in members.items():
            _check_value(path, kind, document[name])
        if "producers" in document:
            document["producers"] = [self._item(path, PRODUCER, one) for one in document["producers"]]
            for producer in document["producers"]:
                producer["batches"] = [self._item(path, REMEMBERED, one) for one in producer["batches"]]
        return dict(document)

    def _item(self, path: Path, table: str, item: Sequence[Any]) -> Item:
        rows = self.table(table)
        if table == PRODUCER and len(item) == len(rows) - 2:
            rows = rows[:-2]  # neither a transaction nor a marker
        if table == REMEMBERED and len(item) == len(rows) - 1:
            rows = rows[:-1]  # the timestamps are the producer's
        if [int(row["index"]) for row in rows] != list(range(len(item))):
            refuse(path, f"an item has {len(item)} elements")
        for row, value in zip(rows, item, strict=True):
            _check_value(path, row["type"], value)
        return {row["field"]: value for row, value in zip(rows, item, strict=True)}

    def _roster(self, path: Path) -> list[Item]:
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        if version != "1":
            refuse(path, f"version {version}")
        return [self._roster_line(path, line) for line in lines]

    def _roster_line(self, path: Path, line: str) -> Item:
        for row in self.table(ROSTER):
            sign, *names = row["line"].split(" ")
            words = line.split(" ")
            if words[0] == sign and len(words) == 1 + len(names):
                found = {name.strip("<>"): word for name, word in zip(names, words[1:], strict=True)}
                if found.get("crc") != f"{crc(line.rpartition(' ')[0].encode()):08x}":
                    refuse(path, "the CRC of a line differs")
                return {"sign": sign, **found}
        refuse(path, f"no line of the table is like {line}")

    def _empty(self, path: Path) -> None:
        if path.stat().st_size:
            refuse(path, "is not empty")


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """A name of the page, with placeholders, as a regular expression."""
    parts = re.split("(<[a-z]+>)", name)
    return re.compile("".join(PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


def _word(path: Path, kind: str, word: str) -> str | int:
    if kind not in WORD_TYPES or not re.fullmatch(WORD_TYPES[kind], word):
        refuse(path, f"{word} is not of the type {kind}")
    return int(word) if kind == "integer" else word


def _check_value(path: Path, kind: str, value: Any) -> None:
    if type(value) is not MEMBER_TYPES.get(kind) or (kind == "uuid" and not re.fullmatch(WORD_TYPES["uuid"], value)):
        refuse(path, f"{value} is not of the type {kind}")


def mutants(tables: Tables, start: str, *, skipped: Collection[str]) -> Iterator[tuple[str, Tables]]:
    """The tables with one error each, in the table after the paragraph that begins so.

    A row is missing, or has another name, type, format or CRC range, or the name of its neighbour. Rows with a skipped
    name, and rows without a type, stay.
    """
    (paragraph,) = (one for one in tables if one.startswith(start))
    rows = tables[paragraph]
    for number, row in enumerate(rows):
        name = next(row[heading] for heading in ("field", "member", "path", "line") if heading in row)
        if name in skipped or not row.get("type", "none"):
            continue
        for error, changed in _with_errors(rows, number):
            yield f"{name}: {error}", {**tables, paragraph: changed}


def _with_errors(rows: Sequence[Row], number: int) -> Iterator[tuple[str, list[Row]]]:
    before, row, after = rows[:number], rows[number], rows[number + 1 :]
    yield "missing", [*before, *after]
    for heading in {"field", "member", "path", "line"} & row.keys():
        yield "another name", [*before, {**row, heading: "other"}, *after]
    if "type" in row:
        yield "another type", [*before, {**row, "type": _another_type(row["type"])}, *after]
    if "format" in row:
        other = "blocks" if row["format"] == "JSON" else "JSON"
        yield "another format", [*before, {**row, "format": other}, *after]
    if "bytes" in row.get("meaning", "") and "CRC" in row["meaning"]:
        meaning = re.sub(r"bytes (\d+)", lambda match: f"bytes {int(match[1]) + 1}", row["meaning"])
        yield "another CRC range", [*before, {**row, "meaning": meaning}, *after]
    if "field" in row and after and after[0]["type"]:
        swapped = [{**row, "field": after[0]["field"]}, {**after[0], "field": row["field"]}]
        yield "the next name", [*before, *swapped, *after[1:]]


def _another_type(kind: str) -> str:
    if BYTE_TYPE.fullmatch(kind):
        return "u32" if kind.endswith("16") else "u16"
    return "integer" if kind in ("text", "uuid") else "text"
