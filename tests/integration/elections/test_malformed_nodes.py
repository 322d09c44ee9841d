# SPDX-License-Identifier: Apache-2.0
"""Nodes damaged manually: each controller, also a new one, reports and skips these nodes, and continues."""

from __future__ import annotations

from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, controller_name
from tidemark.model import TidemarkError

from tests.integration.harness.waiting import wait_for

BROKEN = (b"", b"\xff", b"[]", b'{"version":1}', b'{"version":9,"partitions":{"0":["x"]}}')


def in_sync(admin: AdminClient) -> bool:
    topics = admin.describe_topics(["whole", "state", "node", "settings"])
    return all(len(topic.partitions[0].in_sync_replicas) == 2 for topic in topics)


def test_controllers_survive_any_content_of_a_znode_without_losing_a_replica(
    mine: LocalCluster, by_hand: KazooClient
) -> None:
    with AdminClient(mine.admin_address) as admin:
        for name in ("whole", "state", "node", "settings"):
            admin.create_topic(name, partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
        with Producer(mine.bootstrap) as producer:
            for name in ("whole", "state", "node", "settings"):
                producer.send(name, b"kept").result()
        paths = ("/brokers/topics/state/0/leaderAndISR", "/brokers/topics/node", "/config/topics/settings")
        before = {path: by_hand.get(path)[0] for path in paths}  # the controller repairs only the first
        for number, data in enumerate(BROKEN):
            for path in paths:
                by_hand.set(path, data)
            by_hand.create("/admin/reassign_partitions", data)
            admin.create_topic(f"made-{number}", partitions=2, replication_factor=2)
            wait_for(lambda: by_hand.exists("/admin/reassign_partitions") is None, "a bad node of moves goes")
        assert admin.list_partition_reassignments().refusals

        active = controller_name(admin.describe_cluster().view.controller_id - 100)
        mine.kill(active)
        admin.create_topic("by-the-next-one", partitions=2, replication_factor=2)
        mine.restart(active)
        mine.restart("broker-0")
        for path, data in before.items():
            by_hand.set(path, data)
        wait_for(lambda: in_sync(admin), "in sync again", refused=TidemarkError)
    with Consumer(mine.bootstrap) as consumer:
        for name in ("whole", "state", "node", "settings"):
            consumer.assign(name, start="earliest")
            assert next(iter(consumer)).value == b"kept", name
