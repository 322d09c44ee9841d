# SPDX-License-Identifier: Apache-2.0
"""Elections that operators request, among real processes, by the command in a shell."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import NO_LEADER

from tests.integration.cli.test_cli import refused, tidemark
from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

SETTINGS = {kind: {"zookeeper.session.timeout.ms": "3000"} for kind in ("broker", "controller")}


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose brokers may be killed; each test leaves all of them running."""
    with LocalCluster(tmp_path_factory.mktemp("hurt"), controllers=1, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def admin(hurt: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(hurt.admin_address) as client:
        yield client


def partitions(admin: AdminClient, topic: str) -> list[PartitionView]:
    return list(admin.describe_topics([topic])[0].partitions.values())


def produce(cluster: LocalCluster, topic: str, first: int, end: int) -> None:
    """Records `first` to `end`, each acknowledged by all in-sync replicas, one batch each."""
    with Producer(cluster.bootstrap) as producer:
        for number in range(first, end):
            assert producer.send(topic, str(number).encode(), partition=0).result(15).offset == number


def metric(cluster: LocalCluster, kind: str) -> float:
    name = f'tidemark_controller_observations_total{{kind="{kind}"}}'
    return samples(cluster, controller_name(0)).get(name, 0.0)


def test_leadership_goes_back_to_a_broker_that_has_returned(hurt: LocalCluster, admin: AdminClient) -> None:
    admin.create_topic("levels", partitions=3, replication_factor=3)
    hurt.kill(broker_name(0))
    wait_for(lambda: all(one.leader not in (0, NO_LEADER) for one in partitions(admin, "levels")), "others lead")
    refused(tidemark(hurt, "elect", "--preferred", "levels"), "PREFERRED_LEADER_NOT_AVAILABLE")
    hurt.restart(broker_name(0))
    wait_for(lambda: all(len(one.in_sync_replicas) == 3 for one in partitions(admin, "levels")), "all in sync")
    before = {one.partition: one for one in partitions(admin, "levels")}
    (lost,) = [one.partition for one in before.values() if one.assigned_replicas[0] == 0]
    ended = tidemark(hurt, "elect", "--preferred", "levels", "-o", "json")
    assert (ended.status, ended.error) == (0, "")
    outcomes = {one["partition"]: one for one in json.loads(ended.out)}
    assert [index for index, one in outcomes.items() if one["changed"]] == [lost]
    assert (outcomes[lost]["leader_before"], outcomes[lost]["leader"]) == (before[lost].leader, 0)
    assert {one["unclean"] for one in outcomes.values()} == {None}
    after = {one.partition: one for one in partitions(admin, "levels")}
    assert [one.leader for one in after.values()] == [one.assigned_replicas[0] for one in after.values()]
    assert after[lost].leader_epoch == before[lost].leader_epoch + 1
    assert after[lost].lineage == before[lost].lineage
    again = tidemark(hurt, "elect", "--preferred", f"levels:{lost}")
    assert (again.status, again.out) == (0, "0 leaders moved to the preferred replica, 1 were there already\n")
    with Producer(hurt.bootstrap) as producer:
        assert producer.send("levels", b"written", partition=lost).result(15).offset == 0


def test_a_requested_election_elects_the_last_known_log_and_reports_missing_records(
    hurt: LocalCluster, admin: AdminClient
) -> None:
    admin.create_topic("gauges", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})

    def partition() -> PartitionView:
        return partitions(admin, "gauges")[0]

    wait_for(lambda: len(partition().in_sync_replicas) == 2, "both in sync")
    created = partition()
    leader, follower = created.leader, next(one for one in created.assigned_replicas if one != created.leader)
    produce(hurt, "gauges", 0, 40)
    hurt.terminate(broker_name(follower))
    wait_for(lambda: partition().in_sync_replicas == (leader,), "the follower has left")
    produce(hurt, "gauges", 40, 65)
    refused(tidemark(hurt, "elect", "--last-known", "gauges:0", "--yes"), "ELECTION_NOT_NEEDED")
    hurt.terminate(broker_name(leader))
    wait_for(lambda: partition().leader == NO_LEADER, "no replica leads")
    refused(tidemark(hurt, "elect", "--last-known", "gauges:0", "--yes"), "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    # The last leader's disk loses every record, but not the checkpoint that 65 of them were committed.
    (log,) = (hurt.directory / broker_name(leader)).rglob("gauges-0/*.log")
    log.write_bytes(b"")
    hurt.restart(broker_name(follower))
    alone = _foreseen(hurt, unheard=[leader])
    assert (alone["leader"], alone["unclean"]["records_maybe_lost"]) == (follower, 0), (
        "the report has the known losses and the unheard replicas"
    )
    hurt.restart(broker_name(leader))
    foreseen = _foreseen(hurt, unheard=[])
    assert (foreseen["leader"], foreseen["unclean"]["log_end_offset"]) == (follower, 40)
    unconfirmed = tidemark(hurt, "elect", "--last-known", "gauges:0", stdin="y\n")
    refused(unconfirmed, "INVALID_REQUEST")
    assert "40 to 64" in unconfirmed.out, "the possible loss is shown first"
    assert (partition().leader, partition().lineage) == (NO_LEADER, created.lineage)

    ended = tidemark(hurt, "elect", "--last-known", "gauges:0", "--yes", "-o", "json")
    assert (ended.status, ended.error) == (0, "")
    (outcome,) = json.loads(ended.out)
    report = outcome["unclean"]
    assert (outcome["leader_before"], outcome["leader"], outcome["changed"]) == (NO_LEADER, follower, True)
    assert (report["lineage"], report["leader"]) == (created.lineage + 1, follower)
    assert (report["log_end_offset"], report["high_watermark"], report["records_maybe_lost"]) == (40, 65, 25)
    assert (report["lost_from_offset"], report["lost_to_offset"], report["unheard"]) == (40, 64, [])
    assert abs(report["elected_at_ms"] / 1000 - time.time()) < 60
    assert (partition().leader, partition().lineage) == (follower, created.lineage + 1)

    hurt.restart(controller_name(0))
    listed = tidemark(hurt, "elect", "--reports", "gauges", "-o", "json")
    assert json.loads(listed.out) == [report]
    shown = tidemark(hurt, "elect", "--reports")
    assert shown.status == 0
    assert "40 to 64" in shown.out
    produce(hurt, "gauges", 40, 41)
    with Consumer(hurt.bootstrap) as consumer:
        consumer.assign("gauges")
        assert sum(consumer.end_offsets().values()) == 41, "the lost records are gone"


def _foreseen(cluster: LocalCluster, *, unheard: list[int]) -> dict[str, dict[str, int]]:
    """The expected result, after all other replicas have answered."""
    found: list[dict[str, dict[str, int]]] = []

    def the_others_are_heard() -> bool:
        ended = tidemark(cluster, "elect", "--last-known", "gauges:0", "--dry-run", "-o", "json")
        found[:] = json.loads(ended.out)
        return ended.status == 0 and found[0]["unclean"]["unheard"] == unheard

    wait_for(the_others_are_heard, "the other replicas report their logs")
    return found[0]


def test_bad_input_has_a_code_and_one_line_and_changes_nothing(hurt: LocalCluster) -> None:
    for kind in ("--preferred", "--last-known"):
        refused(tidemark(hurt, "elect", kind, "nowhere:0"), "UNKNOWN_TOPIC")
    refused(tidemark(hurt, "elect", "--reports", "nowhere"), "UNKNOWN_TOPIC")
    with AdminClient(hurt.admin_address) as admin:
        admin.create_topic("small", partitions=1, replication_factor=1)
    for kind in ("--preferred", "--last-known"):
        refused(tidemark(hurt, "elect", kind, "small:1"), "UNKNOWN_PARTITION")
    for bad in (("--last-known", "small"), ("--last-known",), (), ("--preferred", "small:x"), ("--reports", "small:0")):
        ended = tidemark(hurt, "elect", *bad)
        assert (ended.status, ended.out) == (2, "")


def test_election_requests_written_by_hand_are_executed_or_refused_and_removed(
    hurt: LocalCluster, admin: AdminClient
) -> None:
    admin.create_topic("hands", partitions=1, replication_factor=1)
    client = KazooClient(hurt.zookeeper.connect, timeout=20)
    client.start()
    try:
        for path in ("/admin/preferred_replica_election", "/admin/last_known_election"):
            invalid, refusals = metric(hurt, "election_request_invalid"), metric(hurt, "election_refused")
            client.create(path, b"flights 0")
            wait_for(lambda path=path: client.exists(path) is None, "removed")  # type: ignore[misc]
            assert metric(hurt, "election_request_invalid") == invalid + 1
            client.create(path, b'{"version":1,"partitions":[{"topic":"nowhere","partition":0}]}')
            wait_for(lambda path=path: client.exists(path) is None, "removed")  # type: ignore[misc]
            assert metric(hurt, "election_refused") == refusals + 1
        client.create(
            "/admin/preferred_replica_election", b'{"version":1,"partitions":[{"topic":"hands","partition":0}]}'
        )
        wait_for(lambda: client.exists("/admin/preferred_replica_election") is None, "carried out")
    finally:
        client.stop()
        client.close()
