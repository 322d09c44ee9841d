# SPDX-License-Identifier: Apache-2.0
"""Each alert names the next step, uses existing metrics, and fires when it must, and only then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tidemark.cli.app import app
from typer.main import get_command

from tests.charts.prometheus import ROOT, RULES, promtool
from tests.charts.rendering import manifests
from tests.charts.test_dashboards import FOREIGN, documented, metrics_of

TESTS: Final = ROOT / "tests" / "charts" / "rules"
PAGE: Final = (ROOT / "docs" / "alerts.md").read_text()
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: Final[list[dict[str, Any]]] = [rule for group in GROUPS for rule in group["rules"]]
TEST_OF: Final = {
    rule["alert"]: TESTS / group["name"].removeprefix("tidemark-") / f"{rule['alert']}.yaml"
    for group in GROUPS
    for rule in group["rules"]
}
"""The tests of an alert lie in the directory of its group."""
PHASES: Final = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
"""Phases of a pod."""


def name_of(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


def test_promtool_finds_no_error() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


def test_the_example_configuration_is_valid() -> None:
    assert "is valid prometheus config file" in promtool("check", "config", str(RULES.with_name("prometheus.yaml")))


def test_the_kubernetes_example_sets_the_documented_labels() -> None:
    """promtool cannot check this file: Debian's Prometheus has no Kubernetes discovery."""
    example = yaml.safe_load(RULES.with_name("prometheus-kubernetes.yaml").read_text())
    for job in example["scrape_configs"]:
        set_here = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
        assert {"namespace", "instance", "component"} <= set_here


def test_the_kubernetes_example_scrapes_every_pod_of_the_chart_with_metrics() -> None:
    example = yaml.safe_load(RULES.with_name("prometheus-kubernetes.yaml").read_text())
    kept = example["scrape_configs"][0]["relabel_configs"][0]
    assert kept["action"] == "keep"
    scraped = []
    for found in manifests({"console": {"enabled": True}, "zookeeper": {"metrics": {"enabled": True}}}):
        if found["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = found["spec"]["template"]
        facts = {
            f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', name)}": value
            for name, value in pod["metadata"]["labels"].items()
        }
        for port in (port for one in pod["spec"]["containers"] for port in one["ports"]):
            facts["__meta_kubernetes_pod_container_port_name"] = port["name"]
            if re.fullmatch(kept["regex"], ";".join(facts.get(name, "") for name in kept["source_labels"])):
                scraped.append((facts["__meta_kubernetes_pod_label_app_kubernetes_io_component"], port["name"]))
    components = ("admin", "broker", "console", "controller", "zookeeper")
    assert sorted(scraped) == [(component, "metrics") for component in components]


def test_the_kubernetes_example_scrapes_no_pod_that_has_ended() -> None:
    """An evicted pod keeps its address, so TidemarkServiceDown would fire; another pod may get the address later."""
    example = yaml.safe_load(RULES.with_name("prometheus-kubernetes.yaml").read_text())
    for job in example["scrape_configs"]:
        [dropped] = [rule for rule in job["relabel_configs"] if rule.get("action") == "drop"]
        assert dropped["source_labels"] == ["__meta_kubernetes_pod_phase"]
        assert [phase for phase in PHASES if re.fullmatch(dropped["regex"], phase)] == ["Succeeded", "Failed"]


def test_each_alert_fires_when_it_must_and_only_then(tmp_path: Path) -> None:
    said = promtool("test", "rules", *(str(_beside_its_own_rule(alert, tmp_path)) for alert in ALERTS))
    assert said.count("SUCCESS") == len(ALERTS)


def _beside_its_own_rule(alert: dict[str, Any], directory: Path) -> Path:
    """A copy of the alert's tests whose only rule is the alert: promtool evaluates every rule at every step."""
    rules = directory / f"{name_of(alert)}-rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [alert]}]}))
    original = TEST_OF[name_of(alert)]
    tests = yaml.safe_load(original.read_text())
    assert [(original.parent / file).resolve() for file in tests["rule_files"]] == [RULES]
    copy = directory / f"{name_of(alert)}.yaml"
    copy.write_text(yaml.safe_dump(tests | {"rule_files": [str(rules)]}))
    return copy


def test_each_alert_has_a_firing_and_a_silent_case() -> None:
    assert set(TESTS.rglob("*.yaml")) == set(TEST_OF.values())
    for path in TEST_OF.values():
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
def test_an_alert_has_summary_description_and_runbook(alert: dict[str, Any]) -> None:
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
def test_an_alert_uses_existing_metrics_only(alert: dict[str, Any]) -> None:
    assert metrics_of(alert["expr"]) <= documented() | FOREIGN


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_uses_no_series_of_partitions(alert: dict[str, Any]) -> None:
    """These series are optional."""
    assert not re.search(r"tidemark_(?:partition|replica_follower)_", alert["expr"])


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_uses_its_own_labels_only(alert: dict[str, Any]) -> None:
    """The labels of its own test; other labels would be empty in the text."""
    has = set(re.findall(r'(\w+)="', "".join(s["labels"] for x in samples_of(TEST_OF[name_of(alert)]) for s in x)))
    named = set(re.findall(r"\$labels\.(\w+)", "".join(alert["annotations"].values())))
    assert named <= has


def test_every_section_of_the_page_has_an_alert() -> None:
    assert set(re.findall(r"^### (Tidemark\w+)$", PAGE, re.MULTILINE)) == set(map(name_of, ALERTS))


def test_anchors_of_links_exist() -> None:
    for file, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", PAGE):
        target = PAGE if not file else (ROOT / "docs" / file).read_text()
        headings = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)
        }
        assert anchor in headings, f"{file}#{anchor}"


def test_named_commands_and_files_exist() -> None:
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
