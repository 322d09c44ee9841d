# SPDX-License-Identifier: Apache-2.0
"""Schemas from a command's options: a DDL, or a file in one of several formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO, TypeVar

import typer

from tidemark.cli.common.process import read_whole
from tidemark.model import ErrorCode, TidemarkError, invalid_request

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.core.schemas.model import SchemaDraft, TopicSchema

SCHEMA_HELP: Final = "A DDL, or a file: YAML or JSON (the columns, or a JSON schema), Avro (.avsc), Parquet, Arrow."
STDIN: Final = "-"
_NAME_CHARACTERS_MAX: Final = 255

Stated = TypeVar("Stated")

SchemaOption = Annotated[str | None, typer.Option("--schema", metavar="FILE|DDL", help=SCHEMA_HELP, show_default=False)]


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Roles of columns, for a source that cannot state them."""

    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN", help="A key column, never null; repeatable."),
    ] = None
    event_time: Annotated[
        str | None, typer.Option("--event-time", metavar="COLUMN", help="The column with the time of the event.")
    ] = None

    def of_source(self, source: str | None) -> SchemaDraft | None:
        """The draft of `--schema` with these columns; None without a source. Raises as `draft_of`."""
        if source is not None:
            return self.of(draft_of(source))
        if self.key or self.event_time:
            raise invalid_request("--key and --event-time name columns of --schema: add it")
        return None

    def of(self, draft: SchemaDraft) -> SchemaDraft:
        """The draft with these columns as key and event time; raises INVALID_SCHEMA for a column that it lacks."""
        names = [column.name for column in draft.columns]
        given = [*(self.key or ()), *filter(None, [self.event_time])]
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            sentence = f"--key and --event-time name columns: there is no {unknown!r}, only {', '.join(names)}"
            raise TidemarkError(ErrorCode.INVALID_SCHEMA, sentence)
        return draft.keyed(self.key or (), self.event_time) if self.key or self.event_time else draft


def draft_of(source: str) -> SchemaDraft:
    """The draft that a DDL or a file states; `-` is YAML or JSON from stdin.

    Raises:
        TidemarkError: INVALID_SCHEMA; INVALID_REQUEST for a file that cannot be read.
    """
    if source == STDIN:
        return _in_file(Path("stdin"), lambda _: _of_document(_text_in(sys.stdin)))
    if not is_file(source, Path()):
        return _of_ddl_or_lost_file(source)
    path = Path(source)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise invalid_request(f"{source}: the extension does not determine the format; expected {known}")
    return _in_file(path, reader)


def _of_ddl_or_lost_file(source: str) -> SchemaDraft:
    from tidemark.core.schemas.ddl import draft_from_ddl

    try:
        return draft_from_ddl(source)
    except TidemarkError as error:
        if len(source.split()) != 1:
            raise
        raise TidemarkError(error.code, f"{error.message}; there is no file {source}", error.metadata) from None


def is_file(text: str, directory: Path) -> bool:
    """Whether a text names a schema file, from `directory` on, and is not a DDL."""
    if "\n" in text or len(text) > _NAME_CHARACTERS_MAX:
        return False
    return Path(text).suffix.lower() in _READERS or (directory / text).is_file()


def saved_schema(path: Path) -> TopicSchema:
    """The version in a file of `tidemark schema show --format stored`; any other file counts as a first version.

    Raises:
        TidemarkError: INVALID_SCHEMA; INVALID_REQUEST.
    """
    from tidemark.core.schemas.evolution import first_version
    from tidemark.core.schemas.text import from_text

    if path.suffix.lower() == ".json":
        text = _in_file(path, _text_of)
        if '"last_column_id"' in text:
            return _in_file(path, lambda _: from_text(text.strip()))
    return first_version(draft_of(str(path)))


def _in_file(path: Path, read: Callable[[Path], Stated]) -> Stated:
    try:
        return read(path)
    except OSError as error:
        raise invalid_request(f"cannot read {path}: {error.strerror or error}") from error
    except TidemarkError as error:
        raise TidemarkError(error.code, f"{path}: {error.message}", error.metadata) from None


def _text_of(path: Path) -> str:
    """Raises OSError; INVALID_SCHEMA or INVALID_REQUEST without the path, which `_in_file` adds."""
    with path.open(encoding="utf-8") as file:
        return _text_in(file)


def _text_in(file: TextIO) -> str:
    try:
        return read_whole(file, "it")
    except UnicodeDecodeError:
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, "it is not UTF-8 text") from None


def _of_document(text: str) -> SchemaDraft:
    """The draft of a YAML or JSON document; a mapping with `properties` is a JSON schema."""
    import yaml

    from tidemark.core.schemas.document import draft_from_document

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date such as 2026-13-01
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, f"it is neither YAML nor JSON: {_reason(error)}") from error
    if isinstance(document, Mapping) and "columns" not in document and "properties" in document:
        from tidemark.core.schemas.json_schema import draft_from_json_schema

        return draft_from_json_schema(text)
    return draft_from_document(document)


def _reason(error: Exception) -> str:
    import yaml

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _of_document_file(path: Path) -> SchemaDraft:
    return _of_document(_text_of(path))


def _of_ddl(path: Path) -> SchemaDraft:
    from tidemark.core.schemas.ddl import draft_from_ddl

    return draft_from_ddl(_text_of(path))


def _of_avro(path: Path) -> SchemaDraft:
    from tidemark.core.schemas.avro import draft_from_avro

    return draft_from_avro(_text_of(path))


def _of_parquet(path: Path) -> SchemaDraft:
    from pyarrow import parquet

    return _of_arrow_schema(lambda: parquet.read_schema(path))


def _of_arrow(path: Path) -> SchemaDraft:
    import pyarrow as pa

    def read() -> pa.Schema:
        with pa.memory_map(str(path)) as source:
            try:
                return pa.ipc.open_file(source).schema
            except pa.ArrowInvalid:
                source.seek(0)
                return pa.ipc.open_stream(source).schema

    return _of_arrow_schema(read)


def _of_arrow_schema(read: Callable[[], pa.Schema]) -> SchemaDraft:
    import pyarrow as pa

    from tidemark.core.schemas.arrow_types import draft_from_arrow

    try:
        schema = read()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, f"it has no schema: {error}") from error
    return draft_from_arrow(schema)


_READERS: Final[Mapping[str, Callable[[Path], SchemaDraft]]] = {
    ".yaml": _of_document_file,
    ".yml": _of_document_file,
    ".json": _of_document_file,
    ".ddl": _of_ddl,
    ".sql": _of_ddl,
    ".avsc": _of_avro,
    ".parquet": _of_parquet,
    ".arrow": _of_arrow,
    ".arrows": _of_arrow,
    ".feather": _of_arrow,
    ".ipc": _of_arrow,
}
"""Readers of schema files by the extension of the file."""


def document_yaml(schema: TopicSchema | SchemaDraft, notes: Sequence[str] = ()) -> str:
    """The schema file in YAML, a line for each column; `notes` become comments at its beginning."""
    from tidemark.core.schemas.document import document_of

    document = document_of(schema)
    lines = [f"# {' '.join(note.split())}" for note in notes]
    lines.append("columns:")
    lines += [f"  - {_on_one_line(column)}" for column in document.pop("columns")]
    lines += [f"{name}: {_on_one_line(value)}" for name, value in document.items()]
    return "\n".join(lines)


def _on_one_line(value: object) -> str:
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").strip()
