# SPDX-License-Identifier: Apache-2.0
"""The alerts: each says what to do, asks for metrics that there are, and fires when it should and only then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tidemark.cli.app import app
from typer.main import get_command

from tests.charts.prometheus import ROOT, RULES, promtool
from tests.charts.test_dashboards import FOREIGN, documented, metrics_of

TESTS: Final = ROOT / "tests" / "charts" / "rules"
PAGE: Final = (ROOT / "docs" / "alerts.md").read_text()
ALERTS: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]


def name_of(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


def test_promtool_finds_no_fault() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


def test_the_example_configuration_is_one() -> None:
    assert "is valid prometheus config file" in promtool("check", "config", str(RULES.with_name("prometheus.yaml")))


def test_the_example_for_kubernetes_sets_the_labels_that_the_other_explains() -> None:
    """Debian's Prometheus has no discovery of Kubernetes, so promtool cannot check it."""
    example = yaml.safe_load(RULES.with_name("prometheus-kubernetes.yaml").read_text())
    for job in example["scrape_configs"]:
        set_here = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
        assert {"namespace", "instance", "component"} <= set_here


def test_each_alert_fires_when_it_should_and_not_when_it_should_not() -> None:
    said = promtool("test", "rules", *map(str, sorted(TESTS.glob("*.yaml"))))
    assert said.count("SUCCESS") == len(ALERTS)


def test_each_alert_has_a_test_of_both() -> None:
    assert {path.stem for path in TESTS.glob("*.yaml")} == set(map(name_of, ALERTS))
    for path in TESTS.glob("*.yaml"):
        expected = [bool(samples) for samples in samples_of(path)]
        assert True in expected, path.name
        assert False in expected, path.name


def samples_of(path: Path) -> list[list[dict[str, Any]]]:
    return [
        check["exp_samples"]
        for test in yaml.safe_load(path.read_text())["tests"]
        for check in test["promql_expr_test"]
        if f'alertname="{path.stem}"' in check["expr"]
    ]


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_says_what_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    name = name_of(alert)
    assert re.fullmatch(r"Tidemark[A-Z]\w+", name)
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    assert len(notes["summary"]) < 120
    assert notes["description"].endswith(".")
    assert notes["runbook"] == f"docs/alerts.md#{name.lower()}"
    section = PAGE.split(f"\n### {name}\n", 1)
    assert len(section) == 2, f"docs/alerts.md has no section {name}"
    assert section[1].lstrip().startswith(f"*{alert['labels']['severity']}")


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_asks_only_for_metrics_that_there_are(alert: dict[str, Any]) -> None:
    assert metrics_of(alert["expr"]) <= documented() | FOREIGN


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_does_without_the_series_of_partitions(alert: dict[str, Any]) -> None:
    """They can be switched off."""
    assert not re.search(r"tidemark_(?:partition|replica_follower)_", alert["expr"])


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_names_only_labels_that_it_has(alert: dict[str, Any]) -> None:
    """As its own test sees it fire; others would be nothing in the text."""
    has = set(
        re.findall(r'(\w+)="', "".join(s["labels"] for x in samples_of(TESTS / f"{name_of(alert)}.yaml") for s in x))
    )
    named = set(re.findall(r"\$labels\.(\w+)", "".join(alert["annotations"].values())))
    assert named <= has


def test_the_page_has_no_section_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^### (Tidemark\w+)$", PAGE, re.MULTILINE)) == set(map(name_of, ALERTS))


def test_what_the_page_links_to_is_there() -> None:
    for file, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", PAGE):
        target = PAGE if not file else (ROOT / "docs" / file).read_text()
        headings = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)
        }
        assert anchor in headings, f"{file}#{anchor}"


def test_commands_and_files_that_the_page_and_the_alerts_name_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    text = re.sub(r"\s+", " ", PAGE + RULES.read_text())
    named = re.findall(
        r"tidemark (topic|elect|reassign|log-dirs|group|config|cluster|log|dev)\b(?: ([a-z][a-z-]+))?", text
    )
    assert len(named) > 20
    for first, second in named:
        known = getattr(commands[first], "commands", None)
        if known is not None and second:
            assert second in known, f"tidemark {first} {second}"
    for file in re.findall(r"`((?:deploy|tests)/[\w./-]+\.\w+)`", PAGE):
        assert (ROOT / file).exists(), file
