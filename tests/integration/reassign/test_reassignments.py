# SPDX-License-Identifier: Apache-2.0
"""Reassignments among real processes, by the command as a shell runs it, with its exact output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TopicPartition

from tests.integration.cli.test_cli import refused, tidemark
from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.waiting import wait_for

SETTINGS = {kind: {"zookeeper.session.timeout.ms": "3000"} for kind in ("broker", "controller")}

AS_PRINTED = [[0, 1], [2, 0], [1, 2]]
"""The assignment that the example begins with."""

EXAMPLE_FILE = """
{
"version": 1,
"partitions": [
{
"topic": "test",
"partition": 2,
"replicas": [
2,
1
],
"log_dirs": [
"any",
"any"
]
}
]
}
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers, which tests may kill; each test leaves all of them running, without a reassignment."""
    with LocalCluster(tmp_path_factory.mktemp("four"), brokers=4, controllers=1, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def admin(four: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(four.admin_address) as client:
        yield client


@pytest.fixture
def zookeeper(four: LocalCluster) -> Iterator[KazooClient]:
    with kazoo_of(four) as client:
        yield client


def document(topic: str, *replicas: list[int] | None) -> dict[str, Any]:
    """The JSON of a move for partitions 0, 1, ... of a topic; None omits one."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": index, "replicas": brokers}
            for index, brokers in enumerate(replicas)
            if brokers is not None
        ],
    }


def file_of(directory: Path, content: object) -> str:
    path = directory / "moves.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def assigned(admin: AdminClient, topic: str) -> list[list[int]]:
    view = admin.describe_topics([topic])[0]
    return [[int(broker) for broker in one.assigned_replicas] for one in view.partitions.values()]


def node(zookeeper: KazooClient, path: str) -> Any:
    return json.loads(zookeeper.get(path)[0])


