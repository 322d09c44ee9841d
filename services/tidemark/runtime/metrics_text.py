# SPDX-License-Identifier: Apache-2.0
"""Writes Prometheus' text format directly if there are thousands of lines; prometheus_client takes ten times as long.

Each scrape calls every text source, which returns whole families. A family belongs to one source or to the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol


class TextSource(Protocol):
    """A source that returns complete families of series as text at each scrape."""

    def render(self, names: Collection[str] = ()) -> str:
        """The present families in Prometheus' text format, or "" if the families are unknown. With `names`, at least
        the named families of this source. Called on the thread of the scrape, one call at a time.
        """


def header(name: str, kind: str, doc: str) -> str:
    """The two header lines of a family; `name` as in its samples, for a counter with `_total`."""
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"


def escaped(value: str) -> str:
    """A label's value, escaped for its quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def labels(**values: str) -> str:
    """Labels as text, `{topic="a",partition="0"}`; "" if there are none."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}" if values else ""


def number(value: float) -> str:
    """A sample's value as text; whole numbers have no decimal point, so offsets keep all digits."""
    return str(value) if isinstance(value, int) else repr(float(value))


def family(name: str, kind: str, doc: str, samples: Mapping[str, float] | Iterable[tuple[str, float]]) -> str:
    """A family with a few samples by their `labels` text; without samples only the header."""
    pairs = samples.items() if isinstance(samples, Mapping) else samples
    return header(name, kind, doc) + "".join([f"{name}{of} {number(value)}\n" for of, value in pairs])


def only(names: Collection[str], text: str) -> str:
    """The families in `text` that have samples of these names, with those samples only."""
    found: list[str] = []
    head: list[str] = []
    for line in text.split("\n"):  # a label may have "# HELP" and other separators of lines, but no line feed
        if line.startswith("# "):
            head = [*head, line] if line.startswith("# TYPE ") else [line]
        elif line.partition("{")[0].partition(" ")[0] in names:
            found += [*head, line]
            head = []
    return "".join([f"{line}\n" for line in found])


def gauge(name: str, doc: str, value: float) -> str:
    """A gauge without labels, as text."""
    return family(name, "gauge", doc, {"": value})


def counter(name: str, doc: str, value: float) -> str:
    """A counter without labels, as text; `name` ends in `_total`."""
    return family(name, "counter", doc, {"": value})


def histogram(name: str, doc: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> str:
    """A histogram without labels, as text: counts between consecutive bounds, then the count above the last bound."""
    parts, found = [header(name, "histogram", doc)], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        found += count
        parts.append(f'{name}_bucket{{le="{bound}"}} {found}\n')
    parts.append(f"{name}_sum {number(total)}\n{name}_count {found}\n")
    return "".join(parts)
