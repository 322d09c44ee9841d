# SPDX-License-Identifier: Apache-2.0
"""Invalid batches are never appended, and wrong peers get no messages, on the streams between brokers."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import grpc
import pytest
from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand
from tidemark.local.ports import HOST
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicPartition,
)
from tidemark.record.checks import check_batch
from tidemark.record.envelope import stamped
from tidemark.rpc.channel import open_channel
from tidemark.rpc.codecs.control import leader_and_isr_to_proto
from tidemark.rpc.server import Service
from tidemark.v1 import replica_service_pb2 as pb
from tidemark.v1.replica_service_pb2_grpc import (
    ReplicaServiceServicer,
    ReplicaServiceStub,
    add_ReplicaServiceServicer_to_server,
)

from tests.fakes.grpc_server import make_server
from tests.integration.harness.hand_controller import DEADLINE_S, Brokers, HandController
from tests.unit.record.samples import sample

FAKE = BrokerId(9)
PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity(uuid.uuid4().hex, uuid.uuid4().hex)
GOOD = stamped(check_batch(sample()), base_offset=0, leader_epoch=0).data


def spoiled(at: int) -> bytes:
    data = bytearray(GOOD)
    data[at] ^= 0xFF
    return bytes(data)


class LyingLeader(ReplicaServiceServicer):
    """Sends the given chunks, one at each fetch from offset 0."""

    def __init__(self, *batches: bytes) -> None:
        self._batches = list(batches)
        self.asked_from: list[int] = []
        self.reported: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def Replicate(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await context.send_initial_metadata(())
        while (request := await context.read()) is not grpc.aio.EOF:
            for position in request.positions:
                self.asked_from.append(position.fetch_offset)
                chunk = pb.ReplicaChunk(handle=position.replica.handle, high_watermark=3, batches=self._batches.pop(0))
                await context.write(pb.ReplicateResponse(chunks=[chunk]))
            for report in request.reports:
                if report.log_end_offset and not self.reported.done():
                    self.reported.set_result(report.log_end_offset)


async def test_a_corrupted_batch_is_refused_fetched_again_and_never_appended(
    one: Brokers, controller: HandController
) -> None:
    lies = [spoiled(-1), spoiled(70), spoiled(21), GOOD[:-8], GOOD + GOOD]
    leader = LyingLeader(*lies, GOOD)
    server = make_server(HOST, 0, [Service(add_ReplicaServiceServicer_to_server, leader, "tidemark.v1.ReplicaService")])
    await server.start()
    try:
        me = (await controller.store.live_brokers())[BrokerId(0)]
        entries = (IsrEntry(FAKE, BrokerEpoch(0)), IsrEntry(BrokerId(0), me.broker_epoch))
        follow = PartitionCommand(
            PARTITION, IDENTITY, (FAKE, BrokerId(0)), LeaderAndIsr(FAKE, LeaderEpoch(0), entries), 0
        )
        where = BrokerRegistration(FAKE, HOST, server.port, broker_epoch=BrokerEpoch(0))
        command = LeaderAndIsrCommand(BrokerId(100), ControllerEpoch(100), me.broker_epoch, (follow,), (me, where))
        await controller.control(0, "LeaderAndIsr", leader_and_isr_to_proto(command))
        async with asyncio.timeout(DEADLINE_S):
            assert await leader.reported == 3
        assert leader.asked_from == [0] * (len(lies) + 1)
        (segment,) = one.log_directory(0).glob("flights-0/*.log")
        assert segment.read_bytes() == GOOD
        told = (one.directory / "broker-0.log").read_text()
        assert told.count("chunk_refused") >= len(lies)
    finally:
        await server.stop(0)


async def replicate(brokers: Brokers, *requests: pb.ReplicateRequest) -> pb.ReplicateResponse:
    """The first answer of broker 0 on a stream; raises its refusal of the stream."""
    async with open_channel(brokers.address(0)) as channel, asyncio.timeout(DEADLINE_S):
        stub: Any = ReplicaServiceStub(channel)
        call = stub.Replicate()
        for request in requests:
            await call.write(request)
        while True:
            response: pb.ReplicateResponse = await call.read()
            if response is grpc.aio.EOF:
                raise AssertionError(await call.details())
            if response.refusals or response.chunks:
                call.cancel()
                return response


async def test_a_broker_without_a_replica_gets_no_records(one: Brokers, controller: HandController) -> None:
    partition = await controller.create_topic("flights-mine", replicas=[0])
    me = (await controller.store.live_brokers())[BrokerId(0)]
    identity = controller.identity(partition)
    handle = pb.ReplicaHandle(
        topic=partition.topic, partition=0, topic_id=identity.topic_id, incarnation=identity.incarnation
    )
    hello = pb.ReplicateHello(broker_id=7, broker_epoch=0, leader_broker_epoch=me.broker_epoch)
    position = pb.FetchPosition(replica=handle, current_leader_epoch=0, fetch_offset=0, last_epoch=-1)
    response = await replicate(one, pb.ReplicateRequest(hello=hello), pb.ReplicateRequest(positions=[position]))
    assert [refusal.error.code for refusal in response.refusals] == [ErrorCode.NOT_A_REPLICA]
    assert not response.chunks


@pytest.mark.parametrize("said", ["nothing", "an old epoch of the leader", "a handle never given"])
async def test_a_stream_of_an_unknown_session_is_refused_with_a_code(
    one: Brokers, controller: HandController, said: str
) -> None:
    epoch = (await controller.store.live_brokers())[BrokerId(0)].broker_epoch
    hello = pb.ReplicateHello(broker_id=7, broker_epoch=0, leader_broker_epoch=epoch + (said[:2] == "an"))
    requests = {
        "nothing": [pb.ReplicateRequest()],
        "an old epoch of the leader": [pb.ReplicateRequest(hello=hello)],
        "a handle never given": [
            pb.ReplicateRequest(hello=hello),
            pb.ReplicateRequest(reports=[pb.ReplicaReport(handle=5)]),
        ],
    }[said]
    async with open_channel(one.address(0)) as channel, asyncio.timeout(DEADLINE_S):
        stub: Any = ReplicaServiceStub(channel)
        call = stub.Replicate()
        for request in requests:
            await call.write(request)
        code = await call.code()
        details = await call.details()
    wanted = ErrorCode.STALE_BROKER_EPOCH if said[:2] == "an" else ErrorCode.INVALID_REQUEST
    assert code is not grpc.StatusCode.OK
    assert wanted in details, details
