# SPDX-License-Identifier: Apache-2.0
"""Everything below a partition, or a topic, deleted manually: no replica that lacks acknowledged records truncates
others, nothing is set aside, and an ordinary deletion still works."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, controller_name
from tidemark.model import ElectionKind, ErrorCode, TidemarkError, TopicPartition

from tests.integration.harness import waiting
from tests.refusals import raises_code

HURT = TopicPartition("hurt", 0)
wait_for = partial(waiting.wait_for, refused=TidemarkError)


@pytest.fixture
def admin(mine: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(mine.admin_address) as client:
        yield client


def another_controller(mine: LocalCluster, admin: AdminClient) -> None:
    before = admin.describe_cluster().view.controller_id
    mine.kill(controller_name(before - 100))
    wait_for(lambda: admin.describe_cluster().view.controller_id not in (-1, before), "another controller is elected")
    mine.restart(controller_name(before - 100))


def leader_of(admin: AdminClient, topic: str) -> int:
    return admin.describe_topics([topic])[0].partitions[0].leader


def asks_for_an_operator(mine: LocalCluster) -> None:
    logs = [mine.directory / "logs" / f"{controller_name(index)}.log" for index in range(2)]
    wait_for(
        lambda: any("elect --rebuild-state hurt:0" in log.read_text() for log in logs),
        "the controller asks for an operator",
    )


def rebuild(admin: AdminClient) -> None:
    """Elect the furthest of all replicas: the controller waits at most two seconds for replicas of started brokers."""
    wait_for(
        lambda: all(one.error is None for one in admin.elect_leaders(ElectionKind.REBUILD_STATE, [HURT])),
        "the replica with the furthest log is elected",
    )


def first_value(mine: LocalCluster, topic: str) -> bytes | None:
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign(topic, start="earliest")
        return next(iter(consumer)).value


def nothing_is_set_aside(mine: LocalCluster, holder: int) -> None:
    assert (mine.directory / f"broker-{holder}" / "hurt-0").is_dir(), "the records are where they were"
    assert not list(mine.directory.glob("broker-*/*-stray"))


def one_replica_lags(mine: LocalCluster, admin: AdminClient) -> int:
    """Return the broker without records, which is down; by its place in the assignment it would be the leader."""
    admin.create_topic("hurt", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    first = admin.describe_topics(["hurt"])[0].partitions[0].assigned_replicas[0]
    mine.kill(f"broker-{first}")
    wait_for(lambda: leader_of(admin, "hurt") == 1 - first, "the other one leads")
    with Producer(mine.bootstrap) as producer:
        producer.send("hurt", b"kept").result()
    return first


def test_a_partition_with_deleted_nodes_is_not_led_by_a_replica_that_lacks_acknowledged_records(
    mine: LocalCluster, by_hand: KazooClient, admin: AdminClient
) -> None:
    lagging = one_replica_lags(mine, admin)
    controllers = [controller_name(0), controller_name(1)]
    for name in controllers:
        mine.kill(name)
    by_hand.delete("/brokers/topics/hurt/0", recursive=True)
    mine.restart(f"broker-{lagging}")  # no controller is there to name a leader
    for name in controllers:
        mine.restart(name)
    admin.create_topic("by-the-next-one", partitions=1, replication_factor=2)
    asks_for_an_operator(mine)
    assert not by_hand.exists("/brokers/topics/hurt/0/leaderAndISR"), "its leader may not have been the last one"
    nothing_is_set_aside(mine, 1 - lagging)
    rebuild(admin)
    assert leader_of(admin, "hurt") == 1 - lagging
    assert first_value(mine, "hurt") == b"kept"


def test_a_living_controller_continues_with_a_partition_whose_nodes_were_deleted(
    mine: LocalCluster, by_hand: KazooClient, admin: AdminClient
) -> None:
    lagging = one_replica_lags(mine, admin)
    by_hand.delete("/brokers/topics/hurt/0", recursive=True)
    mine.kill(f"broker-{1 - lagging}")
    mine.restart(f"broker-{lagging}")
    admin.create_topic("meanwhile", partitions=1, replication_factor=1)
    mine.restart(f"broker-{1 - lagging}")
    asks_for_an_operator(mine)
    nothing_is_set_aside(mine, 1 - lagging)
    rebuild(admin)
    assert first_value(mine, "hurt") == b"kept"


def test_a_partition_added_where_others_were_removed_is_led_at_once_also_under_another_controller(
    mine: LocalCluster, admin: AdminClient
) -> None:
    admin.create_topic("grown", partitions=2, replication_factor=2, configs={"min.insync.replicas": "1"})
    admin.delete_partitions("grown", partitions=[1])
    before = admin.describe_cluster().view.controller_id
    admin.create_partitions("grown", 3)
    assert admin.describe_cluster().view.controller_id == before
    assert len(admin.describe_topics(["grown"])[0].partitions) == 3
    admin.delete_partitions("grown", partitions=[2])
    another_controller(mine, admin)
    admin.create_partitions("grown", 4)
    with Producer(mine.bootstrap) as producer:
        for partition in range(4):
            producer.send("grown", b"new", partition=partition).result()


def test_a_topic_whose_nodes_are_all_deleted_keeps_its_records_and_its_name_until_it_is_put_back(
    mine: LocalCluster, by_hand: KazooClient, admin: AdminClient
) -> None:
    lagging = one_replica_lags(mine, admin)
    admin.create_topic("gone", partitions=1, replication_factor=1)
    topic, _ = by_hand.get("/brokers/topics/hurt")
    by_hand.delete("/brokers/topics/hurt", recursive=True)
    mine.restart(f"broker-{lagging}")
    another_controller(mine, admin)
    admin.delete_topic("gone")
    admin.create_topic("by-the-next-one", partitions=1, replication_factor=2)
    mine.restart(f"broker-{1 - lagging}")
    wait_for(lambda: leader_of(admin, "by-the-next-one") >= 0, "the others are led")
    with raises_code(ErrorCode.TOPIC_ALREADY_EXISTS, "/brokers/topics/hurt was deleted manually"):
        admin.create_topic("hurt", partitions=1, replication_factor=2)
    nothing_is_set_aside(mine, 1 - lagging)

    by_hand.create("/brokers/topics/hurt", topic)
    asks_for_an_operator(mine)
    rebuild(admin)
    assert first_value(mine, "hurt") == b"kept"
    admin.delete_topic("hurt")
    wait_for(
        lambda: not any((mine.directory / f"broker-{broker}" / "hurt-0").exists() for broker in range(2)),
        "an ordinary deletion deletes",
    )
