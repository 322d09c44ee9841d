# SPDX-License-Identifier: Apache-2.0
"""The charts as files: they lint, stand by themselves, and say what they were made from."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import helm_python
import pytest
import yaml

from tests.charts.golden import GOLDEN, golden
from tests.charts.rendering import CHARTS, ROOT, SETS, VALUES, texts, values_of
from tests.charts.settings_table import FILE, settings_table

NAMES = ("tidemark", "zookeeper")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", SETS)
def test_helm_lint_finds_nothing(name: str, values: str) -> None:
    given = values_of(values)
    report = helm_python.lint(CHARTS / name, given if name == "tidemark" else given.get("zookeeper"), strict=True)
    assert not report["errors"]
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("name", SETS)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    kept = (GOLDEN / f"{name}.yaml").read_text()
    assert golden(name) == kept, "if it is meant so: python -m tests.charts.golden"


def test_a_package_made_without_network_renders_as_the_directory_does(tmp_path: Path) -> None:
    clone = tmp_path / "charts"
    shutil.copytree(CHARTS, clone, symlinks=True)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    archive = Path(helm_python.package(clone / "tidemark", destination=tmp_path))
    with tarfile.open(archive) as packed:
        assert "tidemark/charts/zookeeper/templates/statefulset.yaml" in packed.getnames()
    with helm_python.Chart.load(archive) as chart:
        assert chart.render({}, name="tide", namespace="streams") == texts()


def test_the_ensemble_that_comes_along_is_the_chart_beside_it() -> None:
    declared = yaml.safe_load((CHARTS / "tidemark" / "Chart.yaml").read_text())["dependencies"][0]
    beside = yaml.safe_load((CHARTS / "zookeeper" / "Chart.yaml").read_text())
    assert (declared["name"], declared["version"]) == (beside["name"], beside["version"])
    assert (CHARTS / "tidemark" / "charts" / "zookeeper").resolve() == CHARTS / "zookeeper"


def test_the_chart_knows_the_settings_that_the_services_have() -> None:
    assert FILE.read_text() == settings_table(), "python -m tests.charts.settings_table writes it anew"


def test_the_values_that_are_shipped_render() -> None:
    for path in (*VALUES.glob("*.yaml"), *(ROOT / "deploy").glob("values-*.yaml")):
        assert texts(yaml.safe_load(path.read_text())), path


def test_dashboards_and_alerts_come_with_the_chart_and_nothing_else_that_lies_beside_them(tmp_path: Path) -> None:
    """They are links: a chart can read no file outside, and a copy would grow old."""
    archive = Path(helm_python.package(CHARTS / "tidemark", destination=tmp_path))
    with tarfile.open(archive) as packed:
        names = {name.removeprefix("tidemark/files/") for name in packed.getnames() if "/files/" in name}
    dashboards = {f"grafana/{path.name}" for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    alerts = {f"prometheus/{path.name}" for path in (ROOT / "deploy" / "prometheus").glob("tidemark-*.yaml")}
    assert dashboards
    assert alerts
    assert names == dashboards | alerts | {"settings.json", "rack.py", "before-stop.sh"}
