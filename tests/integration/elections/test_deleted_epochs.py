# SPDX-License-Identifier: Apache-2.0
"""Nodes of broker epochs deleted manually: elections continue, and no broker ever gets one of its old epochs again."""

from __future__ import annotations

from functools import partial

from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import TidemarkError

from tests.integration.harness import waiting

wait_for = partial(waiting.wait_for, refused=TidemarkError)


def test_epochs_that_were_deleted_come_back_while_their_brokers_live_and_rise_when_they_do_not(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    with AdminClient(mine.admin_address) as admin:
        admin.create_topic("t", partitions=4, replication_factor=2, configs={"min.insync.replicas": "1"})
        with Producer(mine.bootstrap) as producer:
            producer.send("t", b"kept", partition=0).result()

        def leaders() -> set[int]:
            return {one.leader for one in admin.describe_topics(["t"])[0].partitions.values()}

        def all_in_sync() -> bool:
            return all(len(one.in_sync_replicas) == 2 for one in admin.describe_topics(["t"])[0].partitions.values())

        wait_for(all_in_sync, "both are in sync")
        before = {broker: by_hand.get(f"/brokers/epochs/{broker}")[1].version for broker in range(2)}
        for broker in range(2):
            by_hand.delete(f"/brokers/epochs/{broker}")
        wait_for(lambda: by_hand.exists("/brokers/epochs/0") and by_hand.exists("/brokers/epochs/1"), "made again")
        assert {broker: by_hand.get(f"/brokers/epochs/{broker}")[1].version for broker in range(2)} == before

        mine.kill("broker-0")
        wait_for(lambda: leaders() == {1}, "broker 1 leads everything")
        by_hand.delete("/brokers/epochs/0")
        mine.restart("broker-0")
        assert by_hand.get("/brokers/epochs/0")[1].version > before[0]
        wait_for(all_in_sync, "both are in sync once more")
        mine.kill("broker-1")
        wait_for(lambda: leaders() == {0}, "broker 0 leads everything")
    with Consumer(mine.bootstrap) as consumer:
        consumer.assign("t", start="earliest")
        assert next(iter(consumer)).value == b"kept"


def test_a_live_broker_is_elected_after_the_node_of_its_epoch_was_written(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    """Regression: each write of the controller checks the version of that node, and none succeeded any more."""
    with AdminClient(mine.admin_address) as admin, Producer(mine.bootstrap) as producer:
        admin.create_topic("t", partitions=4, replication_factor=2, configs={"min.insync.replicas": "1"})
        producer.send("t", b"kept", partition=0).result()
        before = by_hand.get("/brokers/epochs/0")
        by_hand.set("/brokers/epochs/0", before[0])
        mine.kill("broker-1")

        def leaders() -> set[int]:
            return {one.leader for one in admin.describe_topics(["t"])[0].partitions.values()}

        wait_for(lambda: leaders() == {0}, "broker 0 leads everything")
        assert by_hand.get("/brokers/epochs/0")[1].version == before[1].version
