# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a command that was started with some of them closed, and output that finds no room."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def check_streams() -> None:
    """A closed stdin has nothing to read, and a closed stderr takes everything; raises INVALID_REQUEST for stdout.

    What a command says would be lost, or end up in a connection that has come to be file 1.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST, "stdout is closed: send it to /dev/null if nobody is to see what would be said"
        )


def refusal_of_output(error: OSError) -> TidemarkError | None:
    """What to say of an error that has come up to the top, if it is of writing what was to be shown."""
    if error.errno not in _NO_ROOM or error.filename is not None:
        return None
    give_up_output()
    return TidemarkError(ErrorCode.STORAGE_ERROR, f"the output cannot be written: {error.strerror}")


def give_up_output() -> None:
    """What is still to be written goes nowhere: the interpreter writes it when it ends, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
