# SPDX-License-Identifier: Apache-2.0
"""Records and callbacks of a member's application (docs/groups.md); the membership is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.delivery import Delivery
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.typed_topics import TypedTopics
from tidemark.client.group import group_reader
from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.group_reader import GroupReader, RebalanceCallback
from tidemark.client.group.membership import LEAVING
from tidemark.client.group.offset_commits import GroupPosition, OpenTransaction
from tidemark.client.group.settings import group_settings
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.records import ConsumerRecord
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.errors import FencedMemberError
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_batch, from_columns
from tidemark.rpc import request_limits
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code
from tests.turns import turns

ONE, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


class Callbacks:
    """The callbacks of the application, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[str, list[TopicPartition]]] = []

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("assigned", partitions))

    async def revoked(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("revoked", partitions))

    async def slowly_revoked(self, partitions: list[TopicPartition]) -> None:
        await turns(3)
        await self.revoked(partitions)

    async def lost(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("lost", partitions))


@pytest.fixture
def fetcher() -> SimpleNamespace:
    return SimpleNamespace(
        cursors={},
        suspended=False,
        **dict.fromkeys(("wake", "regroup", "look_again"), lambda: None),
        moved=lambda *cursors: None,
        freed=lambda size_bytes: None,
    )


@pytest.fixture
def callbacks() -> Callbacks:
    return Callbacks()


@pytest.fixture
def membership() -> SimpleNamespace:
    facts = {"member_id": "m", "member_epoch": 1, "owned": frozenset({ONE, OTHER}), "may_be_out": False}
    return SimpleNamespace(**facts, began_at=lambda where, offset: None, topic_id=lambda topic: "t")


@pytest.fixture
async def reader(fetcher: SimpleNamespace, membership: SimpleNamespace, callbacks: Callbacks) -> GroupReader:
    made = GroupReader(cast(Cluster, None), cast(Fetcher, fetcher), group_settings("g"), cast(Any, None))
    made._membership = cast(Any, membership)
    made._callbacks = (callbacks.assigned, callbacks.revoked, callbacks.lost)
    for where in (ONE, OTHER):
        fetcher.cursors[where] = Cursor(where, 0, topic_id="t", incarnation="i")
        made._announced.add(where)
    return made


async def test_released_partitions_are_reported_as_revoked_only(reader: GroupReader, callbacks: Callbacks) -> None:
    await reader.release(frozenset({ONE}))
    reader.drop([ONE])
    await turns()
    assert callbacks.all == [("revoked", [ONE])]


