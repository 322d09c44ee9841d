# SPDX-License-Identifier: Apache-2.0
"""`tidemark schema ...`: show, compare, check and change the schemas of typed topics, and propose one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import Cluster, Commands, DryRunOption, RequestIdOption, TopicArgument
from tidemark.cli.common.output import counted, print_json, print_line, print_table, shown_time
from tidemark.cli.common.process import EXIT_DIFFERENT
from tidemark.cli.common.schema_source import STDIN, KeyOptions, SchemaOption, document_yaml, draft_of, saved_schema
from tidemark.model import ErrorCode, TidemarkError, invalid_request

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.client.aio.admin.topic_schemas import TopicSchemas
    from tidemark.core.schemas.model import SchemaDraft, TopicSchema

ROWS_DEFAULT: Final = 10_000

schema_app = Commands(help="Show, compare, check and change the schemas of typed topics.")


class Form(StrEnum):
    """A form in which a schema is printed."""

    YAML = "yaml"
    DDL = "ddl"
    JSON = "json"


class VersionForm(StrEnum):
    """A form in which a version of a topic's schema is printed."""

    YAML = "yaml"
    DDL = "ddl"
    JSON = "json"
    STORED = "stored"


class Compatibility(StrEnum):
    """Values of schema.compatibility."""

    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    NONE = "none"


VersionOption = Annotated[int, typer.Option("--version", metavar="N", min=1, help="Version; default: the newest.")]


@schema_app.command("show", short_help="Print the schema of a topic.")
def show(
    topic: TopicArgument,
    version: VersionOption | None = None,
    form: Annotated[
        VersionForm,
        typer.Option(
            "--format", help="yaml and json: a schema file; ddl; stored: with column ids, for `schema check`."
        ),
    ] = VersionForm.YAML,
    cluster: Cluster = Cluster(),
) -> None:
    """Print the schema of a typed topic in a form that `--schema` takes.

    \b
    Examples:
      tidemark schema show flights > flights.yaml
      tidemark schema show flights --version 1 --format ddl
      tidemark schema show flights --format stored > flights.schema.json
    """
    with cluster.connect() as client:
        schema = _version(topic, _described(client, topic), version)
    if cluster.json:
        print_json({"topic": topic, "version": schema.version, "schema": _document(schema)})
        return
    if form is VersionForm.STORED:
        from tidemark.core.schemas.text import to_text

        print_line(to_text(schema))
    else:
        print_line(_in_form(schema, Form(form)))


@schema_app.command("diff", short_help="Compare two versions, or a version and a file.")
def diff(
    topic: TopicArgument,
    older: Annotated[
        int | None, typer.Option("--from", metavar="N", min=1, help="Version; default: the one before.")
    ] = None,
    newer: Annotated[int | None, typer.Option("--to", metavar="N", min=1, help="Version; default: the newest.")] = None,
    schema: SchemaOption = None,
    keys: KeyOptions = KeyOptions(),
    cluster: Cluster = Cluster(),
) -> None:
    """Show the differences between two versions of a schema, or between the newest version and a file.

    \b
    Examples:
      tidemark schema diff flights
      tidemark schema diff flights --from 1 --to 4
      tidemark schema diff flights --schema flights.yaml
    """
    from tidemark.core.schemas.compatibility import Compatibility as Policy
    from tidemark.core.schemas.differences import differences
    from tidemark.core.schemas.evolution import next_version

    with cluster.connect() as client:
        described = _described(client, topic)
    after = _version(topic, described, newer)
    if schema is not None:
        before, after = after, next_version(after, keys.of(draft_of(schema)), Policy.NONE)
    else:
        before = _version(topic, described, older or max(after.version - 1, 1))
    found = differences(before, after)
    if cluster.json:
        shown = [{"kind": str(one.kind), "path": list(one.path), "sentence": one.sentence} for one in found]
        print_json({"topic": topic, "from": before.version, "to": after.version, "differences": shown})
        return
    for one in found:
        print_line(one.sentence)
    if not found:
        print_line(f"no differences: {topic} has these columns in version {before.version}")


