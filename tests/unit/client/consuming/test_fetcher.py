# SPDX-License-Identifier: Apache-2.0
"""Responses to fetches that preceded a seek or a leader change are discarded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.delivery import Delivery
from tidemark.client.consuming import fetcher as fetcher_module
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.metadata.cluster import Leader
from tidemark.client.settings import consumer_settings
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns
from tidemark.rpc import errors
from tidemark.rpc.codecs.fetch import Fetched, Results
from tidemark.v1 import broker_service_pb2 as pb

from tests.turns import turns

T0 = TopicPartition("t", 0)


class Stream:
    """A fetch stream to one address, with responses from the test."""

    def __init__(self, questions: Questions, address: str) -> None:
        self._questions = questions
        self._address = address
        self._answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()

    async def write(self, request: pb.FetchRequest) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._questions.asked.append((self._address, request, self._answer))

    async def read(self) -> Results:
        return await self._answer

    def done(self) -> bool:
        return self._answer.cancelled()

    def cancel(self) -> None:
        self._answer.cancel()


class Questions:
    """A fake cluster: broker 0 leads, and every fetch is a future that the test resolves."""

    def __init__(self) -> None:
        self.led_by = 0
        self.headers = ()
        self.asked: list[tuple[str, pb.FetchRequest, asyncio.Future[Results]]] = []
        self.listeners: list[Callable[[], None]] = []
        self.refreshed: list[str] = []

    def listen(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def used(self, address: str) -> None:
        assert address

    def topic_now(self, topic: str) -> None:
        assert topic == T0.topic

    def leader(self, partition: TopicPartition) -> Leader:
        return Leader(BrokerId(self.led_by), f"host:{self.led_by}", LeaderEpoch(self.led_by), "id", "i")

    def refresh(self, *, avoid: str = "") -> None:
        self.refreshed.append(avoid)

    def refuse(self, index: int, error: TidemarkError) -> None:
        facts = pb.PartitionFetchResult(topic="t", partition=0, error=errors.to_proto(error))
        self.asked[index][2].set_result(Results([Fetched(facts, b"")]))

    def channel(self, address: str) -> Any:
        questions = self

        class Channel:
            def stream_stream(self, path: str, **_: Any) -> Callable[[], Stream]:
                assert path.endswith("/FetchStream")
                return lambda: Stream(questions, address)

        return Channel()

    def answer(self, index: int, throttle_time_ms: int = 0) -> None:
        rows = from_columns(None, [b"a", b"b"], [7, 7])
        facts = pb.PartitionFetchResult(topic="t", partition=0, high_watermark=2)
        results = Results([Fetched(facts, build_batch(rows))])
        results.throttle_time_ms = throttle_time_ms
        self.asked[index][2].set_result(results)


def truncated(end_offset: int) -> TidemarkError:
    """The refusal of a leader in epoch 3 that has no record of a later epoch."""
    ends = {"diverging_epoch": "3", "diverging_end_offset": str(end_offset)}
    return TidemarkError(ErrorCode.LOG_TRUNCATED, "the log was truncated", ends)


async def test_a_seek_ends_a_fetch_whose_stream_is_not_open_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC leaves such a write waiting, though the stream was cancelled."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    write = Stream.write

    async def never(self: Stream, request: pb.FetchRequest) -> None:
        monkeypatch.setattr(Stream, "write", write)
        await asyncio.Event().wait()

    monkeypatch.setattr(Stream, "write", never)
    fetcher.moved(cursor)
    await turns()
    assert not questions.asked

    cursor.seek(1)
    fetcher.moved(cursor)
    await turns()

    assert [request.partitions[0].fetch_offset for _, request, _ in questions.asked] == [1]
    await fetcher.stop()


@pytest.mark.parametrize("deleted", [False, True], ids=["recreated", "deleted"])
async def test_a_member_waits_until_the_coordinator_revokes_partitions_of_a_deleted_topic(
    deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a read raised the error if the metadata of the new topic came before the assignment."""
    monkeypatch.setattr(fetcher_module, "_GONE_S", -1.0)
    questions: Any = Questions()
    gone = SimpleNamespace(error=TidemarkError(ErrorCode.UNKNOWN_TOPIC, "gone"))
    questions.view = SimpleNamespace(topics={T0.topic: gone}, brokers={})
    fetcher = Fetcher(questions, consumer_settings())
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="another", incarnation="i")
    if deleted:
        monkeypatch.setattr(questions, "leader", lambda _: None)
    for fetcher.coordinated in (True, False):
        fetcher.regroup()
        fetcher._end_deleted(time.monotonic())
        assert (cursor.error is None) is fetcher.coordinated
    assert cursor.error is not None
    assert cursor.error.code is (ErrorCode.UNKNOWN_TOPIC if deleted else ErrorCode.UNKNOWN_TOPIC_ID)
    assert not questions.asked


