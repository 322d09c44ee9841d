# SPDX-License-Identifier: Apache-2.0
"""Output of benchmarks: lines to read, then one line of JSON; with `SAVE` also a file in bench/results."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measuring.machine import commit, facts
from bench.measuring.rounds import Interval

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
SAVE: Final = "TIDEMARK_BENCH_SAVE"
"""Environment variable: the directory for the results; empty or unset: no file is written."""


class Figure(NamedTuple):
    """One measured value and the value of the peer.

    Attributes:
        value: Tidemark's value.
        unit: the unit of both values.
        peer: the peer's value; None if not measured.
        lower_is_better: true for times.
        ratios: of the rounds; None if there is one ratio only.
        disturbed: why there is no ratio although the peer was measured; empty: there is one.
    """

    value: float
    unit: str
    peer: float | None = None
    lower_is_better: bool = False
    ratios: Interval | None = None
    disturbed: str = ""

    @property
    def ratio(self) -> float | None:
        """Above 1: Tidemark is better."""
        if self.peer is None or self.disturbed:
            return None
        if self.ratios is not None:
            return self.ratios.median
        return self.peer / self.value if self.lower_is_better else self.value / self.peer


def report(name: str, figures: dict[str, Figure]) -> None:
    """Print the figures; the last line is JSON."""
    shown: dict[str, Any] = {}
    for key, figure in figures.items():
        print(f"{key:28} {figure.value:>14,.2f} {figure.unit}; {_beside(figure)}")
        shown[key] = {
            "value": round(figure.value, 3),
            "unit": figure.unit,
            "peer": _rounded(figure.peer),
            "ratio": _rounded(figure.ratio),
        }
        if figure.ratios is not None and not figure.disturbed:
            _, *bounds = figure.ratios
            shown[key] |= dict(zip(("ratio_low", "ratio_high", "confidence"), map(_rounded, bounds), strict=True))
        if figure.disturbed:
            shown[key]["disturbed"] = figure.disturbed
    if os.environ.get(SAVE):
        print(f"saved as {save(Path(os.environ[SAVE]), name, shown)}")
    print(json.dumps({"name": name, "figures": shown}))


def save(directory: Path, name: str, figures: dict[str, Any], now_s: float | None = None) -> Path:
    """Write the figures with the facts of machine and commit into a new file; returns its path."""
    at_s = time.time() if now_s is None else now_s
    whole = {
        "name": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s)),
        "commit": commit(),
        "machine": facts(),
        "figures": figures,
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at_s))}.json"
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(whole, indent=1) + "\n")
    return path


def _beside(figure: Figure) -> str:
    if figure.peer is None:
        return "no peer"
    beside = f"peer {figure.peer:,.2f}"
    if figure.disturbed:
        return f"{beside}, no ratio: {figure.disturbed}"
    if figure.ratios is None:
        return f"{beside}, ratio {figure.ratio:.2f}"
    _, low, high, confidence = figure.ratios
    return f"{beside}, ratio {figure.ratio:.2f} ({low:.2f} to {high:.2f}, {confidence:.0%})"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
