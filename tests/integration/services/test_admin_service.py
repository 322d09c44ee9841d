# SPDX-License-Identifier: Apache-2.0
"""The admin service as a process on a real ZooKeeper, with a stand-in for the controller."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from tidemark.local.ports import HOST
from tidemark.local.process import ServiceProcess
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicDescription
from tidemark.rpc.channel import open_channel
from tidemark.rpc.errors import from_rpc_error
from tidemark.runtime.clock import SystemClock
from tidemark.v1 import admin_brokers_pb2 as brokers_pb
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.integration.harness.admin_service import StandInController, admin_process

TIMEOUT_S = 20
SHORT_SESSION = ("--zookeeper.session.timeout.ms=2000",)


class Admin(NamedTuple):
    """An admin process, its stub, the state of its ZooKeeper, and the stand-in for the controller."""

    stub: AdminServiceStub
    process: ServiceProcess
    store: ZooKeeperMetadataStore
    controller: StandInController
    address: str
    metrics_address: str
    connect: str


@pytest.fixture
async def admin(zookeeper: ZooKeeperProcess, tmp_path: Path) -> AsyncIterator[Admin]:
    connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    store = ZooKeeperMetadataStore(connect, 6000, SystemClock())
    await store.start()
    controller = StandInController(store)
    await controller.register_brokers(3)
    await controller.work()
    try:
        async with (
            admin_process(connect, tmp_path, "--zookeeper.session.timeout.ms=2000") as (
                address,
                metrics_address,
                process,
            ),
            open_channel(address) as channel,
        ):
            yield Admin(AdminServiceStub(channel), process, store, controller, address, metrics_address, connect)
    finally:
        await controller.rest()
        await store.stop()


def creation(topic: str, partitions: int = 1, factor: int = 1, **more: object) -> pb.CreateTopicRequest:
    return pb.CreateTopicRequest(topic=topic, partitions=partitions, replication_factor=factor, **more)  # type: ignore[arg-type]


async def refusal(call: grpc.aio.UnaryUnaryCall) -> TidemarkError:  # type: ignore[type-arg]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return from_rpc_error(failed.value, address="admin")


async def test_a_topic_is_created_described_listed_counted_and_deleted(admin: Admin) -> None:
    request = creation("flights", 6, 3, configs={"min.insync.replicas": "2"})
    created = (await admin.stub.CreateTopic(request, timeout=TIMEOUT_S)).topic
    assert [partition.leader for partition in created.partitions] == [0, 1, 2, 0, 1, 2]
    assert list(created.partitions[3].assigned_replicas) == list(created.partitions[3].in_sync_replicas) == [0, 2, 1]
    assert dict(created.configs) == {"min.insync.replicas": "2"}
    assert created.created_zxid > 0
    described = await admin.stub.DescribeTopics(pb.DescribeTopicsRequest(topics=["flights", "gone", "a/b"]), timeout=30)
    assert described.topics[0] == created
    assert [topic.error.code for topic in described.topics] == ["", "UNKNOWN_TOPIC", "INVALID_TOPIC_NAME"]
    assert list((await admin.stub.ListTopics(pb.ListTopicsRequest(), timeout=30)).topics) == ["flights"]
    cluster = await admin.stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=30)
    assert (cluster.topic_count, cluster.partition_count, cluster.offline_count) == (1, 6, 0)
    assert [broker.broker_id for broker in cluster.metadata.brokers] == [0, 1, 2]
    assert (cluster.metadata.controller_id, cluster.metadata.admin_address) == (100, admin.address)
    await admin.stub.DeleteTopic(pb.DeleteTopicRequest(topic="flights"), timeout=TIMEOUT_S)
    assert await admin.store.topics() == {}
    assert (await refusal(admin.stub.DeleteTopic(pb.DeleteTopicRequest(topic="flights"), timeout=30))).code is (
        ErrorCode.UNKNOWN_TOPIC
    )


BAD_INPUT = [
    (creation("a/b"), ErrorCode.INVALID_TOPIC_NAME),
    (creation(".."), ErrorCode.INVALID_TOPIC_NAME),
    (creation("."), ErrorCode.INVALID_TOPIC_NAME),
    (creation("x" * 250), ErrorCode.INVALID_TOPIC_NAME),
    (creation(""), ErrorCode.INVALID_TOPIC_NAME),
    (creation("t", factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
    (creation("t", factor=-1), ErrorCode.INVALID_REPLICATION_FACTOR),
    (creation("t", partitions=0), ErrorCode.INVALID_PARTITIONS),
    (creation("t", partitions=2**31 - 1), ErrorCode.INVALID_PARTITIONS),
    (creation("t", configs={"no.such.setting": "1"}), ErrorCode.UNKNOWN_CONFIG),
    (creation("t", configs={"segment.bytes": "1"}), ErrorCode.INVALID_CONFIG),
    (creation("t", configs={"min.insync.replicas": "2"}), ErrorCode.INVALID_CONFIG),
]


async def test_bad_input_has_a_code_and_a_sentence_each_and_changes_nothing(admin: Admin) -> None:
    for request, code in BAD_INPUT:
        for validate_only in (False, True):
            request.validate_only = validate_only
            refused = await refusal(admin.stub.CreateTopic(request, timeout=TIMEOUT_S))
            assert refused.code is code, refused
            assert refused.message
    assert await admin.store.topics() == {}
    assert await admin.store.requested_deletions() == frozenset()


async def test_a_topic_that_exists_is_refused_and_stays_as_it_is(admin: Admin) -> None:
    await admin.stub.CreateTopic(creation("t", 2), timeout=TIMEOUT_S)
    before = await admin.store.topics()
    refused = await refusal(admin.stub.CreateTopic(creation("t", 5, request_id="another"), timeout=TIMEOUT_S))
    assert refused.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert await admin.store.topics() == before


async def test_validate_only_shows_the_plan_and_writes_nothing(admin: Admin) -> None:
    planned = (await admin.stub.CreateTopic(creation("t", 3, 2, validate_only=True), timeout=TIMEOUT_S)).topic
    assert [list(partition.assigned_replicas) for partition in planned.partitions] == [[0, 1], [1, 2], [2, 0]]
    assert await admin.store.topics() == {}


async def test_a_retry_with_the_same_request_id_finds_its_own_topic(admin: Admin) -> None:
    first = await admin.stub.CreateTopic(creation("t", 3, 2, request_id="one"), timeout=TIMEOUT_S)
    again = await admin.stub.CreateTopic(creation("t", 3, 2, request_id="one"), timeout=TIMEOUT_S)
    assert again == first


async def test_without_a_controller_the_answer_arrives_in_time_and_names_the_cause(admin: Admin) -> None:
    await admin.controller.rest()
    async with asyncio.timeout(TIMEOUT_S):
        while True:  # on a busy machine the answer may come after the caller's deadline
            refused = await refusal(admin.stub.CreateTopic(creation("t", 2, request_id="one"), timeout=1.5))
            assert refused.code is ErrorCode.REQUEST_TIMED_OUT
            if "partitions_missing" in refused.metadata:
                break
    assert refused.metadata["partitions_missing"] == "2"
    assert "2 of 2 partitions" in refused.message
    retry = admin.stub.CreateTopic(creation("t", 2, request_id="one"), timeout=TIMEOUT_S)
    await admin.controller.work()
    assert [partition.leader for partition in (await retry).topic.partitions] == [0, 1]


async def test_a_deletion_without_a_controller_is_reported_as_pending(admin: Admin) -> None:
    await admin.stub.CreateTopic(creation("t"), timeout=TIMEOUT_S)
    await admin.controller.rest()
    refused = await refusal(admin.stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"), timeout=1.5))
    assert refused.code is ErrorCode.REQUEST_TIMED_OUT
    assert await admin.store.requested_deletions() == {"t"}


async def test_many_creations_of_one_topic_at_once_make_one(admin: Admin) -> None:
    calls = [admin.stub.CreateTopic(creation("t", 1 + index), timeout=TIMEOUT_S) for index in range(6)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, pb.CreateTopicResponse)]
    assert len(made) == 1
    for answer in answers:
        if isinstance(answer, grpc.aio.AioRpcError):
            assert from_rpc_error(answer, address="admin").code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len((await admin.store.topics())["t"].partitions) == len(made[0].topic.partitions)


async def test_changes_of_other_processes_are_in_the_next_answer(admin: Admin) -> None:
    other = ZooKeeperMetadataStore(admin.connect, 6000, SystemClock())
    for number in range(3):
        before = await admin.stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=TIMEOUT_S)
        assert before == await admin.stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=TIMEOUT_S)
        await admin.store.create_topic(TopicDescription(f"t{number}", f"i{number}", {0: (BrokerId(0),)}, {0: "i"}))
        listed = await admin.stub.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT_S)
        assert len(listed.topics) == number + 1
        described = await admin.stub.DescribeTopics(pb.DescribeTopicsRequest(), timeout=TIMEOUT_S)
        assert [topic.topic for topic in described.topics] == list(listed.topics)
        await other.start()
        await other.register_broker(
            BrokerRegistration(BrokerId(7), HOST, 1, directory_ids=("d",), boot_id=f"{number}"),
            clean=True,
            locked_directory_ids=frozenset({"d"}),
        )
        more = await admin.stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=TIMEOUT_S)
        assert len(more.metadata.brokers) == len(before.metadata.brokers) + 1
        await other.stop()  # the session ends, as after a kill
        after = await admin.stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=TIMEOUT_S)
        assert len(after.metadata.brokers) == len(before.metadata.brokers)


async def test_calls_at_the_same_time_share_an_answer_and_see_their_own_topic(admin: Admin) -> None:
    async def describe() -> list[str]:
        return list((await admin.stub.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT_S)).topics)

    async def create_and_list(number: int) -> None:
        await admin.stub.CreateTopic(creation(f"t{number}"), timeout=TIMEOUT_S)
        assert f"t{number}" in await describe()

    await asyncio.gather(*(create_and_list(number) for number in range(5)), *(describe() for _ in range(50)))
    assert await asyncio.gather(*(describe() for _ in range(50))) == [[f"t{number}" for number in range(5)]] * 50


async def test_a_restart_needs_a_broker_that_is_known(admin: Admin) -> None:
    for request, status in (
        (brokers_pb.SafeToRestartRequest(broker_id=9), grpc.StatusCode.NOT_FOUND),
        (brokers_pb.SafeToRestartRequest(claim=True), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.stub.SafeToRestart(request, timeout=TIMEOUT_S)
        assert refused.value.code() is status
    known = await admin.stub.SafeToRestart(brokers_pb.SafeToRestartRequest(broker_id=0), timeout=TIMEOUT_S)
    assert known.safe


async def test_changes_are_in_the_audit_log_metrics_are_served_and_sigterm_ends_it_cleanly(admin: Admin) -> None:
    await admin.stub.CreateTopic(creation("audited"), timeout=TIMEOUT_S)
    await refusal(admin.stub.CreateTopic(creation("a/b"), timeout=TIMEOUT_S))
    metrics = await asyncio.to_thread(_metrics_of, admin.metrics_address)
    assert 'tidemark_admin_requests_total{code="OK",method="CreateTopic"} 1.0' in metrics
    assert 'tidemark_admin_requests_total{code="INVALID_TOPIC_NAME",method="CreateTopic"} 1.0' in metrics
    admin.process.signal(signal.SIGTERM)
    assert await asyncio.to_thread(admin.process.wait, 10)
    assert admin.process.exit_status == 0, admin.process.tail()
    audited = [line for line in admin.process.log.read_text().splitlines() if "tidemark.audit" in line]
    assert len(audited) == 2
    assert '"outcome": "OK"' in audited[0]
    assert '"outcome": "INVALID_TOPIC_NAME"' in audited[1]


async def test_the_admin_service_serves_again_when_zookeeper_is_back(admin: Admin, zookeeper: ZooKeeperProcess) -> None:
    zookeeper.kill()
    refused = await refusal(admin.stub.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT_S))
    assert refused.code is ErrorCode.COORDINATION_UNAVAILABLE
    await asyncio.to_thread(zookeeper.start)
    answered = False
    async with asyncio.timeout(TIMEOUT_S):
        while not answered:
            try:
                answered = list((await admin.stub.ListTopics(pb.ListTopicsRequest(), timeout=5)).topics) == []
            except grpc.aio.AioRpcError as error:
                if not from_rpc_error(error, address="admin").retriable:
                    raise


async def test_without_zookeeper_the_service_is_not_serving_retries_and_stops_cleanly(tmp_path: Path) -> None:
    async with admin_process("127.0.0.1:1", tmp_path, *SHORT_SESSION, serving=False) as (_, metrics_address, process):
        assert "tidemark_" in await asyncio.to_thread(_metrics_of, metrics_address)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10)
        assert process.exit_status == 0, process.tail()


def _metrics_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())