async def test_a_member_gets_an_error_of_a_partition_that_was_removed_and_added_again() -> None:
    """A coordinator compares the ids of topics and their numbers of partitions, so it may revoke nothing."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.coordinated = True
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="another")
    fetcher.regroup()
    assert cursor.error is not None
    assert cursor.error.code is ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("is_full", [False, True], ids=["without rows", "with rows up to its limit"])
async def test_a_resumed_partition_does_not_wait_for_a_fetch_without_it(is_full: bool) -> None:
    """The fetch of the others may wait for `fetch_max_wait_ms`, and the rows of the buffer are soon returned."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    for index in (0, 1):
        where = TopicPartition("t", index)
        fetcher.cursors[where] = Cursor(where, 0, topic_id="id", incarnation="i")
    paused = fetcher.cursors[T0]
    paused.paused = True
    paused.buffered_bytes = is_full * (4 << 20)
    fetcher.regroup()
    await turns()
    assert [[part.partition for part in request.partitions] for _, request, _ in questions.asked] == [[1]]

    paused.paused = False
    fetcher.resumed([paused])
    await turns()
    _, request, _ = questions.asked[1]
    assert {part.partition for part in request.partitions} == ({1} if is_full else {0, 1})
    assert request.max_wait_ms == (50 if is_full else 5000)

    paused.paused = True
    paused.paused = False
    fetcher.resumed([paused])  # the fetch in flight has the partition
    await turns()
    assert len(questions.asked) == 2
    await fetcher.stop()


@pytest.mark.parametrize("held", ["paused", "withheld"])
async def test_partitions_that_return_no_rows_leave_room_for_the_others(held: str) -> None:
    """Their rows would fill the buffer until they are resumed, and the consumer would read no other partition."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings(read_ahead_bytes=1))
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    fetcher.moved(cursor)
    await turns()
    questions.answer(0)
    await turns()
    assert cursor.has_rows
    assert len(questions.asked) == 1, "the buffer is full"

    setattr(cursor, held, True)
    other = TopicPartition("t", 1)
    fetcher.cursors[other] = Cursor(other, 0, topic_id="id", incarnation="i")
    fetcher.moved(fetcher.cursors[other])
    await turns()
    assert [[part.partition for part in request.partitions] for _, request, _ in questions.asked] == [[0], [1]]

    setattr(cursor, held, False)
    fetcher.resumed([cursor])
    await turns()
    fetched = {part.partition: part.fetch_offset for part in questions.asked[2][1].partitions}
    assert fetched == {0: 0, 1: 0}, "no record is skipped"
    await fetcher.stop()


async def test_a_consumer_with_a_full_buffer_does_not_visit_every_partition_for_each_batch() -> None:
    """Each visit would also send a fetch for the few bytes that a batch leaves, which names all partitions."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings(read_ahead_bytes=200_000))
    fetcher.start()
    data = build_batch(from_columns(None, [b"a"], [7]))
    for index in range(100):
        where = TopicPartition("t", index)
        cursor = fetcher.cursors[where] = Cursor(where, 0, topic_id="id", incarnation="i")
        for offset in range(5):
            cursor.take(stamped(Batch(parse_envelope(data), data), base_offset=offset, leader_epoch=0).data)
    buffered_bytes = sum(cursor.buffered_bytes for cursor in fetcher.cursors.values())
    assert buffered_bytes > 200_000
    fetcher.regroup()
    await turns()
    visits = 0
    leader = questions.leader

    def counted(partition: TopicPartition) -> Leader:
        nonlocal visits
        visits += 1
        return cast(Leader, leader(partition))

    questions.leader = counted
    nothing = cast(Any, None)
    delivery = Delivery(fetcher, None, nothing, nothing, nothing)
    while delivery.next_batch() is not None:
        await turns(3)
    assert visits <= 20 * 100, "500 batches would take 50,000 visits"
    assert questions.asked, "the next rows are fetched before the buffer is empty"
    await fetcher.stop()


