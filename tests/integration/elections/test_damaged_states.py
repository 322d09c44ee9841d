# SPDX-License-Identifier: Apache-2.0
"""leaderAndISR nodes damaged or deleted manually are written again, or the controller names the command (Z4)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, controller_name
from tidemark.model import ElectionKind, ErrorCode, TidemarkError, TopicPartition

from tests.integration.harness import warm_command
from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

HURT = TopicPartition("hurt", 0)
REBUILD = ElectionKind.REBUILD_STATE


@pytest.fixture
def admin(mine: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(mine.admin_address) as client:
        yield client


def node(topic: str, partition: int) -> str:
    return f"/brokers/topics/{topic}/{partition}/leaderAndISR"


def is_whole(zookeeper: KazooClient, path: str) -> bool:
    try:
        return zookeeper.exists(path) is not None and json.loads(zookeeper.get(path)[0])["leader"] >= 0
    except ValueError:
        return False


def lines(cluster: LocalCluster, names: Iterable[str], text: str) -> list[str]:
    logs = [(cluster.directory / "logs" / f"{name}.log").read_text() for name in names]
    return [line for log in logs for line in log.splitlines() if text in line]


def unreadable_nodes(cluster: LocalCluster) -> float:
    return sum(samples(cluster, controller_name(index))["tidemark_controller_unreadable_nodes"] for index in range(2))


def test_damaged_and_deleted_states_of_live_leaders_heal_without_loss(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin, kazoo_of(cluster) as zookeeper:
        admin.create_topic("damaged", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        with Producer(cluster.bootstrap) as producer:
            for partition in range(3):
                producer.send("damaged", b"before", partition=partition).result()
            zookeeper.set(node("damaged", 0), b"\xff\xfe garbage")
            zookeeper.delete(node("damaged", 1))
            zookeeper.delete("/brokers/topics/damaged/2", recursive=True)
            wait_for(
                lambda: all(is_whole(zookeeper, node("damaged", partition)) for partition in range(3)),
                "the controller writes the three nodes again",
            )
            for partition in range(3):
                producer.send("damaged", b"after", partition=partition).result(30)
        assert not admin.list_unclean_elections(["damaged"])
        wait_for(
            lambda: all(
                len(one.in_sync_replicas) == 3 for one in admin.describe_topics(["damaged"])[0].partitions.values()
            ),
            "all replicas are in sync",
            refused=TidemarkError,
        )
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign("damaged", start="earliest")
            records = iter(consumer)
            assert sorted(next(records).value for _ in range(6)) == [b"after"] * 3 + [b"before"] * 3
        admin.delete_topic("damaged")


def test_without_the_leader_an_operator_rebuilds_the_state(
    mine: LocalCluster, by_hand: KazooClient, admin: AdminClient
) -> None:
    """The new controllers never read the node, and the former leader is down."""
    admin.create_topic("hurt", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    with Producer(mine.bootstrap) as producer:
        producer.send("hurt", b"kept").result()
    leader = admin.describe_topics(["hurt"])[0].partitions[0].leader
    controllers = [controller_name(0), controller_name(1)]
    for name in controllers:
        mine.kill(name)
    by_hand.set(node("hurt", 0), b"\xff\xfe garbage")
    mine.kill(f"broker-{leader}")
    before = len(lines(mine, controllers, "leader_elected"))
    for name in controllers:
        mine.restart(name)
    wait_for(lambda: bool(lines(mine, controllers, "elect --rebuild-state hurt:0")), "the log names the command")
    wait_for(lambda: unreadable_nodes(mine) == 1, "the metric counts the node")
    (described,) = admin.describe_topics(["hurt"])
    assert described.partitions[0].state_unreadable
    shown = subprocess.run(
        [*warm_command.command(), "topic", "describe", "hurt", "--bootstrap", mine.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "warning: the leaderAndISR node of hurt:0" in shown.stderr
    assert "tidemark elect --rebuild-state hurt:0" in shown.stderr
    (refused,) = admin.elect_leaders(ElectionKind.LAST_KNOWN, [HURT])
    assert refused.error is not None
    assert "elect --rebuild-state hurt:0" in refused.error.message

    began_s = time.monotonic()
    with Producer(mine.bootstrap, delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
        with pytest.raises(TidemarkError) as late:
            producer.send("hurt", b"late").result(30)
        assert late.value.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE)
    assert time.monotonic() - began_s < 15, "the record does not stay in doubt"
    told = lines(mine, controllers, "leader_elected")[before:]
    assert not [line for line in told if "hurt" in line], "nothing was elected"

    (outcome,) = admin.elect_leaders(REBUILD, [HURT], request_id="r1")
    assert outcome.error is None, outcome.error
    assert (outcome.leader, outcome.unclean is not None) == (1 - leader, True)
    (report,) = admin.list_unclean_elections(["hurt"])
    assert (report.request_id, report.unheard) == ("r1", (leader,))
    wait_for(lambda: unreadable_nodes(mine) == 0, "the metric counts none")
    (again,) = admin.elect_leaders(REBUILD, [HURT])
    assert again.error is not None
    assert again.error.code is ErrorCode.ELECTION_NOT_NEEDED
    mine.restart(f"broker-{leader}")
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign("hurt", start="earliest")
        assert next(iter(consumer)).value == b"kept"


def state_of(zookeeper: KazooClient, topic: str) -> tuple[int, int, list[int]]:
    """Leader, leader epoch and ISR in a partition's node."""
    state = json.loads(zookeeper.get(node(topic, 0))[0])
    return state["leader"], state["leader_epoch"], sorted(broker for broker, _ in state["isr"])


def test_a_node_that_was_set_back_heals_whether_the_controller_or_only_replicas_know_better(
    mine: LocalCluster, by_hand: KazooClient, admin: AdminClient
) -> None:
    """The older content is well formed, and names another leader. The leader reads it first, then a new controller."""
    admin.create_topic("back", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    older = by_hand.get(node("back", 0))[0]
    first = state_of(by_hand, "back")[0]
    last, away = 1 - first, f"broker-{first}"
    mine.kill(away)
    wait_for(lambda: state_of(by_hand, "back") == (last, 1, [last]), "the other broker leads alone")
    with Producer(mine.bootstrap) as producer:
        producer.send("back", b"acknowledged").result()
        by_hand.set(node("back", 0), older)
        mine.restart(away)  # the leader adds this broker to the ISR, and finds the older content
        healed = (last, 1, [0, 1])
        wait_for(lambda: state_of(by_hand, "back") == healed, "the controller restores the node, and the broker joins")
        producer.send("back", b"acknowledged").result(30)

        mine.kill(f"broker-{last}")
        wait_for(lambda: state_of(by_hand, "back") == (first, 2, [first]), "the first broker leads again")
        mine.restart(f"broker-{last}")
        wait_for(lambda: state_of(by_hand, "back")[2] == [0, 1], "both are in sync")
        active = controller_name(admin.describe_cluster().view.controller_id - 100)
        mine.kill(active)
        by_hand.set(node("back", 0), older)
        mine.restart(active)
        wait_for(lambda: state_of(by_hand, "back")[1] > 2, "the controller writes the node again")
        producer.send("back", b"acknowledged").result(30)
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign("back", start="earliest")
        records = iter(consumer)
        assert [next(records).value for _ in range(3)] == [b"acknowledged"] * 3
    assert not admin.list_unclean_elections(["back"])
