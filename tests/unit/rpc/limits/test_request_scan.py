# SPDX-License-Identifier: Apache-2.0
"""Encoded requests with very many items, which are refused before they are decoded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors, request_limits
from tidemark.rpc.channel import open_channel
from tidemark.rpc.limits import request_scan
from tidemark.rpc.limits.connections import REFUSALS_PER_S
from tidemark.rpc.server import Service
from tidemark.v1 import broker_service_pb2 as pb

from tests.fakes.grpc_server import make_server
from tests.turns import counted_turns

EMPTY_ITEMS = {
    "ListOffsets": b"\x0a\x00",  # ListOffsetsRequest.partitions
    "FetchStream": b"\x22\x00",  # FetchRequest.partitions
    "Produce": b"\x22\x00",  # ProduceRequest.partitions
}
FETCH: Any = pb.FetchRequest.DESCRIPTOR
PRODUCE: Any = pb.ProduceRequest.DESCRIPTOR


def check_items(data: bytes, descriptor: Any) -> None:
    asyncio.run(request_scan.check_items(data, descriptor))


class Served:
    """Answers requests that are decoded."""

    async def one(self, request: Any, context: Any) -> pb.ListOffsetsResponse:
        return pb.ListOffsetsResponse(partitions=[pb.PartitionListOffsetsResult(partition=len(request.partitions))])

    async def many(self, requests: Any, context: Any) -> None:
        await context.read()
        await context.write(b"")

    def add(self, servicer: object, server: grpc.aio.Server) -> None:
        own = {
            "ListOffsets": grpc.unary_unary_rpc_method_handler(
                self.one, pb.ListOffsetsRequest.FromString, pb.ListOffsetsResponse.SerializeToString
            ),
            "FetchStream": grpc.stream_stream_rpc_method_handler(self.many, pb.FetchRequest.FromString),
            "Produce": grpc.stream_stream_rpc_method_handler(self.many, pb.ProduceRequest.FromString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tidemark.v1.BrokerService", own),))


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    served = Served()
    server = make_server("127.0.0.1", 0, [Service(served.add, served, "tidemark.v1.BrokerService")])
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
    await server.stop(0)


async def _call(channel: grpc.aio.Channel, method: str, request: bytes) -> Any:
    path = f"/tidemark.v1.BrokerService/{method}"
    if method == "ListOffsets":
        one: Any = channel.unary_unary(path)
        return await one(request, timeout=60)
    many: Any = channel.stream_stream(path)
    call = many(timeout=60)
    await call.write(request)
    return await call.read()


@pytest.mark.parametrize("method", EMPTY_ITEMS)
async def test_a_request_of_very_many_tiny_items_is_refused_undecoded(channel: grpc.aio.Channel, method: str) -> None:
    item = EMPTY_ITEMS[method]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _call(channel, method, item * 3_500_000)
    error = errors.from_rpc_error(refused.value, address="server")
    assert (error.code, error.metadata["named_max"]) == (ErrorCode.INVALID_REQUEST, str(request_limits.NAMED_MAX))
    assert await _call(channel, method, item * 1_000) is not grpc.aio.EOF


async def test_a_unary_request_that_no_answer_could_repeat_is_refused(channel: grpc.aio.Channel) -> None:
    long = pb.ListOffsetsRequest(partitions=[pb.PartitionListOffsets(topic="x" * request_limits.REQUEST_BYTES_MAX)])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _call(channel, "ListOffsets", long.SerializeToString())
    error = errors.from_rpc_error(refused.value, address="server")
    assert error.metadata == {"request_bytes_max": str(request_limits.REQUEST_BYTES_MAX)}


async def test_a_program_that_repeats_a_refused_request_waits_for_its_answers(channel: grpc.aio.Channel) -> None:
    items = EMPTY_ITEMS["ListOffsets"] * 200_000
    began_s = time.monotonic()
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError):
            await _call(channel, "ListOffsets", items)
    assert time.monotonic() - began_s >= 2 / REFUSALS_PER_S


@pytest.mark.parametrize("method", EMPTY_ITEMS)
async def test_a_malformed_request_is_refused_by_name(
    channel: grpc.aio.Channel, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _call(channel, method, b"\x0a\xff")
    error = errors.from_rpc_error(refused.value, address="server")
    assert (error.code, "malformed" in error.message) == (ErrorCode.INVALID_REQUEST, True)
    assert not caplog.records, "any caller could fill the log with tracebacks"


def test_the_most_items_with_all_their_fields_are_taken() -> None:
    part = pb.PartitionFetch(
        topic="t" * 20, partition=1, current_leader_epoch=1, fetch_offset=1 << 40, last_fetched_epoch=1,
        max_bytes=1 << 20, topic_id="i" * 22, incarnation="i" * 22, read_from=pb.READ_FROM_LEADER, check_batches=True,
    )  # fmt: skip
    many = request_limits.NAMED_MAX
    check_items(pb.FetchRequest(partitions=[part] * many).SerializeToString(), FETCH)
    batch = pb.PartitionProduce(
        topic="t" * 20, partition=1, current_leader_epoch=1, topic_id="i" * 22, batches=[b"b"] * 2
    )
    check_items(pb.ProduceRequest(partitions=[batch] * many).SerializeToString(), PRODUCE)
    with pytest.raises(TidemarkError, match="at most 20000 items"):
        check_items(pb.FetchRequest(partitions=[part] * (4 * many + 1)).SerializeToString(), FETCH)


def test_items_of_items_count_and_neither_groups_nor_scalars_hide_them() -> None:
    nested = pb.PartitionProduce(batches=[b""] * 100_000).SerializeToString()
    whole = pb.ProduceRequest(partitions=[pb.PartitionProduce()]).SerializeToString()[:1]
    length = bytes([len(nested) & 0x7F | 0x80, len(nested) >> 7 & 0x7F | 0x80, len(nested) >> 14])
    pad = b"\x2a\x80\x80\x08" + bytes(1 << 17)  # an unknown field
    for data in (
        whole + length + nested + pad,
        b"\x7b" + b"\x22\x00" * 90_000,  # in a group
        b"\x08\x01" * 400_000,  # a number, repeatedly
    ):
        with pytest.raises(TidemarkError, match="items"):
            check_items(data, PRODUCE)


@given(st.binary(max_size=400))
def test_any_bytes_are_counted_or_refused(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(TidemarkError):
        patched.setattr(request_scan, "COUNTED_FROM_BYTES", 0)
        patched.setattr(request_limits, "NAMED_MAX", 3)
        check_items(data, PRODUCE)


def test_a_number_without_an_end_costs_no_time() -> None:
    began_s = time.process_time()
    check_items(b"\xff" * (16 << 20), PRODUCE)
    assert time.process_time() - began_s < 1


async def test_other_tasks_run_while_items_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_scan, "SLICE_S", 0.0)
    data = pb.ProduceRequest(partitions=[pb.PartitionProduce(batches=[b""] * 3)] * 19_000).SerializeToString()
    async with counted_turns() as turns:
        await request_scan.check_items(data, PRODUCE)
    assert len(turns) >= 19_000 * 4 // 1_000
