# SPDX-License-Identifier: Apache-2.0
"""The produce pipeline: checks, waiting requests, and answers after the end of the session lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn

import grpc
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from tidemark.broker.clients import produce as produce_module
from tidemark.broker.clients.pending_batches import PendingBatches, Verifier
from tidemark.broker.clients.produce import ProduceService
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.config import ReplicationConfig
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind, Quotas
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.effects import Effect, ProduceResult, ReplyToProduce
from tidemark.core.replication.events import Event, ProduceArrived
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.schemas.arrow_types import draft_from_arrow
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import BrokerId, ErrorCode, Offset, TopicPartition
from tidemark.record.typed.batch import build_typed_batch
from tidemark.rpc.quotas.enforcement import CallerQuotas, ClientQuotas
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.v1 import broker_service_pb2 as pb

from tests.fakes.metadata_store import ManualClock
from tests.turns import turns
from tests.unit.record.samples import NOON_US, patched, sample
from tests.unit.record.typed.samples import FLIGHTS, three_flights


def typed_batch() -> bytes:
    schema = first_version(draft_from_arrow(FLIGHTS).keyed(key=["carrier"], event_time="scheduled_at"))
    layout = layout_of(schema)
    rows = three_flights()
    return build_typed_batch(pa.RecordBatch.from_arrays(rows.columns, schema=layout.arrangement(0).schema), layout)


class HoldingCore(BrokerCore):
    """A core that answers only when the test does."""

    def __init__(self) -> None:
        super().__init__(BrokerId(0), ReplicationConfig())
        self.arrived: list[ProduceArrived] = []

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, ProduceArrived):
            self.arrived.append(event)
        return []


class FakeContext:
    """The server's end of a stream, as in grpc.aio."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.responses: asyncio.Queue[pb.ProduceResponse] = asyncio.Queue()
        self.metadata: dict[str, str] = {}

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, response: pb.ProduceResponse) -> None:
        self.responses.put_nowait(response)

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.metadata.update(metadata)

    def send(
        self, number: int, *batches: bytes, acks: int = -1, partitions: int = 1, transactional_id: str = ""
    ) -> None:
        parts = [
            pb.PartitionProduce(topic="flights", partition=index, current_leader_epoch=-1, batches=batches)
            for index in range(partitions)
        ]
        self.requests.put_nowait(
            pb.ProduceRequest(
                correlation_id=number,
                acks=acks,
                timeout_ms=60_000,
                partitions=parts,
                transactional_id=transactional_id,
            )
        )


class FakeSession:
    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms

    def lease_valid_until_ms(self) -> int:
        return self.until_ms

    def lease_length_ms(self) -> int:
        return 5000


class NoTransactions:
    """The verifier of tests without pending batches."""

    def verify(self, *_: object) -> NoReturn:
        raise AssertionError("no batch is pending")


