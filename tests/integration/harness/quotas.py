# SPDX-License-Identifier: Apache-2.0
"""Quotas of a test's cluster: the samples of a service, and the wait until every service has new quotas."""

from __future__ import annotations

import urllib.request

from tidemark.local.cluster import LocalCluster

from tests.integration.harness.waiting import wait_for

_SCRAPE_S = 60.0


def samples(cluster: LocalCluster, service: str) -> dict[str, float]:
    """The samples of a service's metrics, by name and labels."""
    with urllib.request.urlopen(f"http://{cluster.metrics_address(service)}/metrics", timeout=_SCRAPE_S) as page:
        text = page.read().decode()
    return {
        key: float(value) for key, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    }


def until_in_effect(cluster: LocalCluster, generation: int) -> None:
    """Wait until every broker and the admin service have quotas of this generation, or later ones."""
    services = [name for name in cluster.names if not name.startswith("controller")]

    def known() -> bool:
        return all(samples(cluster, name)["tidemark_quotas_generation"] >= generation for name in services)

    wait_for(known, "the quotas at every service")
