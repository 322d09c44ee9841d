# SPDX-License-Identifier: Apache-2.0
"""The transactions of one producer: its batches, its calls to the coordinator, and its errors (rules X1, X10-X13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio
from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.producer import Producer
from tidemark.client.aio.transaction import Transaction
from tidemark.client.group.offset_commits import Commits, GroupPosition, OpenTransaction
from tidemark.client.group.settings import group_settings
from tidemark.client.metadata.cluster import Cluster, Leader
from tidemark.client.metadata.used_topics import IDLE_S, UsedTopics
from tidemark.client.producing import sender as senders
from tidemark.client.producing.batching import SendHandle
from tidemark.client.producing.produce_stream import Answer
from tidemark.client.producing.sender import Sender
from tidemark.client.settings import consumer_settings, producer_settings
from tidemark.client.transactions import producer_transactions
from tidemark.client.transactions.coordinator import Started, TransactionCoordinator
from tidemark.client.transactions.producer_transactions import ProducerTransactions
from tidemark.core.cluster_view import ClusterView
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.errors import (
    AuthorizationError,
    BatchTooLargeError,
    FencedMemberError,
    InvalidRequestError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortedError,
    TransactionStateError,
)
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition
from tidemark.record.envelope import Envelope, parse_envelope
from tidemark.v1 import group_service_pb2 as pb

from tests.turns import turns

FENCED = TidemarkError(ErrorCode.PRODUCER_FENCED, "another identity is present")
LATE = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")


class FakeCoordinator:
    """Answers with a new epoch, or with the next of `refusals`; `calls` are the requests, with those of brokers."""

    transactional_id = "loader"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.refusals: list[TidemarkError] = []
        self.epoch = -1
        self.gate = asyncio.Event()
        self.gate.set()

    async def init(self, timeout_ms: int, identity: ProducerIdentity | None = None) -> Started:
        self.calls.append("init" if identity is None else f"init again {identity.producer_epoch}")
        await self.gate.wait()
        return Started(self._next(), 1, -1)

    async def end(self, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        self.calls.append(f"{'commit' if commit else 'abort'} {identity.producer_epoch}")
        return self._next()

    def _next(self) -> ProducerIdentity:
        if self.refusals:
            raise self.refusals.pop(0)
        self.epoch += 1
        return ProducerIdentity(40, self.epoch)


class FakeCluster:
    """Every partition has one leader."""

    view = ClusterView()
    headers = ()

    def __init__(self) -> None:
        self.used_topics = UsedTopics()

    def use(self, topic: str) -> None:
        self.used_topics.use(topic, 0.0)

    def leader(self, partition: TopicPartition) -> Leader:
        return Leader(BrokerId(1), "b:1", LeaderEpoch(2), "topic id", "first")

    def channel(self, address: str) -> None:
        return None

    def topic_now(self, topic: str) -> None:
        return None

    def listen(self, listener: Callable[[], None]) -> None:
        return

    def used(self, address: str) -> None:
        return

    def refresh(self, **_: Any) -> None:
        return

    def note_refusal(self, partition: TopicPartition, error: TidemarkError) -> None:
        return


class World:
    """A producer, its coordinator, and a broker that answers each batch with `answers`, or holds it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent: list[Envelope] = []
        self.refusals: list[TidemarkError] = []
        self.held: list[Callable[[], None]] | None = None
        self.transactional_ids: set[str] = set()
        self.coordinator = FakeCoordinator(self.calls)
        settings = producer_settings(transactional_id="loader", linger_ms=0, delivery_timeout_ms=60_000)
        cluster = FakeCluster()
        self.used_topics = cluster.used_topics
        self.sender = Sender(cast(Cluster, cluster), settings)
        self.sender.start()
        self.transactions = ProducerTransactions(
            cast(TransactionCoordinator, self.coordinator), self.sender, settings.transaction_timeout_ms
        )

    def transaction(self) -> Transaction:
        return Transaction(self.transactions)

    def send(self, value: bytes, partition: int = 0) -> SendHandle:
        return self.sender.accumulator.add("orders", partition, 6, None, value, 1, None)

    def stream(self, address: str, channel: object, *, on_answer: Any, transactional_id: str, **_: Any) -> Any:
        self.transactional_ids.add(transactional_id)
        return Stream(self, on_answer)


