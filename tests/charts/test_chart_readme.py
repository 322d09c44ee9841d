# SPDX-License-Identifier: Apache-2.0
"""README.md of each chart lists its values, with their defaults and meanings."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.tools.chart_readme import CHARTS, Value, readme, values_of


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_the_readme_equals_the_values(chart: Path) -> None:
    assert (chart / "README.md").read_text() == readme(chart), "python -m deploy.tools.chart_readme writes the file"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_every_value_or_its_group_has_a_meaning(chart: Path) -> None:
    found = values_of((chart / "values.yaml").read_text())
    meant = {value.name for value in found if value.meaning}
    without = [
        value.name
        for value in found
        if value.default is not None and value.name not in meant and value.name.rpartition(".")[0] not in meant
    ]
    assert not without


def test_comments_above_and_behind_are_meanings() -> None:
    text = """# The file.

# A group
# of two lines.
broker:
  a: 1 # one
  # Above.
  b: "x # y"
  c: [1,
    2]
controller:
  a: {k: null} # another
  b: {}
"""
    assert values_of(text) == [
        Value("broker", None, "A group of two lines."),
        Value("broker.a", "1", "one"),
        Value("broker.b", '"x # y"', "Above."),
        Value("broker.c", "[1, 2]", ""),
        Value("controller", None, ""),
        Value("controller.a", '{"k": null}', "another"),
        Value("controller.b", "{}", "Above."),
    ]
