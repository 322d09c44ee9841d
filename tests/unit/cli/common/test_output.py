# SPDX-License-Identifier: Apache-2.0
"""What commands print for people and pipes."""

from __future__ import annotations

import pytest
from tidemark.cli.common.output import counted, print_table


def test_a_table_that_goes_into_a_pipe_keeps_each_row_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [f"a cell of {index} and some words" for index in range(12)]
    print_table([f"column {index}" for index in range(12)], [cells])
    lines = capsys.readouterr().out.splitlines()
    assert sum(all(cell in line for cell in cells) for line in lines) == 1
    assert max(map(len, lines)) < 600, "no wider than it needs"


@pytest.mark.parametrize(("count", "said"), [(0, "0 records"), (1, "1 record"), (2, "2 records")])
def test_one_is_not_many(count: int, said: str) -> None:
    assert counted(count, "record") == said
