# SPDX-License-Identifier: Apache-2.0
"""Successive answers about many topics."""

from __future__ import annotations

import pytest
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import BrokerId, LeaderEpoch
from tidemark.rpc.codecs.metadata import topic_to_proto
from tidemark.rpc.codecs.topic_answers import TopicReader
from tidemark.runtime import slices
from tidemark.v1 import metadata_pb2

from tests.turns import counted_turns

TOPICS = 20


def message(name: str, epoch: int = 1) -> metadata_pb2.TopicMetadata:
    replicas = tuple(map(BrokerId, range(3)))
    partition = PartitionView(0, BrokerId(0), LeaderEpoch(epoch), replicas, replicas)
    configs = {"retention.ms": "5", "segment.ms": "9"}
    return topic_to_proto(TopicView(name, f"id of {name}", partitions={0: partition}, configs=configs))


async def test_a_topic_without_a_change_keeps_its_object() -> None:
    reader = TopicReader()
    before = await reader.read([message("a"), message("b")], complete=True)
    after = await reader.read([message("b", epoch=2), message("a")], complete=True)
    assert [one.topic for one in after] == ["b", "a"]
    assert after[1] is before[0]
    assert after[0].partitions[0].leader_epoch == 2


async def test_an_answer_about_some_topics_leaves_the_others_known() -> None:
    reader = TopicReader()
    (first, _) = await reader.read([message("a"), message("b")], complete=True)
    (named,) = await reader.read([message("b", epoch=2)], complete=False)
    (again, changed) = await reader.read([message("a"), message("b", epoch=2)], complete=True)
    assert again is first
    assert changed == named


async def test_a_topic_that_a_complete_answer_lacks_is_forgotten() -> None:
    reader = TopicReader()
    (before,) = await reader.read([message("a")], complete=True)
    await reader.read([], complete=True)
    (after,) = await reader.read([message("a")], complete=True)
    assert after is not before
    assert after == before


async def test_other_tasks_run_while_many_topics_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1)  # every slice ends immediately
    async with counted_turns() as turns:
        await TopicReader().read([message(f"t{index}") for index in range(TOPICS)], complete=True)
    assert len(turns) >= TOPICS