@schema_app.command("check", short_help="Check a schema against a topic or a saved file.")
def check(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Topic; not needed with --against.", autocompletion=completion.topics),
    ] = None,
    schema: SchemaOption = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="A file of `schema show --format stored`.")
    ] = None,
    compatibility: Annotated[
        Compatibility, typer.Option("--compatibility", help="Rule with --against; a topic has its own.")
    ] = Compatibility.BACKWARD,
    exact: Annotated[bool, typer.Option("--exact", help="Exit status 2 if the schema is allowed and differs.")] = False,
    keys: KeyOptions = KeyOptions(),
    cluster: Cluster = Cluster(),
) -> None:
    """Check whether a schema may become the next version; change nothing.

    \b
    Against a running cluster the topic's schema.compatibility decides. Against a saved file no cluster is needed.
    Exit status 0: allowed. 1: refused; the line names the column, both versions and the rule. 2: with --exact, allowed
    and different from the newest version.

    \b
    Examples:
      tidemark schema check flights --schema flights.yaml
      tidemark schema check --against flights.schema.json --schema flights.yaml --compatibility full
      tidemark schema check flights --schema flights.yaml --exact
    """
    if not schema:
        raise typer.BadParameter("expected --schema FILE or --schema DDL", param_hint="--schema")
    if (topic is None) == (against is None):
        raise typer.BadParameter("expected either a TOPIC or --against FILE")
    draft = keys.of(draft_of(schema))
    if against is not None:
        name, change = str(against), _checked_offline(saved_schema(against), draft, compatibility)
    else:
        assert topic is not None
        with cluster.connect() as client:
            altered = client.alter_topic_schema(topic, draft, validate_only=True)
        name, change = topic, _Change(altered.schema.version, altered.changed, altered.differences)
    _tell(cluster, name, change, "would be", changed=change.changed)
    if exact and change.changed:
        raise typer.Exit(EXIT_DIFFERENT)


@schema_app.command("evolve", short_help="Make the next version of a topic's schema.")
def evolve(
    topic: TopicArgument,
    schema: SchemaOption = None,
    expected: Annotated[
        int | None,
        typer.Option("--expected-version", metavar="N", min=1, help="Refuse unless N is the newest version."),
    ] = None,
    request_id: RequestIdOption = "",
    dry_run: DryRunOption = False,
    keys: KeyOptions = KeyOptions(),
    cluster: Cluster = Cluster(),
) -> None:
    """Make the next version of a topic's schema: all its columns, as a file or a DDL states them.

    \b
    A column keeps its id by its name. `renamed_from` in the file names the column's former name. The topic's
    schema.compatibility decides which changes are allowed. If the file states the columns of the newest version,
    nothing changes. Records that are stored keep their version; a reader gets them as the version that it asks for.

    \b
    Examples:
      tidemark schema evolve flights --schema flights.yaml --dry-run
      tidemark schema evolve flights --schema flights.yaml --expected-version 3
    """
    if not schema:
        raise typer.BadParameter("expected --schema FILE or --schema DDL", param_hint="--schema")
    draft = keys.of(draft_of(schema))
    with cluster.connect() as client:
        altered = client.alter_topic_schema(
            topic,
            draft,
            expected_version=expected or 0,
            validate_only=dry_run,
            request_id=request_id or uuid.uuid4().hex,
        )
    change = _Change(altered.schema.version, altered.changed, altered.differences)
    _tell(cluster, topic, change, "would be" if dry_run else "is", changed=change.changed and not dry_run)


@schema_app.command("history", short_help="List the versions of a topic's schema.")
def history(topic: TopicArgument, cluster: Cluster = Cluster()) -> None:
    """List the versions of a topic's schema: the time of each, and what changed.

    \b
    Examples:
      tidemark schema history flights
      tidemark schema history flights --output json | jq '.versions[-1].differences'
    """
    from tidemark.core.schemas.differences import history as changes_of

    with cluster.connect() as client:
        described = _described(client, topic)
    found = changes_of(one.schema for one in described.versions)
    rows = [
        (one.schema.version, one.created_at_ms, [each.sentence for each in changes])
        for one, changes in zip(described.versions, found, strict=True)
    ]
    if cluster.json:
        versions = [{"version": row[0], "created_at_ms": row[1], "differences": row[2]} for row in rows]
        print_json({"topic": topic, "compatibility": described.compatibility, "versions": versions})
        return
    cells = [(number, f"{shown_time(at_ms)} UTC", "; ".join(changes) or "created") for number, at_ms, changes in rows]
    print_table(("version", "created", "changes"), cells)


