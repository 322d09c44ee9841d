# SPDX-License-Identifier: Apache-2.0
"""The `tidemark` command: its subcommands and exit statuses.

Exit status 0: done. 1: refused or failed; stderr has one line, `error CODE: sentence`. 2: bad usage, or
`apply --check` found a difference.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from tidemark.cli import completion as shells
from tidemark.cli.acl import acl_app
from tidemark.cli.apply.command import apply
from tidemark.cli.audit import audit
from tidemark.cli.bench.commands import bench_app
from tidemark.cli.certs import certs_app
from tidemark.cli.cluster.commands import cluster_app
from tidemark.cli.cluster.log_dirs import log_dirs_app
from tidemark.cli.common.help_text import by_task
from tidemark.cli.common.options import Commands
from tidemark.cli.common.output import print_error
from tidemark.cli.common.process import check_streams, flush_output, refusal_of_output, refusal_of_words, show_silence
from tidemark.cli.common.profiles import use_profile
from tidemark.cli.config import config_app
from tidemark.cli.consume.command import consume
from tidemark.cli.elect import elect
from tidemark.cli.group.commands import group_app
from tidemark.cli.inspect.commands import log_app, replicas_app
from tidemark.cli.produce.command import produce
from tidemark.cli.quota import quota_app
from tidemark.cli.reassign.commands import reassign_app
from tidemark.cli.schema.commands import schema_app
from tidemark.cli.token import token_app
from tidemark.cli.topic.commands import topic_app
from tidemark.cli.transaction.commands import transaction_app
from tidemark.cli.zookeeper import zookeeper_app
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.token_source import VARIABLE
from tidemark.runtime.imports import refuse_import

EXIT_REFUSED = 1
PROGRAM: Final = "tidemark"

TASKS: Final = {
    "Records": ("produce", "consume"),
    "Topics": ("topic", "schema", "config", "apply"),
    "Consumer groups": ("group",),
    "Transactions": ("transaction",),
    "Access": ("acl", "quota", "audit"),
    "Brokers and replicas": ("cluster", "reassign", "elect", "log-dirs", "replicas", "log", "zookeeper"),
    "This machine": ("dev", "certs", "token", "bench", "completion"),
}
"""Commands in the order of the help, by task."""

app = Commands(
    name=PROGRAM,
    cls=by_task(TASKS),
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic_app, name="topic")
app.add_typer(schema_app, name="schema", short_help="Show and change schemas of typed topics.")
app.add_typer(acl_app, name="acl", short_help="Add, remove, list and check access rules.")
app.add_typer(quota_app, name="quota", short_help="Set limits of users and client ids.")
app.add_typer(cluster_app, name="cluster")
app.add_typer(config_app, name="config")
app.add_typer(reassign_app, name="reassign")
app.add_typer(log_dirs_app, name="log-dirs", short_help="Show log directories, and move replicas.")
app.add_typer(group_app, name="group", short_help="Show consumer groups, and reset their offsets.")
app.add_typer(transaction_app, name="transaction", short_help="Show, abort and find transactions.")
app.add_typer(log_app, name="log", short_help="Print and check the files of log directories.")
app.add_typer(bench_app, name="bench")
app.add_typer(certs_app, name="certs")
app.add_typer(zookeeper_app, name="zookeeper")
app.add_typer(token_app, name="token")
app.add_typer(replicas_app, name="replicas")
app.command(short_help="Send lines or rows as records.")(produce)
app.command(short_help="Print records, or write them to a file.")(consume)
app.command(short_help="Elect leaders on request.")(elect)
app.command(short_help="Show the last changes and denials.")(audit)
app.command(short_help="Make topics, settings and rights match a file.")(apply)
app.command(short_help="Print the completion script of a shell.")(shells.completion)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidemark {version('tidemark')}")
        raise typer.Exit


@app.callback()
def tidemark(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            envvar="TIDEMARK_PROFILE",
            metavar="NAME",
            help="Addresses and files of a cluster, from ~/.config/tidemark/profiles.toml.",
        ),
    ] = "",
    token_file: Annotated[
        str,
        typer.Option("--token-file", envvar=VARIABLE, metavar="FILE", help="File with the token of the user."),
    ] = "",
) -> None:
    """Tidemark, a replicated commit log.

    \b
    Start a cluster on this machine:
      tidemark dev
    Then, in another terminal:
      export TIDEMARK_BOOTSTRAP=127.0.0.1:9192
      tidemark topic create greetings --partitions 3
      echo hello | tidemark produce greetings
      tidemark consume greetings --from earliest --max-records 1
      tidemark topic describe greetings
    """
    if profile:
        given = os.environ.get(VARIABLE) != token_file
        use_profile(profile)
        token_file = token_file if given else ""
    if token_file:
        os.environ[VARIABLE] = token_file


@app.command()
def dev(
    directory: Annotated[
        Path, typer.Option("--directory", "-d", metavar="DIR", help="Data of the cluster; a second start reuses it.")
    ] = Path(".tidemark-dev"),
    brokers: Annotated[int, typer.Option("--brokers", metavar="N", min=1, max=9, help="Number of brokers.")] = 3,
    controllers: Annotated[
        int, typer.Option("--controllers", metavar="N", min=1, max=9, help="Number of controllers.")
    ] = 2,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Use free ports instead of 9192, 9202, ...")] = False,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Use TLS with certificates, made in DIR/certs, and access rules."),
    ] = False,
    no_console: Annotated[bool, typer.Option("--no-console", help="Run without the console's web pages.")] = False,
    console_write: Annotated[
        bool, typer.Option("--console-write", help="Let the console reset offsets and cancel reassignments.")
    ] = False,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C.

    \b
    Examples:
      tidemark dev
      tidemark dev --brokers 1 --controllers 1 --directory /tmp/small
    """
    # A late import: only this command needs the server's packages and PySpark's jars.
    from tidemark.local import dev as local_dev

    local_dev.run(
        directory,
        brokers=brokers,
        controllers=controllers,
        free_ports=free_ports,
        secure=secure,
        console=not no_console,
        console_write=console_write,
    )


def main() -> None:
    """Run the command `tidemark`, and end the process with its exit status."""
    # Logs of libraries are for services; a command reports its error in one line.
    logging.getLogger().addHandler(logging.NullHandler())
    refuse_import("pandas")
    try:
        check_streams()
        if shells.is_asked():
            shells.answer(lambda: app(prog_name=PROGRAM))
        show_silence()
        try:
            app(prog_name=PROGRAM)
        finally:
            flush_output()  # the interpreter would report a full disk in words of its own, with status 120
    except TidemarkError as error:
        print_error(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tidemark"):
            raise
        print_error(
            TidemarkError(ErrorCode.INTERNAL, f"the package {error.name} is missing: pip install 'tidemark[dev]'")
        )
    except Exception as error:  # noqa: BLE001 - an unexpected error is one line, never a traceback
        refusal = refusal_of_output(error) if isinstance(error, OSError) else refusal_of_words(error, sys.argv)
        print_error(refusal or TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))
    sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
