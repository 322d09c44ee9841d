# SPDX-License-Identifier: Apache-2.0
"""`tidemark transaction`: show transactions, abort them, find those that hold a last stable offset back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import (
    BootstrapOption,
    Commands,
    OnlyTopicsOption,
    OutputOption,
    YesOption,
    confirm,
    refuse_json_question,
)
from tidemark.cli.common.output import Output, name_of, print_json, print_line, print_table, shown_time
from tidemark.model import TidemarkError

if TYPE_CHECKING:
    from tidemark.client.aio.hanging_transactions import Hanging
    from tidemark.client.aio.transaction_admin import TransactionAdmin, TransactionDescription

transaction_app = Commands(help="Show transactions, abort them, find those that hold readers back.")

_T = TypeVar("_T")

_LONGER_S_MAX: Final = 86_400 * 3_650

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Transactional id.", autocompletion=completion.transactional_ids)
]
OpenIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Transactional id.", autocompletion=completion.open_transactional_ids)
]
LongerOption = Annotated[
    float,
    typer.Option(
        "--open-longer-than",
        metavar="SECONDS",
        min=0,
        max=_LONGER_S_MAX,
        help="Only transactions that are open for longer.",
    ),
]


@transaction_app.command("list", short_help="List transactional ids.")
def list_transactions(
    phases: Annotated[
        list[str] | None,
        typer.Option(
            "--phase",
            metavar="PHASE",
            help="Only ids in this phase, e.g. ONGOING; repeatable.",
            autocompletion=completion.transaction_phases,
        ),
    ] = None,
    open_longer_than_s: LongerOption = 0,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """List transactional ids, with the age of their open transactions.

    \b
    Examples:
      tidemark transaction list --phase ONGOING
      tidemark transaction list --open-longer-than 60
    """
    wanted = [phase.upper() for phase in phases or ()]
    found, missing = _with_admin(
        bootstrap, lambda admin: admin.list_transactions(wanted, int(1000 * open_longer_than_s))
    )
    if output is Output.JSON:
        print_json({"transactions": [one._asdict() for one in found], "missing": [one.message for one in missing]})
    elif found:
        now_ms = _now_ms()
        rows = [
            (
                one.transactional_id,
                one.phase,
                _age(one.started_at_ms, now_ms),
                one.producer_id,
                one.producer_epoch,
                one.coordinator_id,
            )
            for one in found
        ]
        print_table(("id", "phase", "open for", "producer", "epoch", "coordinator"), rows)
    elif not missing:
        print_line("there is no such transactional id")
    _print_missing(missing)


@transaction_app.command(short_help="Show the state and the partitions of an id.")
def describe(transactional_id: IdArgument, bootstrap: BootstrapOption = "", output: OutputOption = Output.TEXT) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction.

    \b
    Example:
      tidemark transaction describe loader
    """
    (found,) = _with_admin(bootstrap, lambda admin: admin.describe_transactions([transactional_id]))
    if output is Output.JSON:
        print_json(_description_json(found))
        return
    began = f", open for {_age(found.started_at_ms, _now_ms())}" if found.started_at_ms else ""
    print_line(
        f"{found.transactional_id}: {found.phase}{began}, timeout {found.timeout_ms / 1000:g} s; producer "
        f"{found.producer_id}, epoch {found.producer_epoch}; generation {found.generation}, last sequence "
        f"{found.last_sequence}; last change at {shown_time(found.updated_at_ms)}"
    )
    rows = [(name_of(where), producer.producer_id, producer.producer_epoch) for where, producer in found.partitions]
    print_table(("partition", "producer", "epoch"), rows)


@transaction_app.command(short_help="Abort the open transaction of an id.")
def abort(
    transactional_id: OpenIdArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Abort the open transaction of a transactional id; its producer is fenced and must start again.

    \b
    Example:
      tidemark transaction abort loader --yes
    """
    refuse_json_question(output, yes=yes, options="--yes")
    need_bootstrap(bootstrap)
    if not yes:
        confirm(f"Abort the open transaction of {transactional_id}, and fence its producer?")
    _with_admin(bootstrap, lambda admin: admin.abort(transactional_id))
    if output is Output.JSON:
        print_json({"aborted": transactional_id})
    else:
        print_line(f"aborted the transaction of {transactional_id}")


@transaction_app.command("find-hanging", short_help="Find transactions that hold read_committed readers back.")
def find_hanging(
    topics: OnlyTopicsOption = None,
    open_longer_than_s: LongerOption = 60,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Find the transactions that hold a last stable offset back: read_committed readers cannot pass that offset.

    \b
    The first line names the longest one, and the command that ends it. A transaction that no coordinator has is ended
    by the deletion of its records, if their end is known.

    \b
    Examples:
      tidemark transaction find-hanging
      tidemark transaction find-hanging --topic flights --open-longer-than 5
    """
    addresses = need_bootstrap(bootstrap)
    from tidemark.client.aio.hanging_transactions import find_hanging

    now_ms, longer_ms = _now_ms(), int(1000 * open_longer_than_s)
    found, missing = _with_admin(addresses, lambda admin: find_hanging(admin, topics or (), longer_ms, now_ms))
    if output is Output.JSON:
        print_json({"hanging": [one.as_json() for one in found], "missing": [one.message for one in missing]})
    elif found:
        print_line(sentence_of(found[0], now_ms))
        rows = [
            (
                name_of(one.partition),
                one.first_offset,
                one.records,
                one.transactional_id or "-",
                one.producer.producer_id,
                _age(one.since_ms, now_ms),
                one.command or "-",
            )
            for one in found
        ]
        print_table(("partition", "stable offset", "behind", "id", "producer", "open for", "ended by"), rows)
    elif not missing:
        print_line(f"no transaction has held a stable offset back for {open_longer_than_s:g} s or longer")
    _print_missing(missing)


def sentence_of(one: Hanging, now_ms: int) -> str:
    """Each transaction that holds a last stable offset back, since when, and the command that ends it, if any."""
    named = f"transactional id {one.transactional_id}" if one.transactional_id else "a transaction without coordinator"
    return (
        f"{named} holds {name_of(one.partition)} at offset {one.first_offset} since {shown_time(one.since_ms)} "
        f"({_age(one.since_ms, now_ms)}); {one.remedy}"
    )


def _with_admin(bootstrap: str, work: Callable[[TransactionAdmin], Awaitable[_T]]) -> _T:
    addresses = need_bootstrap(bootstrap)
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.client.aio.transaction_admin import TransactionAdmin

    async def run() -> _T:
        async with TransactionAdmin(addresses) as admin:
            return await work(admin)

    return asyncio.run(run())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _age(since_ms: int, now_ms: int) -> str:
    """A duration as 12 s, 3 min, 5 h; "-" without a start."""
    if since_ms <= 0:
        return "-"
    age_s = max(0, now_ms - since_ms) / 1000
    for unit, length_s in (("h", 3600), ("min", 60)):
        if age_s >= 2 * length_s:
            return f"{age_s / length_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def _print_missing(missing: Iterable[TidemarkError]) -> None:
    for error in missing:
        sys.stderr.write(f"some transactions may be missing: {error.message}\n")


def _description_json(found: TransactionDescription) -> dict[str, object]:
    partitions = [{**where._asdict(), **producer._asdict()} for where, producer in found.partitions]
    return {**found._asdict(), "partitions": partitions}
