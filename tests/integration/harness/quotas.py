# SPDX-License-Identifier: Apache-2.0
"""The wait until every service of a cluster has new quotas."""

from __future__ import annotations

from tidemark.local.cluster import LocalCluster

from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for


def until_in_effect(cluster: LocalCluster, generation: int) -> None:
    """Wait until every broker and the admin service have quotas of this generation, or later ones."""
    services = [name for name in cluster.names if not name.startswith("controller")]

    def known() -> bool:
        return all(samples(cluster, name)["tidemark_quotas_generation"] >= generation for name in services)

    wait_for(known, "the quotas at every service")
