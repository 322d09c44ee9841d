# SPDX-License-Identifier: Apache-2.0
"""Output of commands to terminals and pipes."""

from __future__ import annotations

import pytest
from tidemark.cli.common.output import counted, print_error, print_table, print_warning
from tidemark.model import ErrorCode, TidemarkError


def test_a_table_in_a_pipe_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [f"a cell of {index} and some words" for index in range(12)]
    print_table([f"column {index}" for index in range(12)], [cells])
    lines = capsys.readouterr().out.splitlines()
    assert sum(all(cell in line for cell in cells) for line in lines) == 1
    assert max(map(len, lines)) < 600, "not padded to the console width"


@pytest.mark.parametrize(("count", "said"), [(0, "0 records"), (1, "1 record"), (2, "2 records")])
def test_counts_have_singular_and_plural(count: int, said: str) -> None:
    assert counted(count, "record") == said


def test_names_that_others_choose_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the audit log may have any caller, and any name of a topic."""
    name = "a\x1b[2J\x9b\u202eb é"
    print_table(["column"], [[name]])
    print_error(TidemarkError(ErrorCode.UNKNOWN_TOPIC, name))
    print_warning(name)
    written = capsys.readouterr()
    assert "a\\x1b[2J\\x9b\\u202eb é" in written.out
    assert written.err.count("a\\x1b[2J\\x9b\\u202eb é") == 2
    assert not set(written.out + written.err) & set("\x1b\x9b\u202e")
