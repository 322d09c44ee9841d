# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' schemas, read once; and the chart with the objects that `lookup` would return from a cluster."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
from kubernetes_validate import utils

from tests.charts.rendering import CHARTS, NAME, NAMESPACE, ROOT, Manifest, Render, documents


@pytest.fixture(scope="session", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Read the schemas once; otherwise each check reads megabytes of definitions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the charts, whose `lookup` a test replaces."""
    directory = tmp_path_factory.mktemp("charts")
    shutil.copytree(CHARTS, directory / "charts", symlinks=True)
    (directory / "deploy").symlink_to(ROOT / "deploy")
    return directory / "charts" / "tidemark"


@pytest.fixture
def render(chart: Path) -> Render:
    """Renders the chart as an upgrade of a cluster with these nodes and objects (by kind and name) does."""

    def rendered(
        values: dict[str, Any], nodes: list[dict[str, Any]] | None = None, objects: dict[str, Any] | None = None
    ) -> list[Manifest]:
        found = json.dumps({"items": nodes} if nodes is not None else {})
        (chart / "templates" / "_lookup.tpl").write_text(
            f'{{{{- define "tidemark.nodes" -}}}}{found}{{{{- end -}}}}\n'
            f'{{{{- define "tidemark.live" -}}}}{{{{- $all := `{json.dumps(objects or {})}` | fromJson -}}}}'
            '{{- get $all (printf "%s/%s" (index . 1) (index . 2)) | default dict | toJson -}}{{- end -}}\n'
        )
        with helm_python.Chart.load(chart) as loaded:
            texts = loaded.render(values, name=NAME, namespace=NAMESPACE)
        return [each for path in texts if path.endswith(".yaml") for each in documents(texts[path])]

    return rendered