class Stream:
    broken = False

    def __init__(self, world: World, on_answer: Callable[[Answer], None]) -> None:
        self._world = world
        self._on_answer = on_answer

    def is_busy(self, now_s: float, requests_max: int) -> bool:
        return False

    def check_deadlines(self, now_s: float) -> None:
        return

    def break_off(self, error: TidemarkError) -> None:
        return

    async def close(self) -> None:
        return

    def send(self, groups: Any) -> None:
        for attempt in (attempt for group in groups for attempt in group):
            self._world.sent.append(parse_envelope(attempt.batch.data))
            error = self._world.refusals.pop(0) if self._world.refusals else None

            def answer(attempt: Any = attempt, error: TidemarkError | None = error) -> None:
                self._world.calls.append("refused" if error else "acknowledged")
                self._on_answer(Answer(attempt, -1 if error else 100, -1, error))

            if self._world.held is not None:
                self._world.held.append(answer)
            else:
                asyncio.get_running_loop().call_soon(answer)


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    monkeypatch.setattr(senders, "ProduceStream", made.stream)
    yield made
    await made.sender.stop()


async def test_records_of_a_transaction_are_pending_and_committed_after_their_acknowledgement(world: World) -> None:
    async with world.transaction():
        handle = world.send(b"a")
        world.send(b"b", partition=1)
    assert world.calls == ["init", "acknowledged", "acknowledged", "commit 0"]
    assert (await handle).offset == 100
    assert [(one.producer_id, one.producer_epoch, one.base_sequence) for one in world.sent] == [(40, 0, 0), (40, 0, 0)]
    assert all(one.is_pending and not one.is_control for one in world.sent)
    assert world.transactional_ids == {"loader"}


async def test_the_next_transaction_has_the_next_epoch_and_sequences_from_zero(world: World) -> None:
    for _ in range(2):
        async with world.transaction():
            await world.send(b"a")
            await world.send(b"b")
    assert [(one.producer_epoch, one.base_sequence) for one in world.sent] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [call for call in world.calls if call != "acknowledged"] == ["init", "commit 0", "commit 1"]


async def test_a_transaction_continues_its_sequences_in_a_topic_that_was_idle(world: World) -> None:
    """A broker would take a repeated sequence for a duplicate, and acknowledge the record without an append."""
    async with world.transaction():
        await world.send(b"a")
        world.used_topics.use("others", IDLE_S + 1)
        await world.send(b"b")
    assert [one.base_sequence for one in world.sent] == [0, 1]


async def test_a_transaction_without_records_needs_no_decision(world: World) -> None:
    async with world.transaction():
        pass

    async def run() -> None:
        async with world.transaction():
            raise KeyError("b")

    with pytest.raises(KeyError):
        await run()
    assert world.calls == ["init"]


async def test_a_send_outside_of_a_transaction_is_refused(world: World) -> None:
    with pytest.raises(TransactionStateError, match="no transaction is open: send within `with"):
        world.send(b"early")
    async with world.transaction():
        await world.send(b"a")
    with pytest.raises(TransactionStateError):
        world.send(b"late")
    assert len(world.sent) == 1


async def test_an_exception_aborts_and_is_raised(world: World) -> None:
    unanswered = cast(SendHandle, None)

    async def run() -> None:
        nonlocal unanswered
        async with world.transaction():
            await world.send(b"a")
            world.held = []
            unanswered = world.send(b"b")
            await asyncio.sleep(0.01)
            raise KeyError("b")

    with pytest.raises(KeyError):
        await run()
    assert world.calls == ["init", "acknowledged", "abort 0"]
    with pytest.raises(TransactionAbortedError, match="the application aborted the transaction"):
        await unanswered


