# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks: the interval of a median, the saved files, their page, the comparison of two commits."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import page, regress
from bench.measuring.disturbance import Disturbance
from bench.measuring.figures import RESULTS, Figure, report, save
from bench.measuring.rounds import CONFIDENCE, median_of


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([3.0], (3.0, 3.0, 3.0, 0.0)),
        ([3.0, 1.0, 2.0], (2.0, 1.0, 3.0, 0.75)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (3.0, 1.0, 5.0, 0.938)),
        ([float(value) for value in range(1, 10)], (5.0, 2.0, 8.0, 0.961)),
    ],
)
def test_the_interval_of_a_median_needs_rounds(values: list[float], interval: tuple[float, ...]) -> None:
    assert tuple(median_of(values)) == interval


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_an_interval_has_the_median_and_is_as_sure_as_the_rounds_allow(values: list[float]) -> None:
    found = median_of(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.confidence >= min(CONFIDENCE, 1 - 2 / 2 ** len(values)) - 0.001


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="needs a value"):
        median_of([])


def test_saved_figures_have_machine_and_commit_and_are_never_overwritten(tmp_path: Path) -> None:
    path = save(tmp_path / "results", "produce", {"a_per_s": {"value": 1.0}}, now_s=1_700_000_000)
    assert path.name == "produce-20231114-221320.json"
    found = json.loads(path.read_text())
    assert (found["name"], found["at"]) == ("produce", "2023-11-14T22:13:20Z")
    assert found["figures"] == {"a_per_s": {"value": 1.0}}
    assert found["machine"]["cores"] >= 1
    with pytest.raises(FileExistsError):
        save(tmp_path / "results", "produce", {}, now_s=1_700_000_000)


def test_a_report_is_saved_where_the_environment_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_BENCH_SAVE", str(tmp_path))
    report("compare", {"e2e_p50_ms": Figure(2.0, "ms", 1.0, lower_is_better=True, ratios=median_of([0.4, 0.5, 0.6]))})
    (path,) = tmp_path.iterdir()
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == f"saved as {path}"
    assert json.loads(printed[-1])["figures"] == json.loads(path.read_text())["figures"]
    assert json.loads(printed[-1])["figures"]["e2e_p50_ms"] == {
        "value": 2.0,
        "unit": "ms",
        "peer": 1.0,
        "ratio": 0.5,
        "ratio_low": 0.4,
        "ratio_high": 0.6,
        "confidence": 0.75,
    }


def test_the_page_shows_the_last_run_and_plots_all_of_them(tmp_path: Path) -> None:
    for day, ratio in ((1, 0.5), (2, None), (3, 2.0)):
        values = {"value": 10.0, "unit": "<ms>", "peer": 5.0, "ratio": ratio, "disturbed": "" if ratio else "steal"}
        save(tmp_path, "latency", {"e2e_p50_ms": values, "alone": values | {"peer": None, "ratio": None}}, day * 86_400)
    files = page.files_of(page.runs_in(tmp_path))
    text, plot = files[page.PAGE], files[page.PLOTS / "latency.svg"]
    assert "The last run: 1970-01-04" in text
    assert "| `e2e_p50_ms` | 10 <ms> | 5 | 2.00 |" in text
    assert "| `alone` | 10 <ms> | - | - |" in text
    svg = ElementTree.fromstring(plot)
    lines = svg.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2], "of the runs with a ratio"


def test_the_page_of_the_repository_is_up_to_date() -> None:
    assert page.stale(page.files_of(page.runs_in(RESULTS))) == [], "make bench NAME=page"


def test_a_comparison_of_commits_tells_which_direction_is_better() -> None:
    def found(rate: float, time_ms: float) -> regress.Found:
        return {"a_per_s": {"value": rate, "unit": "records/s"}, "b_ms": {"value": time_ms, "unit": "ms"}}

    sides = [{"before": found(10, 4), "after": found(20, 2)}, {"before": found(10, 4), "after": found(30, 1)}]
    figures = regress.figures_of([*sides, {"before": found(10, 4), "after": found(10, 4) | {"new": {}}}])
    assert {name: (one.value, one.peer, one.ratio) for name, one in figures.items()} == {
        "a_per_s": (20, 10, 2.0),
        "b_ms": (2, 4, 2.0),
    }


def test_a_comparison_repeats_disturbed_rounds_twice_as_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    others = iter([0.4, 0.0, 0.4, 0.0, 0.4, 0.4, 0.4, 0.4])

    def run_once(tree: Path, bench: str, arguments: Sequence[str]) -> regress.Found:
        runs.append(tree.name)
        return {"a_per_s": {"value": len(runs), "unit": "records/s"}}

    monkeypatch.setattr(regress, "run_once", run_once)
    monkeypatch.setattr(regress.disturbance, "between", lambda before, after: Disturbance(0.0, next(others), 0.0))
    trees = {side: Path(side) for side in regress.SIDES}
    options = Namespace(bench="produce", rounds=2, arguments="")
    found = regress.measure(trees, options)
    assert [found_in["before"]["a_per_s"]["value"] for found_in in found] == [4, 8]
    assert runs == ["before", "after", "after", "before"] * 2, "the sides take turns"
    assert regress.measure(trees, options) == []
    assert len(runs) == 16


def test_an_unknown_commit_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(SystemExit, match="no-such-commit cannot be checked out"),
        regress.worktree("no-such-commit", tmp_path / "tree"),
    ):
        raise AssertionError("the commit does not exist")
