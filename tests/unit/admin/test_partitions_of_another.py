# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and made anew while partitions are added to it: who waits is told at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tidemark.admin.partitions import PartitionAdministration
from tidemark.model import ErrorCode, TopicPartition

from tests.unit.admin.moving import Cluster
from tests.unit.admin.test_partitions import cluster, create, partitions, refusal, requests_of

__all__ = ["cluster", "partitions"]


async def test_what_was_asked_of_a_topic_that_is_gone_is_not_waited_for(
    cluster: Cluster,
    partitions: PartitionAdministration,
) -> None:
    assert cluster.term is not None
    asked = await requests_of(cluster)
    waiting = asyncio.create_task(create(partitions, 5, validate_only=False, timeout_s=60))
    await asked.wait()
    topic = (await cluster.store.topics(["t"]))["t"]
    await cluster.store.delete_topic(cluster.term, topic)
    await cluster.store.create_topic(replace(topic, topic_id="another"))
    added = [TopicPartition("t", index) for index in (2, 3, 4)]
    await cluster.store.finish_partition_requests(cluster.term, added=added)
    async with asyncio.timeout(10):
        assert await refusal(waiting) is ErrorCode.UNKNOWN_TOPIC
