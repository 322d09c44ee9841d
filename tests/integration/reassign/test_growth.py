# SPDX-License-Identifier: Apache-2.0
"""Brokers and partitions are added and removed, among real processes, by the command as a shell runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness.waiting import wait_for
from tests.integration.reassign.test_reassignments import SETTINGS, assigned, fill
from tests.refusals import raises_code


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers; each test leaves all of them running, not draining, and without a reassignment."""
    with LocalCluster(tmp_path_factory.mktemp("growth"), brokers=4, controllers=1, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def admin(four: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(four.admin_address) as client:
        yield client


def held_by(admin: AdminClient, broker: int) -> list[str]:
    return [
        f"{topic.topic}:{index}"
        for topic in admin.describe_topics()
        for index, one in topic.partitions.items()
        if broker in one.assigned_replicas
    ]


def as_json(cluster: LocalCluster, *arguments: str) -> Any:
    return json.loads(succeeds(cluster, *arguments, "--output", "json"))


def test_a_broker_is_drained_stays_empty_and_gets_its_share_again(four: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("wide", partitions=8, replication_factor=2, configs={"min.insync.replicas": "1"})
    fill(four, "wide", 50, partition=1)
    held = held_by(admin, 1)
    assert len(held) == 4
    planned = as_json(four, "cluster", "remove-brokers", "1", "--dry-run")
    assert (planned["begun"], planned["moved_replicas"]) == (False, 4)
    assert held_by(admin, 1) == held
    asked = tidemark(four, "cluster", "remove-brokers", "1")
    refused(asked, "INVALID_REQUEST")
    assert "cost: 4 reassignments, 4 replicas to copy" in asked.out, "the plan comes before the question"

    out = succeeds(four, "cluster", "remove-brokers", "1", "--yes")
    assert out.endswith("broker 1 is removed and holds nothing: stop it now\n")
    assert held_by(admin, 1) == []
    (broker,) = [one for one in planned["brokers"] if one["broker_id"] == 1]
    assert (broker["replicas_before"], broker["replicas_after"]) == (4, 0)
    admin.create_topic("later", partitions=6, replication_factor=3)
    admin.create_partitions("later", 9)
    assert held_by(admin, 1) == [], "nothing new is placed on it"
    assert as_json(four, "cluster", "describe")["draining_brokers"] == [1]
    assert "draining: broker 1; no new replicas" in succeeds(four, "cluster", "describe")
    succeeds(four, "cluster", "safe-to-restart", "1")
    four.terminate(broker_name(1))
    assert as_json(four, "cluster", "create", "--brokers", "0,2,3")["brokers"] == [0, 2, 3]
    with Consumer(four.bootstrap) as consumer:
        consumer.assign("wide", [1])
        assert sum(consumer.end_offsets().values()) == 50

    four.restart(broker_name(1))
    assert as_json(four, "cluster", "create", "--brokers", "0,1,2,3")["brokers"] == [0, 1, 2, 3]
    assert held_by(admin, 1) == []
    added = as_json(four, "cluster", "add-brokers", "1", "--yes")
    assert added["begun"] is True
    assert as_json(four, "cluster", "describe")["draining_brokers"] == []
    assert len(added["ended"]) == len(added["moves"]["partitions"])
    loads = [len(held_by(admin, one)) for one in range(4)]
    assert max(loads) - min(loads) <= 1
    assert as_json(four, "cluster", "add-brokers", "1", "--yes")["moved_replicas"] == 0, "the load is even already"


def test_brokers_that_cannot_be_added_or_removed_are_one_line(four: LocalCluster) -> None:
    refused(tidemark(four, "cluster", "add-brokers", "9", "--dry-run"), "BROKER_NOT_AVAILABLE")
    refused(tidemark(four, "cluster", "remove-brokers", "9", "--dry-run"), "UNKNOWN_BROKER")
    refused(tidemark(four, "cluster", "remove-brokers", "0", "1", "2", "3", "--yes"), "INVALID_REQUEST")
    late = tidemark(four, "cluster", "create", "--brokers", "0,1,7", "--timeout", "0")
    refused(late, "REQUEST_TIMED_OUT")
    assert "not live: broker 7; live, but not named: broker 2,3" in late.error
    assert tidemark(four, "cluster", "add-brokers", "one").status == 2
    assert tidemark(four, "cluster", "remove-brokers", "1", "--output", "json").status == 2


def test_partitions_are_added_and_the_empty_ones_removed(four: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("grown", partitions=2, replication_factor=2, configs={"min.insync.replicas": "1"})
    before = assigned(admin, "grown")
    planned = as_json(four, "topic", "add-partitions", "grown", "--total", "6", "--dry-run")
    assert (planned["partition_count"], len(assigned(admin, "grown"))) == (6, 2)
    assert succeeds(four, "topic", "add-partitions", "grown", "--total", "6") == "topic grown has 6 partitions\n"
    assert assigned(admin, "grown")[:2] == before
    assert succeeds(four, "topic", "add-partitions", "grown", "--total", "6") == "topic grown has 6 partitions\n"
    assert all(one.leader >= 0 for one in admin.describe_topics(["grown"])[0].partitions.values())
    fill(four, "grown", 3, partition=3)
    with Producer(four.bootstrap) as producer:
        assert producer.send("grown", b"new", partition=5).result(20).offset == 0

    refused(tidemark(four, "topic", "remove-partitions", "grown", "--total", "4"), "PARTITION_NOT_EMPTY")
    assert len(assigned(admin, "grown")) == 6
    with Producer(four.bootstrap) as producer:
        assert producer.send("grown", b"again", partition=5).result(20).offset == 1, "a refused removal seals nothing"
    out = succeeds(four, "topic", "remove-partitions", "grown", "--total", "5", "--force", "--yes")
    assert out == "1 partition removed from topic grown (5)\n"
    assert succeeds(four, "topic", "remove-partitions", "grown", "--total", "4").startswith("1 partition removed")
    with raises_code(ErrorCode.NOT_HIGHEST_PARTITION):
        admin.delete_partitions("grown", partitions=[0])
    assert len(assigned(admin, "grown")) == 4

    for _ in range(2):
        again = admin.delete_partitions("grown", count=1, force=True, request_id="one-less")
        assert (again.partitions, len(assigned(admin, "grown"))) == ((3,), 3), "a retry removes no more"
    with raises_code(ErrorCode.REQUEST_ID_REUSED):
        admin.delete_partitions("grown", count=2, force=True, request_id="one-less")
    admin.create_partitions("grown", 4)
    admin.create_partitions("grown", 6, assignments=[[3, 0], [0, 3]])
    assert assigned(admin, "grown")[4:] == [[3, 0], [0, 3]]
    with Producer(four.bootstrap) as producer:
        handle = producer.send("grown", b"afresh", partition=5)
        assert handle.result(20).offset == 0, "a partition that is added again never meets old records"


def test_partitions_that_cannot_be_are_one_line(four: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("fixed", partitions=2, replication_factor=1)
    for arguments, code in [
        (("add-partitions", "nowhere", "--total", "3"), "UNKNOWN_TOPIC"),
        (("add-partitions", "fixed", "--total", "1"), "INVALID_PARTITIONS"),
        (("remove-partitions", "fixed", "--total", "0"), "INVALID_PARTITIONS"),
        (("remove-partitions", "fixed", "--total", "3"), "INVALID_PARTITIONS"),
        (("remove-partitions", "fixed", "--total", "1", "--force"), "INVALID_REQUEST"),
    ]:
        refused(tidemark(four, "topic", *arguments), code)
    assert len(assigned(admin, "fixed")) == 2


def test_a_restart_is_safe_until_another_broker_is_away(four: LocalCluster, admin: AdminClient) -> None:
    for name in admin.list_topics():
        admin.delete_topic(name)
    admin.create_topic("safe", partitions=4, replication_factor=3, configs={"min.insync.replicas": "2"})
    wait_for(lambda: admin.obstacles_to_restart(2) == [], "all are in sync")
    assert succeeds(four, "cluster", "safe-to-restart", "2") == "yes: broker 2 can be restarted\n"
    four.terminate(broker_name(3))
    try:
        wait_for(lambda: admin.obstacles_to_restart(2) != [], "the admin service reports the obstacle")
        ended = tidemark(four, "cluster", "safe-to-restart", "2")
        assert ended.status == 1
        assert "OTHER_BROKER_AWAY: not live, and assigned replicas: broker 3; start it first" in ended.out
        assert "BROKER_NOT_LIVE" in tidemark(four, "cluster", "safe-to-restart", "3").out
    finally:
        four.restart(broker_name(3))
    wait_for(lambda: admin.obstacles_to_restart(2) == [], "all are in sync again")


def test_a_malformed_request_written_by_hand_is_reported(four: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("hands", partitions=1, replication_factor=1)
    client = KazooClient(four.zookeeper.connect, timeout=20)
    client.start()
    try:
        client.create("/admin/partitions_add/hands/5", b'{"version":1,"replicas":[0]}', makepath=True)
        wait_for(lambda: client.exists("/admin/partitions_add/hands/5") is None, "removed")
    finally:
        client.stop()
        client.close()
    last = admin.list_partition_reassignments().refusals[-1]
    assert (last.kind, last.partition) == ("partitions_add", ("hands", 5))
