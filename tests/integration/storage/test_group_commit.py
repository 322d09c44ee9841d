# SPDX-License-Identifier: Apache-2.0
"""flush.policy=group-commit among real processes: an acknowledgement means the disk of every in-sync replica (rule R3).

The brokers run with a hook that replaces a disk: while a broker's gate file exists, its fdatasync does not return,
and with another file there it fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.core.cluster_view import PartitionView
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import NO_LEADER, TidemarkError

from tests.integration.harness.waiting import wait_for

HOOK = """
import os, sys, time
real, gates = os.fdatasync, os.environ["FLUSH_GATES"]
name = sys.orig_argv[sys.orig_argv.index("--broker.id") + 1] if "--broker.id" in sys.orig_argv else "none"

def fdatasync(descriptor):
    gate = os.path.join(gates, name)
    if os.path.exists(gate):
        open(gate + ".reached", "w").close()
    while os.path.exists(gate):
        time.sleep(0.01)
    if os.path.exists(gate + ".broken"):
        raise OSError(5, "Input/output error")
    real(descriptor)

os.fdatasync = fdatasync
"""


class Gate:
    """The disk of one broker."""

    def __init__(self, directory: Path, broker_id: int) -> None:
        self._gate = directory / str(broker_id)
        self._reached = directory / f"{broker_id}.reached"
        self._broken = directory / f"{broker_id}.broken"

    def close(self) -> None:
        self._reached.unlink(missing_ok=True)
        self._gate.touch()

    def break_(self) -> None:
        self._broken.touch()

    def open(self) -> None:
        self._gate.unlink(missing_ok=True)
        self._broken.unlink(missing_ok=True)

    def wait_until_reached(self) -> None:
        deadline_s = time.monotonic() + 15
        while not self._reached.exists():
            assert time.monotonic() < deadline_s, "nothing is flushed"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the gate files."""
    return tmp_path_factory.mktemp("gates")


@pytest.fixture
def gates(directory: Path) -> Iterator[list[Gate]]:
    made = [Gate(directory, broker_id) for broker_id in range(3)]
    yield made
    for gate in made:
        gate.open()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[LocalCluster]:
    hook = tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "FLUSH_GATES": str(directory)}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), controllers=1, environment=environment) as started:
        yield started


def is_acknowledged(handle: SendHandle, timeout_s: float) -> bool:
    try:
        handle.result(timeout_s)
    except TidemarkError:
        return False
    return True


def test_an_acknowledgement_waits_for_the_disk_of_each_in_sync_replica(
    cluster: LocalCluster, gates: list[Gate]
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        for topic, policy in (("safe", "group-commit"), ("fast", "os")):
            admin.create_topic(topic, partitions=1, replication_factor=3, configs={"flush.policy": policy})
            producer.send(topic, b"first", partition=0).result(30)
        for gate in gates:  # the leader's and both followers'
            gate.close()
            handle = producer.send("safe", b"record", partition=0)
            gate.wait_until_reached()
            assert is_acknowledged(producer.send("fast", b"record", partition=0), 15), "no disk is awaited"
            assert not is_acknowledged(handle, 0.5)
            gate.open()
            assert is_acknowledged(handle, 15)


def test_a_topics_policy_changes_under_running_brokers(cluster: LocalCluster, gates: list[Gate]) -> None:
    resource = ConfigResource(ConfigKind.TOPIC, "changes")
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topic("changes", partitions=1, replication_factor=3)
        producer.send("changes", b"first", partition=0).result(30)
        follower = gates[next(one for one in range(3) if one != partition_of(admin, "changes").leader)]
        follower.close()
        assert is_acknowledged(producer.send("changes", b"record", partition=0), 15), "no disk is awaited"
        admin.alter_configs(resource, {"flush.policy": "group-commit"})
        follower.wait_until_reached()  # records written before are flushed too
        # The leader receives the policy by a separate command; until then it acknowledges before a flush.
        for _ in range(100):
            handle = producer.send("changes", b"record", partition=0)
            if not is_acknowledged(handle, 1.0):
                break
        assert not is_acknowledged(handle, 1.0)
        admin.alter_configs(resource, delete=["flush.policy"])
        assert is_acknowledged(handle, 15), "the acknowledgement waits no longer"
        follower.open()
        before = partition_of(admin, "changes")
        assert (before.leader_epoch, len(before.in_sync_replicas)) == (0, 3), "no broker restarted or was replaced"


def partition_of(admin: AdminClient, topic: str) -> PartitionView:
    return admin.describe_topics([topic])[0].partitions[0]


def test_after_a_failed_flush_another_replica_leads_and_pending_records_are_acknowledged(
    cluster: LocalCluster, gates: list[Gate]
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("torn", partitions=1, replication_factor=3, configs={"flush.policy": "group-commit"})
        producer.send("torn", b"first", partition=0).result(30)
        before = admin.describe_topics(["torn"])[0].partitions[0]
        gates[before.leader].break_()
        assert producer.send("torn", b"second", partition=0).result(30).offset == 1
        after = admin.describe_topics(["torn"])[0].partitions[0]
        assert after.leader != before.leader
        assert after.lineage == before.lineage
        assert before.leader not in after.in_sync_replicas
        name = broker_name(before.leader)
        assert cluster.process(name).wait(15), "no log directory is left to it"
        assert cluster.process(name).exit_status == 1
        gates[before.leader].open()
        cluster.restart(name)


def test_after_every_machine_lost_its_page_cache_a_group_commit_topic_continues_where_it_was(tmp_path: Path) -> None:
    distrust = {"broker": {"log.dirs.trust.boot.id": "false", "zookeeper.session.timeout.ms": "3000"}}
    brokers = [broker_name(broker_id) for broker_id in range(3)]
    with (
        LocalCluster(tmp_path, controllers=1, settings=distrust) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        for topic, policy in (("safe", "group-commit"), ("fast", "os")):
            admin.create_topic(topic, partitions=1, replication_factor=3, configs={"flush.policy": policy})
            with Producer(cluster.bootstrap) as producer:
                handles = [producer.send(topic, str(number).encode(), partition=0) for number in range(200)]
                producer.flush(15)
            assert handles[-1].result(15).offset == 199

        def partition(topic: str) -> PartitionView:
            return admin.describe_topics([topic])[0].partitions[0]

        for name in brokers:
            cluster.kill(name)
        for name in brokers:
            cluster.restart(name)
        wait_for(lambda: set(partition("safe").in_sync_replicas) == {0, 1, 2}, "all are in sync again")
        assert partition("safe").lineage == 0
        assert partition("fast").leader == NO_LEADER, "the disk may lack any of its records"
        with Producer(cluster.bootstrap) as producer:
            assert producer.send("safe", b"and on", partition=0).result(15).offset == 200
