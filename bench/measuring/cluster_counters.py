# SPDX-License-Identifier: Apache-2.0
"""Work of a cluster's processes between two readings: CPU time, messages, ISR changes, ZooKeeper requests."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tidemark.local.cluster import LocalCluster

from bench.measuring.watching import scrape, usage

HANDLED = "tidemark_controller_event_duration_seconds_count"
OBSERVED = "tidemark_replica_observed_total"
SHRINKS = "tidemark_replica_isr_shrinks_total"
EXPANDS = "tidemark_replica_isr_expands_total"
REQUESTS = "tidemark_zookeeper_request_seconds_count"
UNDER_REPLICATED = "tidemark_replica_under_replicated"
LEADING = "tidemark_replica_leader_count"
LOST = ("tidemark_zookeeper_disconnects_total", "tidemark_zookeeper_session_expiries_total")
_ROWS = {HANDLED: "controller:", OBSERVED: "replicas:", SHRINKS: "left the ISR:", EXPANDS: "joined the ISR:"}
_UNCOUNTED = ("Tick", "BrokerTrusted", "MoreToDo")
"""Events of the controller whose number follows from the time that passes, or from the slices of its queue."""

Reading = Mapping[tuple[int, str], float]
"""(process id, row) -> value since the start of the process; process id 0: ZooKeeper's transactions."""


def is_in_sync(cluster: LocalCluster, brokers: Iterable[str], partitions: int) -> bool:
    """Whether every partition has a leader and all its replicas in sync, according to these brokers."""
    scraped = [scrape(cluster.metrics_address(name), UNDER_REPLICATED, LEADING) for name in brokers]
    leading = sum(one.get((LEADING, ()), 0.0) for one in scraped)
    return leading == partitions and not any(one.get((UNDER_REPLICATED, ()), 1.0) for one in scraped)


def read(cluster: LocalCluster) -> Reading:
    """The counters now; a process that does not run is omitted."""
    found: dict[tuple[int, str], float] = {(0, "ZooKeeper: transactions"): _transactions(cluster.zookeeper.port)}
    zookeeper = cluster.zookeeper.pid
    found[zookeeper, "CPU s: zookeeper"] = usage(zookeeper).cpu_s
    for name in cluster.names:
        process = cluster.process(name)
        if process.running:
            pid, kind = process.pid, name.partition("-")[0]
            samples = scrape(cluster.metrics_address(name), *_ROWS, REQUESTS, *LOST)
            found |= {(pid, row): value for row, value in _rows(kind, samples)}
            found[pid, f"CPU s: {kind}"] = usage(pid).cpu_s
    return found


def between(before: Reading, after: Reading) -> dict[str, float]:
    """Row -> increase; a process that started meanwhile counts from zero, one that ended is omitted."""
    added: defaultdict[str, float] = defaultdict(float)
    for (pid, row), value in after.items():
        added[row] += value - before.get((pid, row), 0.0)
    return {row: value for row, value in added.items() if value}


def table(columns: Mapping[str, Iterable[Mapping[str, float]]]) -> str:
    """The mean of each row for each column's readings, as text."""
    means: dict[str, dict[str, float]] = {}
    for column, readings in columns.items():
        each = list(readings)
        for row in {row for one in each for row in one}:
            means.setdefault(row, {})[column] = sum(one.get(row, 0.0) for one in each) / len(each)
    width = max(map(len, means), default=0)
    lines = [" " * width + "".join(f"{column:>22}" for column in columns)]
    for row in sorted(means):
        values = (means[row].get(column, 0.0) for column in columns)
        lines.append(f"{row:{width}}" + "".join(f"{value:>22.1f}" for value in values))
    return "\n".join(lines)


def _rows(kind: str, samples: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterable[tuple[str, float]]:
    for (name, labels), value in samples.items():
        if name in _ROWS and labels[0] not in _UNCOUNTED:
            yield f"{_ROWS[name]} {labels[0]}" + (f" ({kind})" if name == SHRINKS else ""), value
        elif name == REQUESTS:
            yield f"ZooKeeper: requests of {kind}", value
        elif name in LOST:
            yield f"ZooKeeper: {name.removeprefix('tidemark_zookeeper_').removesuffix('_total')} of {kind}", value


def _transactions(port: int) -> float:
    """The number of the last transaction; a multi is one."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(b"srvr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    found = re.search(r"Zxid: (0x[0-9a-f]+)", text)
    return float(int(found.group(1), 16)) if found else 0.0
