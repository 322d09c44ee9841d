# SPDX-License-Identifier: Apache-2.0
"""What the charts render, kept to be read in reviews: `python -m tests.charts.golden` writes it anew."""

from __future__ import annotations

from pathlib import Path

from tests.charts.rendering import SETS, texts, values_of

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> str:
    """All that a set of values renders, in the order of the templates' paths; notes last.

    Files that the chart only passes on, dashboards and alerts, are held by tests of their own.
    """
    found = texts(values_of(name))
    parts = []
    for path in sorted(found, key=lambda path: (path.endswith(".txt"), path)):
        if found[path].strip() and not path.endswith(".tpl"):
            parts.append(f"# ==== {path}\n{found[path].strip()}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in SETS:
        (GOLDEN / f"{name}.yaml").write_text(golden(name))
