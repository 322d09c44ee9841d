# SPDX-License-Identifier: Apache-2.0
"""Every panel's query returns data from a real Prometheus that scrapes a real busy cluster."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from typing import Final

import pytest

from deploy.grafana.build import BOARDS
from deploy.grafana.panels import Board, Panel, Variable
from tests.charts.busy_cluster import BusyCluster
from tests.charts.prometheus import Prometheus, program
from tests.charts.test_dashboards import PANELS, name_of

DEADLINE_S: Final = 25.0
"""Time for all panels together, from the start of the full load."""
BUSY: Final = {
    "a reassignment runs",
    "a reassignment with a throttle runs",
    "a topic whose flush.policy requires flushes is written",
    "a topic of a group is written",
}
"""Values of `empty_until` that occur in this cluster."""

VARIABLES: Final = [
    (board, variable) for board in BOARDS for variable in board.variables if variable.label != "namespace"
]
"""Without namespaces, which exist in Kubernetes only."""


def asked_now(expr: str) -> str:
    """The query as Grafana sends it with everything selected, over seconds."""
    expr = expr.replace("$__rate_interval", "5s")
    return re.sub(r"\$(namespace|cluster|broker|topic|group|query)\b", ".*", expr)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that scrapes the cluster, and the deadline for the data of panels."""
    program("prometheus")
    directory = tmp_path_factory.mktemp("panels")
    with BusyCluster(directory / "cluster") as busy, Prometheus(directory / "prometheus", busy.targets) as started:
        yield started, time.monotonic() + DEADLINE_S


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=name_of)
def test_a_panel_has_data(board: Board, panel: Panel, prometheus: tuple[Prometheus, float]) -> None:
    server, deadline_s = prometheus
    must = panel.empty_until is None or panel.empty_until in BUSY
    for query in panel.queries:
        while not (has_data(server, asked_now(query.selected)) or not must):
            assert time.monotonic() < deadline_s, f"{board.title}: {panel.title}: nothing for {query.selected}"
            time.sleep(0.5)


@pytest.mark.parametrize(("board", "variable"), VARIABLES, ids=lambda value: value.name)
def test_a_variable_has_values(board: Board, variable: Variable, prometheus: tuple[Prometheus, float]) -> None:
    server, deadline_s = prometheus
    expr = f"count by ({variable.label}) ({asked_now(variable.of)})"
    while not any(variable.label in series["metric"] for series in server.query(expr)):
        assert time.monotonic() < deadline_s, f"{board.title}: no values of {variable.name}"
        time.sleep(0.5)


def has_data(server: Prometheus, expr: str) -> bool:
    """Whether a query returns numbers; an invalid query fails."""
    return any(not math.isnan(float(series["value"][1])) for series in server.query(expr))