async def test_a_commit_in_a_callback_has_the_offsets_of_processed_records_only(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    """The application processes a record of the other partition meanwhile, and may still fail on this record."""
    committed: list[dict[TopicPartition, int]] = []

    async def commit(positions: Iterable[GroupPosition], **_: object) -> None:
        committed.append({one.partition: one.offset for one in positions})

    async def revoked(partitions: list[TopicPartition]) -> None:
        await reader.commit(None, timeout_s=1)

    membership.commit = commit
    reader._callbacks = (None, revoked, None)
    data = build_batch(from_columns(None, [b"a", b"b"], [7, 7]))
    fetcher.cursors[OTHER].take(stamped(Batch(parse_envelope(data), data), base_offset=0, leader_epoch=0).data)
    assert fetcher.cursors[OTHER].next_rows() is not None
    fetcher.cursors[OTHER].passed()
    await reader.release(frozenset({ONE}))
    await reader.commit(None, timeout_s=1)
    assert committed == [{ONE: 0, OTHER: 0}, {ONE: 0, OTHER: 2}]


async def test_an_automatic_commit_is_behind_the_marker_that_follows_processed_records(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    """Otherwise a group that has read everything keeps a lag of one for each partition with transactions."""
    consumer = Consumer("127.0.0.1:1", group="g")
    consumer._read(cast(Fetcher, fetcher), reader, cast(TypedTopics, SimpleNamespace(want=lambda columns: None)))
    data = build_batch(from_columns(None, [b"a", b"b"], [7, 7]))
    fetcher.cursors[ONE].take(stamped(Batch(parse_envelope(data), data), base_offset=0, leader_epoch=0).data)
    assert await consumer.poll(0) is not None
    data = build_marker(producer_id=1, producer_epoch=1, marker=EndMarker(True, 0), timestamp_us=0)
    fetcher.cursors[ONE].take(stamped(Batch(parse_envelope(data), data), base_offset=2, leader_epoch=0).data)
    assert reader.processed()[ONE].offset == 0, "the application processes the records"
    assert await consumer.poll(0) is None
    assert await consumer.poll(0) is None
    assert reader.processed()[ONE].offset == consumer.position(ONE) == 3


async def test_partitions_lost_during_processing_are_reported_as_lost(
    reader: GroupReader, callbacks: Callbacks
) -> None:
    reader.gave(ONE)
    releasing = asyncio.create_task(reader.release(frozenset({ONE})))
    await turns()
    reader.drop([ONE, OTHER])
    await releasing
    await turns()
    assert callbacks.all == [("lost", [ONE, OTHER])]


async def test_reassigned_partitions_can_be_lost(
    reader: GroupReader, fetcher: SimpleNamespace, callbacks: Callbacks
) -> None:
    await reader.release(frozenset({ONE}))
    reader.drop([ONE])
    fetcher.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")
    reader._announced.add(ONE)
    reader.drop([ONE])
    await turns()
    assert callbacks.all == [("revoked", [ONE]), ("lost", [ONE])]


async def test_stopped_process_returns_no_records_of_lost_partitions(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    consumer = Consumer("127.0.0.1:1", group="g")
    consumer._read(cast(Fetcher, fetcher), reader, cast(TypedTopics, SimpleNamespace(want=lambda columns: None)))
    for number in range(2):
        data = build_batch(from_columns(None, [b"a", b"b"], [7, 7]))
        stamp = stamped(Batch(parse_envelope(data), data), base_offset=2 * number, leader_epoch=0)
        fetcher.cursors[ONE].take(stamp.data)
    assert await consumer.poll(0) is not None
    assert not consumer.wants_back
    membership.may_be_out = True  # before `_watch` has run
    assert consumer.wants_back
    assert await consumer.poll(0) is None
    membership.may_be_out = False
    reader.suspend(suspended=False)
    assert await consumer.poll(0) is not None


async def test_a_poll_ends_when_a_position_has_passed_batches_without_records(fetcher: SimpleNamespace) -> None:
    async def wait_for_rows(timeout_s: float | None) -> None:
        marker = build_marker(producer_id=1, producer_epoch=1, marker=EndMarker(True, 0), timestamp_us=0)
        fetcher.cursors[ONE].take(marker)
        await asyncio.sleep(0)

    fetcher.wait_for_rows = wait_for_rows
    fetcher.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")
    consumer = Consumer("127.0.0.1:1")
    consumer._read(cast(Fetcher, fetcher), None, cast(TypedTopics, SimpleNamespace(want=lambda columns: None)))
    async with asyncio.timeout(10):
        assert await consumer.poll(600) is None
    assert consumer.position(ONE) == 1


async def test_polls_without_a_wait_let_the_fetches_run(fetcher: SimpleNamespace) -> None:
    """Otherwise a loop of such polls returns no record, and stops every other task of the application."""
    fetcher.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")
    consumer = Consumer("127.0.0.1:1")
    consumer._read(cast(Fetcher, fetcher), None, cast(TypedTopics, SimpleNamespace(want=lambda columns: None)))

    async def fetch() -> None:
        data = build_batch(from_columns(None, [b"a", b"b"], [7, 7]))
        fetcher.cursors[ONE].take(stamped(Batch(parse_envelope(data), data), base_offset=0, leader_epoch=0).data)

    fetching = asyncio.create_task(fetch())
    found = [await consumer.poll(timeout_s=0) for _ in range(3)]
    assert fetching.done()
    assert [one.rows.num_rows for one in found if one is not None] == [2]


@pytest.fixture
def closes(
    reader: GroupReader, membership: SimpleNamespace
) -> Callable[[str], tuple[RebalanceCallback, asyncio.Event]]:
    """Makes a callback that closes its consumer on the event loop or on a thread, and an event for its end."""

    async def stop(*, commit: bool) -> None:
        return

    def closing(where: str) -> tuple[RebalanceCallback, asyncio.Event]:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        async def close(_: list[TopicPartition]) -> None:
            if where == "thread":
                await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(reader.stop(), loop).result(30))
            else:
                await reader.stop()
            stopped.set()

        return close, stopped

    membership.stop = stop
    return closing


@pytest.mark.parametrize("where", ["event loop", "thread"])
async def test_on_lost_may_close_its_consumer(reader: GroupReader, closes: Any, where: str) -> None:
    lost, stopped = closes(where)
    reader._callbacks = (None, None, lost)
    reader.drop([ONE])
    async with asyncio.timeout(10):
        await stopped.wait()


@pytest.mark.parametrize("where", ["event loop", "thread"])
async def test_on_revoked_of_a_consumer_that_closes_may_close_it_too(
    reader: GroupReader, closes: Any, where: str
) -> None:
    revoked, stopped = closes(where)
    reader._callbacks = (None, revoked, None)
    async with asyncio.timeout(10):
        await reader.stop()
    assert stopped.is_set()


@pytest.mark.parametrize("where", ["event loop", "thread"])
async def test_on_revoked_of_a_rebalance_may_close_its_consumer(reader: GroupReader, closes: Any, where: str) -> None:
    revoked, stopped = closes(where)
    reader._callbacks = (None, revoked, None)
    async with asyncio.timeout(10):
        await reader.release(frozenset({ONE, OTHER}))
    assert stopped.is_set()


async def test_a_consumer_leaves_after_the_end_of_a_running_on_revoked(
    reader: GroupReader, membership: SimpleNamespace, callbacks: Callbacks
) -> None:
    """The callback may commit, which needs the membership and the connections of the consumer."""
    commits = asyncio.Event()

    async def revoked(partitions: list[TopicPartition]) -> None:
        callbacks.all.append(("begun", partitions))
        await commits.wait()
        await callbacks.revoked(partitions)

    async def stop(*, commit: bool) -> None:
        callbacks.all.append(("left", []))
        releasing.cancel()

    reader._callbacks = (callbacks.assigned, revoked, callbacks.lost)
    membership.stop = stop
    releasing = asyncio.create_task(reader.release(frozenset({ONE})))
    await turns()
    stopping = asyncio.create_task(reader.stop())
    await turns()
    commits.set()
    await stopping
    of_one, of_other = ([(what, [where]) for what in ("begun", "revoked")] for where in (ONE, OTHER))
    assert callbacks.all == [*of_one, *of_other, ("left", [])]


@pytest.mark.parametrize("turn", range(8))
async def test_a_partition_that_is_released_at_any_moment_of_a_leave_is_reported_as_revoked(
    reader: GroupReader, membership: SimpleNamespace, callbacks: Callbacks, turn: int
) -> None:
    """Regression: the leave cancelled an `on_revoked` that had begun while the leave looked at an earlier one."""

    async def stop(*, commit: bool) -> None:
        releasing.cancel()

    async def released() -> None:
        await turns(turn)
        await reader.release(frozenset({ONE}))

    reader._callbacks = (None, callbacks.slowly_revoked, None)
    membership.stop = stop
    reader._announced = {ONE}
    reader._assigned_call = reader._revoked_call = asyncio.ensure_future(turns(0))
    await turns()
    stopping = asyncio.create_task(reader.stop())
    releasing = asyncio.create_task(released())
    await stopping
    assert callbacks.all == [("revoked", [ONE])]


async def test_a_leave_waits_for_each_on_revoked_of_a_rebalance(
    reader: GroupReader, membership: SimpleNamespace, callbacks: Callbacks
) -> None:
    async def stop(*, commit: bool) -> None:
        releasing.cancel()

    async def released() -> None:
        await reader.release(frozenset({ONE}))
        await reader.release(frozenset({OTHER}))  # the next assignment

    reader._callbacks = (None, callbacks.slowly_revoked, None)
    membership.stop = stop
    releasing = asyncio.create_task(released())
    await turns(2)
    await reader.stop()
    assert sorted(callbacks.all) == [("revoked", [ONE]), ("revoked", [OTHER])]


@pytest.fixture
def assignable(reader: GroupReader, monkeypatch: pytest.MonkeyPatch) -> GroupReader:
    """A reader that finds no committed offsets."""

    async def fetch(*_: Any, **__: Any) -> dict[TopicPartition, Any]:
        return {}

    async def starts(wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Cursor]:
        return {where: Cursor(where, 0, topic_id="t", incarnation="i") for where in wanted}

    monkeypatch.setattr(reader, "fetch", fetch)
    monkeypatch.setattr(reader, "_starts", starts)
    return reader


async def test_an_offset_of_a_deleted_topic_is_not_a_position_in_its_successor(
    assignable: GroupReader, fetcher: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may be the last to learn that a topic was created again.

    The reader would skip records up to the old offset.
    """
    new, refreshed = TopicPartition("a", 2), asyncio.Event()
    assignable._cluster = cast(Any, SimpleNamespace(refresh=refreshed.set))
    old = pb.CommittedOffset(topic="a", partition=2, offset=500, topic_id="before", incarnation="i")

    async def fetch(*_: Any, **__: Any) -> dict[TopicPartition, Any]:
        return {new: old}

    monkeypatch.setattr(assignable, "fetch", fetch)
    with pytest.raises(TidemarkError, match="created again") as refusal:
        await assignable.take_up(frozenset({new}))
    assert refusal.value.retriable
    assert refreshed.is_set(), "this client may be the one that does not know it"
    assert new not in fetcher.cursors
    old.topic_id = "t"
    await assignable.take_up(frozenset({new}))
    assert new in fetcher.cursors


async def test_a_partition_is_not_read_before_the_client_knows_the_topic_that_was_assigned(
    assignable: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    """The cursor of a deleted topic would raise UNKNOWN_TOPIC_ID for as long as the member has the partition."""
    new, other, refreshed = TopicPartition("a", 2), TopicPartition("b", 0), asyncio.Event()
    assignable._cluster = cast(Any, SimpleNamespace(refresh=refreshed.set))
    membership.topic_id = {"a": "created again", "b": "t"}.get
    assert await assignable.take_up(frozenset({new, other})) == {other}
    assert refreshed.is_set()
    assert new not in fetcher.cursors
    membership.topic_id = {"a": "t"}.get
    assert await assignable.take_up(frozenset({new})) == {new}


async def test_on_assigned_may_seek_and_pause_before_the_first_record(
    assignable: GroupReader, fetcher: SimpleNamespace
) -> None:
    """An application that stores offsets itself continues at its offsets."""
    new, returns = TopicPartition("a", 2), []

    async def assigned(partitions: list[TopicPartition]) -> None:
        fetcher.cursors[partitions[0]].seek(42)
        returns.append(fetcher.cursors[partitions[0]].gives)

    assignable._callbacks = (assigned, None, None)
    await assignable.take_up(frozenset({new}))
    returns.append(fetcher.cursors[new].gives)
    assert fetcher.cursors[new].position == 42
    assert returns == [False, True]


async def test_partitions_of_a_cancelled_on_assigned_are_not_read(
    assignable: GroupReader, fetcher: SimpleNamespace
) -> None:
    new = TopicPartition("a", 2)

    async def assigned(_: list[TopicPartition]) -> None:
        await asyncio.sleep(3600)

    assignable._callbacks = (assigned, None, None)
    taking = asyncio.create_task(assignable.take_up(frozenset({new})))
    await turns()
    assert new in fetcher.cursors
    taking.cancel()
    await asyncio.wait([taking])
    assert new not in fetcher.cursors


@pytest.mark.parametrize("where", ["event loop", "thread"])
async def test_on_assigned_may_close_its_consumer(
    assignable: GroupReader, closes: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "_ASSIGNED_CALL_S", 3600.0)
    assigned, stopped = closes(where)
    assignable._callbacks = (assigned, None, None)
    async with asyncio.timeout(10):
        await assignable.take_up(frozenset({TopicPartition("a", 2)}))
    assert stopped.is_set()


async def test_partitions_assigned_during_leave_are_reported_as_revoked(
    assignable: GroupReader, membership: SimpleNamespace, callbacks: Callbacks
) -> None:
    reader, new, hangs = assignable, TopicPartition("a", 2), asyncio.Event()

    async def assigned(partitions: list[TopicPartition]) -> None:
        await hangs.wait()
        await callbacks.assigned(partitions)

    async def stop(*, commit: bool) -> None:
        taking.cancel()

    reader._callbacks = (assigned, callbacks.revoked, callbacks.lost)
    reader._announced.clear()
    membership.owned, membership.stop = frozenset(), stop
    taking = asyncio.create_task(reader.take_up(frozenset({new})))
    await turns()
    stopping = asyncio.create_task(reader.stop())
    await turns()
    hangs.set()
    await stopping
    assert callbacks.all == [("assigned", [new]), ("revoked", [new])]


async def test_a_leaving_consumer_gets_no_new_partitions(
    assignable: GroupReader, membership: SimpleNamespace, callbacks: Callbacks
) -> None:
    """The callback `on_revoked` may take long; the member may be fenced meanwhile, and join again."""
    reader, commits = assignable, asyncio.Event()

    async def revoked(partitions: list[TopicPartition]) -> None:
        await commits.wait()
        await callbacks.revoked(partitions)

    async def stop(*, commit: bool) -> None:
        taking.cancel()

    reader._callbacks = (callbacks.assigned, revoked, callbacks.lost)
    membership.stop = stop
    stopping = asyncio.create_task(reader.stop())
    await turns()
    reader.drop([ONE, OTHER])
    taking = asyncio.create_task(reader.take_up(frozenset({ONE})))
    await turns()
    commits.set()
    await stopping
    assert callbacks.all == [("revoked", [ONE, OTHER])]


async def test_a_lost_partition_is_assigned_again_after_the_end_of_on_lost(
    assignable: GroupReader, callbacks: Callbacks
) -> None:
    reader, ends = assignable, asyncio.Event()

    async def lost(partitions: list[TopicPartition]) -> None:
        await ends.wait()
        await callbacks.lost(partitions)

    reader._callbacks = (callbacks.assigned, callbacks.revoked, lost)
    reader.drop([ONE])
    taking = asyncio.create_task(reader.take_up(frozenset({ONE})))
    await turns()
    assert callbacks.all == []
    ends.set()
    await taking
    assert callbacks.all == [("lost", [ONE]), ("assigned", [ONE])]


async def test_a_partition_is_lost_after_the_end_of_on_assigned(assignable: GroupReader, callbacks: Callbacks) -> None:
    reader, ends = assignable, asyncio.Event()

    async def assigned(partitions: list[TopicPartition]) -> None:
        await ends.wait()
        await callbacks.assigned(partitions)

    reader._callbacks = (assigned, callbacks.revoked, callbacks.lost)
    reader._announced.clear()
    taking = asyncio.create_task(reader.take_up(frozenset({ONE})))
    await turns()
    reader.drop([ONE])
    await turns()
    ends.set()
    await taking
    await turns()
    assert callbacks.all == [("assigned", [ONE]), ("lost", [ONE])]


async def test_manual_and_member_commits_share_one_sequence(
    reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[pb.CommitOffsetsRequest] = []

    async def call(self: Coordinator, method: Any, request: Any, **limits: float) -> Any:
        if isinstance(request, pb.CommitOffsetsRequest):
            asked.append(request)
            return pb.CommitOffsetsResponse()
        if request.member_epoch == LEAVING:
            return pb.GroupHeartbeatResponse()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Coordinator, "call", call)
    reader._membership = None
    await reader.commit({ONE: 5}, timeout_s=1)
    await reader.subscribe(["a"], on_assigned=None, on_revoked=None, on_lost=None)
    await reader.commit({ONE: 6}, timeout_s=1)
    await reader.stop()
    by_hand, as_member = asked[:2]
    assert (by_hand.member_id, bool(as_member.member_id)) == ("", True)
    assert by_hand.committer_id == as_member.committer_id != ""
    assert by_hand.sequence < as_member.sequence


async def test_offsets_beyond_the_limit_of_a_request_are_committed_and_fetched_in_several(
    reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 2)
    asked: list[Any] = []

    async def call(self: Coordinator, method: Any, request: Any, **limits: float) -> Any:
        asked.append(request)
        if isinstance(request, pb.FetchOffsetsRequest):
            found = [pb.CommittedOffset(topic=one.topic, partition=one.partition) for one in request.partitions]
            return pb.FetchOffsetsResponse(offsets=found)
        return pb.CommitOffsetsResponse()

    monkeypatch.setattr(Coordinator, "call", call)
    reader._membership = None
    many = [TopicPartition("a", index) for index in range(5)]
    await reader.commit(dict.fromkeys(many, 7), timeout_s=1)
    assert [[one.partition for one in request.offsets] for request in asked] == [[0, 1], [2, 3], [4]]
    assert [request.sequence for request in asked] == [1, 2, 3]
    del asked[:]
    assert list(await reader.fetch(many, timeout_s=1)) == many
    assert [[one.partition for one in request.partitions] for request in asked] == [[0, 1], [2, 3], [4]]
    await reader.fetch(None, timeout_s=1)
    assert len(asked) == 4


async def test_cancelled_task_of_a_callback_is_a_failure_of_the_callback(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    async def revoked(_: list[TopicPartition]) -> None:
        worker = asyncio.ensure_future(asyncio.sleep(3600))
        await asyncio.sleep(0)
        worker.cancel()
        await worker

    reader._callbacks = (None, revoked, None)
    releasing = asyncio.create_task(reader.release(frozenset({ONE})))
    await asyncio.wait([releasing])
    assert not releasing.cancelled()
    assert reader.error is not None
    assert "CancelledError" in reader.error.message


async def test_an_exit_in_a_callback_is_a_failure_of_the_callback(reader: GroupReader) -> None:
    async def revoked(_: list[TopicPartition]) -> None:
        raise SystemExit(1)

    reader._callbacks = (None, revoked, None)
    await reader.release(frozenset({ONE}))
    assert reader.error is not None
    assert "SystemExit(1)" in reader.error.message


async def test_a_failed_member_that_closes_gets_on_lost(
    reader: GroupReader, membership: SimpleNamespace, callbacks: Callbacks
) -> None:
    """The application may close before the read that would raise the error; it commits nothing for these partitions."""

    async def stop(*, commit: bool) -> None:
        assert not commit

    membership.stop = stop
    reader.fail(TidemarkError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "refused"))
    await reader.stop()
    assert callbacks.all == [("lost", [ONE, OTHER])]


async def test_cancelled_reconciliation_ends(reader: GroupReader) -> None:
    async def revoked(_: list[TopicPartition]) -> None:
        await asyncio.sleep(3600)

    reader._callbacks = (None, revoked, None)
    releasing = asyncio.create_task(reader.release(frozenset({ONE})))
    await turns()
    releasing.cancel()
    await asyncio.wait([releasing])
    assert releasing.cancelled()
    assert reader.error is None


async def test_a_member_cannot_unassign_a_partition_that_no_other_member_would_get(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    consumer = Consumer("127.0.0.1:1", group="g")
    consumer._read(cast(Fetcher, fetcher), reader, cast(TypedTopics, None))
    with raises_code(ErrorCode.INVALID_REQUEST):
        consumer.unassign([ONE])
    assert ONE in fetcher.cursors
    reader._membership = None
    consumer.unassign([ONE])
    assert ONE not in fetcher.cursors


async def test_consumer_can_assign_after_leaving_a_suspended_group(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    async def stop(*, commit: bool) -> None:
        assert fetcher.suspended, "other members may have its partitions until it has left"

    membership.stop = stop
    reader.suspend(suspended=True)
    await reader.subscribe([], on_assigned=None, on_revoked=None, on_lost=None)
    assert not reader.is_suspended


async def a_waiting_leave(reader: GroupReader, membership: SimpleNamespace) -> tuple[asyncio.Task[None], asyncio.Event]:
    """A leave, and the event that ends it."""
    stays = asyncio.Event()

    async def stop(*, commit: bool) -> None:
        await stays.wait()

    membership.stop = stop
    leaving = asyncio.create_task(reader.subscribe([], on_assigned=None, on_revoked=None, on_lost=None))
    await turns()
    return leaving, stays


async def test_a_cancelled_leave_has_ended(reader: GroupReader, membership: SimpleNamespace) -> None:
    """Otherwise a close waits for that leave, and so do the partitions of the next subscription."""
    leaving, _ = await a_waiting_leave(reader, membership)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    async with asyncio.timeout(5):
        await reader.stop()


async def test_a_cancelled_close_does_not_end_the_leave_that_it_waits_for(
    reader: GroupReader, membership: SimpleNamespace
) -> None:
    leaving, stays = await a_waiting_leave(reader, membership)
    closing = asyncio.create_task(reader.stop())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert reader._ending
    stays.set()
    await leaving
    assert not reader._ending


# -- offsets in transactions (rule X17) --------------------------------------------------------------------------------

TRANSACTION = OpenTransaction("sizes", ProducerIdentity(40, 0))


def returned(fetcher: SimpleNamespace, where: TopicPartition, count: int) -> None:
    """The application got this number of records of a partition."""
    cursor = fetcher.cursors[where]
    cursor.position += count


async def commit_in_transaction(reader: GroupReader) -> None:
    await reader.commit(None, timeout_s=1, transaction=TRANSACTION)


@pytest.fixture
def accepting(membership: SimpleNamespace) -> None:
    async def commit(positions: Any, *, timeout_s: float, transaction: OpenTransaction | None = None) -> None:
        pass

    membership.commit = commit


@pytest.mark.usefixtures("accepting")
@pytest.mark.parametrize("lost", [False, True])
async def test_a_transaction_of_records_that_others_read_again_is_refused(
    reader: GroupReader, fetcher: SimpleNamespace, *, lost: bool
) -> None:
    returned(fetcher, ONE, 4)
    if not lost:
        await reader.release(frozenset({ONE}))
    reader.drop([ONE])
    fetcher.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")  # the partition is assigned again
    await reader.commit({OTHER: 0}, timeout_s=1)
    with pytest.raises(FencedMemberError, match="a-0"):
        await commit_in_transaction(reader)
    await commit_in_transaction(reader)  # the next transaction


@pytest.mark.usefixtures("accepting")
async def test_a_transaction_continues_when_a_partition_with_committed_records_leaves(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    returned(fetcher, ONE, 4)
    await commit_in_transaction(reader)
    reader.drop([ONE, OTHER])
    await commit_in_transaction(reader)


@pytest.mark.usefixtures("accepting")
@pytest.mark.parametrize("committed", [False, True])
async def test_a_transaction_keeps_the_records_before_those_that_are_given_back(
    reader: GroupReader, fetcher: SimpleNamespace, *, committed: bool
) -> None:
    """The blocking consumer gives back the rest of a polled batch when the partition is revoked or paused."""
    nothing = cast(Any, None)
    delivery = Delivery(cast(Fetcher, fetcher), reader, nothing, nothing, nothing)
    delivery.held = fetcher.cursors[ONE]
    returned(fetcher, ONE, 100)
    if committed:
        await reader.commit({ONE: 40}, timeout_s=1, transaction=TRANSACTION)
    delivery.give_back(ONE, 40)
    reader.drop([ONE])
    if committed:
        await commit_in_transaction(reader)
        return
    with pytest.raises(FencedMemberError, match="a-0"):
        await commit_in_transaction(reader)


async def test_seek_to_committed_goes_back_to_the_offsets_of_the_group(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    requests: list[pb.FetchOffsetsRequest] = []

    async def call(method: Any, request: Any, *, timeout_s: float) -> pb.FetchOffsetsResponse:
        requests.append(request)
        reader.drop([OTHER])
        fetcher.cursors[OTHER] = Cursor(OTHER, 8, topic_id="t", incarnation="i")
        offsets = [pb.CommittedOffset(topic="a", partition=0, offset=-1)]
        return pb.FetchOffsetsResponse(offsets=[*offsets, pb.CommittedOffset(topic="a", partition=1, offset=3)])

    reader._coordinator = cast(Any, SimpleNamespace(call=call))
    returned(fetcher, ONE, 4)
    await reader.seek_to_committed(timeout_s=1)
    assert fetcher.cursors[ONE].position == 0, "without a committed offset: where the reading began"
    assert fetcher.cursors[OTHER].position == 8, "the partition was assigned again meanwhile"
    (request,) = requests
    assert (request.require_stable, request.member_id) == (True, "")


async def test_seek_to_committed_does_not_go_to_an_offset_of_a_deleted_topic(
    reader: GroupReader, fetcher: SimpleNamespace
) -> None:
    async def call(method: Any, request: Any, *, timeout_s: float) -> pb.FetchOffsetsResponse:
        known = pb.CommittedOffset(topic="a", partition=0, offset=3, topic_id="t", incarnation="i")
        old = pb.CommittedOffset(topic="a", partition=1, offset=3, topic_id="before", incarnation="i")
        return pb.FetchOffsetsResponse(offsets=[known, old])

    reader._coordinator = cast(Any, SimpleNamespace(call=call))
    reader._cluster = cast(Any, SimpleNamespace(refresh=lambda: None))
    returned(fetcher, ONE, 4)
    with pytest.raises(TidemarkError, match="created again"):
        await reader.seek_to_committed(timeout_s=1)
    assert fetcher.cursors[ONE].position == 4, "a failed call moves no partition"


async def test_a_commit_of_records_that_other_members_read_again_is_refused(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    """The member was evicted while the application processed the records; a success would say that they are done."""
    committed: list[TopicPartition] = []

    async def commit(positions: Iterable[GroupPosition], **_: object) -> None:
        committed.extend(one.partition for one in positions)

    membership.commit = commit
    fetcher.cursors[ONE].position += 3
    reader.gave(ONE)
    reader.drop([ONE, OTHER])
    membership.owned = frozenset()
    for _ in range(2):
        with pytest.raises(FencedMemberError, match="a-0 was lost"):
            await reader.commit(None, timeout_s=1)
    fetcher.cursors[OTHER] = Cursor(OTHER, 0, topic_id="t", incarnation="i")
    membership.owned = frozenset({OTHER})
    reader.asked()
    await reader.commit(None, timeout_s=1)
    assert committed == [OTHER]


async def test_a_commit_after_the_loss_of_committed_records_succeeds(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    """The records are done, and no member reads them again, also if the answer of the commit came after the loss."""
    stays = asyncio.Event()

    async def commit(positions: Iterable[GroupPosition], **_: object) -> None:
        await stays.wait()

    membership.commit = commit
    fetcher.cursors[ONE].position += 3
    reader.gave(ONE)
    committing = asyncio.create_task(reader.commit(None, timeout_s=1))
    await turns()
    reader.drop([ONE, OTHER])
    membership.owned = frozenset()
    stays.set()
    await committing
    await reader.commit(None, timeout_s=1)


async def test_a_commit_after_the_loss_of_the_committed_part_of_a_batch_succeeds(
    reader: GroupReader, fetcher: SimpleNamespace, membership: SimpleNamespace
) -> None:
    async def commit(positions: Iterable[GroupPosition], **_: object) -> None:
        pass

    membership.commit = commit
    fetcher.cursors[ONE].position += 3
    reader.gave(ONE)
    second, third = (ConsumerRecord(*ONE, offset, 7, None, b"v", ()) for offset in (1, 2))
    await reader.commit(None, timeout_s=1, before=second)
    reader.drop([ONE, OTHER])
    membership.owned = frozenset()
    await reader.commit(None, timeout_s=1, before=second)
    with pytest.raises(FencedMemberError, match="a-0 was lost"):
        await reader.commit(None, timeout_s=1, before=third)


async def test_committed_offsets_are_those_of_the_group_before_the_consumer_has_joined(
    reader: GroupReader, membership: SimpleNamespace
) -> None:
    """The coordinator does not know the member yet, and would refuse it as one that was evicted."""
    membership.member_epoch = 0
    requests: list[pb.FetchOffsetsRequest] = []

    async def call(method: Any, request: Any, *, timeout_s: float) -> pb.FetchOffsetsResponse:
        requests.append(request)
        return pb.FetchOffsetsResponse(offsets=[pb.CommittedOffset(topic="a", partition=1, offset=3)])

    reader._coordinator = cast(Any, SimpleNamespace(call=call))
    assert [one.offset for one in (await reader.fetch(None, timeout_s=1)).values()] == [3]
    assert [request.member_id for request in requests] == [""]
