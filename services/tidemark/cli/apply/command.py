# SPDX-License-Identifier: Apache-2.0
"""`tidemark apply`: make topics and settings match a file. Idempotent.

No step is executed before the whole file was parsed and the admin service validated every step.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import Cluster, DryRunOption
from tidemark.cli.common.output import counted, error_json, print_error, print_json, print_line, print_warning
from tidemark.cli.common.process import EXIT_DIFFERENT, EXIT_INTERRUPTED, read_whole
from tidemark.cli.config import change_lines
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.runtime.configuration.entries import ConfigSource
from tidemark.runtime.interrupts import signals_as_interrupt

if TYPE_CHECKING:
    from tidemark.cli.apply.cluster_file import ClusterFile, Problem
    from tidemark.cli.apply.cluster_plan import Step
    from tidemark.client import AdminClient

EXIT_REFUSED: Final = 1

_ABOUT: Final = {
    ErrorCode.INVALID_PARTITIONS: "partitions",
    ErrorCode.INVALID_REPLICATION_FACTOR: "replication_factor",
    ErrorCode.INVALID_SCHEMA: "schema",
    ErrorCode.INCOMPATIBLE_SCHEMA: "schema",
    ErrorCode.SCHEMA_CONFLICT: "schema",
}
"""Key in the file that an error code is about, except for settings."""

_SIGNS: Final = {
    "create": "+",
    "grow": "~",
    "configure": "~",
    "evolve": "~",
    "permit": "~",
    "limit": "~",
    "delete": "-",
}


@dataclass(slots=True)
class Done:
    """The execution of steps, by index of the step.

    Attributes:
        made: steps that were executed.
        failed: refusals.
        interrupted_at: resource of the step that Ctrl-C interrupted; "": none.
    """

    made: set[int] = field(default_factory=set)
    failed: dict[int, TidemarkError] = field(default_factory=dict)
    interrupted_at: str = ""


def apply(
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The desired state; '-' is stdin.")],
    dry_run: DryRunOption = False,
    check: Annotated[bool, typer.Option("--check", help="As --dry-run; exit status 2 if anything differs.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete topics that the file does not name.")] = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Make topics, settings, schemas, access rules and quotas match a file.

    \b
    The file, in YAML:
      topics:
        flights:
          partitions: 6              # added up to this number; never removed
          replication_factor: 3      # of a new topic
          configs:                   # all overrides; without configs: they do not change
            retention.ms: 86400000
          schema: flights.yaml       # a schema file next to this file, its content, or a DDL
        greetings:
          delete: true
      brokers:
        default:                     # all brokers
          replica.lag.time.max.ms: 20000
        0:
          log.level: debug
      acls:
        User:token:alice:                  # all rules of this principal; [] removes them
          - allow: [read, write]     # or deny
            topic_prefix: shop.      # or topic, group, group_prefix, cluster: true, ...
            host: 10.0.0.7           # default: all
      quotas:
        - user: User:token:alice     # or client_id, or both
          producer_byte_rate: 10MB   # all quotas of this user: others are removed

    \b
    A topic is deleted only for delete: true, or with --prune. Each error in the file is reported with its line; then
    no change is made. Each change of a topic or broker is atomic. If a change is refused, the other changes are still
    made; run the command again for the remaining changes. After Ctrl-C or SIGTERM
    the output has the changes that are made.
    Exit status 0: the cluster matches the file (or --dry-run). 1: refused. 2: --check found differences.

    \b
    Examples:
      tidemark apply -f cluster.yaml --dry-run
      tidemark apply -f cluster.yaml --check || echo "the cluster differs from the file"
      tidemark apply -f cluster.yaml --prune -o json
    """
    from tidemark.cli.apply.cluster_file import parse

    shown = "stdin" if str(file) == "-" else str(file)
    wanted, problems = parse(_read(file), Path() if str(file) == "-" else file.parent)
    _end_if(problems, shown)
    if prune and not wanted.topics:
        raise invalid_request(f"{shown} names no topic, so --prune would delete all topics")
    with cluster.connect() as client:
        steps, problems = _planned(client, wanted, prune=prune)
        refused, warnings = _checked(client, steps)
        problems += refused
        _end_if(sorted(problems, key=lambda problem: problem.line), shown)
        validate_only = dry_run or check
        done = Done() if validate_only else _carry_out(client, steps)
    _show(cluster, steps, done, warnings, validate_only=validate_only)
    if done.interrupted_at:
        where = f"interrupted at {done.interrupted_at}, which may have changed"
        typer.echo(f"{where}; run the command again for the other changes", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if done.failed:
        raise typer.Exit(EXIT_REFUSED)
    if check and steps:
        raise typer.Exit(EXIT_DIFFERENT)


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            return read_whole(sys.stdin, "stdin")
        with file.open(encoding="utf-8") as opened:
            return read_whole(opened, str(file))
    except OSError as error:
        raise invalid_request(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_request(f"{file} is not UTF-8 text: {error}") from error


def _planned(client: AdminClient, wanted: ClusterFile, *, prune: bool) -> tuple[list[Step], list[Problem]]:
    from tidemark.cli.apply.cluster_file import Problem
    from tidemark.cli.apply.cluster_plan import plan

    topics = {view.topic: view for view in client.describe_topics()}
    brokers: dict[str, Mapping[str, str]] = {}
    problems = []
    for name, broker in wanted.brokers.items():
        try:
            brokers[name] = _set_of(client, name)
        except TidemarkError as error:
            problems.append(Problem(broker.line, error))
    acls = client.list_acls() if wanted.acls else ()
    quotas = client.describe_client_quotas() if wanted.quotas else {}
    typed = [one.name for one in wanted.topics.values() if one.schema is not None and one.name in topics]
    schemas = {name: client.describe_topic_schemas(name) for name in typed}
    steps, impossible = plan(wanted, topics, brokers, acls, quotas, schemas, prune=prune)
    return steps, [*problems, *impossible]


def _set_of(client: AdminClient, broker: str) -> Mapping[str, str]:
    """Current overrides of a broker; none for a broker that never registered, since it may be configured beforehand."""
    resource = ConfigResource(ConfigKind.BROKER, broker)
    source = ConfigSource.CLUSTER if broker == CLUSTER_DEFAULT else ConfigSource.BROKER
    try:
        entries = client.describe_configs([resource])[resource]
    except TidemarkError as error:
        if error.code is ErrorCode.BROKER_NOT_AVAILABLE and "broker" in error.metadata:
            return {}
        raise
    return {entry.key: entry.value for entry in entries if entry.source is source and entry.value is not None}


def _checked(client: AdminClient, steps: Sequence[Step]) -> tuple[list[Problem], dict[int, Sequence[str]]]:
    """Validate the steps; returns refusals with their lines, and warnings by index of the step."""
    from tidemark.cli.apply.cluster_file import Problem

    problems, warnings = [], {}
    for index, step in enumerate(steps):
        try:
            warnings[index] = step.run(client, True, "")
        except TidemarkError as error:
            about = error.metadata.get("config") or _ABOUT.get(error.code, "")
            line = step.lines.get(about, step.line)
            problems.append(Problem(line, error))
    return problems, warnings


def _carry_out(client: AdminClient, steps: Sequence[Step]) -> Done:
    """Execute every step, until Ctrl-C or SIGTERM."""
    done = Done()
    resource = steps[0].resource if steps else ""
    try:
        with signals_as_interrupt():
            for index, step in enumerate(steps):
                resource = step.resource
                try:
                    step.run(client, False, uuid.uuid4().hex)
                    done.made.add(index)
                except TidemarkError as error:
                    done.failed[index] = TidemarkError(error.code, f"{resource}: {error.message}", error.metadata)
    except KeyboardInterrupt:
        done.interrupted_at = resource
    return done


def _end_if(problems: Sequence[Problem], file: str) -> None:
    for line, error in problems:
        where = f"{file}:{line}: " if line else ""
        print_error(TidemarkError(error.code, f"{where}{error.message}"))
    if problems:
        raise typer.Exit(EXIT_REFUSED)


def _show(
    cluster: Cluster,
    steps: Sequence[Step],
    done: Done,
    warnings: Mapping[int, Sequence[str]],
    *,
    validate_only: bool,
) -> None:
    if cluster.json:
        changes = [
            {
                "action": str(step.action),
                "resource": step.resource,
                "summary": step.summary,
                "changes": [change._asdict() for change in step.changes],
                "applied": index in done.made,
                "error": error_json(done.failed.get(index)),
                "warnings": warnings[index],
            }
            for index, step in enumerate(steps)
        ]
        print_json({"different": bool(steps), "changes": changes})
    else:
        shown = [step for index, step in enumerate(steps) if validate_only or index in done.made]
        for step in shown:
            print_line(f"{_SIGNS[step.action]} {step.resource}{f': {step.summary}' if step.summary else ''}")
            for line in change_lines(step.changes):
                print_line(f"    {line}")
        count = counted(len(shown), "change")
        if not steps:
            print_line("nothing to change: the cluster matches the file")
        else:
            print_line(f"{count} to make" if validate_only else f"{count} made")
    for index, of_step in warnings.items():
        for warning in of_step if validate_only or index in done.made else ():
            print_warning(warning)
    for error in done.failed.values():
        print_error(error)
