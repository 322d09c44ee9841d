# SPDX-License-Identifier: Apache-2.0
"""Output of benchmarks: lines to read, then one line of JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One measured value and the value of the peer.

    Attributes:
        value: Tidemark's value.
        unit: the unit of both values.
        peer: the peer's value; None if not measured.
        lower_is_better: true for times.
    """

    value: float
    unit: str
    peer: float | None = None
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Above 1: Tidemark is better."""
        if self.peer is None:
            return None
        return self.peer / self.value if self.lower_is_better else self.value / self.peer


def report(name: str, figures: dict[str, Figure]) -> None:
    """Print the figures; the last line is JSON."""
    shown: dict[str, Any] = {}
    for key, figure in figures.items():
        peer = "no peer" if figure.peer is None else f"peer {figure.peer:,.2f}, ratio {figure.ratio:.2f}"
        print(f"{key:28} {figure.value:>14,.2f} {figure.unit}; {peer}")
        shown[key] = {
            "value": round(figure.value, 3),
            "unit": figure.unit,
            "peer": None if figure.peer is None else round(figure.peer, 3),
            "ratio": None if figure.ratio is None else round(figure.ratio, 3),
        }
    print(json.dumps({"name": name, "figures": shown}))