@pytest.mark.parametrize(("room_bytes", "other_bytes"), [(1, 1), (4, 3)])
async def test_the_rows_of_a_paused_partition_stay_while_others_fill_the_buffer(
    room_bytes: int, other_bytes: int
) -> None:
    """An application that pauses partitions in turn would fetch the same rows again and again."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings(read_ahead_bytes=room_bytes))
    fetcher.start()
    for index, size_bytes in enumerate((1, other_bytes)):
        where = TopicPartition("t", index)
        fetcher.cursors[where] = Cursor(where, 0, topic_id="id", incarnation="i")
        fetcher.cursors[where].buffered_bytes = size_bytes
    fetcher.cursors[T0].paused = True
    fetcher.regroup()
    await turns()
    assert not questions.asked
    assert fetcher.cursors[T0].buffered_bytes == 1
    await fetcher.stop()


@pytest.mark.parametrize("event", ["seek", "new leader"])
async def test_response_after_a_seek_or_leader_change_is_discarded(event: str) -> None:
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    fetcher.moved(cursor)
    await turns()
    assert [address for address, _, _ in questions.asked] == ["host:0"]
    questions.answer(0)
    if event == "seek":
        cursor.seek(1)
        fetcher.moved(cursor)
    else:
        questions.led_by = 1
        for listener in questions.listeners:
            listener()
    await turns()
    assert not cursor.has_rows
    assert len(questions.asked) == 2
    address, request, _ = questions.asked[1]
    assert (address, request.partitions[0].fetch_offset) == (("host:0", 1) if event == "seek" else ("host:1", 0))
    questions.answer(1)
    await turns()
    assert cursor.has_rows
    await fetcher.stop()


async def test_a_broker_that_asks_for_a_wait_gets_no_fetch_meanwhile_and_other_brokers_do() -> None:
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    fetcher.moved(cursor)
    await turns()
    questions.answer(0, throttle_time_ms=(1 << 31) - 1)
    await turns()
    cursor.seek(1)
    fetcher.moved(cursor)
    await turns()
    assert len(questions.asked) == 1
    assert fetcher.throttled_s == 60, "longer waits are cut off"
    questions.led_by = 1
    fetcher.regroup()
    await turns()
    assert [address for address, _, _ in questions.asked] == ["host:0", "host:1"]
    await fetcher.stop()


@pytest.mark.parametrize("end_offset", [90, 120], ids=["before the position", "behind the position"])
async def test_a_replaced_leader_that_lacks_the_epoch_of_a_commit_neither_ends_the_cursor_nor_lowers_the_epoch(
    end_offset: int,
) -> None:
    questions: Any = Questions()
    questions.led_by = 3
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 100, topic_id="id", incarnation="i")
    cursor.follows(5)
    fetcher.regroup()
    await turns()
    questions.refuse(0, truncated(end_offset))
    await turns()
    assert (cursor.error, cursor.position_epoch, questions.refreshed) == (None, 5, ["host:3"])

    questions.led_by = 6
    questions.listeners[0]()
    await turns()
    _, request, _ = questions.asked[1]
    assert (request.partitions[0].current_leader_epoch, request.partitions[0].last_fetched_epoch) == (6, 5)
    questions.refuse(1, truncated(90))
    await turns()
    assert cursor.error is not None, "a leader in a later epoch knows which records are lost"
    await fetcher.stop()


async def test_a_leader_whose_epoch_stays_below_that_of_a_commit_ends_the_cursor_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metadata in ZooKeeper were restored from a backup: the metadata will never name a newer leader."""
    monkeypatch.setattr(fetcher_module, "REPLACED_LEADER_S", 0.0)
    questions: Any = Questions()
    questions.led_by = 3
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursor = fetcher.cursors[T0] = Cursor(T0, 100, topic_id="id", incarnation="i")
    cursor.follows(5)
    fetcher.regroup()
    await turns()
    questions.refuse(0, truncated(90))
    await turns()
    assert cursor.error is not None
    assert cursor.error.code is ErrorCode.LOG_TRUNCATED
    await fetcher.stop()


