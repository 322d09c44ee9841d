# SPDX-License-Identifier: Apache-2.0
"""The rendered charts, stored for reviews: `python -m tests.charts.golden` writes them again."""

from __future__ import annotations

from pathlib import Path

from tests.charts.rendering import SETS, texts, values_of

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> str:
    """The rendered templates for a set of values, ordered by path; notes last.

    Dashboards and alerts, which the chart only includes, have separate tests.
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