def test_a_move_is_described_begun_verified_and_printed_to_the_letter(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("test", partitions=3, replication_factor=2, configs={"min.insync.replicas": "1"})
    ended = tidemark(four, "reassign", "execute", file_of(tmp_path, document("test", *AS_PRINTED)))
    assert ended.status == 0, ended
    with Producer(four.bootstrap) as producer:
        handles = [producer.send("test", str(number).encode(), partition=2) for number in range(500)]
        assert [handle.result(20).offset for handle in handles] == list(range(500))
    assert tidemark(four, "elect", "--preferred", "test").status == 0
    described = tidemark(four, "topic", "describe", "test").out.splitlines()
    assert described[0] == "Topic:test PartitionCount:3 ReplicationFactor:2 Configs:min.insync.replicas=1"
    assert [line.partition(" Isr:")[0] for line in described[1:]] == [
        "Topic: test Partition: 0 Leader: 0 Replicas: 0,1",
        "Topic: test Partition: 1 Leader: 2 Replicas: 2,0",
        "Topic: test Partition: 2 Leader: 1 Replicas: 1,2",
    ]
    assert node(zookeeper, "/brokers/topics/test")["partitions"] == {"0": [0, 1], "1": [2, 0], "2": [1, 2]}

    before = node(zookeeper, "/brokers/topics/test/2/leaderAndISR")
    ended = tidemark(four, "reassign", "execute", file_of(tmp_path, EXAMPLE_FILE))
    assert (ended.status, ended.error) == (0, ""), ended
    assert "test:2 is on 2,1\n1 reassignment completed\n" in ended.out
    kept = ended.out[ended.out.index("{") : ended.out.index("}\n", ended.out.index("]\n")) + 1]
    assert json.loads(kept) == document("test", None, None, [1, 2]), "the way back is printed before the move begins"

    topic = node(zookeeper, "/brokers/topics/test")
    assert topic["partitions"] == {"0": [0, 1], "1": [2, 0], "2": [2, 1]}
    assert not topic.get("adding_replicas")
    assert not topic.get("removing_replicas")
    assert zookeeper.exists("/admin/reassign_partitions") is None
    after = node(zookeeper, "/brokers/topics/test/2/leaderAndISR")
    assert (after["leader"], sorted(after["isr"])) == (1, sorted(before["isr"])), "step 7: a healthy leader stays"
    verified = tidemark(four, "reassign", "verify", file_of(tmp_path, EXAMPLE_FILE), "-o", "json")
    assert (verified.status, [one["state"] for one in json.loads(verified.out)]) == (0, ["done"])
    with Consumer(four.bootstrap) as consumer:
        consumer.assign("test", [2])
        assert consumer.end_offsets() == {TopicPartition("test", 2): 500}


def fill(cluster: LocalCluster, topic: str, records: int, *, partition: int = 0) -> None:
    """Records of 10 kB that do not compress well, acknowledged."""
    with Producer(cluster.bootstrap) as producer:
        handles = [producer.send(topic, os.urandom(10_000), partition=partition) for _ in range(records)]
        for handle in handles:
            handle.result(30)


def begin_by_hand(zookeeper: KazooClient, topic: str, replicas: list[int], *, throttle_bytes_per_s: int) -> None:
    """After a high produce rate, the admin service refuses such a low throttle."""
    moves = document(topic, replicas)
    moves["partitions"][0]["throttle_bytes_per_s"] = throttle_bytes_per_s
    zookeeper.create("/admin/reassign_partitions", json.dumps(moves).encode())


def listing(cluster: LocalCluster) -> Any:
    ended = tidemark(cluster, "reassign", "list", "-o", "json")
    assert (ended.status, ended.error) == (0, "")
    return json.loads(ended.out)


def elsewhere(replicas: list[int]) -> list[int]:
    """The same number of brokers, none of them among these."""
    return [broker for broker in range(4) if broker not in replicas][: len(replicas)]


def test_a_throttled_reassignment_reports_progress_and_cancel_restores_the_original_replicas(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("heavy", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    fill(four, "heavy", 300)
    (before,) = assigned(admin, "heavy")
    target = elsewhere(before)
    file = file_of(tmp_path, document("heavy", target))
    low = tidemark(four, "reassign", "execute", file, "--throttle", "1kB", "--no-wait")
    refused(low, "THROTTLE_TOO_LOW")
    assert low.out == "", "nothing is begun"
    begin_by_hand(zookeeper, "heavy", target, throttle_bytes_per_s=50_000)

    def is_copying() -> bool:
        moves = listing(four)["moves"]
        return any(one["state"] == "copying" and one["rate_bytes_per_s"] and one["bytes_total"] for one in moves)

    wait_for(is_copying, "the list has the rate")
    (moved,) = listing(four)["moves"]
    assert (moved["original_replicas"], moved["target_replicas"]) == (before, target)
    assert sorted(moved["assigned_replicas"]) == [0, 1, 2, 3]
    assert (sorted(moved["adding_replicas"]), sorted(moved["removing_replicas"])) == (target, sorted(before))
    states = {one["broker_id"]: one["state"] for one in moved["replicas"]}
    assert {states[broker] for broker in target} == {"new"}
    assert {states[broker] for broker in before} == {"online"}
    assert moved["throttle_bytes_per_s"] == 50_000
    assert 0 <= moved["bytes_done"] < moved["bytes_total"]
    assert moved["bytes_total"] > 2 * 2_900_000, "two replicas are copied"
    assert tidemark(four, "reassign", "list").out.count("heavy:0") == 1
    assert tidemark(four, "reassign", "verify", file).status == 1
    refused(tidemark(four, "reassign", "execute", file), "REASSIGNMENT_IN_PROGRESS")
    ended = tidemark(four, "cluster", "safe-to-restart", str(before[0]), "-o", "json")
    assert ended.status == 1
    assert "MOVE_UNDER_WAY" in [one["reason"] for one in json.loads(ended.out)["obstacles"]]

    ended = tidemark(four, "reassign", "cancel", "heavy:0")
    assert (ended.status, ended.error) == (0, ""), ended
    assert ended.out.endswith("1 reassignment cancelled\n")
    assert assigned(admin, "heavy") == [before], "the same brokers in the same order"
    assert listing(four)["moves"] == []
    assert zookeeper.exists("/admin/reassign_partitions") is None
    refused(tidemark(four, "reassign", "cancel", "heavy:0"), "NO_REASSIGNMENT_IN_PROGRESS")
    with Consumer(four.bootstrap) as consumer:
        consumer.assign("heavy")
        assert sum(consumer.end_offsets().values()) == 300


def test_a_reassignment_under_load_keeps_all_records_and_its_printed_rollback_works(
    four: LocalCluster, admin: AdminClient, tmp_path: Path
) -> None:
    admin.create_topic("busy", partitions=2, replication_factor=2, configs={"min.insync.replicas": "1"})
    fill(four, "busy", 100)
    before = assigned(admin, "busy")
    target = [elsewhere(replicas) for replicas in before]
    with Producer(four.bootstrap) as producer:
        handles = [producer.send("busy", f"early {number}".encode(), partition=0) for number in range(50)]
        ended = tidemark(four, "reassign", "execute", file_of(tmp_path, document("busy", *target)), "-o", "json")
        handles += [producer.send("busy", f"late {number}".encode(), partition=0) for number in range(50)]
        assert [handle.result(30).offset for handle in handles] == list(range(100, 200))
    assert (ended.status, ended.error) == (0, ""), ended
    told = json.loads(ended.out)
    by_partition = sorted(told["ended"], key=lambda one: one["partition"])  # "ended" is in the order of their ends
    assert [one["replicas"] for one in by_partition] == target
    assert assigned(admin, "busy") == target
    back = tidemark(four, "reassign", "execute", file_of(tmp_path, told["rollback"]))
    assert (back.status, back.error) == (0, ""), back
    assert assigned(admin, "busy") == before
    with Consumer(four.bootstrap) as consumer:
        consumer.assign("busy", [0])
        assert sum(consumer.end_offsets().values()) == 200


def test_a_reassignment_to_a_dead_broker_reports_the_missing_broker(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("stuck", partitions=1, replication_factor=1)
    fill(four, "stuck", 200)
    ((before,),) = assigned(admin, "stuck")
    target = (before + 1) % 4
    file = file_of(tmp_path, document("stuck", [target]))
    begin_by_hand(zookeeper, "stuck", [target], throttle_bytes_per_s=10_000)
    wait_for(lambda: [one["state"] for one in listing(four)["moves"]] == ["copying"], "the reassignment has begun")
    four.kill(broker_name(target))
    try:
        wait_for(
            lambda: f"broker {target} of the target is not live" in listing(four)["moves"][0]["waiting_for"],
            "the list has the reason",
        )
        obstacles = tidemark(four, "cluster", "safe-to-restart", str(before), "-o", "json")
        assert obstacles.status == 1
        assert {"NO_IN_SYNC_HEIR", "OTHER_BROKER_AWAY", "MOVE_UNDER_WAY"} <= {
            one["reason"] for one in json.loads(obstacles.out)["obstacles"]
        }
        ended = tidemark(four, "reassign", "cancel", "--all")
        assert (ended.status, assigned(admin, "stuck")) == (0, [[before]]), ended
        refused(tidemark(four, "reassign", "execute", file), "BROKER_NOT_AVAILABLE")
    finally:
        four.restart(broker_name(target))


def test_a_removal_of_a_dead_broker_cancels_the_reassignments_to_it(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    admin.create_topic("stranded", partitions=1, replication_factor=2)
    fill(four, "stranded", 200)
    ((leader, follower),) = assigned(admin, "stranded")
    alone = {replicas[0] for name in admin.list_topics() for replicas in assigned(admin, name) if len(replicas) == 1}
    target = next(broker for broker in range(4) if broker not in {leader, follower, *alone})
    begin_by_hand(zookeeper, "stranded", [leader, target], throttle_bytes_per_s=10_000)
    wait_for(lambda: [one["state"] for one in listing(four)["moves"]] == ["copying"], "the reassignment has begun")
    four.kill(broker_name(target))
    try:
        wait_for(lambda: target not in admin.describe_cluster().view.brokers, "the session has expired")
        ended = tidemark(four, "cluster", "remove-brokers", str(target), "--yes", "-o", "json")
        assert ended.status == 0, ended
        assert json.loads(ended.out)["removed"] == [target]
        assert assigned(admin, "stranded") == [[leader, follower]]
        assert not any(target in replicas for name in admin.list_topics() for replicas in assigned(admin, name))
    finally:
        four.restart(broker_name(target))
        wait_for(lambda: target in admin.describe_cluster().view.brokers, "the broker is back")
        admin.add_brokers([target])
        wait_for(lambda: not listing(four)["moves"], "the broker has its share")


def test_an_interrupted_command_leaves_the_reassignment_running_and_reports_this(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    admin.create_topic("going", partitions=1, replication_factor=1)
    fill(four, "going", 200)
    ((before,),) = assigned(admin, "going")
    begin_by_hand(zookeeper, "going", [(before + 1) % 4], throttle_bytes_per_s=10_000)
    wait_for(lambda: [one["state"] for one in listing(four)["moves"]] == ["copying"], "the reassignment has begun")
    environment = {**os.environ, "TIDEMARK_ADMIN": four.admin_address, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "tidemark.cli.app", "cluster", "remove-brokers", str(before), "--yes"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as removing:
        try:
            assert removing.stdout is not None
            told = next(line for line in removing.stdout if "going:0" in line and "copying" in line)
            assert "->" in told
            removing.send_signal(signal.SIGINT)
            _, error = removing.communicate(timeout=30)
        finally:
            removing.kill()
    assert removing.returncode == 130, error
    assert error.startswith("the reassignment continues in the cluster; tidemark reassign list shows its progress")
    assert len(error.splitlines()) == 1, "no traceback"
    assert "copying" in {one["state"] for one in listing(four)["moves"]}
    # The concurrent reassignment ends by itself, possibly just before its cancellation.
    assert tidemark(four, "reassign", "cancel", "--all").status == 0
    assert tidemark(four, "cluster", "add-brokers", str(before), "--yes").status == 0


def test_list_reports_a_malformed_node_written_by_hand(four: LocalCluster, zookeeper: KazooClient) -> None:
    zookeeper.create("/admin/reassign_partitions", b"partition 2 to 2,1, please")
    wait_for(lambda: zookeeper.exists("/admin/reassign_partitions") is None, "removed")
    found = [one for one in listing(four)["refusals"] if one["kind"] == "reassign" and one["partition"] is None]
    assert found
    assert found[-1]["error"]["code"] == "INVALID_REQUEST"
    zookeeper.create("/admin/reassign_partitions", json.dumps(document("nowhere", [1])).encode())
    wait_for(lambda: zookeeper.exists("/admin/reassign_partitions") is None, "removed")
    last = listing(four)["refusals"][-1]
    assert (last["topic"], last["partition"], last["error"]["code"]) == ("nowhere", 0, "UNKNOWN_TOPIC")
    shown = tidemark(four, "reassign", "list")
    assert "UNKNOWN_TOPIC" in shown.out


def test_bad_moves_are_one_line_each_with_their_code_and_change_nothing(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("bad", partitions=1, replication_factor=1)
    before = assigned(admin, "bad")
    bad = [
        {"topic": "bad", "partition": 0, "replicas": [1, 1]},
        {"topic": "bad", "partition": 7, "replicas": [1]},
        {"topic": "nowhere", "partition": 0, "replicas": [1]},
        {"topic": "bad", "partition": 1, "replicas": [1, 9], "log_dirs": ["any"]},
    ]
    ended = tidemark(four, "reassign", "execute", file_of(tmp_path, {"version": 1, "partitions": bad}))
    assert (ended.status, ended.out) == (1, "")
    assert [line.split(": ")[0] for line in ended.error.splitlines()] == [
        "error DUPLICATE_REPLICA",
        "error LOG_DIRS_MISMATCH",
        "error UNKNOWN_PARTITION",
        "error UNKNOWN_TOPIC",
    ]
    refused(
        tidemark(four, "reassign", "execute", file_of(tmp_path, document("bad", [9])), "--dry-run"),
        "BROKER_NOT_AVAILABLE",
    )
    refused(tidemark(four, "reassign", "execute", file_of(tmp_path, "{")), "INVALID_REQUEST")
    refused(tidemark(four, "reassign", "cancel", "bad:0"), "NO_REASSIGNMENT_IN_PROGRESS")
    refused(tidemark(four, "reassign", "generate", "nowhere"), "UNKNOWN_TOPIC")
    assert zookeeper.exists("/admin/reassign_partitions") is None
    assert assigned(admin, "bad") == before


def test_a_dry_run_shows_the_plan_and_changes_nothing(four: LocalCluster, admin: AdminClient, tmp_path: Path) -> None:
    admin.create_topic("dry", partitions=1, replication_factor=1)
    ((before,),) = assigned(admin, "dry")
    file = file_of(tmp_path, document("dry", [(before + 1) % 4]))
    ended = tidemark(four, "reassign", "execute", file, "--dry-run", "-o", "json")
    told = json.loads(ended.out)
    assert (ended.status, told["begun"]) == (0, False)
    assert [(one["replicas_before"], one["replicas"]) for one in told["moves"]] == [([before], [(before + 1) % 4])]
    assert assigned(admin, "dry") == [[before]]
    proposed = tidemark(four, "reassign", "generate", "dry", "--brokers", str((before + 1) % 4))
    assert json.loads(proposed.out)["partitions"][0]["replicas"] == [(before + 1) % 4]
    assert assigned(admin, "dry") == [[before]]
