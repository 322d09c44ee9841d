# SPDX-License-Identifier: Apache-2.0
"""Three brokers in three racks: a consumer reads from the follower in its rack, until the follower is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tidemark.client import AdminClient, Consumer, Producer, TopicPartition
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.cli.test_cli import succeeds
from tests.integration.harness.metrics import samples

TOPIC = "near"
WHERE = TopicPartition(TOPIC, 0)
ROUND = 400
VALUE = b"x" * 200


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {broker_name(one): {"broker.rack": f"rack-{one}"} for one in range(3)}
    with LocalCluster(tmp_path_factory.mktemp("racks"), settings=settings) as started:
        yield started


def counted(cluster: LocalCluster, broker: int, name: str) -> float:
    """A counter of a broker, from its /metrics."""
    return samples(cluster, broker_name(broker))[f"tidemark_broker_{name}_total"]


def produce(producer: Producer, start: int) -> None:
    for number in range(start, start + ROUND):
        producer.send(TOPIC, VALUE, key=str(number).encode(), partition=0)
    producer.flush(60)


def read(consumer: Consumer, count: int) -> list[int]:
    """Read this number of records, and return their offsets, which must equal the numbers in the keys."""
    found = []
    for _ in range(count):
        record = next(consumer)
        assert int(record.key or b"") == record.offset
        found.append(record.offset)
    return found


def test_a_follower_is_read_from_and_when_it_is_killed_nothing_is_missed_or_doubled(racks: LocalCluster) -> None:
    with AdminClient(racks.admin_address) as admin, Producer(racks.bootstrap, batch_bytes=2000) as producer:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        leader = admin.describe_topics([TOPIC])[0].partitions[0].leader
        near, position = (leader + 1) % 3, 0
        with Consumer(racks.bootstrap, rack=f"rack-{near}", max_partition_bytes=4000) as consumer:
            consumer.assign(TOPIC)
            of_followers, by_followers_alone = 0, False
            while not by_followers_alone:  # a complete round, once all brokers know that all replicas are in sync
                assert position < 100 * ROUND, "the follower is not read from"
                produce(producer, position)
                before, of_the_leader = consumer.metrics().follower_bytes, counted(racks, leader, "fetched_bytes")
                assert read(consumer, ROUND) == list(range(position, position + ROUND))
                of_followers = consumer.metrics().follower_bytes
                position += ROUND
                by_followers_alone = (
                    of_followers - before >= ROUND * len(VALUE)
                    and counted(racks, leader, "fetched_bytes") == of_the_leader
                )
            assert counted(racks, near, "follower_fetched_bytes") >= of_followers
            assert counted(racks, leader, "preferred_read_replicas") >= 1
            health = consumer.health()[WHERE]
            assert (health.reads_from, health.lag) == (near, 0)

            produce(producer, position)
            half = position + ROUND // 2
            assert read(consumer, ROUND // 2) == list(range(position, half))
            racks.kill(broker_name(near))
            position += ROUND
            produce(producer, position)
            position += ROUND
            assert read(consumer, position - half) == list(range(half, position))
            assert consumer.health()[WHERE].reads_from == leader
            assert consumer.poll(0.2) is None

            racks.restart(broker_name(near))
            while consumer.health()[WHERE].reads_from != near:
                produce(producer, position)
                assert read(consumer, ROUND) == list(range(position, position + ROUND))
                position += ROUND
                assert position < 300 * ROUND, "the consumer never reads from the follower again"


def test_a_new_record_is_read_from_a_follower_soon_though_its_high_watermark_comes_late(racks: LocalCluster) -> None:
    topic = "soon"
    with AdminClient(racks.admin_address) as admin, Producer(racks.bootstrap, linger_ms=0) as producer:
        admin.create_topic(topic, partitions=1, replication_factor=3)
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        with Consumer(racks.bootstrap, rack=f"rack-{(leader + 1) % 3}", fetch_max_wait_ms=20_000) as consumer:
            consumer.assign(topic)
            in_time_s = 20.0
            until_s = time.monotonic() + in_time_s
            while not consumer.metrics().follower_bytes:
                producer.send(topic, b"first", partition=0).result(20)
                assert consumer.poll(5) is not None
                assert time.monotonic() < until_s, "no preferred replica is named"
            before = consumer.metrics().follower_bytes
            waits_s = []
            for _ in range(50):
                producer.send(topic, b"v", partition=0).result(20)
                sent_s = time.monotonic()
                batch = consumer.poll(5)
                waits_s.append(time.monotonic() - sent_s)
                assert batch is not None, "a long poll of 20 s has to wake when the follower's high watermark moves"
            assert consumer.metrics().follower_bytes - before >= 50 * len(b"v"), "and it was the follower's"
            assert sorted(waits_s)[25] < 1.0


def test_a_follower_that_stands_still_is_left_and_gives_nothing_old_when_it_continues(racks: LocalCluster) -> None:
    topic = "paused"
    where = TopicPartition(topic, 0)
    with AdminClient(racks.admin_address) as admin, Producer(racks.bootstrap) as producer:
        admin.create_topic(topic, partitions=1, replication_factor=3)
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        near, found = (leader + 1) % 3, 0
        with Consumer(racks.bootstrap, rack=f"rack-{near}") as consumer:
            consumer.assign(topic)

            def one_more() -> None:
                producer.send(topic, str(found).encode(), partition=0)
                record = next(consumer)
                assert (record.offset, record.value) == (found, str(found).encode())

            while consumer.health()[where].reads_from != near:
                one_more()
                found += 1
                assert found < 10_000, "the follower is not read from"
            racks.pause(broker_name(near))
            try:
                paused_s = time.monotonic()
                one_more()
                assert time.monotonic() - paused_s < 30
                found += 1
                for _ in range(50):
                    one_more()
                    found += 1
                assert consumer.health()[where].reads_from != near
            finally:
                racks.resume(broker_name(near))
            while consumer.health()[where].reads_from != near:
                one_more()
                found += 1
                assert found < 100_000, "the consumer never reads from the follower again"


def test_the_command_and_members_of_a_group_read_from_the_follower_in_their_rack(racks: LocalCluster) -> None:
    topic = "told"
    with AdminClient(racks.admin_address) as admin, Producer(racks.bootstrap) as producer:
        admin.create_topic(topic, partitions=1, replication_factor=3)
        near = (admin.describe_topics([topic])[0].partitions[0].leader + 1) % 3
        for number in range(20):
            producer.send(topic, str(number).encode(), partition=0)
        producer.flush(20)
        values = [str(number) for number in range(20)]
        given, until_s = counted(racks, near, "follower_fetched_bytes"), time.monotonic() + 20
        while counted(racks, near, "follower_fetched_bytes") == given:
            assert succeeds(racks, "consume", topic, "--until-end", "--rack", f"rack-{near}").split() == values
            assert time.monotonic() < until_s, "the follower was not read from"
        with Consumer(racks.bootstrap, group="near", rack=f"rack-{near}") as consumer:
            consumer.subscribe([topic])
            assert [next(consumer).value for _ in values] == [value.encode() for value in values]
            where = TopicPartition(topic, 0)
            while consumer.health()[where].reads_from != near:
                producer.send(topic, b"more", partition=0)
                assert next(consumer).value == b"more"
                assert time.monotonic() < until_s + 20, "the follower was not read from"
            consumer.commit()
            assert consumer.committed() == {where: consumer.position(where)}


def test_with_the_leader_selector_no_consumer_is_sent_to_a_follower(racks: LocalCluster) -> None:
    topic = "switched"
    every_broker = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)
    with AdminClient(racks.admin_address) as admin, Producer(racks.bootstrap) as producer:
        admin.create_topic(topic, partitions=1, replication_factor=3)
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        with Consumer(racks.bootstrap, rack=f"rack-{(leader + 1) % 3}") as consumer:
            consumer.assign(topic)
            for selector, wanted in (("rack-aware", (leader + 1) % 3), ("leader", leader)):
                admin.alter_configs(every_broker, {"replica.selector.class": selector})
                until_s = time.monotonic() + 30
                while consumer.health()[TopicPartition(topic, 0)].reads_from != wanted:
                    producer.send(topic, b"v", partition=0).result(20)
                    assert consumer.poll(5) is not None
                    assert time.monotonic() < until_s, f"{selector} has no effect"
            before = consumer.metrics().follower_bytes
            for _ in range(20):
                producer.send(topic, b"v", partition=0).result(20)
                assert consumer.poll(5) is not None
            assert consumer.metrics().follower_bytes == before
        admin.alter_configs(every_broker, delete=["replica.selector.class"])
