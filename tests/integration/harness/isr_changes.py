# SPDX-License-Identifier: Apache-2.0
"""ISR changes of a cluster, as its brokers count them."""

from __future__ import annotations

import urllib.request

from tidemark.local.cluster import LocalCluster


def expansions(cluster: LocalCluster) -> int:
    """Replicas that leaders have added to ISRs since their processes started."""
    total = 0.0
    for name in cluster.names:
        if not name.startswith("broker-"):
            continue
        with urllib.request.urlopen(f"http://{cluster.metrics_address(name)}/metrics", timeout=30) as page:
            text = page.read().decode()
        total += sum(
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith("tidemark_replica_isr_expands_total{")
        )
    return int(total)
