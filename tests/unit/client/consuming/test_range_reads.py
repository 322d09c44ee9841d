# SPDX-License-Identifier: Apache-2.0
"""Range reads from brokers of this process: fetches that ranges share, fetches in flight, and closed readers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client.consuming import range_reader
from tidemark.client.consuming.range_reader import RangeReader, RangeStart
from tidemark.client.metadata import blocking_cluster
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.errors import InvalidRecordError
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, parse_envelope, seal, stamped
from tidemark.record.payload import build_batch, from_columns
from tidemark.rpc import errors, request_limits
from tidemark.rpc.codecs.fetch import Fetched, Results
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.rpc.raw_methods import fetch_method
from tidemark.rpc.receiver import Headers
from tidemark.v1 import broker_service_pb2 as pb

from tests.refusals import raises_code

PATIENCE_S = 20.0
BROKERS = 3
PARTITIONS = 6
BATCHES = 4
BATCH_RECORDS = 5
RECORDS = BATCHES * BATCH_RECORDS


def log() -> list[bytes]:
    """The batches of each partition."""
    found = []
    for first in range(0, RECORDS, BATCH_RECORDS):
        data = build_batch(from_columns(None, [b"v"] * BATCH_RECORDS, [7] * BATCH_RECORDS))
        found.append(stamped(Batch(parse_envelope(data), data), base_offset=first, leader_epoch=0).data)
    return found


LOG = log()


class Cluster:
    """Brokers h:9000 and so on; broker n leads the partitions n, n + 3 of topic t until `move`."""

    def __init__(self) -> None:
        self.broker_epoch = BrokerEpoch(0)
        self.leaders = {index: index % BROKERS for index in range(PARTITIONS)}
        self.epochs = dict.fromkeys(range(PARTITIONS), 1)
        self.fetches: list[list[int]] = []
        self.now_s = 100.0

    def move(self, partition: int) -> None:
        """Elect another leader."""
        self.leaders[partition] = (self.leaders[partition] + 1) % BROKERS
        self.epochs[partition] += 1

    def view(self) -> ClusterView:
        ids = map(BrokerId, range(BROKERS))
        brokers = {one: BrokerRegistration(one, "h", 9000 + one, self.broker_epoch) for one in ids}
        partitions = {
            index: PartitionView(index, BrokerId(leader), LeaderEpoch(epoch), (), (), partition_epoch=epoch)
            for (index, leader), epoch in zip(self.leaders.items(), self.epochs.values(), strict=True)
        }
        topic = TopicView("t", "id", created_zxid=1, partitions=partitions, partition_count=PARTITIONS)
        return ClusterView(brokers=brokers, controller_epoch=ControllerEpoch(1), topics={"t": topic}, complete=True)

    def call(self, cluster: BlockingCluster, address: str, method: Any, request: Any, at_most_s: float = 5.0) -> Any:
        """Takes the place of `BlockingCluster.call`."""
        if method is not fetch_method:
            return SimpleNamespace(metadata=view_to_proto(self.view()))
        self.fetches.append([part.partition for part in request.partitions])
        found, room_bytes = Results(), request.max_bytes
        for part in request.partitions:
            found.append(self._fetched(int(address[-1]), part, room_bytes, first=not any(one.batches for one in found)))
            room_bytes -= len(found[-1].batches)
        return found

    def _fetched(self, broker: int, part: pb.PartitionFetch, room_bytes: int, *, first: bool) -> Fetched:
        facts = pb.PartitionFetchResult(topic=part.topic, partition=part.partition)
        if self.leaders[part.partition] != broker or self.epochs[part.partition] != part.current_leader_epoch:
            facts.error.CopyFrom(errors.to_proto(TidemarkError(ErrorCode.NOT_LEADER, "another broker leads it")))
            return Fetched(facts)
        if room_bytes <= 0 and not first:
            return Fetched(facts)
        batches = LOG[part.fetch_offset // BATCH_RECORDS :]
        count = max(1, min(room_bytes, part.max_bytes) // len(LOG[0]))
        return Fetched(facts, b"".join(batches[:count]))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    def sleep(seconds: float) -> None:
        made.now_s += seconds

    for module in (blocking_cluster, range_reader):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=sleep))
    monkeypatch.setattr(BlockingCluster, "call", lambda *arguments: made.call(*arguments))
    return made


def reader() -> RangeReader:
    return RangeReader("h:9000", deadline_s=30.0)


def offsets(reader: RangeReader, partition: int, start: int, end: int, first: Fetched | None = None) -> list[int]:
    found: list[int] = []
    for rows in reader.read("t", partition, start, end, fetch_bytes=len(LOG[0]), first=first):
        found += rows.column("offset").to_pylist()
    return found


def test_small_ranges_of_one_leader_share_a_fetch(cluster: Cluster) -> None:
    with reader() as shares:
        ranges = [RangeStart("t", index, 10) for index in range(PARTITIONS)]
        firsts = shares.fetch_together(ranges)
        assert cluster.fetches == [[0, 3], [1, 4], [2, 5]]
        found = [offsets(shares, index, 10, 15, first) for index, first in enumerate(firsts)]
    assert found == [list(range(10, 15))] * PARTITIONS
    assert len(cluster.fetches) == BROKERS, "the ranges need no further fetch"


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, RECORDS - 1), st.integers(1, RECORDS)), min_size=1
    ),
    fetch_bytes=st.integers(1, 40 * len(LOG[0])),
    moved=st.sets(st.integers(0, PARTITIONS - 1)),
    moved_later=st.sets(st.integers(0, PARTITIONS - 1)),
)
def test_shared_fetches_give_the_rows_of_each_range_for_any_leaders_and_response_sizes(
    ranges: list[tuple[int, int, int]], fetch_bytes: int, moved: set[int], moved_later: set[int]
) -> None:
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocking_cluster, range_reader):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=lambda seconds: None))
        patch.setattr(BlockingCluster, "call", lambda *arguments: cluster.call(*arguments))
        with reader() as shares:
            shares.topics(["t"])
            for partition in moved:
                cluster.move(partition)
            firsts = shares.fetch_together(
                [RangeStart("t", partition, start) for partition, start, _ in ranges], fetch_bytes=fetch_bytes
            )
            for partition in moved_later:
                cluster.move(partition)
            for (partition, start, count), first in zip(ranges, firsts, strict=True):
                end = min(RECORDS, start + count)
                assert offsets(shares, partition, start, end, first) == list(range(start, end))


def test_the_error_of_an_unreadable_batch_has_its_place(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = parse_envelope(LOG[1])._replace(record_count=BATCH_RECORDS - 1)
    broken = [LOG[0], seal(bad, LOG[1][ENVELOPE_BYTES:]), *LOG[2:]]
    monkeypatch.setattr(f"{__name__}.LOG", broken)
    place = "t-0: the batch at offset 5 cannot be read: .* seek to offset 10 to skip the batch"
    with reader() as kept, pytest.raises(InvalidRecordError, match=place):
        offsets(kept, 0, 0, RECORDS)


def test_a_reader_finds_the_leaders_that_were_elected_since_its_last_read(cluster: Cluster) -> None:
    with reader() as kept:
        assert offsets(kept, 0, 0, RECORDS) == list(range(RECORDS))
        cluster.move(0)
        assert offsets(kept, 0, 0, RECORDS) == list(range(RECORDS))


def test_a_reader_resolves_the_names_of_restarted_brokers_again(cluster: Cluster) -> None:
    with reader() as kept:
        kept.topics(["t"])
        with kept._cluster.channel("h:9001") as first:
            kept.topics(["t"])
            with kept._cluster.channel("h:9001") as second:
                assert second is first, "the broker has not restarted"
            cluster.broker_epoch = BrokerEpoch(3)
            kept.topics(["t"])
            with kept._cluster.channel("h:9001") as third:
                assert third is not first


@pytest.mark.parametrize("end_offset", [0, RECORDS], ids=["before the range", "behind the range"])
def test_a_replaced_leader_that_lacks_the_epoch_before_a_range_does_not_fail_the_read(
    cluster: Cluster, end_offset: int
) -> None:
    ends = {"diverging_epoch": "1", "diverging_end_offset": str(end_offset)}
    truncated = TidemarkError(ErrorCode.LOG_TRUNCATED, "the log was truncated", ends)
    asked: list[tuple[int, int]] = []
    fetched = cluster._fetched

    def of_epoch(broker: int, part: pb.PartitionFetch, room_bytes: int, *, first: bool) -> Fetched:
        asked.append((part.current_leader_epoch, part.last_fetched_epoch))
        if part.current_leader_epoch < 2:
            cluster.move(0)  # the metadata show the new leader after its first refusal
            return Fetched(pb.PartitionFetchResult(topic="t", partition=0, error=errors.to_proto(truncated)))
        return fetched(broker, part, room_bytes, first=first)

    cluster._fetched = of_epoch  # type: ignore[method-assign]
    with reader() as kept:
        rows = list(kept.read("t", 0, BATCH_RECORDS, 2 * BATCH_RECORDS, last_epoch=2))
    assert sum(one.num_rows for one in rows) == BATCH_RECORDS
    assert asked[:2] == [(1, 2), (2, 2)]


def test_a_read_ends_if_no_leader_reaches_the_epoch_before_its_range(cluster: Cluster) -> None:
    ends = {"diverging_epoch": "1", "diverging_end_offset": "0"}
    facts = pb.PartitionFetchResult(topic="t", partition=0)
    facts.error.CopyFrom(errors.to_proto(TidemarkError(ErrorCode.LOG_TRUNCATED, "the log was truncated", ends)))
    cluster._fetched = lambda *_, **__: Fetched(facts)  # type: ignore[method-assign]
    with reader() as kept, raises_code(ErrorCode.LOG_TRUNCATED, "the log was truncated"):
        list(kept.read("t", 0, BATCH_RECORDS, 2 * BATCH_RECORDS, last_epoch=2))


def test_a_range_of_one_fetch_starts_no_thread(cluster: Cluster) -> None:
    before = set(threading.enumerate())  # a thread of another test may still be ending
    with reader() as small:
        assert offsets(small, 0, 0, BATCH_RECORDS) == list(range(BATCH_RECORDS))
        assert not [one for one in threading.enumerate() if one not in before and one.name.startswith("fetch-ahead")]


def test_an_abandoned_read_does_not_wait_for_its_fetch_in_flight(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answer, ended = threading.Event(), threading.Event(), threading.Event()

    def call(*arguments: Any) -> Any:
        if arguments[2] is fetch_method and cluster.fetches:
            begun.set()
            answer.wait(PATIENCE_S)
            ended.set()
        return cluster.call(*arguments)

    monkeypatch.setattr(BlockingCluster, "call", call)
    with reader() as abandoned:
        rows = abandoned.read("t", 0, 0, RECORDS, fetch_bytes=len(LOG[0]))
        next(rows)
        assert begun.wait(PATIENCE_S)
        del rows
        assert not ended.is_set()
        answer.set()
        assert ended.wait(PATIENCE_S)
        assert offsets(abandoned, 1, 0, RECORDS) == list(range(RECORDS)), "the reader is as good as before"


def test_a_closed_reader_opens_no_connection(cluster: Cluster) -> None:
    closed = reader()
    closed.close()
    with raises_code(ErrorCode.CLIENT_CLOSED) as refused, closed._cluster.channel("h:9000"):
        pass
    assert not refused.value.retriable


def test_a_call_has_its_own_deadline_when_another_thread_calls(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def call(*arguments: Any) -> Any:
        if arguments[2] is fetch_method:
            asked.append(cluster.now_s)
            assert len(asked) < 5, "the read does not end"
            cluster.now_s += 20.0
            with ThreadPoolExecutor(1) as other:
                other.submit(busy.topics, ["t"]).result(PATIENCE_S)
            raise TidemarkError(ErrorCode.NOT_LEADER, "another broker leads it")
        return cluster.call(*arguments)

    monkeypatch.setattr(BlockingCluster, "call", call)
    with reader() as busy, raises_code(ErrorCode.REQUEST_TIMED_OUT):
        next(busy.read("t", 0, 0, RECORDS))
    assert len(asked) == 2, "30 s allow a fetch at 0 s and one at 20 s"


def test_a_wait_that_a_broker_asks_for_prolongs_the_deadline_and_counts_for_that_broker_only(cluster: Cluster) -> None:
    """The deadline is three seconds; each fetch of broker 0 asks for ten."""
    call, waits_s = cluster.call, []

    def throttled(cluster: BlockingCluster, address: str, method: Any, request: Any, at_most_s: float = 5.0) -> Any:
        assert cluster.left_s() == 3, "no part of the deadline is used up"
        results = call(cluster, address, method, request, at_most_s)
        if method is fetch_method and address.endswith("0"):
            results.throttle_time_ms = 10_000 if waits_s else (1 << 31) - 1
        return results

    def wait(seconds: float) -> None:
        waits_s.append(seconds)
        cluster.now_s += seconds

    cluster.call = throttled  # type: ignore[method-assign]
    of = {leader: partition for partition, leader in cluster.leaders.items()}
    with RangeReader("h:9000", deadline_s=3, client_id="nightly") as reader:
        reader._closing = SimpleNamespace(wait=wait, set=lambda: None)  # type: ignore[assignment]
        for partition in (of[0], of[1], of[0], of[1], of[0]):
            rows = sum(one.num_rows for one in reader.read("t", partition, 0, BATCH_RECORDS))
            assert rows == BATCH_RECORDS
    assert waits_s == [60, 10], "longer waits are cut off"


def test_offsets_of_more_partitions_than_a_request_may_name_take_several(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def stub(address: str) -> Any:
        def ask(request: pb.ListOffsetsRequest, timeout: float, metadata: Headers) -> Any:
            assert ("client-id", "nightly") in metadata, "brokers count the request for the client id"
            asked.append((address, len(request.partitions)))
            named = [(one.topic, one.partition) for one in request.partitions]
            parts = [
                pb.PartitionListOffsetsResult(topic=topic, partition=index, offset=index) for topic, index in named
            ]
            return SimpleNamespace(result=lambda: pb.ListOffsetsResponse(partitions=parts))

        return SimpleNamespace(ListOffsets=SimpleNamespace(future=ask))

    monkeypatch.setattr(request_limits, "NAMED_MAX", 1)
    monkeypatch.setattr(BlockingCluster, "channel", lambda _, address: nullcontext(address))
    monkeypatch.setattr(range_reader, "BrokerServiceStub", stub)
    with RangeReader("h:9000", deadline_s=30.0, client_id="nightly") as kept:
        found = kept.offsets({TopicPartition("t", index): "latest" for index in range(PARTITIONS)})
    assert {where.partition: one.offset for where, one in found.items()} == {
        index: index for index in range(PARTITIONS)
    }
    assert sorted(asked) == [(f"h:{9000 + index % BROKERS}", 1) for index in (0, 3, 1, 4, 2, 5)]
