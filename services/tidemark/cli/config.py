# SPDX-License-Identifier: Apache-2.0
"""`tidemark config ...`: settings of topics and brokers, as they hold, as they are set, and what they mean."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, print_json, print_line, print_table, print_warning
from tidemark.client.created_topic import MIN_ISR, noticed_of_restarts
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import TidemarkError
from tidemark.runtime.configuration_entries import ConfigChange, ConfigEntry, ConfigSource

if TYPE_CHECKING:
    from tidemark.client import AdminClient

config_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at and change settings of topics and brokers."
)

_NOBODY: Final = "-"


class Whose(StrEnum):
    """What has settings."""

    TOPIC = "topic"
    BROKER = "broker"


_KINDS: Final = {Whose.TOPIC: ConfigKind.TOPIC, Whose.BROKER: ConfigKind.BROKER}

WhoseArgument = Annotated[Whose, typer.Argument(metavar="topic|broker", help="Whose settings.")]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The topic's name; the broker's id, or 'default' for every broker.")
]
KeysArgument = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Which; all if none is named.")]
RequestIdOption = Annotated[
    str,
    typer.Option("--request-id", metavar="ID", help="Repeated with the same id, a change is made once; else made up."),
]


@config_app.callback()
def config() -> None:
    """Look at and change settings of topics and brokers."""


@config_app.command("get", short_help="The values that hold.")
def get(
    whose: WhoseArgument,
    name: NameArgument,
    keys: KeysArgument = None,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """The values that hold: KEY=VALUE of each, or the bare value of a single KEY.

    \b
    Examples:
      tidemark config get topic flights retention.ms
      tidemark config get broker 0
      tidemark config get topic flights -o json | jq '."max.message.bytes".value'
    """
    entries = _entries(whose, name, keys, bootstrap, admin)
    if output is Output.JSON:
        print_json({entry.key: {"value": entry.value, "source": str(entry.source)} for entry in entries})
        return
    for entry in entries:
        value = _NOBODY if entry.value is None else entry.value
        print_line(value if keys and len(keys) == 1 else f"{entry.key}={value}")


@config_app.command("describe", short_help="Each setting: value, source, range and meaning.")
def describe(
    whose: WhoseArgument,
    name: NameArgument,
    keys: KeysArgument = None,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Each setting with its value, where that comes from, what it may be and what it means.

    \b
    source: default (the table), static (the broker's own flags, environment or file), cluster (set for every
    broker), broker, topic; unknown: the broker does not answer.

    \b
    Examples:
      tidemark config describe topic flights
      tidemark config describe broker default -o json
      tidemark config describe broker 0 replica.lag.time.max.ms
    """
    entries = _entries(whose, name, keys, bootstrap, admin)
    if output is Output.JSON:
        print_json([entry_json(entry) for entry in entries])
        return
    print_table(
        ("key", "value", "source", "scope", "unit", "values", "meaning"),
        [
            (
                entry.key,
                _NOBODY if entry.value is None else entry.value,
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
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings; all are changed, or none.")
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", "-d", metavar="KEY", help="Be without a value of its own again; repeatable."),
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check, show what would change, change nothing.")
    ] = False,
    request_id: RequestIdOption = "",
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Change settings while the cluster runs. Shows what changed.

    \b
    Examples:
      tidemark config set topic flights retention.ms=86400000 flush.policy=group-commit
      tidemark config set topic flights --delete retention.ms
      tidemark config set broker 0 log.level=debug
      tidemark config set broker default replica.lag.time.max.ms=20000 --validate-only
    """
    configs = parse_settings(settings or [])
    if not configs and not delete:
        raise typer.BadParameter("say what to change: KEY=VALUE, or --delete KEY")
    with connect_admin(bootstrap, admin) as client:
        changes = client.alter_configs(
            ConfigResource(_KINDS[whose], name),
            configs,
            delete=delete or (),
            validate_only=validate_only,
            request_id=request_id or ("" if validate_only else uuid.uuid4().hex),
        )
        warnings = _noticed(client, name, changes) if whose is Whose.TOPIC else ()
    for warning in warnings:
        print_warning(warning)
    if output is Output.JSON:
        told = [change_json(one) for one in changes]
        print_json({"changed": bool(changes) and not validate_only, "changes": told, "warnings": warnings})
        return
    for line in change_lines(changes):
        print_line(line)
    if not changes:
        print_line("nothing to change: it is so already")


def _noticed(client: AdminClient, topic: str, changes: Iterable[ConfigChange]) -> Sequence[str]:
    """What users of the topic will notice of a restart from now on, where a change has to do with that."""
    min_isr = next((change for change in changes if change.key == MIN_ISR), None)
    if min_isr is None:
        return ()
    configs = {} if min_isr.after is None else {MIN_ISR: min_isr.after}
    try:
        views = client.describe_topics([topic])
    except TidemarkError:  # the change is made, so this costs the warning only
        return ()
    return [one for view in views for one in noticed_of_restarts(view, configs)]


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE of each; bad usage when one is not, or comes twice."""
    configs: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{setting!r}: want KEY=VALUE")
        if key in configs:
            raise typer.BadParameter(f"{key} is given twice")
        configs[key] = value
    return configs


def _entries(whose: Whose, name: str, keys: Sequence[str] | None, bootstrap: str, admin: str) -> list[ConfigEntry]:
    resource = ConfigResource(_KINDS[whose], name)
    with connect_admin(bootstrap, admin) as client:
        return client.describe_configs([resource], list(dict.fromkeys(keys or [])))[resource]


def change_lines(changes: Iterable[ConfigChange]) -> list[str]:
    """A change as people read it: `~ key: old -> new`, `+ key: new`, `- key: old`."""
    lines = []
    for change in changes:
        if change.before is None:
            lines.append(f"+ {change.key}: {change.after}")
        elif change.after is None:
            lines.append(f"- {change.key}: {change.before}")
        else:
            lines.append(f"~ {change.key}: {change.before} -> {change.after}")
    return lines


def change_json(change: ConfigChange) -> Mapping[str, object]:
    """A change for scripts; null: nobody has set it."""
    return change._asdict()


def entry_json(entry: ConfigEntry) -> Mapping[str, object]:
    """A setting for scripts; a value of null: nobody can tell."""
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
