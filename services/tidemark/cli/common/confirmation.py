# SPDX-License-Identifier: Apache-2.0
"""The question before a change that cannot be undone."""

from __future__ import annotations

import sys

import typer

from tidemark.cli.common.output import Output
from tidemark.model import ErrorCode, TidemarkError


def confirm(question: str) -> None:
    """Ask on the terminal; raises INVALID_REQUEST for any answer but yes, and without a terminal."""
    if not sys.stdin.isatty():
        sentence = "nothing was changed: it must be confirmed, and stdin is no terminal; add --yes"
        raise TidemarkError(ErrorCode.INVALID_REQUEST, sentence)
    if not typer.confirm(question, err=True):
        raise TidemarkError(ErrorCode.INVALID_REQUEST, "nothing was changed: not confirmed")


def refuse_json_question(
    output: Output, *, yes: bool, dry_run: bool = False, options: str = "--yes or --dry-run"
) -> None:
    """Bad usage where JSON output would need a question; `options` names those that avoid the question."""
    if output is Output.JSON and not (yes or dry_run):
        raise typer.BadParameter(f"JSON output asks no question: add {options}", param_hint="--output")
