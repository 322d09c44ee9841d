# SPDX-License-Identifier: Apache-2.0
"""Nodes that an operator has deleted: no replica is set aside, and the partition gets a leader again."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, controller_name
from tidemark.model import TidemarkError

from tests.integration.harness.metrics import expansions
from tests.integration.harness.waiting import wait_for

STATE = "/brokers/topics/hurt/0/leaderAndISR"


def test_a_partition_whose_state_is_deleted_keeps_its_records_under_the_next_controller(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    with AdminClient(mine.admin_address) as admin:
        for name in ("hurt", "well"):
            admin.create_topic(name, partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
        with Producer(mine.bootstrap) as producer:
            for name in ("hurt", "well"):
                producer.send(name, b"kept").result()
        by_hand.delete(STATE)

        active = controller_name(admin.describe_cluster().view.controller_id - 100)
        mine.kill(active)
        admin.create_topic("by-the-next-one", partitions=2, replication_factor=2)
        mine.restart("broker-0")
        wait_for(
            lambda: len(admin.describe_topics(["well"])[0].partitions[0].in_sync_replicas) == 2,
            "the other is well",
            refused=TidemarkError,
        )
        for broker in range(2):
            assert (mine.directory / f"broker-{broker}" / "hurt-0").is_dir(), f"broker {broker} has set nothing aside"

        wait_for(
            lambda: len(admin.describe_topics(["hurt"])[0].partitions[0].in_sync_replicas) == 2,
            "in sync again",
            refused=TidemarkError,
        )
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign("hurt", start="earliest")
        assert next(iter(consumer)).value == b"kept"


def test_a_broker_whose_registration_is_deleted_takes_part_again(mine: LocalCluster, by_hand: KazooClient) -> None:
    with AdminClient(mine.admin_address) as admin, Producer(mine.bootstrap) as producer:
        admin.create_topic("led", partitions=4, replication_factor=2, configs={"min.insync.replicas": "1"})
        for partition in range(4):
            producer.send("led", b"before", partition=partition).result()
        before = expansions(mine)
        by_hand.delete("/brokers/ids/0")
        for partition in range(4):
            producer.send("led", b"after", partition=partition).result()

        def whole() -> bool:
            partitions = admin.describe_topics(["led"])[0].partitions
            return all(set(one.in_sync_replicas) == {0, 1} for one in partitions.values())

        wait_for(lambda: by_hand.exists("/brokers/ids/0") is not None, "registered again")
        wait_for(whole, "in sync again", refused=TidemarkError)
        assert expansions(mine) - before == 4, "each ISR expands once: no broker joins before it is registered again"
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign("led", start="earliest")
        records = iter(consumer)
        assert sorted(next(records).value for _ in range(8)) == [b"after"] * 4 + [b"before"] * 4


def test_a_controller_is_elected_after_its_epoch_is_deleted_and_brokers_obey(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    with AdminClient(mine.admin_address) as admin, Producer(mine.bootstrap) as producer:
        admin.create_topic("before", partitions=1, replication_factor=2)
        by_hand.delete("/controller_epoch")
        admin.create_topic("after", partitions=1, replication_factor=2)
        producer.send("after", b"acknowledged").result()
    assert by_hand.exists("/controller_epoch") is not None


def test_a_cluster_continues_after_the_parents_of_its_nodes_were_deleted(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    """Regression: no broker registered again, and no deletion of a topic ended, until a service was restarted."""

    def are_two(parent: str) -> bool:
        return len(by_hand.get_children(parent)) == 2

    with AdminClient(mine.admin_address) as admin, Producer(mine.bootstrap) as producer:
        admin.create_topic("led", partitions=4, replication_factor=2, configs={"min.insync.replicas": "1"})
        producer.send("led", b"before", partition=0).result()
        for parent in ("/brokers/ids", "/admin"):
            by_hand.delete(parent, recursive=True)
        wait_for(lambda: are_two("/brokers/ids"), "registered again", refused=NoNodeError)

        def whole() -> bool:
            partitions = admin.describe_topics(["led"])[0].partitions
            return all(set(one.in_sync_replicas) == {0, 1} for one in partitions.values())

        wait_for(whole, "in sync again", refused=TidemarkError)
        by_hand.delete("/brokers/epochs", recursive=True)
        wait_for(lambda: are_two("/brokers/epochs"), "epochs again", refused=NoNodeError)
        producer.send("led", b"after", partition=0).result()
        admin.delete_topic("led")
        wait_for(lambda: not by_hand.get_children("/brokers/topics"), "deleted")
