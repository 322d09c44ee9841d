# SPDX-License-Identifier: Apache-2.0
"""A broker is removed while records are written; the controller and the admin service are killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, controller_name

from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.harness.waiting import wait_for
from tests.integration.reassign.test_reassignments import SETTINGS

PARTITIONS = 8
REMOVAL_S = 90


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four brokers and two controllers, for one test."""
    with LocalCluster(tmp_path, brokers=4, controllers=2, settings=SETTINGS) as started:
        yield started


def test_a_removal_outlives_controller_and_admin_service_and_loses_no_record(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("load", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    command = ["cluster", "remove-brokers", "1", "--yes", "--admin", cluster.admin_address]
    with NumbersLoad(cluster.bootstrap, "load", PARTITIONS) as load:
        wait_for(lambda: len(load.acknowledged) > 20 * PARTITIONS, "records are written")
        removal = subprocess.Popen(
            [sys.executable, "-m", "tidemark.cli.app", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert removal.stdout is not None
            cost = next(line for line in removal.stdout if line.startswith("cost: "))
            assert cost.startswith("cost: 6 reassignments, 6 replicas to copy")
            cluster.kill("admin")
            cluster.kill(controller_name(0))
            cluster.restart("admin")
            out, error = removal.communicate(timeout=REMOVAL_S)
        finally:
            removal.kill()
        assert (removal.returncode, error) == (0, "")
        assert out.endswith("broker 1 is removed and holds nothing: stop it now\n")
        so_far = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > so_far + 20 * PARTITIONS, "records are written all the while")
    with AdminClient(cluster.admin_address) as admin:
        (topic,) = admin.describe_topics(["load"])
    assert all(1 not in one.assigned_replicas and len(one.assigned_replicas) == 3 for one in topic.partitions.values())
    load.assert_nothing_lost_or_twice()
