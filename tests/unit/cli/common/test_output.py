# SPDX-License-Identifier: Apache-2.0
"""Output of commands to terminals and pipes."""

from __future__ import annotations

import pytest
from tidemark.cli.common.output import counted, print_table


def test_a_table_in_a_pipe_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [f"a cell of {index} and some words" for index in range(12)]
    print_table([f"column {index}" for index in range(12)], [cells])
    lines = capsys.readouterr().out.splitlines()
    assert sum(all(cell in line for cell in cells) for line in lines) == 1
    assert max(map(len, lines)) < 600, "not padded to the console width"


@pytest.mark.parametrize(("count", "said"), [(0, "0 records"), (1, "1 record"), (2, "2 records")])
def test_counts_have_singular_and_plural(count: int, said: str) -> None:
    assert counted(count, "record") == said
