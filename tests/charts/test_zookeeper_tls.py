# SPDX-License-Identifier: Apache-2.0
"""Values for TLS to ZooKeeper: a closed tree with two Secrets, the steps before it, and refusals of partial values."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.charts.rendering import CHARTS, Manifest, manifests, one, pods

SERVERS, SERVICES = {"existingSecret": "servers"}, {"existingSecret": "services"}
CLOSED = {"zookeeper": {"tls": SERVERS}, "zookeeperTls": SERVICES}
WORKLOADS = ("tide-tidemark-broker", "tide-tidemark-controller", "tide-tidemark-admin")
KEYS = {"tls.crt", "tls.key", "ca.crt"}
SCRIPT = CHARTS / "zookeeper" / "files" / "certificates.sh"
PORTS = {"client", "client-tls"}


def config_of(found: list[Manifest]) -> dict[str, str]:
    lines = one(found, "ConfigMap", "tide-zookeeper")["data"]["zoo.cfg"].splitlines()
    assert len({line.partition("=")[0] for line in lines}) == len(lines), "a key is written twice"
    return dict(line.split("=", 1) for line in lines)


def ports_of(found: list[Manifest]) -> list[set[str]]:
    """The client ports of the container, of both Services, and of both rules of the NetworkPolicy."""
    (container,) = one(found, "StatefulSet", "tide-zookeeper")["spec"]["template"]["spec"]["containers"]
    named = [{each["name"] for each in container["ports"]}]
    for service in ("tide-zookeeper", "tide-zookeeper-headless"):
        named.append({each["name"] for each in one(found, "Service", service)["spec"]["ports"]})
    for rule in one(found, "NetworkPolicy", "tide-zookeeper")["spec"]["ingress"]:
        named.append({each["port"] for each in rule["ports"]})
    return [names & PORTS for names in named]


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("TIDEMARK_ZOOKEEPER")}


class Secret:
    """Mounted as a kubelet does it: links to files behind `..data`, which is renamed for each version."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "secret"
        self._versions = 0

    def mount(self, files: dict[str, str]) -> None:
        self._versions += 1
        version = self.path / f"..{self._versions}"
        version.mkdir(parents=True)
        for name, content in files.items():
            (version / name).write_text(content)
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        (self.path / "..new").symlink_to(version.name)
        (self.path / "..new").rename(self.path / "..data")


def block(name: str, content: str) -> str:
    return f"-----BEGIN {name}-----\n{content}\n-----END {name}-----\n"


def test_the_sidecar_brings_whole_new_files_into_the_form_that_zookeeper_watches(tmp_path: Path) -> None:
    secret, tls = Secret(tmp_path), tmp_path / "tls"
    tls.mkdir()

    def publish(**changed: str) -> tuple[str, str]:
        """Mount a version; returns the server's file after one round, and the complaint."""
        files = {name: block("CERTIFICATE", "one") for name in ("tls.crt", "ca.crt")}
        secret.mount(files | {"tls.key": block("PRIVATE KEY", "one")} | changed)
        command = ["bash", str(SCRIPT), str(secret.path), str(tls), "0", "1"]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        return (tls / "server.pem").read_text(), ran.stderr

    first, complaint = publish()
    assert (first.count("BEGIN CERTIFICATE"), first.count("BEGIN PRIVATE KEY"), complaint) == (1, 1, "")
    assert (tls / "server.pem").stat().st_mode & 0o077 == 0
    inode = (tls / "server.pem").stat().st_ino
    publish()
    assert (tls / "server.pem").stat().st_ino == inode, "the same content is not a change"
    second, _ = publish(**{"tls.crt": block("CERTIFICATE", "two"), "ca.crt": block("CERTIFICATE", "two")})
    assert "two" in second
    assert "two" in (tls / "ca.crt").read_text()
    assert (tls / "server.pem").stat().st_ino != inode, "renamed, as ZooKeeper's watch needs it"
    half = block("PRIVATE KEY", "three")[:-10]
    assert publish(**{"tls.key": half}) == (second, "tls.key is missing or no whole PEM file\n")
    kept, complaint = publish(**{"tls.key": block("EC PRIVATE KEY", "three")})
    assert (kept, "not PKCS#8" in complaint) == (second, True)
    assert not list(tls.glob("*.new"))


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_a_closed_ensemble_is_strictly_valid(version: str) -> None:
    for manifest in manifests(CLOSED):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_closed_ensemble_offers_only_the_port_with_tls_to_other_pods() -> None:
    found = manifests(CLOSED)
    config = config_of(found)
    assert ports_of(found) == [{"client-tls"}] * 5
    assert (config["clientPort"], config["clientPortAddress"]) == ("2181", "127.0.0.1")
    assert (config["enforce.auth.enabled"], config["enforce.auth.schemes"]) == ("true", "x509")
    assert config["secureClientPort"] == "2281"
    assert (config["sslQuorum"], config["portUnification"], config["sslQuorumReloadCertFiles"]) == (
        "true",
        "false",
        "true",
    )
    for prefix in ("ssl", "ssl.quorum"):
        assert config[f"{prefix}.clientAuth"] == "need"
        assert config[f"{prefix}.keyStore.location"] == "/tls/server.pem"
        assert config[f"{prefix}.trustStore.location"] == "/tls/ca.crt"
    ensemble = one(found, "StatefulSet", "tide-zookeeper")["spec"]["template"]["spec"]
    (sidecar,) = [each for each in ensemble["initContainers"] if each.get("restartPolicy") == "Always"]
    assert mounted(ensemble, sidecar, "/secret") == {"servers": KEYS}
    assert {"name": "tls", "mountPath": "/tls"} in sidecar["volumeMounts"]
    assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in ensemble["containers"][0]["volumeMounts"]
    assert all("secret" not in str(mount) for mount in ensemble["containers"][0]["volumeMounts"])


