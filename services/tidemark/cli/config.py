# SPDX-License-Identifier: Apache-2.0
"""`tidemark config ...`: show and change the settings of topics and brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import Cluster, Commands, DryRunOption, RequestIdOption, parse_configs
from tidemark.cli.common.output import print_json, print_line, print_table, print_warning
from tidemark.client.created_topic import MIN_ISR, restart_warnings
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import TidemarkError
from tidemark.runtime.configuration.entries import ConfigChange, ConfigEntry, ConfigSource

if TYPE_CHECKING:
    from tidemark.client import AdminClient

config_app = Commands(help="Show and change settings of topics and brokers.")

_NO_VALUE: Final = "-"


class Whose(StrEnum):
    """A kind of resource that has settings."""

    TOPIC = "topic"
    BROKER = "broker"


WhoseArgument = Annotated[Whose, typer.Argument(metavar="topic|broker", help="Kind of the resource.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Topic name; broker id, or 'default' for all brokers.",
        autocompletion=completion.config_names,
    ),
]
KeysArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY", help="Settings; default: all.", autocompletion=completion.config_keys),
]


@config_app.command("get", short_help="Show effective values.")
def get(whose: WhoseArgument, name: NameArgument, keys: KeysArgument = None, cluster: Cluster = Cluster()) -> None:
    """Show effective values: KEY=VALUE for each setting, or the bare value of a single KEY.

    \b
    Examples:
      tidemark config get topic flights retention.ms
      tidemark config get broker 0
      tidemark config get topic flights -o json | jq '."max.message.bytes".value'
    """
    entries = _entries(cluster, whose, name, keys)
    if cluster.json:
        print_json({entry.key: {"value": entry.value, "source": str(entry.source)} for entry in entries})
        return
    for entry in entries:
        value = _NO_VALUE if entry.value is None else entry.value
        print_line(value if keys and len(keys) == 1 else f"{entry.key}={value}")


@config_app.command("describe", short_help="Show value, source, range and meaning.")
def describe(whose: WhoseArgument, name: NameArgument, keys: KeysArgument = None, cluster: Cluster = Cluster()) -> None:
    """Show each setting with its value, the source of the value, the valid values and the meaning.

    \b
    source: default (the table), static (flags, environment or file of the broker), cluster (set for all brokers),
    broker, topic; unknown: the broker does not answer.

    \b
    Examples:
      tidemark config describe topic flights
      tidemark config describe broker default -o json
      tidemark config describe broker 0 replica.lag.time.max.ms
    """
    entries = _entries(cluster, whose, name, keys)
    if cluster.json:
        print_json([entry_json(entry) for entry in entries])
        return
    print_table(
        ("key", "value", "source", "scope", "unit", "values", "meaning"),
        [
            (
                entry.key,
                _NO_VALUE if entry.value is None else entry.value,
                entry.source,
                entry.scope,
                entry.unit,
                entry.valid_values,
                entry.documentation,
            )
            for entry in entries
        ],
    )


@config_app.command("set")
def set_(
    whose: WhoseArgument,
    name: NameArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="New values; applied all together or not at all.",
            autocompletion=completion.config_changes,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="KEY",
            help="Remove the override of KEY; repeatable.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    request_id: RequestIdOption = "",
    cluster: Cluster = Cluster(),
) -> None:
    """Change settings while the cluster runs, and show the changes.

    \b
    Examples:
      tidemark config set topic flights retention.ms=86400000 flush.policy=group-commit
      tidemark config set topic flights --delete retention.ms
      tidemark config set broker 0 log.level=debug
      tidemark config set broker default replica.lag.time.max.ms=20000 --dry-run
    """
    configs = parse_configs(settings or [], option=None)
    if not configs and not delete:
        raise typer.BadParameter("nothing to change is given: expected KEY=VALUE, or --delete KEY")
    with cluster.connect() as client:
        changes = client.alter_configs(
            ConfigResource(ConfigKind[whose.name], name),
            configs,
            delete=delete or (),
            validate_only=dry_run,
            request_id=request_id or ("" if dry_run else uuid.uuid4().hex),
        )
        warnings = _noticed(client, name, changes) if whose is Whose.TOPIC else ()
    for warning in warnings:
        print_warning(warning)
    if cluster.json:
        shown = [one._asdict() for one in changes]
        print_json({"changed": bool(changes) and not dry_run, "changes": shown, "warnings": warnings})
        return
    for line in change_lines(changes):
        print_line(line)
    if not changes:
        print_line("nothing to change: the settings have these values already")


def _noticed(client: AdminClient, topic: str, changes: Iterable[ConfigChange]) -> Sequence[str]:
    """Warnings about the effects of a broker restart on clients, if min.insync.replicas changed."""
    min_isr = next((change for change in changes if change.key == MIN_ISR), None)
    if min_isr is None:
        return ()
    configs = {} if min_isr.after is None else {MIN_ISR: min_isr.after}
    try:
        views = client.describe_topics([topic])
    except TidemarkError:  # the change is applied; only the warning is missing
        return ()
    return [one for view in views for one in restart_warnings(view, configs)]


def _entries(cluster: Cluster, whose: Whose, name: str, keys: Sequence[str] | None) -> list[ConfigEntry]:
    resource = ConfigResource(ConfigKind[whose.name], name)
    with cluster.connect() as client:
        return client.describe_configs([resource], list(dict.fromkeys(keys or [])))[resource]


def change_lines(changes: Iterable[ConfigChange]) -> list[str]:
    """Changes as text: `~ key: old -> new`, `+ key: new`, `- key: old`."""
    lines = []
    for change in changes:
        if change.before is None:
            lines.append(f"+ {change.key}: {change.after}")
        elif change.after is None:
            lines.append(f"- {change.key}: {change.before}")
        else:
            lines.append(f"~ {change.key}: {change.before} -> {change.after}")
    return lines


def entry_json(entry: ConfigEntry) -> Mapping[str, object]:
    """A setting as a JSON object; `value` is null if the effective value is unknown."""
    return {
        "key": entry.key,
        "value": entry.value,
        "source": str(entry.source),
        "is_set": entry.source not in (ConfigSource.DEFAULT, ConfigSource.UNKNOWN),
        "type": entry.type,
        "unit": entry.unit,
        "scope": entry.scope,
        "documentation": entry.documentation,
        "valid_values": entry.valid_values,
        "default_value": entry.default_value,
    }
