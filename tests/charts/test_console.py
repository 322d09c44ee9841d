# SPDX-License-Identifier: Apache-2.0
"""The console in the chart: off by default, no rights of its own, its ports, its policy."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest
import yaml
from tidemark.runtime.configuration.settings import ConsoleSettings, read_settings

from tests.charts.rendering import NAMESPACE, Manifest, containers, manifests, one, pods, rendered, values_of

NAME = "tide-tidemark-console"
RUN_PODS = ("StatefulSet", "Deployment")
WITH_IT = ("production", "secure")


def environment_of(found: tuple[Manifest, ...]) -> dict[str, str]:
    (container,) = dict(pods(found))[NAME]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def settings_of(found: tuple[Manifest, ...]) -> dict[str, str]:
    settings: dict[str, str] = yaml.safe_load(one(found, "ConfigMap", "tide-tidemark")["data"]["console.yaml"])
    return settings


def test_the_console_is_off_by_default() -> None:
    assert not [each for each in rendered("default") if "console" in each["metadata"]["name"]]
    assert "console.yaml" not in one(rendered("default"), "ConfigMap", "tide-tidemark")["data"]


def test_a_disabled_console_leaves_the_other_pods_as_they_are() -> None:
    def templates(values: dict[str, Any]) -> dict[str, Any]:
        found = manifests(values)
        return {each["metadata"]["name"]: each["spec"]["template"] for each in found if each["kind"] in RUN_PODS}

    without = templates({})
    with_it = templates({"console": {"enabled": True}})
    assert with_it.keys() - without.keys() == {NAME}
    assert {name: with_it[name] for name in without} == without


@pytest.mark.parametrize("name", WITH_IT)
def test_the_service_accepts_the_settings_of_the_chart(name: str, tmp_path: Any) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(one(rendered(name), "ConfigMap", "tide-tidemark")["data"]["console.yaml"])
    environment = environment_of(rendered(name)) | {"TIDEMARK_CONFIG": str(file)}
    settings = read_settings(ConsoleSettings, [], environment)
    assert (settings.console_listeners.port, settings.metrics_listeners.port) == (9195, 9295)
    assert bool(settings.cluster_tls_ca_file) is (name == "secure")


def test_the_console_calls_the_listener_of_its_users() -> None:
    host = f"tide-tidemark-bootstrap.{NAMESPACE}.svc.cluster.local"
    assert settings_of(rendered("production"))["bootstrap"] == f"{host}:9192"
    assert settings_of(rendered("secure"))["bootstrap"] == f"{host}:9492"


def test_the_console_answers_under_the_names_of_its_service_and_of_the_values() -> None:
    assert settings_of(rendered("production"))["console.hosts"].split(",") == [
        NAME,
        f"{NAME}.{NAMESPACE}",
        f"{NAME}.{NAMESPACE}.svc",
        f"{NAME}.{NAMESPACE}.svc.cluster.local",
        "tidemark.example.org",
    ]


def test_the_console_writes_only_if_the_values_say_so() -> None:
    assert "console.write" not in settings_of(rendered("production"))
    assert settings_of(manifests({"console": {"enabled": True, "write": True}}))["console.write"] == "true"


def test_the_console_has_no_key_and_no_token() -> None:
    pod = dict(pods(rendered("secure")))[NAME]
    sources = [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", [])]
    items = [item["key"] for source in sources for kind in source.values() for item in kind["items"]]
    assert items == ["ca.crt"]
    assert [mount["name"] for mount in containers(pod)[0]["volumeMounts"]] == ["config", "scratch", "trust"]


@pytest.mark.parametrize("name", WITH_IT)
def test_the_probes_of_the_console_ask_its_health(name: str) -> None:
    (container,) = dict(pods(rendered(name)))[NAME]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {"http": 9195, "metrics": 9295}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"port": "http", "path": "/healthz"}


def test_the_policy_of_the_console_names_its_peers() -> None:
    peers = [{"podSelector": {"matchLabels": {"is": "ingress"}}}]
    values = values_of("production")
    values["networkPolicy"]["console"] = peers
    http, metrics = one(manifests(values), "NetworkPolicy", NAME)["spec"]["ingress"]
    assert (http["from"], http["ports"]) == (peers, [{"protocol": "TCP", "port": "http"}])
    assert metrics["from"] == values["networkPolicy"]["metrics"]


@pytest.mark.parametrize("component", ["broker", "admin"])
def test_brokers_and_the_admin_service_admit_the_console(component: str) -> None:
    for name, port in (("production", "grpc"), ("secure", "clients-token")):
        rules = one(rendered(name), "NetworkPolicy", f"tide-tidemark-{component}")["spec"]["ingress"]
        selectors = [
            peer["podSelector"]
            for rule in rules
            if any(each["port"] == port for each in rule["ports"])
            for peer in rule.get("from", [])
            if "podSelector" in peer
        ]
        admitted = [
            selector
            for selector in selectors
            if all("console" in each["values"] for each in selector.get("matchExpressions", []))
            and selector["matchLabels"].get("app.kubernetes.io/instance") == "tide"
        ]
        assert admitted, (name, selectors)


def test_prometheus_scrapes_the_console() -> None:
    monitor = one(rendered("production"), "ServiceMonitor", "tide-tidemark")["spec"]
    (expression,) = monitor["selector"]["matchExpressions"]
    assert "console" in expression["values"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"console": {"config": {"bootstrap": "b:1"}}}, "console.config names bootstrap, which comes from the chart"),
        ({"console": {"config": {"console.hosts": "a"}}}, "which comes from console.hosts of the values"),
        ({"console": {"config": {"console.write": True}}}, "which comes from console.write of the values"),
        ({"console": {"config": {"broker.id": "1"}}}, "console.config names broker.id"),
        (
            {"console": {"config": {"console.refresh.ms": 5}}},
            "console.config: console.refresh.ms is 5: expected 100 to 3600000",
        ),
        ({"console": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "console.podLabels names app.kubernetes.io/name"),
    ],
)
def test_wrong_values_of_the_console_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        manifests(values)
    assert sentence in str(refused.value)


def test_a_console_without_tokens_of_its_users_is_refused() -> None:
    values = values_of("secure")
    values["security"]["tokens"] = {"serviceAccounts": {"enabled": False}, "issuers": {}, "existingSecret": ""}
    with pytest.raises(helm_python.HelmError, match="users of the console log in with one"):
        manifests(values)


def test_the_console_is_scraped_in_plain_text_beside_services_with_tls() -> None:
    """The console has no certificate for its metrics."""
    endpoint = {"scheme": "https", "tlsConfig": {"serverName": "tide"}}
    found = manifests(
        {
            "security": {"mode": "secure"},
            "zookeeper": {"tls": {"enabled": True}},
            "console": {"enabled": True},
            "config": {"metrics.tls": "server"},
            "monitoring": {"serviceMonitor": {"enabled": True, "endpoint": endpoint}},
        }
    )
    scraped = {each["port"]: each for each in one(found, "ServiceMonitor", "tide-tidemark")["spec"]["endpoints"]}
    (of_console,) = [each["name"] for each in one(found, "Service", NAME)["spec"]["ports"] if each["port"] == 9295]
    (of_admin,) = [
        each["name"] for each in one(found, "Service", "tide-tidemark-admin")["spec"]["ports"] if each["port"] == 9294
    ]
    assert (scraped[of_admin]["scheme"], scraped[of_console].get("scheme", "http")) == ("https", "http")
    assert "tlsConfig" not in scraped[of_console]
    assert scraped[of_console]["relabelings"] == scraped[of_admin]["relabelings"]
