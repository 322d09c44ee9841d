# SPDX-License-Identifier: Apache-2.0
"""Reads after the end of the session lease return no records and no offsets, on leader and follower (rules F1, F2)."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tidemark.broker.clients.fetch import FetchService, Purgatory
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind, Quotas
from tidemark.core.replication.replica import ReadableRange, StatedOffsets
from tidemark.model import EpochEntry, ErrorCode, LeaderEpoch, Offset, TidemarkError
from tidemark.ports import TimestampOffset
from tidemark.record.checks import check_batches
from tidemark.record.transactions import AbortedTransaction
from tidemark.rpc.codecs.fetch import Fetched, Results, encode
from tidemark.rpc.quotas.enforcement import CallerQuotas, ClientQuotas
from tidemark.runtime.clock import timeout
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import broker_service_pb2 as pb

from tests.fakes.metadata_store import ManualClock
from tests.fakes.repairs import FakeRepairs
from tests.refusals import raises_code
from tests.unit.storage.batches import at, make_batch, make_marker, make_pending

END = 5


class Leader:
    """A core that leads all partitions, and a log of END bytes, one for each offset."""

    def readable(self, *_: Any, **__: Any) -> ReadableRange:
        return ReadableRange(Offset(END), Offset(END), Offset(0), Offset(END))

    def stated_offsets(self, *_: Any, **__: Any) -> StatedOffsets:
        return StatedOffsets(Offset(0), Offset(END), LeaderEpoch(1), Offset(END))

    def epoch_end(self, *_: Any, **__: Any) -> EpochEntry:
        return EpochEntry(LeaderEpoch(1), Offset(END))

    def log(self, _: Any) -> Leader:
        return self

    def read(self, offset: int, *, end_offset: int, **_: Any) -> bytes:
        return bytes(end_offset - offset)


class Session:
    until_ms = 1_000

    def lease_valid_until_ms(self) -> int:
        return self.until_ms

    def lease_length_ms(self) -> int:
        return 5_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def service(clock: ManualClock) -> FetchService:
    metrics = Metrics()
    metrics.registry = CollectorRegistry()
    leader: Any = Leader()
    lease = Lease(clock, Session(), lambda *_: False, lambda: True)
    pool = ThreadPoolExecutor(1)
    return FetchService(
        leader, leader, Purgatory(), MetadataCache(""), lease, clock, BrokerMetrics(metrics), pool, FakeRepairs()
    )


async def fetch(service: FetchService, offset: int) -> pb.PartitionFetchResult:
    part = pb.PartitionFetch(topic="flights", partition=0, fetch_offset=offset)
    return await answer(service, pb.FetchRequest(partitions=[part], max_bytes=100))


async def answer(service: FetchService, request: pb.FetchRequest) -> pb.PartitionFetchResult:
    """The answer as a client with its own protobuf code reads it."""
    return pb.FetchResponse.FromString(encode(await service.fetch(request))).partitions[0]


@pytest.mark.parametrize("offset", [0, END])
async def test_a_fetch_returns_records_and_offsets_within_the_lease_and_neither_past_it(
    service: FetchService, clock: ManualClock, offset: int
) -> None:
    result = await fetch(service, offset)
    assert (result.error.code, len(result.batches), result.high_watermark) == ("", END - offset, END)
    clock.advance(1_000)
    result = await fetch(service, offset)
    assert (result.error.code, result.batches, result.high_watermark) == (ErrorCode.NOT_LEADER, b"", -1)


async def test_a_fetch_at_a_negative_offset_is_an_invalid_request(service: FetchService) -> None:
    result = await fetch(service, -1)
    assert (result.error.code, result.batches, result.high_watermark) == (ErrorCode.INVALID_REQUEST, b"", -1)
    assert "fetch_offset is -1: give an offset from 0" in result.error.message


async def test_a_fetch_with_a_negative_wait_is_an_invalid_request(service: FetchService) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "max_wait_ms is -1: give 0 or more milliseconds"):
        await service.fetch(pb.FetchRequest(max_wait_ms=-1))


async def test_past_the_lease_no_offset_is_listed_and_no_epoch_end_answered(
    service: FetchService, clock: ManualClock
) -> None:
    listing = pb.ListOffsetsRequest(partitions=[pb.PartitionListOffsets(topic="flights", latest=True)])
    asking = pb.OffsetsForLeaderEpochRequest(partitions=[pb.PartitionEpoch(topic="flights", leader_epoch=1)])
    assert (await service.list_offsets(listing)).partitions[0].offset == END
    assert (await service.epoch_ends(asking)).partitions[0].end_offset == END
    clock.advance(1_000)
    listed = (await service.list_offsets(listing)).partitions[0]
    assert (listed.error.code, listed.offset) == (ErrorCode.NOT_LEADER, -1)
    answered = (await service.epoch_ends(asking)).partitions[0]
    assert (answered.error.code, answered.end_offset) == (ErrorCode.NOT_LEADER, -1)


# -- follower fetching -----------------------------------------------------------------------------------------------


class NearLeader(Leader):
    """Names broker 2 to requests with a rack; as a follower it reports a high watermark one above its readable end."""

    def preferred_replica(self, *_: Any, rack: str, **__: Any) -> int | None:
        return 2 if rack else None

    def readable_here(self, *_: Any, in_sync_replicas: tuple[int, ...], **__: Any) -> ReadableRange:
        assert in_sync_replicas == (), "the broker has no metadata of this partition"
        return ReadableRange(Offset(END), Offset(END + 1), Offset(0), Offset(END + 1))


def counted(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"tidemark_{name}_total") or 0.0


async def read(
    clock: ManualClock, who: pb.ReadFrom.ValueType, rack: str, *, at_ms: int = 0
) -> tuple[pb.PartitionFetchResult, float, float]:
    metrics = Metrics()
    metrics.registry = CollectorRegistry()
    near: Any = NearLeader()
    lease = Lease(clock, Session(), lambda *_: False, lambda: True)
    service = FetchService(
        near,
        near,
        Purgatory(),
        MetadataCache(""),
        lease,
        clock,
        BrokerMetrics(metrics),
        ThreadPoolExecutor(1),
        FakeRepairs(),
    )
    clock.advance(at_ms)
    part = pb.PartitionFetch(topic="flights", partition=0, read_from=who)
    request = pb.FetchRequest(partitions=[part], max_bytes=100, max_wait_ms=20_000, min_bytes=100, rack=rack)
    if who != pb.READ_FROM_NEAREST or not rack:
        request.min_bytes = 1
    result = await answer(service, request)
    given = counted(metrics, "broker_follower_fetched_bytes"), counted(metrics, "broker_preferred_read_replicas")
    return result, *given


async def test_a_redirected_fetch_is_answered_at_once_without_records(clock: ManualClock) -> None:
    result, from_followers, sent_on = await read(clock, pb.READ_FROM_NEAREST, "b")
    assert (result.preferred_read_replica, result.batches, result.high_watermark) == (2, b"", END)
    assert (from_followers, sent_on) == (0, 1)


@pytest.mark.parametrize(
    ("source", "rack"),
    [(pb.READ_FROM_UNSPECIFIED, "b"), (pb.READ_FROM_LEADER, "b"), (pb.READ_FROM_NEAREST, "")],
)
async def test_a_fetch_for_the_leader_or_without_a_rack_is_served_by_the_leader(
    clock: ManualClock, source: pb.ReadFrom.ValueType, rack: str
) -> None:
    result, from_followers, sent_on = await read(clock, source, rack)
    assert not result.HasField("preferred_read_replica")
    assert not result.HasField("heard_high_watermark")
    assert (len(result.batches), from_followers, sent_on) == (END, 0, 0)


async def test_a_follower_reports_the_received_high_watermark_and_states_none(clock: ManualClock) -> None:
    result, from_followers, _ = await read(clock, pb.READ_FROM_FOLLOWER, "b")
    assert (result.high_watermark, result.heard_high_watermark, len(result.batches)) == (-1, END + 1, END)
    assert from_followers == END


async def test_a_waiting_fetch_is_refused_soon_after_its_follower_lost_contact_with_the_leader(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.broker.clients.fetch._FOLLOWER_CHECK_S", 0.001)
    looks = []

    def readable_here(*_: Any, **__: Any) -> ReadableRange:
        looks.append(clock.now_ms())
        if len(looks) < 3:
            return ReadableRange(Offset(0), Offset(END), Offset(0), Offset(END))
        raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, "not in contact")

    monkeypatch.setattr(NearLeader, "readable_here", readable_here)
    result, _, _ = await read(clock, pb.READ_FROM_FOLLOWER, "b")
    assert (result.error.code, len(looks)) == (ErrorCode.OFFSET_NOT_AVAILABLE, 3)


async def test_past_the_lease_a_follower_returns_no_records_and_no_fetch_is_redirected(clock: ManualClock) -> None:
    result, _, _ = await read(clock, pb.READ_FROM_FOLLOWER, "b", at_ms=1_000)
    assert (result.error.code, result.batches) == (ErrorCode.NOT_LEADER, b"")
    result, _, _ = await read(clock, pb.READ_FROM_NEAREST, "b")
    assert result.error.code == ErrorCode.NOT_LEADER


# -- damaged batches (rule T6)


class StoredBatches(Leader):
    """Batches of two records from offset 0 on."""

    def __init__(self, count: int) -> None:
        self.good = [at(make_batch(["a", "b"]), 2 * number, 1).data for number in range(count)]
        self.data = list(self.good)

    def damage(self, number: int) -> None:
        self.data[number] = bytes(self.data[number][:-1]) + b"!"

    def heal(self, offset: int) -> None:
        self.data[offset // 2] = self.good[offset // 2]

    def readable(self, *_: Any, **__: Any) -> ReadableRange:
        end = Offset(2 * len(self.data))
        return ReadableRange(end, end, Offset(0), end)

    def read(self, offset: int, *, end_offset: int, **_: Any) -> bytes:
        return b"".join(self.data[offset // 2 : end_offset // 2])


async def checked(stored: StoredBatches, repairs: FakeRepairs, *, offset: int = 0, check: bool = True) -> Fetched:
    clock, metrics = ManualClock(0), Metrics()
    metrics.registry = CollectorRegistry()
    log: Any = stored
    lease = Lease(clock, Session(), lambda *_: False, lambda: True)
    with ThreadPoolExecutor(1) as pool:
        view = MetadataCache("")
        service = FetchService(log, log, Purgatory(), view, lease, clock, BrokerMetrics(metrics), pool, repairs)
        part = pb.PartitionFetch(topic="flights", partition=0, fetch_offset=offset, check_batches=check)
        [fetched] = await service.fetch(pb.FetchRequest(partitions=[part], max_bytes=1 << 20))
        return fetched


async def test_a_fetch_that_has_batches_checked_repairs_every_damaged_one() -> None:
    stored = StoredBatches(5)
    stored.damage(1)
    stored.damage(3)
    repairs = FakeRepairs(stored.heal)

    fetched = await checked(stored, repairs)

    assert not fetched.facts.HasField("error")
    assert fetched.batches == b"".join(stored.good)
    assert repairs.asked == [2, 6]


async def test_a_fetch_that_does_not_ask_for_checks_returns_the_stored_bytes() -> None:
    stored = StoredBatches(3)
    stored.damage(1)
    repairs = FakeRepairs(stored.heal)

    fetched = await checked(stored, repairs, check=False)

    assert (fetched.batches, repairs.asked) == (b"".join(stored.data), [])


async def test_a_fetch_returns_the_batches_before_damage_without_a_good_copy_then_an_error() -> None:
    stored = StoredBatches(4)
    stored.damage(2)

    before = await checked(stored, FakeRepairs())
    at_damage = await checked(stored, FakeRepairs(), offset=4)

    assert before.batches == b"".join(stored.good[:2])
    assert at_damage.facts.error.code == ErrorCode.CORRUPT_BATCH
    assert "offset 4 is damaged" in at_damage.facts.error.message


async def test_a_damaged_header_is_repaired_at_the_offset_where_its_batch_must_start() -> None:
    stored = StoredBatches(3)
    first = bytes(stored.good[0])
    stored.data[0] = bytes([first[0], first[1] ^ 1, *first[2:]])  # base_offset
    repairs = FakeRepairs(stored.heal)

    fetched = await checked(stored, repairs)

    assert (fetched.batches, repairs.asked) == (b"".join(stored.good), [0])


async def test_a_fetch_of_a_batch_that_is_still_being_repaired_may_be_retried() -> None:
    stored = StoredBatches(2)
    stored.damage(0)

    fetched = await checked(stored, FakeRepairs(running=True))

    assert fetched.facts.error.code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert "is being repaired; retry" in fetched.facts.error.message


# -- quotas ----------------------------------------------------------------------------------------------------------


def over_quota(limit: float, used: float) -> CallerQuotas:
    owner = ClientQuotas()
    owner.use(Quotas({QuotaEntity(DEFAULT): {QuotaKind.CONSUMER_BYTE_RATE: limit}}))
    caller = CallerQuotas(owner, "User:ANONYMOUS")
    caller.debit(QuotaKind.CONSUMER_BYTE_RATE, used)
    return caller


async def test_a_fetch_is_counted_and_a_single_one_beyond_the_quota_gets_no_records(
    service: FetchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.broker.clients.fetch.HOLD_S", 0.01)
    caller = over_quota(limit=1.0, used=0)
    request = pb.FetchRequest(partitions=[pb.PartitionFetch(topic="flights", partition=0)], max_bytes=100)
    [whole] = results = await service.fetch_once(request, None, caller)
    assert (len(whole.batches), 3_000 < results.throttle_time_ms <= 4_001) == (END, True)
    [empty] = results = await service.fetch_once(request, None, caller)
    assert (len(empty.batches), 3_000 < results.throttle_time_ms <= 4_001) == (0, True)
    assert (empty.facts.topic, empty.facts.high_watermark, empty.facts.HasField("error")) == ("flights", -1, False)


async def test_fetches_that_wait_for_the_same_records_share_a_quota(
    service: FetchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = over_quota(limit=1.0, used=0)
    request = pb.FetchRequest(
        partitions=[pb.PartitionFetch(topic="flights", partition=0)], max_bytes=100, max_wait_ms=9_000, min_bytes=1
    )
    nothing = ReadableRange(Offset(0), Offset(0), Offset(0), Offset(0))
    with monkeypatch.context() as empty:
        empty.setattr(Leader, "readable", lambda *_, **__: nothing)
        waiting = [asyncio.create_task(service.fetch_next(request, None, caller)) for _ in range(50)]
        await asyncio.wait(waiting, timeout=0.05)
    service._purgatory.wake_all()
    answers = await asyncio.gather(*waiting)
    assert sorted(len(one.batches) for [one] in answers) == [0] * 49 + [END]
    assert all(3_000 < results.throttle_time_ms <= 4_001 for results in answers)


async def test_a_fetch_that_waits_for_more_bytes_holds_no_records(
    service: FetchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each fetch with a large `min_bytes` held up to 7 MiB for 30 s, beyond the limits of connections."""
    read, answers = service._read_all, list[weakref.ref[Results]]()

    async def noted(*arguments: Any) -> tuple[Results, int, bool]:
        found = await read(*arguments)
        answers.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(service, "_read_all", noted)
    part = pb.PartitionFetch(topic="flights", partition=0)
    request = pb.FetchRequest(partitions=[part], max_bytes=100, max_wait_ms=9_000, min_bytes=1 << 20)
    waiting = asyncio.create_task(service.fetch(request))
    await asyncio.wait([waiting], timeout=0.05)
    assert [results() for results in answers] == [None]
    service._purgatory.close()
    assert sum(len(one.batches) for one in await waiting) == END


