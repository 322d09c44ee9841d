# SPDX-License-Identifier: Apache-2.0
"""The page docs/benchmarks/index.md with its plots, from the files in bench/results.

`python -m bench page [--check]`: with `--check` nothing is written, and the status is 1 if the page is not up to date.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from bench.measuring.figures import RESULTS
from bench.measuring.flags import flags_of
from bench.measuring.machine import ROOT

PLOTS: Final = ROOT / "docs" / "benchmarks"
PAGE: Final = PLOTS / "index.md"
_HEAD: Final = """# Benchmark results

    make bench NAME=compare ARGS=--save    # adds a file to bench/results
    make bench NAME=page                   # makes this page from all files

[Performance](../performance.md) explains each figure. A ratio above 1 means that Tidemark is better than the
peer. In brackets is the interval of the median ratio over the rounds, with its confidence: five rounds reach 94 %. A
plot shows the ratios of all runs in their order, on different machines too; the line is a ratio of 1. Figures without a
peer have no ratio.
"""
_WIDTH, _HEIGHT, _COLUMNS = 300, 110, 3
_LEFT, _TOP, _BOTTOM = 12, 34, 14
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#333}.one{stroke:#999;stroke-dasharray:3}"
    ".ratio{stroke:#3f51b5;fill:none;stroke-width:2}"
    "circle{fill:#3f51b5}@media (prefers-color-scheme:dark){text{fill:#ddd}.ratio{stroke:#9fa8da}circle{fill:#9fa8da}}"
)

Run = Mapping[str, Any]


def runs_in(directory: Path) -> dict[str, list[Run]]:
    """The runs of each benchmark, the oldest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    for path in directory.glob("*.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        found[run["name"]].append(run)
    return {name: sorted(runs, key=lambda run: str(run["at"])) for name, runs in sorted(found.items())}


def files_of(runs: Mapping[str, Sequence[Run]]) -> dict[Path, str]:
    """The text of the page and of each plot, by path."""
    plots = {name: _plot(name, some) for name, some in runs.items()}
    page = _HEAD + "".join(_section(name, some, has_plot=bool(plots[name])) for name, some in runs.items())
    return {PAGE: page} | {_plot_path(name): plot for name, plot in plots.items() if plot}


def _plot_path(name: str) -> Path:
    return PLOTS / f"{name}.svg"


def _section(name: str, runs: Sequence[Run], *, has_plot: bool) -> str:
    last = runs[-1]
    machine = last["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
    python = f"Python {machine['python']}" + (", C extensions" if machine.get("extensions") else "")
    lines = [
        f"\n## {name}\n",
        f"The last run: {last['at']}, commit {last['commit'] or 'unknown'}, {where}, {python}.\n",
        "| figure | Tidemark | peer | ratio |",
        "| --- | --- | --- | --- |",
        *(_row(figure, values) for figure, values in last["figures"].items()),
    ]
    if has_plot:
        lines.append(f"\n![The ratios of {name} over its runs]({_plot_path(name).name})")
    return "\n".join(lines) + "\n"


def _row(figure: str, values: Mapping[str, Any]) -> str:
    peer = "-" if values["peer"] is None else f"{values['peer']:,.7g}"
    return f"| `{figure}` | {values['value']:,.7g} {values['unit']} | {peer} | {_ratio(values)} |"


def _ratio(values: Mapping[str, Any]) -> str:
    if values["ratio"] is None:
        return f"none: {values['disturbed']}" if values.get("disturbed") else "-"
    if "ratio_low" not in values:
        return f"{values['ratio']:.2f}"
    bounds = f"{values['ratio_low']:.2f} to {values['ratio_high']:.2f}, {values['confidence']:.0%}"
    return f"{values['ratio']:.2f} ({bounds})"


def _plot(name: str, runs: Sequence[Run]) -> str:
    """A small plot for each figure that has ratios; empty if none has."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for figure, values in run["figures"].items():
            if values["ratio"] is not None:
                ratios[figure].append(values["ratio"])
    if not ratios:
        return ""
    height = _HEIGHT * (-(-len(ratios) // _COLUMNS))
    size = f'width="{_WIDTH * _COLUMNS}" height="{height}" viewBox="0 0 {_WIDTH * _COLUMNS} {height}"'
    cells = "".join(
        f'<g transform="translate({_WIDTH * (place % _COLUMNS)},{_HEIGHT * (place // _COLUMNS)})">{_cell(*one)}</g>\n'
        for place, one in enumerate(ratios.items())
    )
    title = f"<title>The ratios of {escape(name)} over its runs</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{_STYLE}</style>\n{cells}</svg>\n'


def _cell(figure: str, ratios: Sequence[float]) -> str:
    top = max(1.2, *ratios) if len(ratios) > 1 else max(1.2, ratios[0])
    tall, wide = _HEIGHT - _TOP - _BOTTOM, _WIDTH - 3 * _LEFT

    def at(index: int, ratio: float) -> str:
        x = _LEFT + (wide if len(ratios) == 1 else wide * index / (len(ratios) - 1))
        return f"{x:.1f},{_TOP + tall * (1 - ratio / top):.1f}"

    points = [at(index, ratio) for index, ratio in enumerate(ratios)]
    one = _TOP + tall * (1 - 1 / top)
    x, y = points[-1].split(",")
    return (
        f'<text x="{_LEFT}" y="18">{escape(figure)}: {ratios[-1]:.2f}</text>'
        f'<line class="one" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{one:.1f}" y2="{one:.1f}"/>'
        f'<polyline class="ratio" points="{" ".join(points)}"/><circle cx="{x}" cy="{y}" r="3"/>'
    )


def stale(files: Mapping[Path, str]) -> Iterable[Path]:
    """The files whose text on disk differs."""
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    parser = flags_of("page", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not up to date")
    options = parser.parse_args()
    files = files_of(runs_in(RESULTS))
    for path in stale(files):
        print(
            f"{path.relative_to(ROOT)} {'is not up to date: make bench NAME=page' if options.check else 'is written'}"
        )
        if options.check:
            return 1
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
