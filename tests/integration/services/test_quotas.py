# SPDX-License-Identifier: Apache-2.0
"""Quotas on a cluster with certificates: clients of several users, and programs that ignore the waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark.client import AdminClient, Consumer, Producer, QuotaExceededError, RequestTimedOutError, TlsFiles
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.tls import Credentials
from tidemark.client.quotas import DEFAULT, QuotaChange, QuotaEntity, QuotaKind
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode
from tidemark.record.payload import build_batch, from_columns
from tidemark.rpc.channel import blocking_channels
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.security.files import TlsIdentity
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

from tests.channels import opened
from tests.integration.harness.certificates import signed_by
from tests.integration.harness.metrics import samples
from tests.integration.harness.quotas import until_in_effect
from tests.refusals import raises_code

TOPIC = "orders"
RATE = 100_000
"""Bytes per second of a quota."""
VALUE = bytes(5_000)
RECORDS = 80
SIZE_BYTES = RECORDS * len(VALUE)
LEAST_S = (SIZE_BYTES - RATE) / RATE - 0.5
"""Time for all records at the rate, less the burst of a second."""
MOST_S = 4 * SIZE_BYTES / RATE
CALL_S = 60.0
PRODUCE, FETCH, TIME, CREATE = QuotaKind


class Cluster:
    """The cluster, the files of each user, and the quotas."""

    def __init__(self, local: LocalCluster, directory: Path) -> None:
        self.local = local
        self._directory = directory
        self._files: dict[str, TlsFiles] = {}
        self._signing = threading.Lock()
        self.admin = AdminClient(local.bootstrap, tls=self.files("root"))

    def files(self, name: str) -> TlsFiles:
        with self._signing:  # clients of one user start on several threads
            if name not in self._files:
                uris = [f"tidemark://local/user/{name}"]
                self._files[name] = signed_by(self.local.directory / "certs", self._directory / name, uris=uris)
            return self._files[name]

    def limit(self, limits: Mapping[QuotaEntity, Mapping[QuotaKind, float]]) -> None:
        """Replace all quotas, and wait until every broker has them."""
        before = self.admin.describe_client_quotas()
        changes = [QuotaChange(one, {}, frozenset(QuotaKind)) for one in before if one not in limits]
        for one, found in limits.items():
            changes.append(QuotaChange(one, found, frozenset(QuotaKind) - found.keys()))
        until_in_effect(self.local, self.admin.alter_client_quotas(changes).generation)

    def stub(self, user: str, broker: int) -> Any:
        channels = blocking_channels(TlsIdentity(self.files(user)))
        return BrokerServiceStub(opened(channels, self.local.client_address(f"broker-{broker}")))


def user(name: str, client_id: str | None = None) -> QuotaEntity:
    return QuotaEntity(f"User:tidemark://local/user/{name}", client_id)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with LocalCluster(tmp_path_factory.mktemp("quotas"), brokers=2, controllers=1, secure=True) as local:
        made = Cluster(local, tmp_path_factory.mktemp("users"))
        with made.admin:
            made.admin.create_topic(TOPIC, partitions=1, replication_factor=2)
            yield made


def produce(cluster: Cluster, name: str, **settings: Any) -> tuple[float, float]:
    """Send all records; returns the seconds of the send, and the sum of the stated quota delays in seconds."""
    began_s = time.monotonic()
    with Producer(cluster.local.bootstrap, tls=cluster.files(name), batch_bytes=10_000, **settings) as producer:
        for _ in range(RECORDS):
            producer.send(TOPIC, VALUE)
        producer.flush(CALL_S)
        metrics = producer.metrics()
        assert metrics.failed_records == 0
    return time.monotonic() - began_s, metrics.throttled_s


def consume(cluster: Cluster, name: str, **settings: Any) -> tuple[float, float]:
    """Read all records; returns as `produce`."""
    began_s = time.monotonic()
    with Consumer(cluster.local.bootstrap, tls=cluster.files(name), max_partition_bytes=10_000, **settings) as consumer:
        consumer.assign(TOPIC)
        for _, _record in zip(range(RECORDS), consumer, strict=False):
            continue
        return time.monotonic() - began_s, consumer.metrics().throttled_s


def read_range(cluster: Cluster, name: str) -> float:
    began_s = time.monotonic()
    with RangeReader(
        cluster.local.bootstrap, deadline_s=3, tls=Credentials(cluster.files(name)), client_id="ranges"
    ) as reader:
        rows = sum(rows.num_rows for rows in reader.read(TOPIC, 0, 0, RECORDS, fetch_bytes=10_000))
    assert rows == RECORDS
    return time.monotonic() - began_s


def test_a_client_over_its_quota_is_as_slow_as_the_quota_and_other_users_are_not_slowed(cluster: Cluster) -> None:
    cluster.limit(
        {
            user("alice"): {PRODUCE: RATE, FETCH: RATE},
            user("carol", "slow"): {PRODUCE: RATE},
            QuotaEntity(None, "ranges"): {FETCH: RATE},
        }
    )
    with ThreadPoolExecutor(4) as pool:
        alice, slow = pool.submit(produce, cluster, "alice"), pool.submit(produce, cluster, "carol", client_id="slow")
        bob, quick = pool.submit(produce, cluster, "bob"), pool.submit(produce, cluster, "carol", client_id="quick")
        for throttled in (alice, slow):
            took_s, waited_s = throttled.result()
            assert LEAST_S < took_s < MOST_S
            assert waited_s > LEAST_S / 2
        for free in (bob, quick):
            took_s, waited_s = free.result()
            assert (took_s < MOST_S, waited_s) == (True, 0)
        readers = pool.submit(consume, cluster, "alice"), pool.submit(consume, cluster, "bob")
        ranges = pool.submit(read_range, cluster, "dave")
        (alice_s, alice_waited_s), (bob_s, bob_waited_s) = (one.result() for one in readers)
        assert LEAST_S < alice_s < MOST_S
        assert LEAST_S < ranges.result() < MOST_S
        assert (bob_s < MOST_S, bob_waited_s) == (True, 0)
        assert alice_waited_s > 0, "a reader on a slow machine spends most of the time on reading"
    brokers = [samples(cluster.local, name) for name in ("broker-0", "broker-1")]
    found = {key: value for broker in brokers for key, value in broker.items() if value}
    labels = f'user="{user("alice").user}",client_id=""'
    assert found[f"tidemark_quota_produced_bytes_total{{{labels}}}"] >= SIZE_BYTES
    assert found[f"tidemark_quota_fetched_bytes_total{{{labels}}}"] >= SIZE_BYTES
    assert found[f'tidemark_quota_throttle_seconds_total{{kind="producer_byte_rate",{labels}}}'] > 1
    assert not [key for key in found if "user/bob" in key or "quick" in key]


def test_a_new_producer_of_a_user_in_debt_waits_beyond_its_request_timeout(cluster: Cluster) -> None:
    cluster.limit({user("erin"): {PRODUCE: RATE}})

    def producer(delivery_timeout_ms: int) -> Producer:
        files = cluster.files("erin")
        return Producer(
            cluster.local.bootstrap, tls=files, delivery_timeout_ms=delivery_timeout_ms, request_timeout_ms=1_000
        )

    with producer(60_000) as first:
        first.send(TOPIC, bytes(10 * RATE)).result(CALL_S)
    with producer(2_000) as hasty, pytest.raises(RequestTimedOutError, match="a quota slowed this producer down"):
        hasty.send(TOPIC, VALUE).result(CALL_S)
    with producer(60_000) as patient:
        patient.send(TOPIC, VALUE).result(CALL_S)
        metrics = patient.metrics()
    assert metrics.throttled_s > 0


def leader(cluster: Cluster) -> Any:
    request = pb.GetMetadataRequest(topics=[TOPIC])
    return cluster.stub("root", 0).GetMetadata(request, timeout=CALL_S).metadata.topics[0].partitions[0]


def batch() -> bytes:
    return build_batch(from_columns([None], [VALUE * 2], [1_700_000_000_000_000]))


def requests(count: int) -> Iterator[pb.ProduceRequest]:
    for number in range(count):
        part = pb.PartitionProduce(topic=TOPIC, partition=0, current_leader_epoch=-1, batches=[batch()])
        yield pb.ProduceRequest(correlation_id=number + 1, acks=1, timeout_ms=10_000, partitions=[part])


def test_a_program_that_ignores_the_waits_is_held_up_on_each_of_its_streams(
    cluster: Cluster,
) -> None:
    cluster.limit(
        {user("mallory"): {PRODUCE: RATE, FETCH: RATE}, user("trent"): {FETCH: RATE}, user("ursula"): {FETCH: RATE}}
    )
    where = leader(cluster)
    broker = cluster.stub("mallory", where.leader)

    def one_stream() -> tuple[int, int]:
        answers = list(broker.Produce(requests(20), timeout=CALL_S))
        assert not [one for one in answers if one.partitions[0].HasField("error")]
        return len(answers), max(one.throttle_time_ms for one in answers)

    def many_streams() -> tuple[int, int]:
        answers = [next(iter(broker.Produce(requests(1), timeout=CALL_S))) for _ in range(20)]
        return len(answers), max(one.throttle_time_ms for one in answers)

    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for count, told_ms in (one.result() for one in (pool.submit(one_stream), pool.submit(many_streams))):
            assert count == 20
            assert 0 < told_ms <= 30_000
    assert LEAST_S < time.monotonic() - began_s < MOST_S

    part = pb.PartitionFetch(topic=TOPIC, partition=0, current_leader_epoch=-1)
    fetch = pb.FetchRequest(partitions=[part], max_bytes=1 << 20, min_bytes=1)
    reader = cluster.stub("trent", where.leader)
    stop_s = time.monotonic() + 2

    def until_then() -> Iterator[pb.FetchRequest]:
        while time.monotonic() < stop_s:
            yield fetch

    def singles() -> Iterator[pb.FetchResponse]:
        return (reader.Fetch(one, timeout=CALL_S) for one in until_then())

    def new_streams() -> Iterator[pb.FetchResponse]:
        return (next(iter(reader.FetchStream(iter([one]), timeout=CALL_S))) for one in until_then())

    def read_bytes(responses: Callable[[], Iterator[pb.FetchResponse]]) -> int:
        return sum(len(one.partitions[0].batches) for one in responses())

    began_s = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        got_bytes = sum(pool.map(read_bytes, (singles, new_streams)))
    took_s = time.monotonic() - began_s
    assert RATE / 2 < got_bytes < (took_s + 2) * RATE
    began_s = time.monotonic()
    one_batch = pb.FetchRequest(partitions=[part], max_bytes=1, min_bytes=1)
    answers = list(cluster.stub("ursula", where.leader).FetchStream(iter([one_batch] * 30), timeout=CALL_S))
    got_bytes = sum(len(one.partitions[0].batches) for one in answers)
    assert (len(answers), answers[-1].throttle_time_ms > 0) == (30, True)
    assert sum(one.partitions[0].batches != b"" for one in answers) > 20, "the stream was not read during the waits"
    assert got_bytes < (time.monotonic() - began_s + 2) * RATE


def test_replication_and_calls_of_the_services_are_not_throttled(cluster: Cluster) -> None:
    cluster.limit(
        {
            QuotaEntity(DEFAULT): {PRODUCE: 1, FETCH: 1, TIME: 0.01, CREATE: 0.001},
            QuotaEntity(DEFAULT, DEFAULT): {PRODUCE: 1, FETCH: 1, TIME: 0.01},
            user("erin"): {PRODUCE: 1e12, FETCH: 1e12, TIME: 1e5},
            user("erin", DEFAULT): {PRODUCE: 1e12, FETCH: 1e12, TIME: 1e5},
        }
    )
    took_s, waited_s = produce(cluster, "erin")
    assert (took_s < MOST_S, waited_s) == (True, 0), "both replicas acknowledged every record"
    cluster.limit({})


def test_a_raised_quota_ends_the_waits_within_a_second(cluster: Cluster) -> None:
    cluster.limit({user("oscar"): {PRODUCE: 1_000}})
    where = leader(cluster)
    answered = threading.Semaphore(0)
    times: list[float] = []

    def run() -> None:
        for _ in cluster.stub("oscar", where.leader).Produce(requests(3), timeout=CALL_S):
            times.append(time.monotonic())
            answered.release()

    thread = threading.Thread(target=run)
    thread.start()
    assert answered.acquire(timeout=CALL_S)
    assert not answered.acquire(timeout=2), "a request of ten seconds' bytes holds the stream up"
    changed_s = time.monotonic()
    cluster.admin.alter_client_quotas([QuotaChange(user("oscar"), {PRODUCE: 1e9})])
    thread.join(CALL_S)
    assert len(times) == 3
    assert times[-1] - changed_s < 1
    cluster.limit({})


def test_a_share_of_request_time_slows_a_client_down(cluster: Cluster) -> None:
    cluster.limit({user("alice"): {TIME: 0.5}})
    broker = cluster.stub("alice", leader(cluster).leader)
    answers = broker.Produce(requests(10_000), timeout=CALL_S)
    began_s, told_ms = time.monotonic(), 0
    for one in answers:
        told_ms = max(told_ms, one.throttle_time_ms)
        if told_ms and time.monotonic() - began_s > 2:
            break
    answers.cancel()
    took_s = time.monotonic() - began_s
    name = f'tidemark_quota_request_seconds_total{{user="{user("alice").user}",client_id=""}}'
    used_s = max(samples(cluster.local, broker).get(name, 0) for broker in ("broker-0", "broker-1"))
    assert 0 < used_s < (took_s + 1) * 0.005 + 0.2, "the broker read the stream as the quota allows"
    cluster.limit({})


def test_a_client_id_that_no_client_may_have_is_refused_at_the_start_of_a_stream(cluster: Cluster) -> None:
    broker = cluster.stub("bob", 0)
    header = (("client-id", "x" * 256),)
    part = pb.PartitionFetch(topic=TOPIC, partition=0)
    calls = (
        lambda: list(broker.Produce(requests(1), timeout=CALL_S, metadata=header)),
        lambda: list(broker.FetchStream(iter([pb.FetchRequest(partitions=[part])]), timeout=CALL_S, metadata=header)),
        lambda: broker.Fetch(pb.FetchRequest(partitions=[part]), timeout=CALL_S, metadata=header),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert from_rpc_error(refused.value, address="broker").code is ErrorCode.INVALID_REQUEST


def test_a_wrong_quota_changes_nothing(cluster: Cluster) -> None:
    before = cluster.admin.describe_client_quotas()
    good = QuotaChange(user("frank"), {PRODUCE: 5.0})
    for wrong in (
        QuotaChange(QuotaEntity(), {PRODUCE: 5.0}),
        QuotaChange(QuotaEntity(""), {PRODUCE: 5.0}),
        QuotaChange(QuotaEntity("frank"), {PRODUCE: 5.0}),
        QuotaChange(QuotaEntity(None, "x" * 256), {PRODUCE: 5.0}),
        QuotaChange(user("frank", "id"), {PRODUCE: -5.0}),
        QuotaChange(user("frank", "id"), {"ip_connection_rate": 5.0}),  # type: ignore[dict-item]
        good,
    ):
        with raises_code(ErrorCode.INVALID_REQUEST):
            cluster.admin.alter_client_quotas([good, wrong])
    assert cluster.admin.describe_client_quotas() == before


def test_partitions_beyond_the_quota_are_refused_and_nothing_is_changed(cluster: Cluster) -> None:
    cluster.limit({user("grace"): {CREATE: 1.0}})
    with AdminClient(cluster.local.bootstrap, tls=cluster.files("grace"), timeout_s=4) as grace:
        grace.create_topic("many", partitions=30, replication_factor=1)
        before = cluster.admin.list_topics()
        for call in (
            lambda: grace.create_topic("more", partitions=1, replication_factor=1),
            lambda: grace.create_partitions("many", 31),
        ):
            with pytest.raises(QuotaExceededError) as refused:
                call()
            assert refused.value.retriable
            assert 4_000 < int(refused.value.metadata["throttle_time_ms"]) < 30_000
        grace.create_topic("planned", partitions=1, replication_factor=1, validate_only=True)
        grace.create_partitions("many", 30)
        assert cluster.admin.list_topics() == before
        assert len(cluster.admin.describe_topics(["many"])[0].partitions) == 30
    cluster.admin.create_topic("of-root", partitions=5, replication_factor=1)
    cluster.limit({user("grace"): {CREATE: 15.0}})
    with AdminClient(cluster.local.bootstrap, tls=cluster.files("grace")) as patient:
        patient.create_topic("later", partitions=1, replication_factor=1)
    cluster.limit({})
