# SPDX-License-Identifier: Apache-2.0
"""The metrics of the processes of a cluster."""

from __future__ import annotations

import urllib.request

from tidemark.local.cluster import LocalCluster

_SCRAPE_S = 60.0


def samples(cluster: LocalCluster, process: str) -> dict[str, float]:
    """The samples of a process, by name and labels."""
    with urllib.request.urlopen(f"http://{cluster.metrics_address(process)}/metrics", timeout=_SCRAPE_S) as page:
        lines = page.read().decode().splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def expansions(cluster: LocalCluster) -> int:
    """Replicas that leaders have added to ISRs since their processes started."""
    brokers = [samples(cluster, name) for name in cluster.names if name.startswith("broker-")]
    name = "tidemark_replica_isr_expands_total{"
    return int(sum(value for broker in brokers for key, value in broker.items() if key.startswith(name)))
