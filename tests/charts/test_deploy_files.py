# SPDX-License-Identifier: Apache-2.0
"""deploy/ and skaffold.yaml match the charts, the Dockerfile and the command line."""

from __future__ import annotations

import functools
import re
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import typer.main
import yaml
from tidemark.cli.app import app
from tidemark.cli.apply.cluster_file import parse

from tests.charts.rendering import ROOT, Manifest, containers, manifests, pods

PRODUCTION = "deploy/values-production.yaml"
VALUES = ("deploy/values-dev.yaml", PRODUCTION, "tests/cluster/values.yaml")
DIGEST = f"sha256:{'0' * 64}"
TARGETS = set(re.findall(r"^FROM .* AS (tidemark[\w-]*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


@functools.cache
def rendered(path: str) -> list[Manifest]:
    values = loaded(path)
    if path == PRODUCTION:
        values["image"]["digest"] = DIGEST  # the only value that an install adds
    return manifests(values)


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", VALUES)
def test_values_render_to_valid_objects(path: str) -> None:
    found = rendered(path)
    assert len(found) > 10
    for each in found:
        kubernetes_validate.validate(each, "1.34", strict=True)


@pytest.mark.parametrize("path", VALUES)
def test_every_container_has_requests_and_a_read_only_root(path: str) -> None:
    for name, pod in pods(rendered(path)):
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert container["resources"]["requests"], name


def test_production_survives_the_loss_of_a_node() -> None:
    values = loaded(PRODUCTION)
    for component in ("broker", "controller", "admin", "zookeeper"):
        assert values[component]["replicas"] >= 2, component
    assert values["topics"]["minInsyncReplicas"] < values["topics"]["replicationFactor"]


def test_production_runs_images_by_their_digests_only() -> None:
    with pytest.raises(helm_python.HelmError, match="is empty: a tag such as"):
        manifests(loaded(PRODUCTION))
    images = {container["image"] for _, pod in pods(rendered(PRODUCTION)) for container in containers(pod)}
    assert len(images) == 2
    for image in images:
        assert re.fullmatch(r"docker\.io/\w+/\w+@sha256:[0-9a-f]{64}", image), image


def test_production_names_the_callers_of_every_port() -> None:
    for each in rendered(PRODUCTION):
        if each["kind"] == "NetworkPolicy":
            for rule in each["spec"]["ingress"]:
                assert rule.get("from"), each["metadata"]["name"]


def test_apply_accepts_the_topics_under_version_control() -> None:
    wanted, problems = parse((ROOT / "deploy" / "cluster.yaml").read_text())
    assert not problems
    assert wanted.topics


def test_skaffold_builds_the_images_that_it_deploys() -> None:
    config = loaded("skaffold.yaml")
    (artifact,) = config["build"]["artifacts"]
    assert artifact["docker"]["target"] in TARGETS
    (release,) = config["deploy"]["helm"]["releases"]
    assert release["skipBuildDependencies"], "Helm would package charts/zookeeper beside the link to it"
    templates = release["setValueTemplates"]
    built = artifact["image"]
    assert templates["image.repository"] == f"{{{{.IMAGE_REPO_{built}}}}}"
    (values,) = release["valuesFiles"]
    deployed = manifests(loaded(values) | {"image": {"repository": built, "tag": "built"}})
    images = {container["image"] for _, pod in pods(deployed) for container in containers(pod)}
    ours = {image for image in images if "library/" not in image}
    assert ours == {f"{built}:built"}
    (verified,) = config["verify"]
    assert verified["container"]["image"] == built


def test_profiles_of_skaffold_render_and_build_other_targets() -> None:
    config = loaded("skaffold.yaml")
    production, spark = config["profiles"]
    files, digest = production["patches"]
    assert files["value"] == [PRODUCTION]
    assert digest["path"].endswith("/setValueTemplates/image.digest")
    assert digest["value"] == "{{.IMAGE_DIGEST_tidemark}}"
    artifact, _ = spark["patches"]
    assert artifact["value"]["docker"]["target"] in TARGETS


def test_skaffold_forwards_an_existing_service() -> None:
    (forwarded,) = loaded("skaffold.yaml")["portForward"]
    services = {
        each["metadata"]["name"] for each in manifests({"fullnameOverride": "tidemark"}) if each["kind"] == "Service"
    }
    assert forwarded["resourceName"] in services


def test_ci_uses_existing_commands_and_flags() -> None:
    text = (ROOT / "deploy" / "github-actions.yaml").read_text()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    calls = re.findall(r"tidemark (\w+)((?: -f \S+| --[\w-]+)*)", re.sub(r"#.*", "", text))
    assert {name for name, _ in calls} == {"apply", "cluster"}
    flags = {flag for parameter in commands["apply"].params for flag in parameter.opts}
    for name, given in calls:
        assert name in commands
        assert set(re.findall(r"--[\w-]+", given)) <= flags


def test_dockerignore_permits_the_sources_of_the_images() -> None:
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    sources = {source for line in copied for source in line.split() if "[" not in source}
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == kept or source.startswith(f"{kept}/") for kept in let_through), source
