# SPDX-License-Identifier: Apache-2.0
"""The charts as files: they lint, package without network, and match their sources."""

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
def test_rendered_charts_equal_the_golden_files(name: str) -> None:
    kept = (GOLDEN / f"{name}.yaml").read_text()
    assert golden(name) == kept, "if this is intended: python -m tests.charts.golden"


def test_a_package_built_without_network_renders_like_the_directory(tmp_path: Path) -> None:
    clone = tmp_path / "charts"
    shutil.copytree(CHARTS, clone, symlinks=True)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    archive = Path(helm_python.package(clone / "tidemark", destination=tmp_path))
    with tarfile.open(archive) as packed:
        assert "tidemark/charts/zookeeper/templates/statefulset.yaml" in packed.getnames()
    with helm_python.Chart.load(archive) as chart:
        assert chart.render({}, name="tide", namespace="streams") == texts()


def test_the_included_ensemble_is_the_zookeeper_chart() -> None:
    declared = yaml.safe_load((CHARTS / "tidemark" / "Chart.yaml").read_text())["dependencies"][0]
    beside = yaml.safe_load((CHARTS / "zookeeper" / "Chart.yaml").read_text())
    assert (declared["name"], declared["version"]) == (beside["name"], beside["version"])
    assert (CHARTS / "tidemark" / "charts" / "zookeeper").resolve() == CHARTS / "zookeeper"


def test_settings_of_the_chart_equal_those_of_the_services() -> None:
    assert FILE.read_text() == settings_table(), "python -m tests.charts.settings_table writes the file"


def test_shipped_values_render() -> None:
    for path in (*VALUES.glob("*.yaml"), *(ROOT / "deploy").glob("values-*.yaml")):
        values = yaml.safe_load(path.read_text()) or {}
        if values.get("image", {}).get("digestRequired"):
            values["image"]["digest"] = f"sha256:{'0' * 64}"
        assert texts(values), path


def test_the_package_includes_dashboards_and_alerts_only(tmp_path: Path) -> None:
    """The files are links: a chart cannot read files outside, and a copy would become outdated."""
    archive = Path(helm_python.package(CHARTS / "tidemark", destination=tmp_path))
    with tarfile.open(archive) as packed:
        names = {
            name.removeprefix("tidemark/files/") for name in packed.getnames() if name.startswith("tidemark/files/")
        }
    dashboards = {f"grafana/{path.name}" for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    alerts = {f"prometheus/{path.name}" for path in (ROOT / "deploy" / "prometheus").glob("tidemark-*.yaml")}
    assert dashboards
    assert alerts
    assert names == dashboards | alerts | {"settings.json", "certificates.py", "rack.py", "before-stop.sh"}
