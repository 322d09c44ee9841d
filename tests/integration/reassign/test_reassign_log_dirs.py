# SPDX-License-Identifier: Apache-2.0
"""Log directories in moves, among real processes, by the command as a shell runs it (rules M1, M3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TopicPartition

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.waiting import wait_for
from tests.integration.reassign.test_reassignments import AS_PRINTED, assigned, document, file_of

BROKERS = 3
RECORDS = 300
MANY = 150


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Brokers with two log directories each."""
    directory = tmp_path_factory.mktemp("disks")
    disks = {
        broker_name(broker): {"log.dirs": ",".join(str(directory / f"disk-{broker}-{disk}") for disk in "ab")}
        for broker in range(BROKERS)
    }
    with LocalCluster(directory / "cluster", brokers=BROKERS, controllers=2, settings=disks) as started:
        yield started


@pytest.fixture
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    with kazoo_of(cluster) as client:
        yield client


def directories(admin: AdminClient, broker: int) -> list[str]:
    """Paths of a broker's directories, sorted."""
    (found,) = admin.describe_log_dirs([broker])
    return sorted(one.path for one in found.log_dirs)


def place(admin: AdminClient, broker: int, partition: TopicPartition) -> str:
    """Path of the directory that a replica lies in; "" where the broker has none."""
    (found,) = admin.describe_log_dirs([broker], partitions=[partition])
    held = [one.path for one in found.log_dirs for replica in one.replicas if not replica.future]
    assert len(held) < 2, "a replica lies in one directory"
    return held[0] if held else ""


def other(admin: AdminClient, broker: int, partition: TopicPartition) -> str:
    """Path of a directory of the broker that the replica does not lie in."""
    return next(path for path in directories(admin, broker) if path != place(admin, broker, partition))


def moved(topic: str, index: int, replicas: list[int], log_dirs: list[str]) -> dict[str, Any]:
    """The JSON of a move of one partition."""
    entry = {"topic": topic, "partition": index, "replicas": replicas, "log_dirs": log_dirs}
    return {"version": 1, "partitions": [entry]}


def write(cluster: LocalCluster, partition: TopicPartition) -> None:
    with Producer(cluster.bootstrap) as producer:
        sent = [
            producer.send(partition.topic, b"%d" % number, partition=partition.partition) for number in range(RECORDS)
        ]
        assert [handle.result(20).offset for handle in sent] == list(range(RECORDS))


def read(cluster: LocalCluster, partition: TopicPartition) -> list[int]:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(partition.topic, [partition.partition])
        found: list[int] = []
        while len(found) < RECORDS:
            batch = consumer.poll(20.0)
            assert batch is not None, f"{len(found)} of {RECORDS} records came"
            found += [int(value) for value in batch.rows.column("value").to_pylist()]
        return found


def test_new_replicas_are_created_in_the_named_directories(
    cluster: LocalCluster, admin: AdminClient, tmp_path: Path
) -> None:
    admin.create_topic("fresh", partitions=2, replication_factor=1)
    write(cluster, TopicPartition("fresh", 0))
    for index, disk in enumerate(("b", "a")):
        partition = TopicPartition("fresh", index)
        (now,) = assigned(admin, "fresh")[index]
        target = (now + 1) % BROKERS
        wanted = next(path for path in directories(admin, target) if path.endswith(disk))
        file = file_of(tmp_path, moved("fresh", index, [target], [wanted]))
        out = succeeds(cluster, "reassign", "execute", file)
        assert f"; on {target} in {wanted}" in out
        assert place(admin, target, partition) == wanted
        assert place(admin, now, partition) == ""
        verified = json.loads(succeeds(cluster, "reassign", "verify", file, "-o", "json"))
        assert [(one["state"], one["log_dirs"][0]["log_dir"]) for one in verified] == [("done", wanted)]
    assert read(cluster, TopicPartition("fresh", 0)) == list(range(RECORDS))