async def test_a_late_answer_of_an_aborted_transaction_does_not_touch_the_next_one(world: World) -> None:
    world.held = []
    tx = world.transaction()
    await tx.begin()
    world.send(b"a")
    await asyncio.sleep(0.01)
    await tx.abort()
    late, world.held = world.held, None
    async with world.transaction():
        handle = world.send(b"b")
        for answer in late:
            answer()
        assert (await handle).offset == 100
    assert [(one.producer_epoch, one.base_sequence) for one in world.sent] == [(0, 0), (1, 0)]
    assert world.calls[-1] == "commit 1"


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.TRANSACTION_ABORTABLE])
async def test_a_failed_record_aborts_a_transaction_that_may_be_run_again(world: World, code: ErrorCode) -> None:
    world.refusals = [TidemarkError(code, "a gap")]
    failed, other = cast(SendHandle, None), cast(SendHandle, None)

    async def run() -> None:
        nonlocal failed, other
        async with world.transaction():
            failed = world.send(b"a")
            other = world.send(b"b", partition=1)

    with pytest.raises(TransactionAbortedError, match=r"was aborted: .*a gap.*; run it again") as aborted:
        await run()
    assert world.calls[0] == "init"
    assert world.calls[-1] == "abort 0"
    assert isinstance(aborted.value.__cause__, TidemarkError)
    with pytest.raises(TidemarkError, match="a gap"):
        await failed
    assert other.done()
    async with world.transaction():
        await world.send(b"a")
    assert world.calls[-1] == "commit 1"


async def test_a_record_that_no_transaction_could_write_is_the_error_of_the_commit(world: World) -> None:
    world.refusals = [TidemarkError(ErrorCode.BATCH_TOO_LARGE, "too large")]

    async def run() -> None:
        async with world.transaction():
            world.send(b"a")

    with pytest.raises(BatchTooLargeError):
        await run()
    assert world.calls[-1] == "abort 0"


