# SPDX-License-Identifier: Apache-2.0
"""Brokers are restarted one after the other under load, as an orchestrator does that waits for readiness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest

from tests.integration.cli.test_cli import tidemark
from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.lifecycle.test_readiness import wait_until_says

PARTITIONS = 24
TOPIC, TYPED = "rolling", "typed"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as started:
        yield started


def versions_at(address: str) -> list[int]:
    """Versions of the schema of `TYPED`, as a broker gives them to clients."""
    with grpc.insecure_channel(address) as channel:
        found = BrokerServiceStub(channel).GetTopicSchemas(GetTopicSchemasRequest(topic=TYPED), timeout=20)
    return [one.version for one in found.schemas]


def test_a_rolling_restart_that_waits_for_readiness_loses_nothing_and_is_safe_at_every_step(
    cluster: LocalCluster,
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        admin.create_topic(TYPED, replication_factor=3, schema="carrier STRING")
        admin.alter_topic_schema(TYPED, "carrier STRING, delay INT")
    with NumbersLoad(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        for number in range(3):
            before = len(load.acknowledged)
            wait = () if number else ("--wait", "30")
            safe = tidemark(cluster, "cluster", "safe-to-restart", str(number), *wait)
            assert safe.status == 0, f"the last broker said that it was ready: {safe.out}"
            name = broker_name(number)
            cluster.terminate(name)
            cluster.process(name).start()
            wait_until_says(cluster, name, "readiness")
            assert versions_at(cluster.address(name)) == [1, 2]
            assert len(load.acknowledged) > before
    load.assert_nothing_lost_or_twice()