@schema_app.command("infer", short_help="Propose a schema from a file or a topic.")
def infer(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="CSV, JSON lines, Parquet or Arrow.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="A topic without a schema whose values are JSON objects.",
            autocompletion=completion.topics,
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, help="Number of rows or records to read.")
    ] = ROWS_DEFAULT,
    form: Annotated[Form, typer.Option("--format", help="yaml, json or ddl.")] = Form.YAML,
    keys: KeyOptions = KeyOptions(),
    cluster: Cluster = Cluster(),
) -> None:
    """Propose a schema: from the rows of a file, or from the newest records of a topic.

    \b
    Doubts, such as a member with texts and numbers, become comments. All columns may be null, since the rows are a
    sample; --key and --event-time name columns that may not. Read the proposal before you create a topic with it.

    \b
    Examples:
      tidemark schema infer flights.csv --key carrier > flights.yaml
      tidemark schema infer --topic flights-json --rows 100000 > flights.yaml
      tidemark topic create flights --schema flights.yaml
    """
    if (file is None) == (topic is None):
        raise typer.BadParameter("expected either a FILE or --topic TOPIC")
    draft, notes = _proposal(file, topic, rows, cluster)
    draft = keys.of(draft)
    if cluster.json:
        print_json({"schema": _document(draft), "notes": notes})
        return
    print_line(_in_form(draft, form, notes))


def _proposal(file: Path | None, topic: str | None, rows: int, cluster: Cluster) -> tuple[SchemaDraft, list[str]]:
    from tidemark.cli.schema import sample

    if file is not None and file.suffix.lower() not in (*sample.TABLES, *sample.LINES):
        return draft_of(str(_found(file))), [f"the columns of {file}"]
    if file is not None:
        found, source = sample.of_file(file, rows), str(file)
    else:
        assert topic is not None
        found, source = sample.of_topic(need_bootstrap(cluster.bootstrap), topic, rows), f"topic {topic}"
    return found.draft, [f"proposed from {counted(found.row_count, 'row')} of {source}", *found.notes]


def _found(file: Path) -> Path:
    """The file; raises INVALID_REQUEST if there is none, since its name could be a DDL."""
    if str(file) != STDIN and not file.is_file():
        raise invalid_request(
            f"cannot read {file}: {'it is a directory' if file.is_dir() else 'there is no such file'}"
        )
    return file


class _Change:
    """The version that a check or a change led to."""

    def __init__(self, version: int, changed: bool, differences: tuple[str, ...]) -> None:
        self.version, self.changed, self.differences = version, changed, differences


def _checked_offline(current: TopicSchema, draft: SchemaDraft, compatibility: Compatibility) -> _Change:
    from tidemark.core.schemas.compatibility import Compatibility as Policy
    from tidemark.core.schemas.differences import differences
    from tidemark.core.schemas.evolution import next_version

    following = next_version(current, draft, Policy(compatibility.value))
    changes = tuple(one.sentence for one in differences(current, following))
    return _Change(following.version, following.version != current.version, changes)


def _tell(cluster: Cluster, name: str, change: _Change, verb: str, *, changed: bool) -> None:
    if cluster.json:
        facts = {"version": change.version, "changed": changed, "differences": list(change.differences)}
        print_json({"name": name, **facts})
        return
    if not change.changed:
        print_line(f"nothing to change: version {change.version} of {name} has these columns")
        return
    print_line(f"version {change.version} of {name} {verb} made, with {counted(len(change.differences), 'difference')}")
    for sentence in change.differences:
        print_line(f"    {sentence}")


def _described(client: AdminClient, topic: str) -> TopicSchemas:
    found = client.describe_topic_schemas(topic)
    if not found.versions:
        raise TidemarkError(
            ErrorCode.INVALID_SCHEMA,
            f"{topic} has no schema; `tidemark schema infer --topic {topic}` proposes one for a new topic",
            {"topic": topic},
        )
    return found


def _version(topic: str, described: TopicSchemas, version: int | None) -> TopicSchema:
    if version is None:
        return described.versions[-1].schema
    for one in described.versions:
        if one.schema.version == version:
            return one.schema
    newest = described.versions[-1].schema.version
    raise TidemarkError(
        ErrorCode.UNKNOWN_SCHEMA_VERSION,
        f"the schema of {topic} has no version {version}; the newest is {newest}",
        {"topic": topic, "version": str(version), "newest_version": str(newest)},
    )


def _document(schema: TopicSchema | SchemaDraft) -> dict[str, Any]:
    from tidemark.core.schemas.document import document_of

    return document_of(schema)


def _in_form(schema: TopicSchema | SchemaDraft, form: Form, notes: Sequence[str] = ()) -> str:
    if form is Form.DDL:
        from tidemark.core.schemas.ddl import ddl_of

        return ddl_of(schema)
    if form is Form.JSON:
        return json.dumps(_document(schema), ensure_ascii=False)
    return document_yaml(schema, notes)
