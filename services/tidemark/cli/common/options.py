# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share, their checks, and the question before a change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_type_hints

import typer
from typer.models import CommandFunctionType

from tidemark.cli.common import completion
from tidemark.cli.common.connection import connect_admin, drop_other_address
from tidemark.cli.common.help_text import PlainCommand, PlainGroup
from tidemark.cli.common.output import Output, print_warning
from tidemark.model import INT32_MAX, TopicPartition, decimal_number, invalid_request, number_up_to, whole_number

if TYPE_CHECKING:
    from tidemark.client import AdminClient

_DRY_RUN: Final = "dry_run"
_FORMER_DRY_RUN: Final = "validate_only"
_KINDS: Final = "parameter_kinds"

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", metavar="HOST:PORT,...", help="Any brokers of the cluster."
    ),
]
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar="TIDEMARK_ADMIN",
        metavar="HOST:PORT",
        help="The admin service; by default its address comes from the brokers.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.", autocompletion=completion.topics)]
TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="Topics; default: all.", autocompletion=completion.topics),
]
OnlyTopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", help="Only this topic; repeatable.", autocompletion=completion.topics
    ),
]
TopicConfigsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="A setting of the new topic; repeatable.",
        autocompletion=completion.topic_settings,
    ),
]
RequestIdOption = Annotated[
    str,
    typer.Option("--request-id", metavar="ID", help="A repeat with the same id changes nothing; default: a new id."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check and show the result; change nothing.")]
"""A command with a parameter `dry_run` also takes the option's former name, which no help shows."""
_FormerDryRunOption = Annotated[bool, typer.Option("--validate-only", hidden=True)]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The options of a command that calls the admin service."""

    bootstrap: BootstrapOption = ""
    admin: AdminOption = ""
    output: OutputOption = Output.TEXT

    @property
    def json(self) -> bool:
        """Whether the output is JSON."""
        return self.output is Output.JSON

    def connect(self, *, timeout_s: float = 30.0) -> AdminClient:
        """A client of the admin service; raises BadParameter without an address."""
        return connect_admin(self.bootstrap, self.admin, timeout_s=timeout_s)


class _Command(PlainCommand):
    """A command that uses one cluster."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line; raises BadParameter for a text that Python reads as a number, such as 1_000, and for
        an empty path, which Python reads as the current directory.
        """
        rest = super().parse_args(ctx, list(args))
        if not ctx.resilient_parsing:
            given = self.make_parser(ctx).parse_args(list(args))[0]
            kinds: Mapping[str, type] = getattr(self.callback, _KINDS, {})
            for parameter in self.params:
                text = given.get(parameter.name)
                wanted = _missed(text, kinds[parameter.name]) if parameter.name in kinds else ""
                if wanted:
                    is_argument = parameter.param_type_name == "argument"
                    name = parameter.metavar if is_argument else parameter.opts[0]
                    raise typer.BadParameter(f"{text!r}: expected {wanted}", param_hint=name)
        return rest

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        drop_other_address(ctx)
        return super().invoke(ctx)


class Commands(typer.Typer):
    """A group of commands. A parameter whose type is a dataclass becomes one option for each field.

    The default of the parameter, if any, has the defaults of these options.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode=None, **{"cls": PlainGroup, **settings})

    def command(self, *names: Any, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Register a command, with the arguments of typer's decorator."""
        register = super().command(*names, cls=_Command, **settings)

        def add(function: CommandFunctionType) -> CommandFunctionType:
            register(_with_fields(function))
            return function

        return add


def _with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the fields of its dataclasses in place of these parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        annotations = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = Parameter.empty if field.default is MISSING else field.default
            default = getattr(parameter.default, field.name, default)
            annotation = annotations[field.name]
            parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    takes_former_name = any(parameter.name == _DRY_RUN for parameter in parameters)
    if takes_former_name:
        parameters.append(
            Parameter(_FORMER_DRY_RUN, Parameter.KEYWORD_ONLY, default=False, annotation=_FormerDryRunOption)
        )

    @wraps(command)
    def run(**given: Any) -> None:
        if takes_former_name and given.pop(_FORMER_DRY_RUN):
            print_warning("--validate-only is now --dry-run, and will be removed in the next release")
            given[_DRY_RUN] = True
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__dict__["__signature__"] = Signature(parameters)
    run.__dict__[_KINDS] = {one.name: kind for one in parameters if (kind := _kind(one.annotation))}
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _kind(annotation: Any) -> type | None:
    """int, float or Path for such a parameter, also an optional one."""
    kinds = get_args(annotation)[:1] or (annotation,)
    return next((kind for kind in (int, float, Path) for one in kinds if one is kind or kind in get_args(one)), None)


def _missed(text: Any, kind: type) -> str:
    """The form that a text of the command line does not have; "" for a good text and for no text."""
    if not isinstance(text, str):
        return ""
    if kind is Path:
        return "" if text else "a path"
    number = whole_number(text) if kind is int else decimal_number(text)
    return "a number in digits 0 to 9" if number is None else ""


def fits_int32(value: int) -> int:
    """The value; raises BadParameter if the value is not an int32. The service makes all other checks."""
    if not -(2**31) <= value <= INT32_MAX:
        raise typer.BadParameter(f"{value} is out of range")
    return value


def parse_configs(settings: Sequence[str], *, option: str | None = "--config") -> dict[str, str]:
    """Key and value of each KEY=VALUE; raises BadParameter for another form, or a key that is given twice."""
    configs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{setting!r}: expected KEY=VALUE", param_hint=option)
        if name in configs:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        configs[name] = value
    return configs


def parse_targets(targets: Iterable[str]) -> tuple[list[str], list[TopicPartition]]:
    """The topics, and the partitions; raises BadParameter for an argument that is not a topic or a partition."""
    places = parse_places(targets)
    topics = [topic for topic, index in places if index is None]
    return topics, [TopicPartition(topic, index) for topic, index in places if index is not None]


def parse_places(targets: Iterable[str]) -> list[tuple[str, int | None]]:
    """Each topic with its partition (None: all partitions); raises BadParameter for another form."""
    places: list[tuple[str, int | None]] = []
    for target in targets:
        topic, colon, index = target.partition(":")
        partition = number_up_to(INT32_MAX, index)
        if not topic or (colon and partition is None):
            raise typer.BadParameter(f"{target!r}: expected TOPIC or TOPIC:PARTITION, such as flights:0")
        places.append((topic, partition))
    return places


def parse_brokers(words: Sequence[str]) -> list[int]:
    """Broker ids of "3 4" or "3,4", in order; raises BadParameter for other text, no id, or an id given twice."""
    ids = []
    for word in words:
        for part in word.split(","):
            broker = number_up_to(INT32_MAX, part)
            if broker is None:
                raise typer.BadParameter(f"{part!r}: expected ids of brokers, such as 3 4")
            ids.append(broker)
    if len(set(ids)) < len(ids):
        raise typer.BadParameter("a broker is given twice")
    if not ids:
        raise typer.BadParameter("expected at least one broker")
    return ids


def check_delimiter(delimiter: str) -> None:
    """Raises BadParameter for a --delimiter that is not one byte."""
    if len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"{delimiter!r}: expected one character", param_hint="--delimiter")


def confirm(question: str) -> None:
    """Ask on the terminal; raises INVALID_REQUEST for any answer but yes, and without a terminal."""
    if not sys.stdin.isatty():
        sentence = "nothing was changed: stdin is not a terminal, so no answer can confirm the change; add --yes"
        raise invalid_request(sentence)
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise invalid_request("nothing was changed: not confirmed")


def refuse_json_question(
    output: Output, *, yes: bool, dry_run: bool = False, options: str = "--yes or --dry-run"
) -> None:
    """Raises BadParameter where a command with JSON output would ask for confirmation.

    Args:
        options: command-line options that avoid the question, for the error.
    """
    if output is Output.JSON and not (yes or dry_run):
        raise typer.BadParameter(f"JSON output asks no question: add {options}", param_hint="--output")
