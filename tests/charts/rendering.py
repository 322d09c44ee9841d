# SPDX-License-Identifier: Apache-2.0
"""Renders the charts like Helm, offline: from values to Kubernetes objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
VALUES = Path(__file__).parent / "values"
SETS = sorted(path.stem for path in VALUES.glob("*.yaml"))
"""The sets of values that are rendered and compared."""

NAME, NAMESPACE = "tide", "streams"

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


def values_of(name: str) -> dict[str, Any]:
    return next(iter(documents((VALUES / f"{name}.yaml").read_text())), {})


def documents(text: str) -> list[Any]:
    """The documents that are not empty, parsed in C: in Python this takes longer than to render them."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def texts(values: dict[str, Any] | None = None, name: str = "tidemark") -> dict[str, str]:
    """The text of each template, by its path; raises HelmError with the sentence of a refusal."""
    # Loaded for each render, since a render removes disabled dependencies from the loaded chart.
    with helm_python.Chart.load(CHARTS / name) as chart:
        return chart.render(values or {}, name=NAME, namespace=NAMESPACE)


def manifests(values: dict[str, Any] | None = None) -> list[Manifest]:
    """Every object of the tidemark chart."""
    found = []
    for path, text in sorted(texts(values).items()):
        if path.endswith((".yaml", ".yml")):
            found += documents(text)
    return found


@functools.cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """The objects of one set of values."""
    return tuple(manifests(values_of(name)))


def one(found: list[Manifest] | tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    (only,) = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return only


def pods(found: list[Manifest] | tuple[Manifest, ...]) -> list[tuple[str, dict[str, Any]]]:
    """The specification of every pod, with the name of its controller object."""
    made = []
    for each in found:
        if each["kind"] == "Pod":
            made.append((each["metadata"]["name"], each["spec"]))
        elif each["kind"] in ("StatefulSet", "Deployment", "Job"):
            made.append((each["metadata"]["name"], each["spec"]["template"]["spec"]))
        elif each["kind"] == "CronJob":
            made.append((each["metadata"]["name"], each["spec"]["jobTemplate"]["spec"]["template"]["spec"]))
    return made


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]
