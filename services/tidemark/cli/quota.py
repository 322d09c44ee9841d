# SPDX-License-Identifier: Apache-2.0
"""`tidemark quota`: set, remove, list and describe quotas of users and client ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from tidemark.cli.common.options import Cluster, Commands, DryRunOption
from tidemark.cli.common.output import counted, print_json, print_line, print_table
from tidemark.cli.common.units import parse_rate
from tidemark.core.quotas.quotas import (
    DEFAULT,
    Limits,
    QuotaEntity,
    QuotaKind,
    Quotas,
    check_entity,
    check_limit,
    kind_of,
    limit_text,
)
from tidemark.core.security.principals import ANONYMOUS
from tidemark.model import decimal_number, invalid_request

quota_app = Commands(help="Set, remove and show quotas: limits of users and client ids.")

_BYTE_RATES: Final = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
_UNITS: Final = {QuotaKind.REQUEST_PERCENTAGE: "%", QuotaKind.PARTITION_CREATION_RATE: "partitions/s"}


@dataclass(frozen=True, slots=True)
class Entity:
    """The options that name an entity."""

    user: Annotated[
        str | None, typer.Option("--user", metavar="PRINCIPAL", help="User:URI-OF-A-CERTIFICATE, User:token:NAME, ...")
    ] = None
    default_user: Annotated[bool, typer.Option("--default-user", help="Each user without its own quotas.")] = False
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Name of clients.")] = None
    default_client_id: Annotated[
        bool, typer.Option("--default-client-id", help="Each client id without its own quotas.")
    ] = False

    def named(self) -> QuotaEntity:
        """The entity; raises INVALID_REQUEST if it is missing or impossible."""
        for name, default, word in (
            (self.user, self.default_user, "user"),
            (self.client_id, self.default_client_id, "client-id"),
        ):
            if name is not None and default:
                raise invalid_request(f"give --{word} or --default-{word}, not both")
        return check_entity(
            QuotaEntity(
                DEFAULT if self.default_user else self.user, DEFAULT if self.default_client_id else self.client_id
            )
        )


@quota_app.command("set", short_help="Set quotas.")
def set_quotas(
    producer_byte_rate: Annotated[
        str | None, typer.Option("--producer-byte-rate", metavar="RATE", help="Bytes per second, such as 10MB.")
    ] = None,
    consumer_byte_rate: Annotated[
        str | None, typer.Option("--consumer-byte-rate", metavar="RATE", help="Bytes per second, such as 10MB.")
    ] = None,
    request_percentage: Annotated[
        float | None,
        typer.Option("--request-percentage", metavar="N", help="Request time, in percent of one processor."),
    ] = None,
    partition_creation_rate: Annotated[
        float | None, typer.Option("--partition-creation-rate", metavar="N", help="Partitions per second.")
    ] = None,
    entity: Entity = Entity(),
    dry_run: DryRunOption = False,
    options: Cluster = Cluster(),
) -> None:
    """Set quotas of a user, a client id, or a user with a client id. The quotas take effect within a second.

    \b
    A quota holds at each broker separately; a quota of partition creations, at each admin service. If there are several
    quotas of one kind, the first in this order applies: user and client id; user and default client id; user. Then
    come: default user and client id; default user and default client id; default user; client id; default client id.

    \b
    Examples:
      tidemark quota set --user User:token:alice --producer-byte-rate 10MB --consumer-byte-rate 20MB
      tidemark quota set --user User:token:alice --client-id nightly-load --producer-byte-rate 2MB
      tidemark quota set --default-user --request-percentage 50 --partition-creation-rate 5
    """
    given: dict[QuotaKind, float | str | None] = {
        QuotaKind.PRODUCER_BYTE_RATE: producer_byte_rate,
        QuotaKind.CONSUMER_BYTE_RATE: consumer_byte_rate,
        QuotaKind.REQUEST_PERCENTAGE: request_percentage,
        QuotaKind.PARTITION_CREATION_RATE: partition_creation_rate,
    }
    limits = {kind: limit_of(kind, value) for kind, value in given.items() if value is not None}
    if not limits:
        raise invalid_request("give a quota: --producer-byte-rate, --consumer-byte-rate, --request-percentage, ...")
    _change(entity.named(), limits, (), dry_run=dry_run, options=options)


@quota_app.command(short_help="Remove quotas.")
def remove(
    kinds: Annotated[
        list[str] | None,
        typer.Option("--quota", metavar="KIND", help="For example producer_byte_rate; default: all; repeatable."),
    ] = None,
    entity: Entity = Entity(),
    dry_run: DryRunOption = False,
    options: Cluster = Cluster(),
) -> None:
    """Remove quotas of an entity, named as in `tidemark quota set`.

    \b
    Examples:
      tidemark quota remove --user User:token:alice
      tidemark quota remove --default-user --quota request_percentage
    """
    removed = [kind_of(word.replace("-", "_")) for word in kinds] if kinds else list(QuotaKind)
    _change(entity.named(), {}, removed, dry_run=dry_run, options=options)


@quota_app.command("list", short_help="List quotas.")
def list_quotas(options: Cluster = Cluster()) -> None:
    """List all quotas.

    \b
    Examples:
      tidemark quota list
      tidemark quota list --output json
    """
    with options.connect() as client:
        found = client.describe_client_quotas()
    if options.json:
        print_json([{**entity._asdict(), "limits": _by_word(limits)} for entity, limits in found.items()])
    elif found:
        rows = [
            (entity.user or "-", entity.client_id or "-", kind, _shown(kind, limit))
            for entity, limits in found.items()
            for kind, limit in sorted(limits.items())
        ]
        print_table(("user", "client id", "quota", "limit"), rows)
    else:
        print_line("there are no quotas")


@quota_app.command(short_help="Show which quotas apply to a client.")
def describe(
    user: Annotated[
        str, typer.Option("--user", metavar="PRINCIPAL", help="The user; default: a user without an identity.")
    ] = ANONYMOUS.name,
    client_id: Annotated[str, typer.Option("--client-id", metavar="ID", help="The client id; default: none.")] = "",
    options: Cluster = Cluster(),
) -> None:
    """Show which quotas apply to a user with a client id, and whose quotas these are.

    \b
    Example:
      tidemark quota describe --user User:token:alice --client-id nightly-load
    """
    check_entity(QuotaEntity(user, client_id or None))
    with options.connect() as client:
        quotas = Quotas(client.describe_client_quotas())
    found = {kind: quotas.decide(kind, user, client_id) for kind in QuotaKind}
    if options.json:
        print_json(
            {
                str(kind): None if one is None else {"limit": one.limit, **one.entity._asdict()}
                for kind, one in found.items()
            }
        )
        return
    for kind, one in found.items():
        shown = "no limit" if one is None else f"{_shown(kind, one.limit)} (quota of {one.entity})"
        print_line(f"{kind}: {shown}")


def limit_of(kind: QuotaKind, given: float | str) -> float:
    """The limit that a text or number states; raises INVALID_REQUEST."""
    if isinstance(given, str):
        try:
            limit = parse_rate(given) if kind in _BYTE_RATES else decimal_number(given)
        except typer.BadParameter as error:
            raise invalid_request(f"{kind}: {error.message}") from None
        if limit is None:
            raise invalid_request(f"{kind} is {given!r}: give a number")
        given = limit
    return check_limit(kind, given)


def _change(
    entity: QuotaEntity, limits: Limits, removed: Iterable[QuotaKind], *, dry_run: bool, options: Cluster
) -> None:
    from tidemark.rpc.quotas.codec import QuotaChange

    change = QuotaChange(entity, limits, frozenset(removed))
    with options.connect() as client:
        altered = client.alter_client_quotas([change], validate_only=dry_run)
    if options.json:
        shown = [{**one._asdict(), "entity": one.entity._asdict()} for one in altered.changed]
        print_json({"changed": shown, "generation": altered.generation, "applied": not dry_run})
        return
    for one in altered.changed:
        before, after = ("no limit" if limit is None else _shown(one.kind, limit) for limit in (one.before, one.after))
        print_line(f"~ {one.kind} of {one.entity}: {before} -> {after}")
    count = counted(len(altered.changed), "quota")
    print_line(f"{count} {'to change' if dry_run else 'changed'}" if altered.changed else "nothing to change")


def _by_word(limits: Limits) -> Mapping[str, float]:
    return {str(kind): limit for kind, limit in sorted(limits.items())}


def _shown(kind: QuotaKind, limit: float) -> str:
    return f"{limit_text(limit)} {_UNITS.get(kind, 'bytes/s')}"
