# SPDX-License-Identifier: Apache-2.0
"""A new group reads a topic of which one partition has no leader: all its replicas are on a broker that is down."""

from __future__ import annotations

import uuid

from tidemark.client import AdminClient, Consumer, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TopicPartition

PATIENCE_S = 20.0


def test_a_partition_without_a_leader_keeps_a_new_group_from_no_other_partition(cluster: LocalCluster) -> None:
    topic, group = f"topic-{uuid.uuid4().hex[:12]}", f"group-{uuid.uuid4().hex[:12]}"
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=1, configs={"min.insync.replicas": "1"})
    with Producer(cluster.bootstrap) as producer:
        for partition in range(3):
            producer.send(topic, b"%d" % partition, partition=partition).result(PATIENCE_S)
    with RangeReader(cluster.bootstrap, deadline_s=PATIENCE_S) as reader:
        leaders = {index: one.leader for index, one in reader.topics([topic])[topic].partitions.items()}
    offline, down = TopicPartition(topic, 2), broker_name(leaders[2])
    with Consumer(cluster.bootstrap, group=group) as consumer:
        consumer.committed()  # the group has a coordinator before the broker is killed
        cluster.kill(down)
        try:
            consumer.subscribe([topic])
            found = [next(iter(consumer.poll_records(PATIENCE_S)), None) for _ in range(2)]
            assert {one and one.partition for one in found} == {0, 1}
            assert consumer.health()[offline].state in ("without leader", "not answered")
        finally:
            cluster.restart(down)
        (last,) = consumer.poll_records(PATIENCE_S)
        assert last.partition == 2
        assert offline in consumer.assignment
