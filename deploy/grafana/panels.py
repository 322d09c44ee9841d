# SPDX-License-Identifier: Apache-2.0
"""Dashboards, rows and panels, and their JSON for Grafana 10 and later.

A letter in a query stands for a selector with the dashboard's variables:

    {C}  every process of the selected clusters: namespace and cluster
    {B}  the selected brokers: the same labels and instance
    {T}  the selected topics: namespace, cluster and topic
    {G}  the selected groups: namespace, cluster and group
    {S}  Spark drivers: namespace and query

Further matchers follow after a comma: `{B,role="leader"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

COLUMNS: Final = 24
SELECTORS: Final = {
    "C": 'namespace=~"$namespace",cluster=~"$cluster"',
    "B": 'namespace=~"$namespace",cluster=~"$cluster",instance=~"$broker"',
    "T": 'namespace=~"$namespace",cluster=~"$cluster",topic=~"$topic"',
    "G": 'namespace=~"$namespace",cluster=~"$cluster",group=~"$group"',
    "S": 'namespace=~"$namespace",query=~"$query"',
}
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"

Steps = tuple[tuple[float | None, str], ...]
PLAIN: Final[Steps] = ((None, BLUE),)
NONE_IS_GOOD: Final[Steps] = ((None, GREEN), (1, RED))
NONE_IS_BEST: Final[Steps] = ((None, GREEN), (1, ORANGE))


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; `legend` is Grafana's template for the name of a series."""

    expr: str
    legend: str = ""

    @property
    def selected(self) -> str:
        """The query with its selectors expanded."""
        return re.sub(r"\{([CBTGS])([,}])", lambda found: "{" + SELECTORS[found[1]] + found[2], self.expr)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        about: the meaning of its values, and the next step if they are bad.
        unit: a unit of Grafana: short, bytes, Bps, s, percentunit, cps (per second), dateTimeFromNow ...
        empty_until: the event that gives the panel data; None for a panel that always has data.
        columns: of a table: pairs of a label or value and its heading, in order; other columns are hidden.
    """

    title: str
    about: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    height: int = 7
    kind: str = "timeseries"
    steps: Steps = PLAIN
    stacked: bool = False
    decimals: int | None = None
    maximum: float | None = None
    empty_until: str | None = None
    columns: Sequence[tuple[str, str]] = ()
    units: dict[str, str] = field(default_factory=dict)
    mappings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour shown instead of a value."""


def stat(title: str, about: str, expr: str, **more: Any) -> Panel:
    """A panel with the current value of a query."""
    shape: dict[str, Any] = {"width": 3, "height": 4, "steps": NONE_IS_GOOD}
    return Panel(title, about, (Query(expr),), kind="stat", **(shape | more))


def graph(title: str, about: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """A panel with lines over time, from pairs of a query and its legend."""
    return Panel(title, about, tuple(Query(*query) for query in queries), unit, **more)


def quantile(share: float, histogram: str, by: str = "instance") -> str:
    """The query for a quantile (`share`, 0 to 1) of a histogram, one line for each combination of the labels `by`."""
    name, brace, matchers = histogram.partition("{")
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({name}_bucket{brace}{matchers}[$__rate_interval])))"


def rate(counter: str, by: str = "instance", legend: str = "") -> tuple[str, str]:
    """The query for the growth of a counter per second, and its legend; one line for each value of the label `by`."""
    return f"sum by ({by}) (rate({counter}[$__rate_interval]))", legend or f"{{{{{by}}}}}"


def increase(counter: str, by: str = "instance", legend: str = "", over: str = "$__rate_interval") -> tuple[str, str]:
    """The query for the growth of a counter in the range `over`, and its legend; one line for each value of `by`."""
    return f"sum by ({by}) (increase({counter}[{over}]))", legend or f"{{{{{by}}}}}"


def ten_partitions(gauge: str, prefix: str = "") -> tuple[str, str]:
    """The query for the ten partitions with the highest values, and its legend."""
    return f"topk(10, max by (topic, partition) ({gauge}))", prefix + "{{topic}}-{{partition}}"


def table(title: str, about: str, keys: Sequence[tuple[str, str]], *values: tuple[str, str], **more: Any) -> Panel:
    """One line for each combination of labels.

    Args:
        keys: pairs of a label and its heading.
        values: pairs of a heading and its query; with the heading "" the numbers are hidden.
    """
    letters = ["Value"] if len(values) == 1 else [f"Value #{_letter(index)}" for index in range(len(values))]
    headings = [(letter, heading) for letter, (heading, _) in zip(letters, values, strict=True) if heading]
    queries = tuple(Query(query) for _, query in values)
    return Panel(title, about, queries, kind="table", columns=(*keys, *headings), **more)