async def test_a_fetch_that_its_caller_cancels_is_counted(service: FetchService) -> None:
    owner = ClientQuotas()
    owner.use(Quotas({QuotaEntity(DEFAULT): {QuotaKind.REQUEST_PERCENTAGE: 50.0}}))
    caller = CallerQuotas(owner, "User:ANONYMOUS")
    request = pb.FetchRequest(
        partitions=[pb.PartitionFetch(topic="flights", partition=0)], max_wait_ms=9_000, min_bytes=1 << 20
    )
    waiting = asyncio.create_task(service.fetch_next(request, None, caller))
    await asyncio.wait([waiting], timeout=0.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    [account] = owner.accounts
    assert 0 < account.used < 0.04, "its work counts, its wait does not"


async def test_a_response_has_at_most_the_bytes_of_a_second_of_the_quota(
    service: FetchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read(_: Any, offset: int, *, max_bytes: int, **__: Any) -> bytes:
        asked.append(max_bytes)
        return b"x"

    monkeypatch.setattr(Leader, "read", read)
    request = pb.FetchRequest(partitions=[pb.PartitionFetch(topic="flights", partition=0)], max_bytes=1000)
    for limit in (5.5, 1e9):
        await service.fetch(request, None, over_quota(limit, used=0))
    assert asked == [5, 1000]


# -- transactions (rule X4) ------------------------------------------------------------------------------------------


class TransactionalLog(Leader):
    """Batches at 0 (aborted), 1 (marker), 2 and 3 (plain), 4 (pending, open); the high watermark is 5."""

    def __init__(self) -> None:
        parts = [
            make_pending(["a"], producer_id=1),
            make_marker(producer_id=1, commit=False),
            make_batch(["b"]),
            make_batch(["c"]),
            make_pending(["d"], producer_id=2),
        ]
        self.batches = [at(batch, offset, 1) for offset, batch in enumerate(parts)]
        self.asked: list[tuple[int, int]] = []

    def readable(self, *_: Any, fetch_offset: int, committed_only: bool, **__: Any) -> ReadableRange:
        end = max(4 if committed_only else END, fetch_offset)
        return ReadableRange(Offset(end), Offset(END), Offset(0), Offset(END), Offset(4))

    def stated_offsets(self, *_: Any, **__: Any) -> StatedOffsets:
        return StatedOffsets(Offset(0), Offset(END), LeaderEpoch(1), Offset(4))

    def read(self, offset: int, *, end_offset: int, max_bytes: int, **_: Any) -> bytes:
        taken = self.batches[offset:end_offset]
        return b"".join(batch.data for batch in (taken if max_bytes > 1000 else taken[:1]))

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        self.asked.append((start_offset, end_offset))
        return [AbortedTransaction(1, 0, 1)]

    def max_timestamp(self, *, end_offset: int, **_: Any) -> TimestampOffset:
        return TimestampOffset(0, Offset(end_offset - 1))


@pytest.fixture
def transactional(service: FetchService) -> TransactionalLog:
    log: Any = TransactionalLog()
    service._queries = service._logs = log
    return log


@pytest.mark.parametrize("max_bytes", [100, 1 << 20])
async def test_a_read_committed_fetch_names_the_aborted_transactions_of_its_batches(
    service: FetchService, transactional: TransactionalLog, max_bytes: int
) -> None:
    part = pb.PartitionFetch(topic="flights", partition=0, fetch_offset=0)
    request = pb.FetchRequest(partitions=[part], max_bytes=max_bytes, isolation_level=pb.READ_COMMITTED)
    result = await answer(service, request)
    batches = check_batches(result.batches)
    assert len(batches) == (1 if max_bytes == 100 else 4)
    assert (result.last_stable_offset, result.high_watermark) == (4, END)
    [aborted] = result.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 0, 1)
    assert transactional.asked == [(0, batches[-1].envelope.next_offset)]


async def test_a_read_uncommitted_fetch_reads_to_the_high_watermark_and_names_nothing(
    service: FetchService, transactional: TransactionalLog
) -> None:
    part = pb.PartitionFetch(topic="flights", partition=0, fetch_offset=0)
    result = await answer(service, pb.FetchRequest(partitions=[part], max_bytes=1 << 20))
    assert len(check_batches(result.batches)) == 5
    assert not result.HasField("last_stable_offset")
    assert not result.aborted_transactions
    assert transactional.asked == []


async def test_a_read_committed_fetch_at_the_last_stable_offset_gets_no_records(
    service: FetchService, transactional: TransactionalLog
) -> None:
    part = pb.PartitionFetch(topic="flights", partition=0, fetch_offset=4)
    result = await answer(service, pb.FetchRequest(partitions=[part], isolation_level=pb.READ_COMMITTED))
    assert (result.batches, result.last_stable_offset, result.error.code) == (b"", 4, "")


@pytest.mark.parametrize(("isolation", "end"), [(pb.READ_UNCOMMITTED, END), (pb.READ_COMMITTED, 4)])
async def test_offsets_are_listed_below_the_end_of_the_isolation_level(
    service: FetchService, transactional: TransactionalLog, isolation: Any, end: int
) -> None:
    parts = [
        pb.PartitionListOffsets(topic="flights", latest=True),
        pb.PartitionListOffsets(topic="flights", max_timestamp=True),
    ]
    request = pb.ListOffsetsRequest(partitions=parts, isolation_level=isolation)
    listed = (await service.list_offsets(request)).partitions
    assert [one.offset for one in listed] == [end, end - 1]


# -- searches by time ------------------------------------------------------------------------------------------------


class EndlessLog(Leader):
    """A log in which a search by time ends only by its check."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def max_timestamp(self, *, end_offset: int, check: Callable[[], None]) -> TimestampOffset:
        self.began.release()
        try:
            while True:
                check()
        finally:
            self.ended.release()

    def read(self, offset: int, *, cached_only: bool = False, **_: Any) -> Any:
        return None if cached_only else b"from the disk"


async def test_a_search_by_time_ends_when_its_caller_leaves_and_leaves_a_thread_to_reads(
    service: FetchService,
) -> None:
    log: Any = EndlessLog()
    service._queries = service._logs = log
    service._pool = ThreadPoolExecutor(2)
    request = pb.ListOffsetsRequest(partitions=[pb.PartitionListOffsets(topic="flights", max_timestamp=True)])
    searches = [asyncio.create_task(service.list_offsets(request)) for _ in range(2)]
    assert await asyncio.to_thread(log.began.acquire, timeout=10)
    async with timeout(10):
        assert (await fetch(service, 0)).batches == b"from the disk"
    for search in searches:
        search.cancel()
    await asyncio.wait(searches)
    assert await asyncio.to_thread(log.ended.acquire, timeout=10)
    assert not log.began.acquire(blocking=False), "the second search waited for the first"
