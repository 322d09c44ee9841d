# SPDX-License-Identifier: Apache-2.0
"""Cluster views as messages; a large topic that many clients request is written once and read once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, apply
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, LeaderEpoch, TidemarkError
from tidemark.rpc.codecs import metadata as metadata_codec
from tidemark.rpc.codecs.metadata import LARGE_PARTITIONS, ViewWriter, view_from_proto, view_to_proto
from tidemark.v1 import broker_service_pb2 as pb

MEMBERS = (BrokerId(0), BrokerId(1))


def topic(name: str, partitions: int) -> TopicView:
    views = {
        index: PartitionView(index, BrokerId(0), LeaderEpoch(index), MEMBERS, MEMBERS, incarnation=f"i{index}")
        for index in range(partitions)
    }
    configs = {"min.insync.replicas": "2"}
    return TopicView(name, f"id of {name}", 1, 2, views, configs, partition_count=partitions, schema_version=len(name))


def view(*topics: TopicView) -> ClusterView:
    brokers = {BrokerId(0): BrokerRegistration(BrokerId(0), "here", 1)}
    named = {one.topic: one for one in topics}
    return ClusterView("c", BrokerId(100), ControllerEpoch(1), "admin:1", brokers, named, ("gone",), complete=True)


@pytest.mark.parametrize("partitions", [1, LARGE_PARTITIONS, 3 * LARGE_PARTITIONS])
async def test_a_view_survives_a_round_trip_however_it_is_written_and_read(partitions: int) -> None:
    sent = view(topic("a", partitions), topic("b", 2))
    writer = ViewWriter()
    answers = [(await writer.answer(pb.GetMetadataResponse, sent)).metadata for _ in range(2)]
    watched = await writer.answer(pb.WatchMetadataResponse, sent)
    for message in (view_to_proto(sent), *answers, watched.metadata):
        received = type(message).FromString(message.SerializeToString())
        assert view_from_proto(received) == view_from_proto(received, shared=True) == sent


async def test_a_response_with_an_unknown_topic_is_not_kept() -> None:
    writer = ViewWriter()
    unknown = TopicView("unknown", "", error=TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no such topic"))
    asked = view(topic("large", LARGE_PARTITIONS), unknown)
    first = await writer.answer(pb.GetMetadataResponse, asked)
    assert await writer.answer(pb.GetMetadataResponse, asked) is not first


async def test_requests_for_a_large_topic_share_one_response_until_the_topic_changes() -> None:
    writer, large = ViewWriter(), topic("large", LARGE_PARTITIONS)
    asked = view(large)
    first = await writer.answer(pb.WatchMetadataResponse, asked)
    assert await writer.answer(pb.WatchMetadataResponse, replace(asked, topics=dict(asked.topics))) is first
    for changed in (
        replace(asked, topics={"large": replace(large, modified_zxid=9)}),
        replace(asked, topics={"large": replace(large, schema_version=9)}),
        replace(asked, topics={**asked.topics, "b": topic("b", 1)}),
        replace(asked, brokers={}),
        replace(asked, controller_epoch=ControllerEpoch(2)),
        replace(asked, complete=False),
        replace(asked, deleted_topics=()),
    ):
        assert view_from_proto((await writer.answer(pb.WatchMetadataResponse, changed)).metadata) == changed


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_codec, "_CACHED_TOPICS", 2)
    writer = ViewWriter()
    many = [view(topic(f"t{number}", LARGE_PARTITIONS)) for number in range(5)]
    answers = [await writer.answer(pb.GetMetadataResponse, one) for one in many]
    assert await writer.answer(pb.GetMetadataResponse, many[-1]) is answers[-1]
    assert await writer.answer(pb.GetMetadataResponse, many[0]) is not answers[0]


def test_a_part_survives_a_round_trip() -> None:
    part = replace(view(topic("a", 1)), complete=False, part=3, more_parts=True, hidden_topics=("b",), sequence=1 << 60)
    assert view_from_proto(view_to_proto(part)) == part


def test_clients_of_one_process_share_a_large_topic() -> None:
    message = view_to_proto(view(topic("large", LARGE_PARTITIONS)))
    one, other = (view_from_proto(message, shared=True) for _ in range(2))
    assert one.topics["large"] is other.topics["large"]
    known = apply(ClusterView(), one)
    assert apply(known, other).topics["large"] is one.topics["large"], "a client keeps the topic that it has"


def test_decoding_leaves_the_message_unchanged() -> None:
    message = view_to_proto(view(topic("a", 3)))
    before = message.SerializeToString()
    assert view_from_proto(message) == view_from_proto(message)
    assert message.SerializeToString() == before
