# SPDX-License-Identifier: Apache-2.0
"""A key without a value, such as `config:` with comments only: an empty value, or a refusal that names the key.

For Helm, null removes the chart's default.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.charts.rendering import CHARTS, manifests

Keys = tuple[str, ...]
BASES: dict[str, dict[str, Any]] = {
    "plain": {"console": {"enabled": True}},
    "secure": {
        "security": {"mode": "secure"},
        "zookeeper": {"tls": {"enabled": True}},
        "console": {"enabled": True},
    },
}


def collections_of(values: Mapping[str, Any], above: Keys = ()) -> Iterator[Keys]:
    """The paths of all mappings and lists."""
    for key, value in values.items():
        if isinstance(value, dict | list):
            yield (*above, key)
        if isinstance(value, dict):
            yield from collections_of(value, (*above, key))


def defaults(chart: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((chart / "values.yaml").read_text()))


def paths() -> list[Keys]:
    ensemble = collections_of(defaults(CHARTS / "zookeeper"), ("zookeeper",))
    return [*collections_of(defaults(CHARTS / "tidemark")), *ensemble]


def without(base: dict[str, Any], path: Keys) -> dict[str, Any] | None:
    """The values with null at a path; None where the values have more there."""
    values = copy.deepcopy(base)
    place = values
    for key in path[:-1]:
        place = place.setdefault(key, {})
    if place.get(path[-1]):
        return None
    place[path[-1]] = None
    return values


@pytest.mark.parametrize("base", BASES)
def test_a_key_without_a_value_is_empty_or_refused_by_its_name(base: str) -> None:
    refused = {}
    for path in paths():
        values = without(BASES[base], path)
        if values is None:
            continue
        try:
            manifests(values)
        except (helm_python.HelmError, yaml.YAMLError) as error:
            refused[".".join(path)] = str(error)
    for name, sentence in refused.items():
        key = name.rpartition(".")[2]
        assert f"missing property '{key}'" in sentence or f"{key}.enabled: true" in sentence, f"{name}: {sentence}"
    for name in ("config", "broker.config", "console.hosts", "security.tokens.issuers", "zookeeper.podAnnotations"):
        assert name not in refused