class Harness:
    def __init__(self, queries: BrokerQueries | None = None, verifier: Verifier | None = None) -> None:
        self.clock = ManualClock(NOON_US // 1000)
        self.session = FakeSession(self.clock.now_ms() + 1000)
        self.held_since_ms: dict[TopicPartition, int] = {}
        self.core = HoldingCore()
        self.failures: list[BaseException] = []
        self.driver = BrokerDriver(self.core, self.clock, AsyncioScheduler(), self.failures.append)
        metrics = Metrics()
        metrics.registry = CollectorRegistry()
        self.service = ProduceService(
            self.driver,
            TopicTable(),
            MetadataCache(""),
            Lease(self.clock, self.session, self.holds_epoch_since, lambda: True),
            self.clock,
            BrokerMetrics(metrics),
            PendingBatches(self.core.queries if queries is None else queries, verifier or NoTransactions()),
        )
        self.context = FakeContext()
        self.stream = asyncio.create_task(self.service.serve(self.context))

    def holds_epoch_since(self, partition: TopicPartition, since_ms: int) -> bool:
        return self.held_since_ms.get(partition, -1) > since_ms

    async def arrived(self, count: int) -> list[ProduceArrived]:
        await turns(20)
        assert len(self.core.arrived) == count
        return self.core.arrived

    def answer(self, event: ProduceArrived, base_offset: int) -> None:
        result = ProduceResult(Offset(base_offset), Offset(0))
        self.service.reply(ReplyToProduce(event.request_id, event.partition, result))

    async def response(self) -> pb.ProduceResponse:
        async with asyncio.timeout(30):
            return await self.context.responses.get()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    yield harness
    harness.stream.cancel()
    await asyncio.wait({harness.stream})


async def test_requests_are_pipelined_and_answered_as_they_complete(harness: Harness) -> None:
    harness.context.send(1, sample())
    harness.context.send(2, sample())
    first, second = await harness.arrived(2)
    harness.answer(second, 3)
    assert (await harness.response()).correlation_id == 2
    harness.answer(first, 0)
    last = await harness.response()
    assert (last.correlation_id, last.partitions[0].base_offset) == (1, 0)


async def test_a_request_is_answered_when_all_its_partitions_are(harness: Harness) -> None:
    harness.context.send(1, sample(), partitions=2)
    first, second = await harness.arrived(2)
    harness.answer(second, 7)
    assert harness.context.responses.empty()
    harness.answer(first, 5)
    assert [part.base_offset for part in (await harness.response()).partitions] == [5, 7]


async def test_a_bad_batch_is_refused_and_later_requests_reach_the_core(harness: Harness) -> None:
    harness.context.send(1, patched(sample(), 90, b"\xff\xff"))
    harness.context.send(2, sample())
    assert (await harness.response()).partitions[0].error.code == ErrorCode.CORRUPT_BATCH
    (event,) = await harness.arrived(1)
    assert event.partition == TopicPartition("flights", 0)


@pytest.mark.parametrize(("leads", "code"), [(False, ErrorCode.NOT_LEADER), (True, ErrorCode.SCHEMA_MISMATCH)])
async def test_a_broker_that_does_not_lead_refuses_no_batch_for_a_schema_that_it_may_not_know(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, leads: bool, code: ErrorCode
) -> None:
    """Metadata of another broker may name the leader before the leader itself receives the command."""
    if leads:
        monkeypatch.setattr(harness.core.queries, "leader", lambda *_: None)
    harness.context.send(1, typed_batch())
    assert (await harness.response()).partitions[0].error.code == code
    await harness.arrived(0)


async def test_an_unexpected_error_in_a_check_refuses_only_that_batch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(produce_module, "check_batch", fail)
        harness.context.send(1, sample())
        assert (await harness.response()).partitions[0].error.code == ErrorCode.INTERNAL
    harness.context.send(2, sample())
    await harness.arrived(1)


async def test_past_the_lease_no_append_is_acknowledged(harness: Harness) -> None:
    harness.context.send(1, sample())
    (event,) = await harness.arrived(1)
    harness.clock.advance(1000)
    harness.answer(event, 0)
    result = (await harness.response()).partitions[0]
    assert (result.error.code, result.base_offset) == (ErrorCode.NOT_LEADER, -1)


@pytest.mark.parametrize(("behind_ms", "code"), [(4999, ""), (5000, ErrorCode.NOT_LEADER)])
async def test_past_the_lease_partitions_whose_followers_held_the_epoch_recently_are_acknowledged(
    harness: Harness, behind_ms: int, code: str
) -> None:
    harness.context.send(1, sample())
    (event,) = await harness.arrived(1)
    harness.clock.advance(60_000)
    harness.held_since_ms[event.partition] = harness.clock.now_ms() - behind_ms
    harness.answer(event, 0)
    assert (await harness.response()).partitions[0].error.code == code


async def test_a_stream_is_not_read_while_too_many_bytes_are_in_flight(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_module, "STREAM_IN_FLIGHT_BYTES_MAX", 2 * len(sample()))
    for number in range(5):
        harness.context.send(number, sample())
    events = await harness.arrived(2)
    harness.answer(events[0], 0)
    await harness.arrived(3)


async def test_a_client_that_ends_its_requests_gets_all_answers_and_then_the_end(harness: Harness) -> None:
    harness.context.send(1, sample())
    harness.context.requests.put_nowait(grpc.aio.EOF)
    (event,) = await harness.arrived(1)
    assert not harness.stream.done()
    harness.answer(event, 0)
    await harness.response()
    async with asyncio.timeout(5):
        await harness.stream


async def test_answers_for_a_disconnected_client_are_dropped(harness: Harness) -> None:
    harness.context.send(1, sample())
    (event,) = await harness.arrived(1)
    harness.stream.cancel()
    await asyncio.wait({harness.stream})
    harness.answer(event, 0)
    assert harness.context.responses.empty()


async def test_a_client_that_leaves_during_the_checks_of_its_request_leaves_nothing_behind(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large requests are checked in slices. Each would keep its entries until the end of the broker."""
    checked, checking = harness.service._checked, asyncio.Event()

    async def hangs(call: Any, index: int, *rest: Any) -> Any:
        if index:
            checking.set()
            await asyncio.Event().wait()
        return await checked(call, index, *rest)

    monkeypatch.setattr(harness.service, "_checked", hangs)
    harness.context.send(1, sample(), partitions=2)
    async with asyncio.timeout(30):
        await checking.wait()
    harness.stream.cancel()
    await asyncio.wait({harness.stream})
    await turns()
    assert not harness.core.arrived
    assert not harness.service._waiting


async def test_a_stream_over_its_quota_gets_the_wait_and_is_not_read_until_the_quota_is_kept(harness: Harness) -> None:
    owner = ClientQuotas()
    owner.use(Quotas({QuotaEntity(DEFAULT): {QuotaKind.PRODUCER_BYTE_RATE: 1.0}}))
    context = FakeContext()
    stream = asyncio.create_task(harness.service.serve(context, None, CallerQuotas(owner, "User:ANONYMOUS")))
    context.send(1, sample())
    context.send(2, sample())
    (first,) = await harness.arrived(1)
    harness.answer(first, 0)
    async with asyncio.timeout(30):
        response = await context.responses.get()
    assert 29_000 < response.throttle_time_ms <= 30_001
    await harness.arrived(1)
    assert context.requests.qsize() == 1
    owner.use(Quotas())
    _, second = await harness.arrived(2)
    harness.answer(second, 3)
    async with asyncio.timeout(30):
        assert (await context.responses.get()).throttle_time_ms == 0
    stream.cancel()
    await asyncio.wait({stream})


async def test_a_stopping_broker_ends_a_stream_that_it_holds_up(harness: Harness) -> None:
    owner = ClientQuotas()
    owner.use(Quotas({QuotaEntity(DEFAULT): {QuotaKind.PRODUCER_BYTE_RATE: 1.0}}))
    quotas = CallerQuotas(owner, "User:ANONYMOUS")
    quotas.debit(QuotaKind.PRODUCER_BYTE_RATE, 1e9)
    context = FakeContext()
    stream = asyncio.create_task(harness.service.serve(context, None, quotas))
    await harness.arrived(0)
    assert 0 < int(context.metadata["throttle-time-ms"]) <= 30_001
    harness.service.stop()
    async with asyncio.timeout(10):
        await stream
