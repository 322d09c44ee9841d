# SPDX-License-Identifier: Apache-2.0
"""A consumer that the application drops without a close ends its connections and leaves its group."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest
from tidemark.client import AdminClient, Consumer, Groups, Producer
from tidemark.client.records import PartitionBatch
from tidemark.local.cluster import LocalCluster

from tests.integration.harness.waiting import wait_for

RECORDS = 10
WARNED = "a Consumer was dropped without close"


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    name = f"dropped-{uuid.uuid4().hex[:12]}"
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(name)
        producer.send_many(name, [(None, b"%d" % number) for number in range(RECORDS)])
        producer.flush()
        yield name
        admin.delete_topic(name)


def test_a_dropped_member_leaves_its_group_and_commits_no_record_that_it_did_not_return(
    cluster: LocalCluster, topic: str
) -> None:
    group = f"group-{topic}"
    consumer = Consumer(cluster.bootstrap, group=group)
    consumer.subscribe([topic])
    assert len(consumer.poll_records(30, max_records=3)) == 3
    with pytest.warns(ResourceWarning, match=WARNED):
        del consumer
    with Groups(cluster.bootstrap) as groups:
        wait_for(lambda: not groups.describe_groups([group])[0].members, "the member has left")
    with Consumer(cluster.bootstrap, group=group) as successor:
        assert all(offset <= 3 for offset in successor.committed().values())


def batches_of(cluster: LocalCluster, topic: str) -> Iterator[PartitionBatch]:
    consumer = Consumer(cluster.bootstrap)
    consumer.assign(topic)
    return consumer.batches()


def test_a_consumer_lives_as_long_as_its_batches_are_read(cluster: LocalCluster, topic: str) -> None:
    batches = batches_of(cluster, topic)
    gc.collect()
    read = 0
    while read < RECORDS:
        read += next(batches).rows.num_rows
    with pytest.warns(ResourceWarning, match=WARNED):
        del batches
