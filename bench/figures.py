# SPDX-License-Identifier: Apache-2.0
"""How benchmarks tell their figures: lines for people, then one line of JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One measured number and the peer's beside it.

    Attributes:
        value: ours.
        unit: of both.
        peer: theirs, None where none was measured.
        lower_is_better: for times.
    """

    value: float
    unit: str
    peer: float | None = None
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Above 1: we are better."""
        if self.peer is None:
            return None
        return self.peer / self.value if self.lower_is_better else self.value / self.peer


def report(name: str, figures: dict[str, Figure]) -> None:
    """Print them; the last line is for programs."""
    told: dict[str, Any] = {}
    for key, figure in figures.items():
        peer = "no peer" if figure.peer is None else f"peer {figure.peer:,.2f}, ratio {figure.ratio:.2f}"
        print(f"{key:28} {figure.value:>14,.2f} {figure.unit}; {peer}")
        told[key] = {
            "value": round(figure.value, 3),
            "unit": figure.unit,
            "peer": None if figure.peer is None else round(figure.peer, 3),
            "ratio": None if figure.ratio is None else round(figure.ratio, 3),
        }
    print(json.dumps({"name": name, "figures": told}))
