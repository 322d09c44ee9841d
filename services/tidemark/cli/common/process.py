# SPDX-License-Identifier: Apache-2.0
"""The process of a command: its standard streams, documents that it reads, and errors of writing the output."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from tidemark.cli.common.output import print_warning
from tidemark.client.metadata.silence import LOGGER
from tidemark.model import ErrorCode, TidemarkError, invalid_request

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that only a write can have."""
EXIT_INTERRUPTED: Final = 130
EXIT_DIFFERENT: Final = 2
"""Exit status of a comparison that found differences."""
_TEXT_MAX: Final = 16 << 20
_UNWRITTEN: Final = NO_SPACE | {errno.EIO}


def check_streams() -> None:
    """Replace a closed stdin or stderr by /dev/null; raises INVALID_REQUEST for a closed stdout.

    The output would be lost, or would go to a connection that has file descriptor 1.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        raise invalid_request("stdout is closed: redirect it to /dev/null if the output is not needed")


class _Once(logging.Handler):
    """Writes the first log line as a warning to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(record.name).removeHandler(self)
        print_warning(record.getMessage())


def show_silence() -> None:
    """Show on stderr, once, that no broker has answered yet."""
    logging.getLogger(LOGGER).addHandler(_Once())


def read_whole(file: TextIO, name: str) -> str:
    """The text of a document; raises INVALID_REQUEST for a file that has no end, such as /dev/zero."""
    text = file.read(_TEXT_MAX + 1)
    if len(text) > _TEXT_MAX:
        raise invalid_request(f"{name} has more than {_TEXT_MAX >> 20} MiB")
    return text


def refusal_of_words(error: Exception, words: Sequence[str]) -> TidemarkError | None:
    """The refusal for an argument or a variable whose bytes are not UTF-8; None for another error."""
    if not isinstance(error, UnicodeEncodeError) or not any("\udc80" <= letter <= "\udcff" for letter in error.object):
        return None
    wrong = next((word for word in words if word != word.encode("utf-8", "replace").decode()), None)
    named = "an environment variable" if wrong is None else f"the argument {wrong!a}"
    return invalid_request(f"{named} is not UTF-8")


def refusal_of_output(error: OSError) -> TidemarkError | None:
    """The refusal for an uncaught error of writing the output (a full disk); None for another error."""
    if error.errno not in _UNWRITTEN or error.filename is not None:
        return None
    give_up_output()
    return TidemarkError(ErrorCode.STORAGE_ERROR, f"the output cannot be written: {error.strerror}")


def flush_output() -> None:
    """Write the bytes that stdout still buffers; raises OSError. A reader that has ended, such as `head`, is
    not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_output()


def give_up_output() -> None:
    """Redirect stdout to /dev/null: the interpreter flushes stdout at exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
