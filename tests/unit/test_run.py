# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, and `make check`, which is a subset of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FILES
from tests.run import PARTS, THOROUGH, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("pattern", THOROUGH)
def test_each_pattern_that_check_leaves_out_still_names_a_file(pattern: str) -> None:
    assert list((ROOT / "tests" / "unit").rglob(pattern))


def test_an_unknown_part_is_refused_with_the_list_of_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units"]) == 2
    assert capsys.readouterr().err.startswith("no such part: units; there are lint, types, unit,")


def test_make_and_the_testing_page_list_the_parts_of_the_suite() -> None:
    parts = [part.name for part in PARTS]
    named = re.search(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    assert named[1].split() == parts
    _, _, table = (ROOT / "docs" / "testing.md").read_text().partition("| part | what takes the time |")
    rows = re.findall(r"^\| ([a-z, ]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert [part for row in rows for part in row.split(", ")] == parts


@pytest.mark.parametrize("name", LONGEST_FILES)
def test_each_file_that_starts_first_exists(name: str) -> None:
    assert (ROOT / "tests" / name).is_file()
