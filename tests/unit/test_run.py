# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, and `make check`, which is a subset of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run import THOROUGH, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("pattern", THOROUGH)
def test_each_pattern_that_check_leaves_out_still_names_a_file(pattern: str) -> None:
    assert list((ROOT / "tests" / "unit").rglob(pattern))


def test_an_unknown_part_is_refused_with_the_list_of_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units"]) == 2
    assert capsys.readouterr().err.startswith("no such part: units; there are lint, types, unit,")
