# SPDX-License-Identifier: Apache-2.0
"""Handles of a replication stream: bounded by the fetched partitions, however many there were in total."""

from __future__ import annotations

import pytest
from tidemark.core.messages import Chunk, FollowerMessage, LeaderMessage, Report, StopFetch
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.rpc.codecs import replica as replica_codec
from tidemark.rpc.codecs.replica import HANDLES_MAX, RELEASED_MAX, FollowerEnd, LeaderEnd
from tidemark.v1 import replica_service_pb2 as pb

from tests.refusals import raises_code
from tests.unit.rpc.codecs.test_replica import AGAIN, EPOCH, FIRST, FLIGHTS, OTHER, Stream, chunk, position

NEWER = LeaderEpoch(EPOCH + 1)


@pytest.fixture(autouse=True)
def few_released(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RELEASED_MAX < HANDLES_MAX
    monkeypatch.setattr(replica_codec, "RELEASED_MAX", 10)


def stop(partition: TopicPartition) -> StopFetch:
    return StopFetch(partition, NEWER)


def received(stream: Stream, message: Chunk) -> list[TopicPartition]:
    return [
        one.partition
        for received_message in stream.to_follower(LeaderMessage(chunks=(message,)))
        for one in received_message.chunks
    ]


def test_released_handles_are_forgotten_at_both_ends() -> None:
    stream = Stream()
    stream.to_leader(FollowerMessage(positions=(position(),)))
    for index in range(100):
        topic = TopicPartition(f"topic-{index}", 0)
        assert stream.to_leader(FollowerMessage(positions=(position(topic),))).positions == (position(topic),)
        assert stream.to_leader(FollowerMessage(stops=(stop(topic),))).stops == (stop(topic),)
    assert stream.follower.handles == stream.leader.handles == 11
    assert received(stream, chunk()) == [FLIGHTS], "a partition that is still fetched keeps its handle"


def test_handles_of_earlier_incarnations_are_forgotten_too() -> None:
    stream = Stream()
    for index in range(100):
        one = position(identity=AGAIN._replace(incarnation=str(index)))
        assert stream.to_leader(FollowerMessage(positions=(one,))).positions == (one,)
    assert stream.follower.handles == stream.leader.handles == 11
    assert received(stream, chunk()) == [FLIGHTS]


def test_messages_in_flight_when_a_partition_was_stopped_arrive() -> None:
    stream = Stream()
    stream.to_leader(FollowerMessage(positions=(position(), position(OTHER))))
    sent_before = stream.leader.encode(LeaderMessage(chunks=(chunk(),)))
    stream.to_leader(FollowerMessage(stops=(stop(FLIGHTS),)))
    (received_message,) = [stream.follower.decode(pb.ReplicateResponse.FromString(data)) for data in sent_before]
    assert received_message.chunks == (chunk(),)
    assert received(stream, chunk()) == [FLIGHTS], "messages that waited to be written too"


def test_a_partition_that_is_stopped_and_begun_in_one_message_has_another_handle() -> None:
    stream = Stream()
    stream.to_leader(FollowerMessage(positions=(position(), position(OTHER))))
    report = Report(FLIGHTS, NEWER, Offset(9), Offset(8))
    restarted = FollowerMessage(positions=(position(),), reports=(report,), stops=(stop(FLIGHTS),))
    assert stream.to_leader(restarted) == restarted
    for index in range(20):  # the old handle is dropped meanwhile
        topic = TopicPartition(f"topic-{index}", 0)
        stream.to_leader(FollowerMessage(positions=(position(topic),)))
        stream.to_leader(FollowerMessage(stops=(stop(topic),)))
    assert stream.to_leader(FollowerMessage(reports=(report,))).reports == (report,)
    assert received(stream, chunk()) == [FLIGHTS]


def test_a_follower_of_an_earlier_version_may_reuse_a_released_handle() -> None:
    leader = LeaderEnd()
    named = pb.ReplicaHandle(handle=0, topic="flights", topic_id=FIRST.topic_id, incarnation=FIRST.incarnation)
    leader.decode(pb.ReplicateRequest(positions=[pb.FetchPosition(replica=named)]))
    for _ in range(20):
        leader.decode(pb.ReplicateRequest(stops=[pb.ReplicaStop(handle=0)]))
        again = pb.ReplicateRequest(positions=[pb.FetchPosition(replica=pb.ReplicaHandle(handle=0))])
        assert leader.decode(again).positions[0].partition == FLIGHTS
    assert leader.handles == 1


def test_a_stream_that_names_too_many_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_codec, "HANDLES_MAX", 50)
    leader = LeaderEnd()
    names = [pb.ReplicaHandle(handle=number, topic=f"t{number}") for number in range(51)]
    leader.decode(pb.ReplicateRequest(positions=[pb.FetchPosition(replica=one) for one in names[:50]]))
    leader.decode(pb.ReplicateRequest(positions=[pb.FetchPosition(replica=names[7])]))
    with raises_code(ErrorCode.INVALID_REQUEST, "at most 50 partitions"):
        leader.decode(pb.ReplicateRequest(positions=[pb.FetchPosition(replica=names[50])]))


def test_a_handle_belongs_to_one_partition() -> None:
    leader = LeaderEnd()
    for topic in ("a", "a", "b"):
        request = pb.ReplicateRequest(positions=[pb.FetchPosition(replica=pb.ReplicaHandle(handle=0, topic=topic))])
        if topic == "a":
            leader.decode(request)
            continue
        with pytest.raises(TidemarkError, match="given to another partition"):
            leader.decode(request)


@pytest.mark.parametrize("handle", [1, 2**31 - 1])
def test_any_unknown_handle_is_refused(handle: int) -> None:
    follower = FollowerEnd()
    follower.encode(FollowerMessage(positions=(position(),)))
    with pytest.raises(TidemarkError, match="never given"):
        follower.decode(pb.ReplicateResponse(chunks=[pb.ReplicaChunk(handle=handle)]))
