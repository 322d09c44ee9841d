"""Views of the cluster as messages; a large topic that many ask for is written once and read once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.cluster_state import ClusterView, PartitionView, TopicView, apply
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, LeaderEpoch
from tidemark.rpc import metadata_codec
from tidemark.rpc.metadata_codec import LARGE_PARTITIONS, TopicWriter, view_from_proto, view_to_proto

MEMBERS = (BrokerId(0), BrokerId(1))


def topic(name: str, partitions: int) -> TopicView:
    views = {
        index: PartitionView(index, BrokerId(0), LeaderEpoch(index), MEMBERS, MEMBERS, incarnation=f"i{index}")
        for index in range(partitions)
    }
    return TopicView(name, f"id of {name}", 1, 2, views, {"min.insync.replicas": "2"}, partition_count=partitions)


def view(*topics: TopicView) -> ClusterView:
    brokers = {BrokerId(0): BrokerRegistration(BrokerId(0), "here", 1)}
    named = {one.topic: one for one in topics}
    return ClusterView("c", BrokerId(100), ControllerEpoch(1), "admin:1", brokers, named, ("gone",), complete=True)


@pytest.mark.parametrize("partitions", [1, LARGE_PARTITIONS, 3 * LARGE_PARTITIONS])
def test_a_view_arrives_as_it_was_sent_however_it_is_written_and_read(partitions: int) -> None:
    sent = view(topic("a", partitions), topic("b", 2))
    writer = TopicWriter()
    for message in (view_to_proto(sent), writer.view_to_proto(sent), writer.view_to_proto(sent)):
        received = type(message).FromString(message.SerializeToString())
        for shared in (False, True):
            read = view_from_proto(received, shared=shared)
            assert replace(read, deleted_topics=("gone",)) == replace(sent, deleted_topics=("gone",))


def test_a_large_topic_is_written_once_however_many_ask_and_anew_when_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    write = metadata_codec.topic_to_proto
    monkeypatch.setattr(metadata_codec, "topic_to_proto", lambda one: written.append(one.topic) or write(one))
    writer, large = TopicWriter(), topic("large", LARGE_PARTITIONS)
    for _ in range(5):
        writer.view_to_proto(view(large))
    assert written == ["large"]
    changed = replace(large, modified_zxid=9)
    assert view_from_proto(writer.view_to_proto(view(changed))).topics["large"] == changed
    assert written == ["large", "large"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_codec, "_REMEMBERED_TOPICS", 2)
    writer = TopicWriter()
    many = [topic(f"t{number}", LARGE_PARTITIONS) for number in range(5)]
    for one in (*many, *many):
        assert view_from_proto(writer.view_to_proto(view(one))).topics[one.topic] == one


def test_clients_of_one_process_hold_a_large_topic_once() -> None:
    message = view_to_proto(view(topic("large", LARGE_PARTITIONS)))
    one, other = (view_from_proto(message, shared=True) for _ in range(2))
    assert one.topics["large"] is other.topics["large"]
    known = apply(ClusterView(), one)
    assert apply(known, other).topics["large"] is one.topics["large"], "told again what it knows, a client keeps it"