async def test_an_aborted_transaction_is_not_in_doubt_although_its_record_may_have_been_appended(world: World) -> None:
    world.refusals = [LATE, TidemarkError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the rules changed")]
    tx = world.transaction()
    await tx.begin()
    record = world.send(b"a")
    with pytest.raises(AuthorizationError) as failed:
        await tx.commit()
    assert failed.value.metadata["in_doubt"] == "False"
    with pytest.raises(AuthorizationError) as of_record:
        await record
    assert of_record.value.metadata["in_doubt"] == "True"
    assert world.calls[-1] == "abort 0"


async def test_after_a_failed_record_the_transaction_takes_no_other(world: World) -> None:
    world.refusals = [TidemarkError(ErrorCode.BATCH_TOO_LARGE, "too large")]

    async def run() -> None:
        async with world.transaction():
            assert world.send(b"a").done() is False
            await asyncio.sleep(0.01)
            world.send(b"b")

    with pytest.raises(TransactionAbortedError, match="cannot commit any more"):
        await run()
    assert world.calls[-1] == "abort 0"


async def test_a_fenced_producer_without_successor_learns_of_its_timeout(world: World) -> None:
    world.coordinator.refusals = []
    tx = world.transaction()
    await tx.begin()
    await world.send(b"a")
    world.coordinator.refusals = [FENCED]
    with pytest.raises(TransactionAbortedError, match="open for longer than its timeout of 60000 ms"):
        await tx.commit()
    assert world.calls[-2:] == ["commit 0", "init again 0"]
    async with world.transaction():
        await world.send(b"b")
    assert world.calls[-1] == "commit 1"


async def test_a_producer_that_was_replaced_stays_fenced(world: World) -> None:
    async def run() -> None:
        async with world.transaction():
            await world.send(b"a")
            world.coordinator.refusals = [FENCED, FENCED]

    with pytest.raises(ProducerFencedError):
        await run()
    before = list(world.calls)
    with pytest.raises(ProducerFencedError):
        await world.transaction().begin()
    assert world.calls == before


async def test_a_broker_that_fences_a_record_leads_to_the_question_whether_the_producer_was_replaced(
    world: World,
) -> None:
    world.refusals = [FENCED]

    async def run() -> None:
        async with world.transaction():
            world.send(b"a")

    with pytest.raises(TransactionAbortedError):
        await run()
    assert world.calls == ["init", "refused", "init again 0"]
    world.refusals, world.coordinator.refusals = [FENCED], [FENCED]
    with pytest.raises(ProducerFencedError):
        await run()


async def test_an_idle_producer_renews_its_identity_before_the_coordinator_deletes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator fences the producer of an id that it has deleted, since a newer producer may have had the id."""
    monkeypatch.setattr(producer_transactions, "RENEW_S", 0.0)
    async with world.transaction():
        await world.send(b"a")
        await turns()
        assert world.calls == ["init", "acknowledged"], "an open transaction keeps the id"
    world.coordinator.refusals = [LATE]
    for _ in range(1000):
        await turns()
        if world.calls[-2:] == ["init again 1", "init again 1"]:
            break
    monkeypatch.setattr(producer_transactions, "RENEW_S", 3600.0)
    async with world.transaction():
        await world.send(b"b")
    assert world.calls[-1] == f"commit {world.coordinator.epoch - 1}"
    await world.transactions.close()


async def test_an_idle_producer_that_was_replaced_learns_of_it_at_its_next_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.transaction():
        await world.send(b"a")
        monkeypatch.setattr(producer_transactions, "RENEW_S", 0.0)
    world.coordinator.refusals = [FENCED]
    for _ in range(1000):
        await turns()
        if world.transactions.fence is not None:
            break
    before = list(world.calls)
    with pytest.raises(ProducerFencedError):
        await world.transaction().begin()
    await turns()
    assert world.calls == before


async def test_a_transaction_that_begins_during_a_renewal_has_the_renewed_identity(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.transaction():
        await world.send(b"a")
    world.coordinator.gate.clear()
    renewal = asyncio.create_task(world.transactions._renew())
    await turns()
    tx = world.transaction()
    begin = asyncio.create_task(tx.begin())
    await turns()
    assert not begin.done()
    world.coordinator.gate.set()
    await asyncio.gather(begin, renewal)
    await world.send(b"b")
    await tx.commit()
    assert world.calls == ["init", "acknowledged", "commit 0", "init again 1", "acknowledged", "commit 2"]


async def test_a_commit_without_answer_is_in_doubt_until_it_is_repeated(world: World) -> None:
    tx = world.transaction()

    async def run() -> None:
        async with tx:
            await world.send(b"a")
            world.coordinator.refusals = [LATE]

    with pytest.raises(RequestTimedOutError, match=r"call commit\(\) again to know") as late:
        await run()
    assert late.value.metadata["in_doubt"] == "True"
    with pytest.raises(TransactionStateError, match="outcome of its last commit is not known"):
        await world.transaction().begin()
    with pytest.raises(TransactionStateError, match="may be stored already"):
        await tx.abort()
    await tx.commit()
    assert world.calls[-2:] == ["commit 0", "commit 0"]
    async with world.transaction():
        await world.send(b"b")
    assert world.calls[-1] == "commit 1"


async def test_a_commit_that_is_refused_before_its_decision_is_in_doubt_until_it_is_repeated(world: World) -> None:
    """An earlier attempt of the same call, whose answer was lost, may have been carried out."""
    tx = world.transaction()
    await tx.begin()
    await world.send(b"a")
    world.coordinator.refusals = [TidemarkError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the rules changed")]
    with pytest.raises(AuthorizationError) as refused:
        await tx.commit()
    assert refused.value.metadata["in_doubt"] == "True"
    await tx.commit()
    assert world.calls == ["init", "acknowledged", "commit 0", "commit 0"]


async def test_an_abort_without_answer_is_made_up_for_at_the_next_begin(world: World) -> None:
    async def run() -> None:
        async with world.transaction():
            await world.send(b"a")
            world.coordinator.refusals = [LATE]
            raise KeyError("a")

    with pytest.raises(KeyError):
        await run()
    async with world.transaction():
        await world.send(b"b")
    assert [call for call in world.calls if call != "acknowledged"] == ["init", "abort 0", "init again 0", "commit 1"]


async def test_one_transaction_of_a_producer_is_open_at_a_time(world: World) -> None:
    async with world.transaction() as tx:
        with pytest.raises(TransactionStateError, match="a transaction is open"):
            await world.transaction().begin()
        await world.send(b"a")
        await tx.commit()
    with pytest.raises(TransactionStateError, match="has ended"):
        await tx.commit()
    assert world.calls == ["init", "acknowledged", "commit 0"]


async def test_a_transaction_that_failed_cannot_end_the_next_one(world: World) -> None:
    world.refusals = [TidemarkError(ErrorCode.OUT_OF_ORDER_SEQUENCE, "a gap")]
    failed = world.transaction()
    await failed.begin()
    world.send(b"a")
    with pytest.raises(TransactionAbortedError):
        await failed.commit()
    async with world.transaction():
        await world.send(b"b")
        for end in (failed.commit, failed.abort):
            with pytest.raises(TransactionStateError, match="has ended"):
                await end()
        with pytest.raises(TransactionStateError, match="has ended"):
            await failed.send_offsets(cast(Consumer, FakeConsumer()), OFFSETS)
        await world.send(b"c")
    assert world.calls[-1] == "commit 1"


async def test_a_commit_that_an_abort_overtakes_leaves_the_next_transaction_open(world: World) -> None:
    world.held = []
    tx = world.transaction()
    await tx.begin()
    world.send(b"a")
    commit = asyncio.create_task(tx.commit())
    await asyncio.sleep(0.01)
    await tx.abort()
    world.held = None
    following = world.transaction()
    await following.begin()
    with pytest.raises(TransactionStateError, match="was aborted"):
        await commit
    await world.send(b"b")
    await following.commit()
    assert world.calls == ["init", "abort 0", "acknowledged", "commit 1"]


async def test_a_send_that_waits_for_metadata_does_not_join_the_next_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `asyncio.gather`, which raises the error of one send while the other ones still wait."""
    producer = Producer("127.0.0.1:1", transactional_id="loader")
    monkeypatch.setattr(producer, "_sender", world.sender)
    monkeypatch.setattr(producer, "_transactions", world.transactions)
    known = asyncio.Event()

    async def partition_count(topic: str, **_: Any) -> int:
        await known.wait()
        return 6

    async def load(topic: str, **_: Any) -> None:
        return

    monkeypatch.setattr(producer, "partition_count", partition_count)
    monkeypatch.setattr(producer._formats.schemas, "load", load)
    late: list[asyncio.Task[SendHandle]] = []

    async def run() -> None:
        async with producer.transaction():
            late.append(asyncio.create_task(producer.send("orders", b"a")))
            await asyncio.sleep(0.01)
            raise KeyError("b")

    with pytest.raises(KeyError):
        await run()
    async with producer.transaction():
        await world.send(b"b")
        known.set()
        with pytest.raises(TransactionStateError, match="ended while this send waited"):
            await late[0]
    assert len(world.sent) == 1


async def test_a_producer_that_closes_aborts_its_open_transaction(world: World) -> None:
    await world.transaction().begin()
    await world.send(b"a")
    await world.transactions.close()
    assert world.calls == ["init", "acknowledged", "abort 0"]


async def test_a_cancelled_commit_aborts_while_records_have_no_outcome(world: World) -> None:
    world.held = []

    async def run() -> None:
        async with world.transaction():
            world.send(b"a")

    task = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.calls == ["init", "abort 0"]


# -- offsets (rule X17) ------------------------------------------------------------------------------------------------


class FakeConsumer:
    """A consumer with a group, whose coordinator gives `refusal`, if any."""

    def __init__(self, auto_commit_interval_ms: int = 0, refusal: TidemarkError | None = None) -> None:
        self.settings = consumer_settings()
        self.group_settings = group_settings("readers", auto_commit_interval_ms=auto_commit_interval_ms)
        self.reading_group = self
        self.requests: list[pb.CommitOffsetsRequest] = []
        self._refusal = refusal
        self.held: asyncio.Event | None = None

    async def commit(self, offsets: Any, *, timeout_s: float, transaction: OpenTransaction) -> None:
        if self.held is not None:
            await self.held.wait()
        positions = [GroupPosition(where, offset, -1, "", "") for where, offset in offsets.items()]
        self.requests.append(Commits(self.group_settings).request(positions, "member", 3, transaction))
        if self._refusal is not None:
            raise self._refusal


OFFSETS: dict[TopicPartition | tuple[str, int], int] = {("orders", 0): 4}


async def test_offsets_name_the_transaction_which_then_needs_a_decision(world: World) -> None:
    consumer = FakeConsumer()
    async with world.transaction() as tx:
        await tx.send_offsets(cast(Consumer, consumer), OFFSETS)
    (request,) = consumer.requests
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("loader", 40, 0)
    assert (request.member_id, request.member_epoch, request.offsets[0].offset) == ("member", 3, 4)
    assert world.calls == ["init", "commit 0"]


async def test_a_refused_offset_aborts_even_if_the_application_continues(world: World) -> None:
    consumer = FakeConsumer(refusal=TidemarkError(ErrorCode.UNKNOWN_MEMBER, "the member is out"))

    async def run() -> None:
        async with world.transaction() as tx:
            await world.send(b"a")
            with pytest.raises(FencedMemberError):
                await tx.send_offsets(cast(Consumer, consumer), OFFSETS)

    with pytest.raises(FencedMemberError):
        await run()
    assert world.calls == ["init", "acknowledged", "abort 0"]


@pytest.mark.parametrize("where", ["offsets", "record"])
async def test_a_block_learns_from_its_first_error_whether_the_transaction_timed_out_or_another_producer_has_the_id(
    world: World, where: str
) -> None:
    consumer = FakeConsumer(refusal=FENCED)

    async def run() -> None:
        async with world.transaction() as tx:
            if where == "record":
                world.refusals = [FENCED]
                await world.send(b"a")
            else:
                await tx.send_offsets(cast(Consumer, consumer), OFFSETS)

    with pytest.raises(TransactionAbortedError, match="longer than its timeout"):
        await run()
    assert [call for call in world.calls if call != "refused"] == ["init", "init again 0"]
    world.coordinator.refusals = [FENCED]
    with pytest.raises(ProducerFencedError):
        await run()
    with pytest.raises(ProducerFencedError):
        await run()


@pytest.mark.parametrize("offsets", [True, False])
async def test_a_transaction_without_block_is_aborted_before_it_learns_of_another_producer(
    world: World, offsets: bool
) -> None:
    async def write() -> Transaction:
        tx = world.transaction()
        await tx.begin()
        world.refusals = [FENCED]
        outcome = (
            tx.send_offsets(cast(Consumer, FakeConsumer(refusal=FENCED)), OFFSETS) if offsets else world.send(b"a")
        )
        with pytest.raises(TransactionAbortedError, match="another identity is present"):
            await outcome
        return tx

    await (await write()).abort()
    assert [call for call in world.calls if call != "refused"] == ["init", "init again 0"]
    replaced = await write()
    world.coordinator.refusals = [FENCED]
    with pytest.raises(ProducerFencedError):
        await replaced.abort()


async def test_a_late_refusal_of_offsets_does_not_fail_the_next_transaction(world: World) -> None:
    consumer = FakeConsumer(refusal=FENCED)
    consumer.held = asyncio.Event()
    tx = world.transaction()
    await tx.begin()
    late = asyncio.create_task(tx.send_offsets(cast(Consumer, consumer), OFFSETS))
    await asyncio.sleep(0.01)
    await tx.abort()
    async with world.transaction():
        await world.send(b"a")
        consumer.held.set()
        with pytest.raises(ProducerFencedError):
            await late
        await world.send(b"b")
    assert world.calls[-1] == "commit 1"


async def test_offsets_without_outcome_abort_even_if_the_application_continues(world: World) -> None:
    """A commit of the records without the offsets would lead to the same records again."""
    consumer = FakeConsumer()
    consumer.held = asyncio.Event()

    async def run() -> None:
        async with world.transaction() as tx:
            await world.send(b"a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await tx.send_offsets(cast(Consumer, consumer), OFFSETS)

    with pytest.raises(TransactionAbortedError, match="interrupted"):
        await run()
    assert world.calls == ["init", "acknowledged", "abort 0"]


async def test_a_consumer_that_commits_by_itself_is_refused_before_any_call(world: World) -> None:
    consumer = FakeConsumer(auto_commit_interval_ms=5_000)
    async with world.transaction() as tx:
        with pytest.raises(InvalidRequestError, match="auto_commit_interval_ms=0"):
            await tx.send_offsets(cast(Consumer, consumer), OFFSETS)
        await world.send(b"a")
    assert not consumer.requests
    assert world.calls == ["init", "acknowledged", "commit 0"]


async def test_offsets_outside_of_a_transaction_are_refused(world: World) -> None:
    consumer = FakeConsumer()
    async with world.transaction() as tx:
        pass
    with pytest.raises(TransactionStateError):
        await tx.send_offsets(cast(Consumer, consumer), OFFSETS)
    assert not consumer.requests