async def test_a_partition_that_is_assigned_again_is_not_missing_since_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic counts as deleted after 2 s, and the metadata of a broker that has just started may lack it shortly."""
    questions: Any = Questions()
    monkeypatch.setattr(questions, "leader", lambda where: None)
    questions.view = ClusterView()
    now_s = [100.0]
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(fetcher_module, "_TICK_S", 0.0)
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    await turns()
    fetcher.cursors.clear()
    await turns()
    now_s[0] += 60
    again = fetcher.cursors[T0] = Cursor(T0, 0, topic_id="id", incarnation="i")
    await turns()
    assert again.error is None
    now_s[0] += 3
    await turns()
    assert again.error is not None
    assert again.error.code is ErrorCode.UNKNOWN_TOPIC
    await fetcher.stop()


async def test_more_partitions_than_a_fetch_may_name_are_fetched_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition has records now: one that never returned records must not wait for one that did."""
    monkeypatch.setattr(fetcher_module, "NAMED_MAX", 3)
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    for index in range(5):
        where = TopicPartition("t", index)
        fetcher.cursors[where] = Cursor(where, 0, topic_id="id", incarnation="i")
    fetcher.regroup()
    for asked in range(5):
        await turns()
        _, request, answer = questions.asked[asked]
        facts = [pb.PartitionFetchResult(topic="t", partition=one.partition) for one in request.partitions]
        answer.set_result(Results([Fetched(one, b"") for one in facts]))
    await fetcher.stop()
    named = [[part.partition for part in request.partitions] for _, request, _ in questions.asked[:5]]
    assert named == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1], [2, 3, 4]]
    assert {request.max_wait_ms for _, request, _ in questions.asked} == {fetcher_module._SHORT_WAIT_MS}


async def test_a_seek_visits_no_partition_that_is_fetched_already() -> None:
    """An application that stores offsets itself seeks in each partition, perhaps in thousands."""
    questions: Any = Questions()
    fetcher = Fetcher(questions, consumer_settings())
    fetcher.start()
    cursors = [Cursor(TopicPartition("t", index), 0, topic_id="id", incarnation="i") for index in range(100)]
    fetcher.cursors.update((cursor.partition, cursor) for cursor in cursors)
    visits = 0
    leader = questions.leader

    def counted(partition: TopicPartition) -> Leader:
        nonlocal visits
        visits += 1
        return cast(Leader, leader(partition))

    questions.leader = counted
    for offset, cursor in enumerate(cursors):
        cursor.seek(offset)
        fetcher.moved(cursor)
    assert visits <= 2 * len(cursors)
    await turns()
    (_, request, _), *_ = questions.asked
    assert [part.fetch_offset for part in request.partitions] == [*range(100)]
    await fetcher.stop()
