# SPDX-License-Identifier: Apache-2.0
"""`tidemark token`: static tokens, for clients that have neither a certificate nor an issuer of tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import Commands, OutputOption
from tidemark.cli.common.output import Output, print_json, print_line
from tidemark.cli.common.process import give_up_output
from tidemark.model import ErrorCode, TidemarkError

token_app = Commands(help="Make and remove static tokens of clients.")

FileOption = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="The file that tokens.file of the services names.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user: the identity is User:token:NAME.")]


@token_app.command("create", short_help="Make a token, and print it once.")
def create(name: NameArgument, file: FileOption = Path("tokens")) -> None:
    """Print a new random token, and add its hash to the file. The token is stored nowhere: keep the output.

    Running services read the file again. Copy the file to all brokers and admin services.

    \b
    Example:
      tidemark token create alice --file tokens
    """
    from tidemark.rpc.security import token_file

    token = token_file.create(file, name)
    try:
        print_line(token)
        sys.stdout.flush()
    except OSError as error:
        token_file.remove(file, name)
        give_up_output()
        sentence = f"the token cannot be printed, and was not added to {file}: {error.strerror}"
        raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence) from None


@token_app.command("list", short_help="List the names of tokens.")
def list_names(file: FileOption = Path("tokens"), output: OutputOption = Output.TEXT) -> None:
    """List the names of the tokens in the file.

    \b
    Example:
      tidemark token list --file tokens
    """
    from tidemark.rpc.security import token_file

    names = list(token_file.read(file))
    if output is Output.JSON:
        print_json(names)
        return
    for name in names:
        print_line(name)


@token_app.command("remove", short_help="Remove a token.")
def remove(name: NameArgument, file: FileOption = Path("tokens")) -> None:
    """Remove a token from the file. Services refuse calls with this token, and end its streams within five minutes.

    \b
    Example:
      tidemark token remove alice --file tokens
    """
    from tidemark.rpc.security import token_file

    token_file.remove(file, name)
    print_line(f"{name}: removed from {file}")