def _letter(index: int) -> str:
    return chr(ord("A") + index)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading; a `folded` row loads its panels when it is opened."""

    title: str
    panels: Sequence[Panel]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A selection at the top of a dashboard: the values of `label` of the series `of`."""

    name: str
    title: str
    of: str
    label: str


NAMESPACE: Final = Variable("namespace", "Namespace", "tidemark_build_info", "namespace")
CLUSTER: Final = Variable("cluster", "Cluster", 'tidemark_build_info{namespace=~"$namespace"}', "cluster")
BROKER: Final = Variable(
    "broker", "Broker", 'tidemark_replica_count{namespace=~"$namespace",cluster=~"$cluster"}', "instance"
)


TOPIC: Final = Variable(
    "topic", "Topic", 'tidemark_partition_log_end_offset{namespace=~"$namespace",cluster=~"$cluster"}', "topic"
)


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard; its uid never changes, since links and bookmarks use it."""

    name: str
    title: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = (NAMESPACE, CLUSTER, BROKER)

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels of all rows."""
        return (panel for row in self.rows for panel in row.panels)

    def json(self) -> dict[str, Any]:
        """The JSON model that Grafana imports."""
        return {
            "uid": f"tidemark-{self.name}",
            "title": self.title,
            "description": self.about,
            "tags": ["tidemark"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": [_alerts()]},
            "links": [_others()],
            "templating": {"list": [_source(), *map(_variable, self.variables)]},
            "panels": list(_laid_out(self.rows)),
        }


def _laid_out(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Place rows below one another, and panels from left to right; a line has the height of its highest panel."""
    number, y = 1, 0
    for row in rows:
        heading = {"id": number, "type": "row", "title": row.title, "collapsed": row.folded}
        heading |= {"gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}, "panels": []}
        number, y = number + 1, y + 1
        x = line = 0
        inside = []
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            inside.append({"id": number, "gridPos": place, **_panel(panel)})
            number, x, line = number + 1, x + panel.width, max(line, panel.height)
        y += line
        if row.folded:
            yield heading | {"panels": inside}
        else:
            yield heading
            yield from inside


def _panel(panel: Panel) -> dict[str, Any]:
    about = panel.about
    if panel.empty_until is not None:
        about += f" Empty until {panel.empty_until}."
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": about,
        "datasource": SOURCE,
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        **({"transformations": _columns(panel)} if panel.kind == "table" else {}),
    }


def _target(panel: Panel, query: Query, index: int) -> dict[str, Any]:
    once = panel.kind in ("stat", "table", "bargauge")
    shape = {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series")
    return {
        "refId": _letter(index),
        "datasource": SOURCE,
        "expr": query.selected,
        "legendFormat": query.legend or "__auto",
        "format": shape,
        "instant": once,
        "range": not once,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value, "color": colour} for value, colour in panel.steps]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.unit not in ("dateTimeFromNow",):
        defaults["min"] = 0
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.mappings:
        shown = {value: {"text": text, "color": colour} for value, (text, colour) in panel.mappings.items()}
        defaults["mappings"] = [{"type": "value", "options": shown}]
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if panel.steps == PLAIN else "dashed"},
        }
    else:
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "stat":
        return {"reduceOptions": last, "colorMode": "background", "graphMode": "none", "textMode": "value"}
    if panel.kind == "bargauge":
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": True}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "cellGap": 1,
            "tooltip": {"show": True, "mode": "single", "yHistogram": False},
        }
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """The transformations of a table: one line for each set of labels, one column for each query."""
    names = [name for name, _ in panel.columns]
    return [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": names}}},
        {
            "id": "organize",
            "options": {
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": dict(panel.columns),
                "excludeByName": {},
            },
        },
    ]


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    return [
        {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": unit}]}
        for heading, unit in panel.units.items()
    ]


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> dict[str, Any]:
    question = f"label_values({variable.of}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "definition": question,
        "query": {"query": question, "refId": variable.name},
        "refresh": 2,
        "sort": 7,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Tidemark.*",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} {{topic}}",
    }


def _others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Tidemark",
        "tags": ["tidemark"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }
