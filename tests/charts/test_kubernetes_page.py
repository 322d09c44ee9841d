# SPDX-License-Identifier: Apache-2.0
"""docs/kubernetes.md names existing values, defaults and objects."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import yaml
from tidemark.runtime.configuration.keys import KEYS

from tests.charts.rendering import CHARTS, NAME, ROOT, manifests

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


@functools.cache
def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHARTS / "tidemark" / "values.yaml").read_text())
    found["zookeeper"] |= yaml.safe_load((CHARTS / "zookeeper" / "values.yaml").read_text())
    return found


NAMED = sorted(set(re.findall(rf"`((?:{'|'.join(values())})(?:\.\w+)*)\b[:`]", PAGE)) - set(KEYS))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_value_exists(name: str) -> None:
    found = values()
    for part in name.split("."):
        assert part in found, name
        found = found[part]


def test_the_page_names_the_common_values() -> None:
    assert {"broker.replicas", "broker.logDirs", "externalAccess", "rack.source", "zookeeper.enabled"} <= set(NAMED)


def test_defaults_equal_those_of_the_chart() -> None:
    stated = dict(re.findall(r"^\| `([\w.]+)` \| (\d+|true|false|`auto`) \|", PAGE, flags=re.MULTILINE))
    assert len(stated) >= 5
    for name, default in stated.items():
        found: Any = values()
        for part in name.split("."):
            found = found[part]
        if default != "`auto`":
            assert str(found).lower() == default, name


def test_named_objects_are_rendered() -> None:
    names = {each["metadata"]["name"] for each in manifests({"console": {"enabled": True}})}
    table = PAGE.split("## Values")[0]
    named = set(re.findall(rf"`({NAME}-[\w-]+)`", table))
    assert len(named) >= 5
    assert named <= names