def test_a_directory_that_is_not_there_is_refused_with_those_that_are(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("nowhere", partitions=1, replication_factor=2)
    before = assigned(admin, "nowhere")
    target = next(broker for broker in range(BROKERS) if broker not in before[0])
    for log_dirs in (["/not/there", "any"], ["any", "/not/there"]):
        replicas = [target, before[0][0]]
        ended = tidemark(cluster, "reassign", "execute", file_of(tmp_path, moved("nowhere", 0, replicas, log_dirs)))
        refused(ended, "LOG_DIR_NOT_FOUND")
        broker = replicas[log_dirs.index("/not/there")]
        assert f"nowhere-0 on broker {broker}" in ended.error
        assert all(path in ended.error for path in directories(admin, broker))
    mismatch = tidemark(cluster, "reassign", "execute", file_of(tmp_path, moved("nowhere", 0, [target], ["a", "b"])))
    refused(mismatch, "LOG_DIRS_MISMATCH")
    assert assigned(admin, "nowhere") == before
    assert zookeeper.exists("/admin/reassign_partitions") is None


def test_an_entry_written_by_hand_is_executed_and_impossible_ones_are_reported(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    admin.create_topic("by-hand", partitions=2, replication_factor=1)
    targets = [(replicas[0] + 1) % BROKERS for replicas in assigned(admin, "by-hand")]
    wanted = directories(admin, targets[0])[1]
    entries = [
        moved("by-hand", 0, [targets[0]], [wanted])["partitions"][0],
        moved("by-hand", 1, [targets[1]], ["/not/there"])["partitions"][0],
    ]
    zookeeper.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": entries}).encode())
    wait_for(lambda: assigned(admin, "by-hand") == [[one] for one in targets], "both are moved")
    assert place(admin, targets[0], TopicPartition("by-hand", 0)) == wanted
    assert place(admin, targets[1], TopicPartition("by-hand", 1)) in directories(admin, targets[1])
    wait_for(lambda: zookeeper.exists("/admin/reassign_partitions") is None, "the entries go")
    listed = json.loads(succeeds(cluster, "reassign", "list", "-o", "json"))
    refusals = [one for one in listed["refusals"] if one["topic"] == "by-hand"]
    assert [(one["partition"], one["error"]["code"]) for one in refusals] == [(1, "LOG_DIR_NOT_FOUND")]
    assert f"broker {targets[1]} rejected the log directory" in refusals[0]["error"]["message"]


def test_a_file_with_named_directories(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    """Both replicas stay on their brokers, and move to the other directory there."""
    partition = TopicPartition("test", 2)
    admin.create_topic("test", partitions=3, replication_factor=2, configs={"min.insync.replicas": "1"})
    succeeds(cluster, "reassign", "execute", file_of(tmp_path, document("test", *AS_PRINTED)))
    write(cluster, partition)
    before = {broker: place(admin, broker, partition) for broker in (2, 1)}
    wanted = {broker: other(admin, broker, partition) for broker in (2, 1)}
    file = file_of(tmp_path, moved("test", 2, [2, 1], list(wanted.values())))
    early = tidemark(cluster, "reassign", "verify", file, "-o", "json")
    assert (early.status, json.loads(early.out)[0]["state"]) == (1, "different")

    out = succeeds(cluster, "reassign", "execute", file)
    back = json.loads(out[out.index("{") : out.index("}\n", out.index("]\n")) + 1])
    assert back == moved("test", 2, [1, 2], [before[1], before[2]]), "the way back names the directories too"
    for broker in (2, 1):
        assert place(admin, broker, partition) == wanted[broker]
        assert f"test:2 is on broker {broker} in {wanted[broker]}" in out
    assert assigned(admin, "test")[2] == [2, 1]
    assert zookeeper.exists("/admin/reassign_partitions") is None
    (verified,) = json.loads(succeeds(cluster, "reassign", "verify", file, "-o", "json"))
    assert verified["state"] == "done"
    assert [(one["broker_id"], one["state"]) for one in verified["log_dirs"]] == [(2, "there"), (1, "there")]
    assert read(cluster, partition) == list(range(RECORDS))

    succeeds(cluster, "reassign", "execute", file_of(tmp_path, back))
    assert {broker: place(admin, broker, partition) for broker in (2, 1)} == before
    assert assigned(admin, "test")[2] == [1, 2]
    assert read(cluster, partition) == list(range(RECORDS))


def test_directories_alone_are_moved_by_an_entry_written_by_hand(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    admin.create_topic("stays", partitions=1, replication_factor=2)
    partition = TopicPartition("stays", 0)
    write(cluster, partition)
    (replicas,) = assigned(admin, "stays")
    wanted = other(admin, replicas[1], partition)
    epoch = json.loads(zookeeper.get("/brokers/topics/stays/0/leaderAndISR")[0])["leader_epoch"]
    entry = moved("stays", 0, replicas, ["any", wanted])
    zookeeper.create("/admin/reassign_partitions", json.dumps(entry).encode())
    wait_for(lambda: place(admin, replicas[1], partition) == wanted, "the replica lies where it should")
    wait_for(lambda: zookeeper.exists("/admin/reassign_partitions") is None, "the entry goes")
    assert assigned(admin, "stays") == [replicas]
    assert json.loads(zookeeper.get("/brokers/topics/stays/0/leaderAndISR")[0])["leader_epoch"] == epoch
    assert read(cluster, partition) == list(range(RECORDS))


def test_a_copy_is_seen_on_its_way_given_up_and_continues_after_a_kill(
    cluster: LocalCluster, admin: AdminClient, tmp_path: Path
) -> None:
    """The move by `tidemark log-dirs`, throttled to a rate at which it would take minutes."""
    admin.create_topic("slow", partitions=1, replication_factor=2, configs={"segment.bytes": "1048576"})
    partition = TopicPartition("slow", 0)
    with Producer(cluster.bootstrap) as producer:
        sent = [producer.send("slow", bytes(50_000), partition=0) for _ in range(100)]
        assert [handle.result(20).offset for handle in sent] == list(range(100))
    (replicas,) = assigned(admin, "slow")
    broker, before, wanted = replicas[1], place(admin, replicas[1], partition), other(admin, replicas[1], partition)
    move = ("log-dirs", "move", "slow:0", "--broker", str(broker))
    file = file_of(tmp_path, moved("slow", 0, replicas, ["any", wanted]))

    def futures() -> list[str]:
        (found,) = admin.describe_log_dirs([broker], partitions=[partition])
        return [one.path for one in found.log_dirs for replica in one.replicas if replica.future]

    out = succeeds(cluster, *move, "--to", wanted, "--throttle", "20KB")
    assert f"slow:0 on broker {broker} in {before} moves to {wanted}" in out
    assert futures() == [wanted]
    ended = tidemark(cluster, "reassign", "verify", file)
    assert ended.status == 1
    assert "copying directories" in ended.out
    assert "% of 5." in ended.out
    described = succeeds(cluster, "log-dirs", "describe", "--broker", str(broker), "--topic", "slow", "--replicas")
    assert [line for line in described.splitlines() if "future" in line and wanted in line]

    out = succeeds(cluster, *move, "--to", before)
    assert out == f"slow:0 is on broker {broker} in {before}; a move to another log directory is cancelled\n"
    wait_for(lambda: futures() == [], "the copy goes")

    succeeds(cluster, *move, "--to", wanted, "--throttle", "20KB")
    assert futures() == [wanted]
    cluster.kill(broker_name(broker))
    away = tidemark(cluster, "log-dirs", "describe", "--broker", str(broker))
    assert (away.status, away.error.split(":")[0]) == (1, "error BROKER_NOT_AVAILABLE")
    cluster.restart(broker_name(broker))
    wait_for(lambda: place(admin, broker, partition) != "", "the broker has its replica again")
    wait_for(lambda: place(admin, broker, partition) == wanted, "a copy that was left continues by itself")
    assert json.loads(succeeds(cluster, "reassign", "verify", file, "-o", "json"))[0]["state"] == "done"


def test_a_move_that_is_given_up_leaves_replicas_in_their_directories(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    """One replica moves to another broker, the other to another directory; both so slowly that neither move ends."""
    admin.create_topic("back", partitions=1, replication_factor=2, configs={"segment.bytes": "1048576"})
    partition = TopicPartition("back", 0)
    with Producer(cluster.bootstrap) as producer:
        sent = [producer.send("back", bytes(50_000), partition=0) for _ in range(100)]
        assert [handle.result(20).offset for handle in sent] == list(range(100))
    (replicas,) = assigned(admin, "back")
    stays, new = replicas[1], next(broker for broker in range(BROKERS) if broker not in replicas)
    before, wanted = place(admin, stays, partition), other(admin, stays, partition)
    limit = "replica.alter.log.dirs.io.max.bytes.per.second"
    succeeds(cluster, "config", "set", "broker", str(stays), f"{limit}=20000")
    log = cluster.directory / "logs" / f"{broker_name(stays)}.log"
    wait_for(lambda: f'"config": "{limit}"' in log.read_text(), "the broker goes by it")
    entry = moved("back", 0, [new, stays], ["any", wanted])
    entry["partitions"][0]["throttle_bytes_per_s"] = 20_000
    zookeeper.create("/admin/reassign_partitions", json.dumps(entry).encode())

    def futures() -> list[str]:
        (found,) = admin.describe_log_dirs([stays], partitions=[partition])
        return [one.path for one in found.log_dirs for replica in one.replicas if replica.future]

    wait_for(lambda: futures() == [wanted], "the replica is being copied")
    listed = json.loads(succeeds(cluster, "reassign", "list", "back:0", "-o", "json"))
    assert [one["log_dirs"] for one in listed["moves"]] == [["any", wanted]]
    succeeds(cluster, "reassign", "cancel", "back:0")
    wait_for(lambda: futures() == [], "the copy goes")
    assert place(admin, stays, partition) == before
    assert assigned(admin, "back") == [replicas]
    succeeds(cluster, "config", "set", "broker", str(stays), "--delete", limit)


def test_a_new_controller_continues_with_a_move_that_names_directories(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    """The reassignment waits for its target, which is down, when the controller that began it is killed."""
    admin.create_topic("successor", partitions=1, replication_factor=1)
    partition = TopicPartition("successor", 0)
    write(cluster, partition)
    (now,) = assigned(admin, "successor")[0]
    target = (now + 1) % BROKERS
    wanted = directories(admin, target)[1]
    entry = moved("successor", 0, [target], [wanted])
    cluster.pause(broker_name(target))
    try:
        zookeeper.create("/admin/reassign_partitions", json.dumps(entry).encode())
        wait_for(lambda: len(assigned(admin, "successor")[0]) == 2, "the move is in flight")
        first = admin.describe_cluster().view.controller_id
        cluster.kill(f"controller-{first}")
        wait_for(lambda: admin.describe_cluster().view.controller_id not in (first, -1), "another controller")
        assert zookeeper.exists("/admin/reassign_partitions") is not None
    finally:
        cluster.resume(broker_name(target))
    wait_for(lambda: assigned(admin, "successor") == [[target]], "the move ends")
    assert place(admin, target, partition) == wanted
    assert read(cluster, partition) == list(range(RECORDS))
    cluster.restart(f"controller-{first}")


def test_a_broker_that_is_killed_when_a_reassignment_ends_knows_the_named_directories(
    cluster: LocalCluster, admin: AdminClient, zookeeper: KazooClient
) -> None:
    admin.create_topic("many", partitions=MANY, replication_factor=1)
    with Producer(cluster.bootstrap) as producer:
        for sent in [producer.send("many", b"x", partition=index) for index in range(MANY)]:
            sent.result(20)
    broker = 0
    held = [index for index, (now,) in enumerate(assigned(admin, "many")) if now == broker]
    target = directories(admin, broker)[1]
    entries = [moved("many", index, [broker], [target])["partitions"][0] for index in held]
    zookeeper.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": entries}).encode())
    while zookeeper.exists("/admin/reassign_partitions") is not None:
        pass
    cluster.kill(broker_name(broker))
    cluster.restart(broker_name(broker))

    def elsewhere() -> list[int]:
        (found,) = admin.describe_log_dirs([broker], topics=["many"])
        there = {one.partition.partition for path in found.log_dirs for one in path.replicas if path.path == target}
        return sorted(set(held) - there)

    wait_for(lambda: elsewhere() == [], "each replica is in the directory, or is copied into it")
