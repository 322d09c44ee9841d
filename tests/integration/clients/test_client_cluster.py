# SPDX-License-Identifier: Apache-2.0
"""Producer and consumer on a real cluster whose leaders are killed and paused meanwhile."""

from __future__ import annotations

from pathlib import Path

from tidemark.client import AdminClient, Consumer, Producer, SendHandle
from tidemark.local.cluster import LocalCluster

TOPIC = "orders"
ROUND = 300


def test_every_record_is_read_once_and_in_order_while_leaders_are_killed_and_paused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=2, replication_factor=3)
        with Producer(cluster.bootstrap, batch_bytes=200) as producer, Consumer(cluster.bootstrap) as consumer:
            consumer.assign(TOPIC)
            sent: list[SendHandle] = []

            def send_round() -> None:
                start = len(sent)
                sent.extend(
                    producer.send(TOPIC, str(number).encode(), partition=number % 2)
                    for number in range(start, start + ROUND)
                )

            def leader() -> str:
                partitions = admin.describe_topics([TOPIC])[0].partitions
                return f"broker-{partitions[0].leader}"

            send_round()
            killed = leader()
            cluster.kill(killed)
            send_round()
            producer.flush(60)
            cluster.restart(killed)
            paused = leader()
            cluster.pause(paused)
            send_round()
            producer.flush(60)
            cluster.resume(paused)
            send_round()

            found: dict[tuple[int, int], int] = {}
            while len(found) < len(sent):
                record = next(consumer)
                found[record.partition, record.offset] = int(record.value or b"")
            places = [handle.result(60) for handle in sent]
            assert found == {(where.partition, where.offset): number for number, where in enumerate(places)}
            for partition in range(2):
                numbers = [number for (index, _), number in found.items() if index == partition]
                assert numbers == list(range(partition, len(sent), 2))
            assert consumer.poll(0.2) is None
            assert sum(consumer.end_offsets().values()) == len(sent)
