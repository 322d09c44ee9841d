# SPDX-License-Identifier: Apache-2.0
"""The codec of the replication stream in both directions, with messages of a faulty peer."""

from __future__ import annotations

import pytest
from tidemark.core.messages import (
    Chunk,
    Credit,
    EpochEnd,
    EpochQuery,
    FetchPosition,
    FollowerMessage,
    LeaderMessage,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.model import ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch
from tidemark.rpc.codecs.replica import FollowerEnd, LeaderEnd
from tidemark.v1 import replica_service_pb2 as pb

from tests.unit.record.samples import patched, sample

FLIGHTS = TopicPartition("flights", 0)
OTHER = TopicPartition("flights", 1)
FIRST = ReplicaIdentity("t" * 32, "a" * 32)
AGAIN = ReplicaIdentity("t" * 32, "b" * 32)
EPOCH = LeaderEpoch(3)


class Stream:
    """Both ends of one stream."""

    def __init__(self) -> None:
        self.follower, self.leader = FollowerEnd(), LeaderEnd()

    def to_leader(self, message: FollowerMessage) -> FollowerMessage:
        sent = self.follower.encode(message).SerializeToString()
        return self.leader.decode(pb.ReplicateRequest.FromString(sent))

    def to_follower(self, message: LeaderMessage) -> list[LeaderMessage]:
        return [self.follower.decode(pb.ReplicateResponse.FromString(data)) for data in self.leader.encode(message)]


def position(partition: TopicPartition = FLIGHTS, identity: ReplicaIdentity = FIRST) -> FetchPosition:
    return FetchPosition(partition, identity, EPOCH, Offset(7), LeaderEpoch(2), 1, Offset(5))


def chunk(*batches: Batch, partition: TopicPartition = FLIGHTS) -> Chunk:
    return Chunk(partition, EPOCH, Offset(7), Offset(5), Offset(1), batches)


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.to_leader(FollowerMessage(positions=(position(), position(OTHER))))
    return stream


def test_messages_of_a_follower_survive_a_round_trip() -> None:
    message = FollowerMessage(
        queries=(EpochQuery(OTHER, FIRST, EPOCH, LeaderEpoch(1)),),
        positions=(position(),),
        reports=(Report(FLIGHTS, EPOCH, Offset(9), Offset(8)),),
        stops=(),
        credits=(Credit(0, 8 << 20), Credit(1, 1)),
        echo_ms=1_234_567_890_123,
    )
    assert Stream().to_leader(message) == message


def test_an_empty_message_is_one_heartbeat_in_each_direction(stream: Stream) -> None:
    assert stream.to_leader(FollowerMessage()) == FollowerMessage()
    assert stream.to_follower(LeaderMessage()) == [LeaderMessage()]


def test_messages_of_a_leader_survive_a_round_trip(stream: Stream) -> None:
    batch = check_batch(sample())
    message = LeaderMessage(
        epoch_ends=(
            EpochEnd(OTHER, EPOCH, LeaderEpoch(1), Offset(80)),
            EpochEnd(OTHER, EPOCH, LeaderEpoch(1), Offset(80), in_sync_offset=Offset(0), log_start_offset=Offset(7)),
        ),
        chunks=(chunk(batch, batch), chunk(partition=OTHER)),
        refusals=(Refusal(OTHER, ErrorCode.LOG_DIVERGED, "cut", EPOCH, Offset(4)),),
        clock_ms=1_234_567_890_123,
    )
    assert stream.to_follower(message) == [message]


def test_chunks_beyond_the_split_size_are_sent_in_further_messages(stream: Stream) -> None:
    batch = check_batch(sample())
    many = batch, *(batch,) * (3 * (1 << 20) // len(batch.data))
    message = LeaderMessage(chunks=(chunk(*many),) * 5)
    arrived = stream.to_follower(message)
    assert [len(part.chunks) for part in arrived] == [2, 2, 1]
    assert tuple(one for part in arrived for one in part.chunks) == message.chunks


def test_a_recreated_partition_gets_another_handle_and_the_old_one_can_be_stopped(stream: Stream) -> None:
    message = FollowerMessage(positions=(position(FLIGHTS, AGAIN),), stops=(StopFetch(FLIGHTS, EPOCH),))
    assert stream.to_leader(message) == message
    assert stream.to_follower(LeaderMessage(chunks=(chunk(),))) == [LeaderMessage(chunks=(chunk(),))]


@pytest.mark.parametrize("at", [5, 30, 100])
def test_a_damaged_batch_is_an_error_of_its_chunk_only(stream: Stream, at: int) -> None:
    good = check_batch(sample())
    bad = Batch(good.envelope, patched(good.data, at, b"\xff\x5a"))
    (arrived,) = stream.to_follower(LeaderMessage(chunks=(chunk(bad), chunk(good, partition=OTHER))))
    assert arrived.chunks[0].batches == ()
    assert arrived.chunks[0].error is ErrorCode.CORRUPT_BATCH
    assert arrived.chunks[0].size_bytes == len(bad.data), "the credit that the leader took"
    assert arrived.chunks[1] == chunk(good, partition=OTHER)


def test_a_truncated_batch_is_an_error_of_its_chunk(stream: Stream) -> None:
    good = check_batch(sample())
    (arrived,) = stream.to_follower(LeaderMessage(chunks=(chunk(Batch(good.envelope, good.data[:-8])),)))
    assert (arrived.chunks[0].batches, arrived.chunks[0].error) == ((), ErrorCode.INVALID_BATCH)


def test_reports_on_partitions_without_a_handle_are_not_sent() -> None:
    message = FollowerMessage(reports=(Report(FLIGHTS, EPOCH, Offset(1), Offset(0)),))
    assert Stream().to_leader(message) == FollowerMessage()


def test_a_partition_is_named_in_full_once(stream: Stream) -> None:
    again = stream.follower.encode(FollowerMessage(positions=(position(),)))
    assert again.positions[0].replica.topic == ""
    assert stream.leader.decode(again).positions == (position(),)


def test_an_unknown_handle_is_refused(stream: Stream) -> None:
    with pytest.raises(TidemarkError, match="never given") as of_follower:
        stream.leader.decode(pb.ReplicateRequest(reports=[pb.ReplicaReport(handle=99)]))
    with pytest.raises(TidemarkError, match="never given") as of_leader:
        stream.follower.decode(pb.ReplicateResponse(chunks=[pb.ReplicaChunk(handle=99)]))
    assert {of_follower.value.code, of_leader.value.code} == {ErrorCode.INVALID_REQUEST}
