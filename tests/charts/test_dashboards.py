# SPDX-License-Identifier: Apache-2.0
"""The dashboards equal the generator's output, are valid for Grafana, and use existing metrics only."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from tidemark_spark.progress_metrics import QueryMetrics

from deploy.grafana.build import BOARDS, PLACE, files
from deploy.grafana.panels import COLUMNS, Board, Panel
from tests.charts.prometheus import ROOT

FOREIGN: Final = {"process_max_fds"}
"""Metrics of other programs."""
PANELS: Final = [(board, panel) for board in BOARDS for panel in board.panels]
_NAME: Final = re.compile(r"\b(?:tidemark|process)_[a-z0-9_]+")


def name_of(value: object) -> str:
    return value.title if isinstance(value, Panel) else value.name if isinstance(value, Board) else str(value)


def documented() -> set[str]:
    """Every metric: those of services in docs/metrics.md, and those of Spark's listener."""
    of_services = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    of_spark = set(re.findall(r"^# TYPE (\w+)", QueryMetrics().text(), re.MULTILINE))
    return of_services | of_spark


def metrics_of(expr: str) -> set[str]:
    """The metrics of a query; histograms without suffix."""
    return {re.sub(r"_(?:bucket|sum|count)$", "", name) if name not in documented() else name for name in names(expr)}


def names(expr: str) -> set[str]:
    return set(_NAME.findall(expr))


@pytest.mark.parametrize("path", sorted(files()), ids=lambda path: path.name)
def test_the_json_equals_the_output_of_the_generator(path: Any) -> None:
    assert path.read_text() == files()[path], "python -m deploy.grafana.build"


def test_the_generator_writes_every_json_file() -> None:
    assert set(PLACE.glob("*.json")) == set(files())


@pytest.mark.parametrize("board", BOARDS, ids=name_of)
def test_a_dashboard_is_valid_for_grafana_10(board: Board) -> None:
    model = json.loads(json.dumps(board.json()))
    assert model["schemaVersion"] == 39
    assert re.fullmatch(r"tidemark-[a-z]+", model["uid"])
    assert "id" not in model, "Grafana assigns the id"
    panels = [inner for panel in model["panels"] for inner in (panel, *panel.get("panels", ()))]
    numbers = [panel["id"] for panel in panels]
    assert len(numbers) == len(set(numbers))
    variables = [variable["name"] for variable in model["templating"]["list"]]
    assert variables[:3] == ["datasource", "namespace", "cluster"]
    for panel in panels:
        for target in panel.get("targets", ()):
            asked = set(re.findall(r"\$\{?(\w+)\}?", target["expr"])) - {"__rate_interval", "__range"}
            assert asked <= set(variables), target["expr"]
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("board", BOARDS, ids=name_of)
def test_panels_do_not_overlap(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board.json()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=name_of)
def test_a_panel_has_a_description_and_uses_existing_metrics_only(board: Board, panel: Panel) -> None:
    assert len(panel.about) > 10
    assert panel.about.endswith(".")
    for query in panel.queries:
        assert not re.search(r"\{[A-Z][},]", query.selected)
        unknown = metrics_of(query.selected) - documented() - FOREIGN
        assert not unknown, f"{board.title}: {panel.title}"


def test_every_metric_of_isr_and_high_watermark_is_on_a_dashboard() -> None:
    shown = {name for _, panel in PANELS for query in panel.queries for name in metrics_of(query.selected)}
    page = (ROOT / "docs" / "metrics.md").read_text()
    section = page.split("## Replicas of a broker")[1].split("\n## ")[0]
    wanted = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert wanted <= shown
