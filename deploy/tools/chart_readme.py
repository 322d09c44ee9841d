# SPDX-License-Identifier: Apache-2.0
"""Writes README.md of each chart from Chart.yaml and values.yaml: `python -m deploy.tools.chart_readme`.

The meaning of a value is the comment above it, or behind it on its line. A value of the controller, the admin
service or the console without a comment has the meaning of the same value of the broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHARTS: Final = (ROOT / "charts" / "tidemark", ROOT / "charts" / "zookeeper", ROOT / "deploy" / "spark")
_ALIKE: Final = re.compile(r"^(?:controller|admin|console)\.")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a chart.

    Attributes:
        default: as YAML on one line; None for a group of values.
    """

    name: str
    default: str | None
    meaning: str


def values_of(text: str) -> list[Value]:
    """The values of a values.yaml in its order, each group with a comment before its members."""
    lines = text.splitlines()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    found = list(_members(root, "", lines))
    meanings = {value.name: value.meaning for value in found}
    return [
        Value(value.name, value.default, value.meaning or meanings.get(_ALIKE.sub("broker.", value.name), ""))
        for value in found
    ]


def readme(chart: Path) -> str:
    """The text of a chart's README.md."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{value.name}` | {_cell(value)} | {_escaped(value.meaning)} |"
        for value in values_of((chart / "values.yaml").read_text(encoding="utf-8"))
        if value.default is not None or value.meaning
    ]
    docs = "../" * len(chart.relative_to(ROOT).parts) + "docs"
    page = "spark-kubernetes.md" if chart.parent.name == "deploy" else "kubernetes.md"
    return "\n".join(
        (
            f"# {about['name']}",
            "",
            f"{about['description']}. [{page}]({docs}/{page}) describes its use.",
            "",
            f"Version {about['version']}, for Kubernetes {about['kubeVersion'].removesuffix('-0')}. "
            "`helm show values` prints the defaults as YAML.",
            "",
            "## Values",
            "",
            "| value | default | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
            "This page is generated from `Chart.yaml` and `values.yaml` by `python -m deploy.tools.chart_readme`.",
            "",
        )
    )


def _members(group: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Value]:
    for key, node in group.value:
        name = f"{prefix}{key.value}"
        meaning = _comment(key.start_mark.line, node, lines)
        if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
            yield Value(name, None, meaning)
            yield from _members(node, f"{name}.", lines)
        else:
            yield Value(name, json.dumps(_plain(node), ensure_ascii=False), meaning)


def _comment(line: int, node: yaml.Node, lines: list[str]) -> str:
    """The comment behind a value of one line, else the comment above it."""
    behind = lines[line][node.end_mark.column :] if node.end_mark.line == line else lines[line].partition(":")[2]
    if (text := behind.strip()).startswith("#"):
        return text.lstrip("# ")
    above: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].strip().lstrip("# "))
    return " ".join(above)


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _cell(value: Value) -> str:
    return "" if value.default is None else f"`{_escaped(value.default)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for each in CHARTS:
        (each / "README.md").write_text(readme(each), encoding="utf-8")
