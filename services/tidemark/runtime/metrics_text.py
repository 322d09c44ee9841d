# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, by hand where there are thousands of lines: prometheus_client takes ten times as long.

A text source is asked at each scrape and gives whole families; no other source and no registry may have their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol


class TextSource(Protocol):
    """Something that knows many series."""

    def render(self, names: Collection[str] = ()) -> str:
        """Its families as of now, in Prometheus' text format, or "" when they cannot be told; of `names`, where there
        are any, at least those that it has. Called on the thread of the scrape, one call at a time."""


def header(name: str, kind: str, doc: str) -> str:
    """The two lines before the samples of a family; `name` as in samples, for a counter with its `_total`."""
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def labels(**values: str) -> str:
    """`{topic="a",partition="0"}`, "" for none."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}" if values else ""


def number(value: float) -> str:
    """A sample's value: whole numbers without a point, so that offsets lose no digit."""
    return str(value) if isinstance(value, int) else repr(float(value))


def family(name: str, kind: str, doc: str, samples: Mapping[str, float] | Iterable[tuple[str, float]]) -> str:
    """A family of few samples, each by its labels as `labels` gives them; the header alone where there is none."""
    pairs = samples.items() if isinstance(samples, Mapping) else samples
    return header(name, kind, doc) + "".join([f"{name}{of} {number(value)}\n" for of, value in pairs])


def only(names: Collection[str], text: str) -> str:
    """Of these families what has samples of these names, and those samples."""
    found = []
    for one in text.split("# HELP ")[1:]:
        kept = [line for line in one.splitlines()[2:] if line.partition("{")[0].partition(" ")[0] in names]
        if kept:
            found.append("\n".join(["# HELP " + one.splitlines()[0], one.splitlines()[1], *kept, ""]))
    return "".join(found)


def gauge(name: str, doc: str, value: float) -> str:
    """A gauge without labels."""
    return family(name, "gauge", doc, {"": value})


def counter(name: str, doc: str, value: float) -> str:
    """A counter without labels; `name` ends in `_total`."""
    return family(name, "counter", doc, {"": value})


def histogram(name: str, doc: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> str:
    """A histogram without labels: findings up to each bound and above the one before, then those above the last."""
    parts, found = [header(name, "histogram", doc)], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        found += count
        parts.append(f'{name}_bucket{{le="{bound}"}} {found}\n')
    parts.append(f"{name}_sum {number(total)}\n{name}_count {found}\n")
    return "".join(parts)
