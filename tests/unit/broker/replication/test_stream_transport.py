# SPDX-License-Identifier: Apache-2.0
"""Messages that gather while a stream is written are merged, and keep their order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.broker.replication import stream_transport
from tidemark.broker.replication.stream_transport import (
    PART_MAX,
    LeaderStreams,
    _merge_follower_messages,
    _merge_leader_messages,
    _Outbox,
    in_parts,
)
from tidemark.core.messages import (
    Chunk,
    Credit,
    EpochEnd,
    EpochQuery,
    FollowerMessage,
    LeaderMessage,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.core.replication.effects import ConnectToLeader, SendToLeader
from tidemark.core.replication.events import LeaderConnected, LeaderDisconnected
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.rpc.codecs.replica import FollowerEnd

from tests.unit.record.samples import sample

FLIGHTS = TopicPartition("flights", 0)
OTHER = TopicPartition("flights", 1)
EPOCH = LeaderEpoch(1)


def report(partition: TopicPartition, end: int) -> Report:
    return Report(partition, EPOCH, Offset(end), Offset(0))


def query(partition: TopicPartition) -> EpochQuery:
    return EpochQuery(partition, ReplicaIdentity("id", "i"), EPOCH, EPOCH)


def chunks(*offsets: int) -> LeaderMessage:
    batch = check_batch(sample())
    return LeaderMessage(
        chunks=tuple(Chunk(FLIGHTS, EPOCH, Offset(at), Offset(0), Offset(0), (batch,)) for at in offsets)
    )


def test_the_last_report_of_each_partition_is_sent_and_credit_is_summed() -> None:
    merged = _merge_follower_messages(
        [
            FollowerMessage(reports=(report(FLIGHTS, 3), report(OTHER, 5)), credits=(Credit(0, 10),)),
            FollowerMessage(),
            FollowerMessage(reports=(report(FLIGHTS, 6),), credits=(Credit(1, 1), Credit(0, 7))),
        ]
    )
    assert merged == [
        FollowerMessage(reports=(report(FLIGHTS, 6), report(OTHER, 5)), credits=(Credit(0, 17), Credit(1, 1)))
    ]


def test_messages_of_one_partition_keep_their_order() -> None:
    before, stop = FollowerMessage(reports=(report(FLIGHTS, 3),)), FollowerMessage(stops=(StopFetch(FLIGHTS, EPOCH),))
    again, other = FollowerMessage(queries=(query(FLIGHTS),)), FollowerMessage(reports=(report(OTHER, 3),))
    assert _merge_follower_messages([before, stop, again]) == [before, stop, again]
    assert _merge_follower_messages([before, stop, other]) == [before, replace(stop, reports=other.reports)]


def test_partitions_that_begin_one_by_one_share_a_message() -> None:
    """Each log that a starting broker has opened begins alone; the leader adds those of a message to ISRs together."""
    partitions = [TopicPartition("flights", index) for index in range(1000)]
    queries = [query(one) for one in partitions]
    merged = _merge_follower_messages([FollowerMessage(queries=(one,)) for one in queries])
    assert merged == [FollowerMessage(queries=tuple(queries))]
    ends = [EpochEnd(one, EPOCH, EPOCH, Offset(0)) for one in partitions]
    answers = _merge_leader_messages([LeaderMessage(epoch_ends=(one,)) for one in ends])
    assert [len(message.epoch_ends) for message in answers] == [PART_MAX] * 5
    assert [end for message in answers for end in message.epoch_ends] == ends


def test_chunks_are_merged_and_refusals_and_answers_keep_their_place() -> None:
    refusal = LeaderMessage(refusals=(Refusal(FLIGHTS, ErrorCode.NOT_LEADER, "", EPOCH, Offset(0)),))
    answer = LeaderMessage(epoch_ends=(EpochEnd(FLIGHTS, EPOCH, EPOCH, Offset(0)),))
    merged = _merge_leader_messages([chunks(0), chunks(3, 6), refusal, chunks(9), answer, chunks(12), chunks(15)])
    assert merged == [chunks(0, 3, 6), refusal, chunks(9), answer, chunks(12, 15)]


async def test_an_outbox_gives_its_messages_before_it_ends() -> None:
    outbox = _Outbox(_merge_leader_messages)
    outbox.put(chunks(0))
    outbox.put(chunks(3))
    outbox.end()
    assert [message async for message in outbox.messages()] == [chunks(0, 3)]


@pytest.mark.parametrize("merge", [_merge_leader_messages, _merge_follower_messages])
async def test_an_outbox_without_messages_ends(merge: Any) -> None:
    outbox = _Outbox[Any](merge)
    outbox.end()
    assert [message async for message in outbox.messages()] == []


async def test_an_empty_outbox_waits() -> None:
    outbox = _Outbox(_merge_leader_messages)
    reading = asyncio.ensure_future(anext(outbox.messages()))
    await asyncio.sleep(0)
    assert not reading.done()
    outbox.put(chunks(0))
    assert await reading == chunks(0)


def test_merged_messages_carry_the_last_clock_and_echo() -> None:
    (to_follower,) = _merge_leader_messages([LeaderMessage(clock_ms=5), LeaderMessage(clock_ms=7), LeaderMessage()])
    assert to_follower.clock_ms == 7
    (to_leader,) = _merge_follower_messages([FollowerMessage(echo_ms=5), FollowerMessage(), FollowerMessage(echo_ms=7)])
    assert to_leader.echo_ms == 7


def beginning(count: int) -> FollowerMessage:
    partitions = [TopicPartition("flights", index) for index in range(count)]
    return FollowerMessage(
        stops=tuple(StopFetch(one, EPOCH) for one in partitions),
        queries=tuple(query(one) for one in partitions),
        credits=(Credit(0, 100),),
        reports=(report(FLIGHTS, 3), report(OTHER, 4)),
        echo_ms=7,
    )


def test_a_message_that_begins_few_partitions_is_not_split() -> None:
    message = beginning(PART_MAX // 2)
    assert list(in_parts(message)) == [message]


def test_a_message_that_begins_thousands_is_split_into_parts_in_the_same_order() -> None:
    message = beginning(1000)
    parts = list(in_parts(message))
    assert max(len(part.stops) + len(part.queries) + len(part.positions) for part in parts) == PART_MAX
    assert tuple(one for part in parts for one in part.stops) == message.stops
    assert tuple(one for part in parts for one in part.queries) == message.queries
    assert {part.echo_ms for part in parts} == {7}
    kinds = ["stop" if part.stops else "query" if part.queries else "report" for part in parts]
    assert kinds == ["stop"] * 5 + ["query"] * 5 + ["report"]
    assert (parts[-1].reports, parts[-1].credits) == (message.reports, message.credits)


class BrokenCall:
    """A call whose connection breaks: a write fails first, and the reader learns of the cancellation by the writer."""

    def __init__(self, *, breaks: bool) -> None:
        self._breaks = breaks
        self._hello_is_written = False
        self._cancelled = asyncio.Event()

    async def write(self, request: object) -> None:
        if self._hello_is_written and self._breaks:
            raise asyncio.InvalidStateError
        self._hello_is_written = True

    async def initial_metadata(self) -> None: ...

    async def done_writing(self) -> None: ...

    def done(self) -> bool:
        return False

    async def read(self) -> object:
        await self._cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self) -> None:
        self._cancelled.set()


class MisreadCall(BrokenCall):
    """A call whose message raises an error that no caller expects."""

    def __init__(self) -> None:
        super().__init__(breaks=False)

    async def read(self) -> object:
        raise ValueError("a message of another world")


async def connections(monkeypatch: pytest.MonkeyPatch, *calls: BrokenCall) -> list[object]:
    """The events until the second connection; the first message is sent after the first one."""
    following = iter(calls)

    def replicate(metadata: object) -> BrokenCall:
        assert metadata == (("receiver-cluster", "c"), ("receiver-broker", "0"))
        return next(following)

    monkeypatch.setattr(stream_transport, "open_channel", lambda address: contextlib.AsyncExitStack())
    monkeypatch.setattr(stream_transport, "ReplicaServiceStub", lambda channel: SimpleNamespace(Replicate=replicate))
    events: asyncio.Queue[object] = asyncio.Queue()
    streams = LeaderStreams(BrokerId(1), "c", events.put_nowait, SimpleNamespace(value=BrokerEpoch(0)))
    streams.connect(ConnectToLeader(BrokerId(0), "a", 1, BrokerEpoch(0)))
    async with asyncio.timeout(5):
        found = [await events.get()]
        streams.send(SendToLeader(BrokerId(0), FollowerMessage()))
        found += [await events.get(), await events.get()]
        await streams.stop()
    assert events.empty()
    return found


CONNECTED_AGAIN = [LeaderConnected(BrokerId(0)), LeaderDisconnected(BrokerId(0)), LeaderConnected(BrokerId(0))]


async def test_a_stream_reconnects_after_a_write_failed_before_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await connections(monkeypatch, BrokenCall(breaks=True), BrokenCall(breaks=False)) == CONNECTED_AGAIN


async def test_a_stream_reconnects_after_an_unexpected_error_and_logs_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert await connections(monkeypatch, MisreadCall(), BrokenCall(breaks=False)) == CONNECTED_AGAIN
    assert "a message of another world" in caplog.text


async def test_a_stream_reconnects_if_a_message_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a number too large")

    monkeypatch.setattr(FollowerEnd, "encode", fail)
    assert await connections(monkeypatch, BrokenCall(breaks=False), BrokenCall(breaks=False)) == CONNECTED_AGAIN
    assert "a number too large" in caplog.text


class SilentCall(BrokenCall):
    """A call to a leader that does not answer."""

    def __init__(self) -> None:
        super().__init__(breaks=False)

    async def initial_metadata(self) -> None:
        raise TimeoutError


async def test_a_follower_logs_once_that_its_leader_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, stream_transport.__name__)
    calls = [SilentCall(), SilentCall(), BrokenCall(breaks=True), SilentCall(), BrokenCall(breaks=False)]
    assert await connections(monkeypatch, *calls) == CONNECTED_AGAIN
    told = [record.message for record in caplog.records]
    assert told == ["leader cannot be reached", "stream to leader ended", "leader cannot be reached"]