def mounted(pod: dict[str, Any], container: dict[str, Any], path: str) -> dict[str, set[str]]:
    """The Secrets at a path of the container, each with its keys, which name the files."""
    (name,) = [each["name"] for each in container["volumeMounts"] if each["mountPath"] == path]
    (volume,) = [each for each in pod["volumes"] if each["name"] == name]
    secrets = [source["secret"] for source in volume["projected"]["sources"]]
    assert all(item["key"] == item["path"] for each in secrets for item in each["items"])
    return {each["name"]: {item["key"] for item in each["items"]} for each in secrets}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_services_connect_to_the_port_with_tls_with_their_own_certificate(workload: str) -> None:
    pod = dict(pods(manifests(CLOSED)))[workload]
    environment = environment_of(pod)
    assert all(server.endswith(":2281") for server in environment["TIDEMARK_ZOOKEEPER_CONNECT"].split(","))
    where = "/etc/tidemark-zookeeper"
    assert environment["TIDEMARK_ZOOKEEPER_TLS_CA_FILE"] == f"{where}/ca.crt"
    assert environment["TIDEMARK_ZOOKEEPER_TLS_CERTIFICATE_FILE"] == f"{where}/tls.crt"
    assert environment["TIDEMARK_ZOOKEEPER_TLS_KEY_FILE"] == f"{where}/tls.key"
    assert mounted(pod, pod["containers"][0], where) == {"services": KEYS}


def test_an_external_ensemble_is_called_with_the_certificate_of_the_services() -> None:
    found = manifests(
        {"zookeeper": {"enabled": False}, "externalZookeeper": {"connect": "zk:2281/a"}, "zookeeperTls": SERVICES}
    )
    for workload in WORKLOADS:
        assert environment_of(dict(pods(found))[workload])["TIDEMARK_ZOOKEEPER_CONNECT"] == "zk:2281/a"


STEPS = [
    ({"tls": SERVERS | {"enforce": False, "quorum": "accept"}}, {}, ("false", "true"), ":2181"),
    ({"tls": SERVERS | {"enforce": False, "quorum": "prefer"}}, SERVICES, ("true", "true"), ":2281"),
    ({"tls": SERVERS | {"enforce": False}}, SERVICES, ("true", "false"), ":2281"),
]


@pytest.mark.parametrize(("servers", "services", "quorum", "port"), STEPS)
def test_the_steps_to_a_closed_ensemble_keep_the_port_without_tls_open(
    servers: dict[str, Any], services: dict[str, Any], quorum: tuple[str, str], port: str
) -> None:
    found = manifests({"zookeeper": servers, "zookeeperTls": services})
    config = config_of(found)
    assert ports_of(found) == [PORTS] * 5
    assert "clientPortAddress" not in config
    assert "enforce.auth.enabled" not in config
    assert (config["sslQuorum"], config["portUnification"]) == quorum
    settings = one(found, "ConfigMap", "tide-tidemark")["data"]["broker.yaml"]
    assert yaml.safe_load(settings)["zookeeper.connect"].endswith(port)


def test_without_a_secret_nothing_changes() -> None:
    found = manifests()
    assert ports_of(found) == [{"client"}] * 5
    assert not [key for key in config_of(found) if "ssl" in key.lower() or "auth" in key]
    assert all(environment_of(dict(pods(found))[workload]) == {} for workload in WORKLOADS)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"zookeeperTls": SERVICES}, "but the servers have no TLS: set zookeeper.tls.existingSecret"),
        ({"zookeeper": {"tls": SERVERS}}, "the services have no certificate and would be refused"),
        (
            {"zookeeper": {"tls": SERVERS, "config": {"sslQuorum": "false"}}, "zookeeperTls": SERVICES},
            "config names sslQuorum, which the chart writes itself",
        ),
        (
            {**CLOSED, "config": {"zookeeper.tls.ca.file": "/x"}},
            "zookeeperTls.existingSecret",
        ),
    ],
)
def test_the_chart_refuses_one_half_of_the_tls_values(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        manifests(values)
    assert sentence in str(refused.value)
