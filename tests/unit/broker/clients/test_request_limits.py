# SPDX-License-Identifier: Apache-2.0
"""Requests that name many items: handled in slices while other tasks run, and refused beyond the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NoReturn, cast

import grpc
import pytest
from tidemark.broker.coordination.lookup import Coordinator
from tidemark.broker.groups.coordinators import GroupCoordinators
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.broker.groups.service import GroupService, Verify
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch, TidemarkError
from tidemark.rpc import request_limits
from tidemark.rpc.codecs.metadata import ViewWriter
from tidemark.rpc.request_limits import check_named
from tidemark.runtime import slices
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import group_service_pb2 as gpb

from tests.refusals import raises_code
from tests.turns import counted_turns
from tests.unit.broker.clients.test_produce import FakeContext, Harness
from tests.unit.record.samples import sample

MANY = 1000


@pytest.fixture(autouse=True)
def no_slice_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)


class Aborted(FakeContext):
    """A context that records how its stream was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: tuple[Any, str] | None = None

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self.refused = (code, details)
        raise grpc.aio.AbortError(details)


@pytest.fixture
async def produced() -> AsyncIterator[tuple[Harness, Aborted]]:
    harness = Harness()
    harness.stream.cancel()
    await asyncio.wait({harness.stream})
    harness.context = context = Aborted()
    harness.stream = asyncio.create_task(harness.service.serve(context))
    yield harness, context
    harness.stream.cancel()
    await asyncio.wait({harness.stream})


async def test_a_produce_request_of_many_partitions_is_handled_and_answered_in_slices(
    produced: tuple[Harness, Aborted],
) -> None:
    harness, context = produced
    async with counted_turns() as turns:
        context.send(1, b"no batch", partitions=MANY)
        response = await harness.response()
    assert [one.partition for one in response.partitions] == list(range(MANY))
    assert all(one.error.code for one in response.partitions)
    assert len(turns) > MANY // 2


async def test_a_produce_request_of_many_batches_for_one_partition_is_checked_in_slices() -> None:
    harness = Harness()
    harness.context.send(1, *[sample()] * MANY)
    async with counted_turns() as turns:
        while not harness.core.arrived:  # noqa: ASYNC110 - the test counts the turns of the loop
            await asyncio.sleep(0)
    assert len(turns) > MANY
    harness.stream.cancel()
    await asyncio.wait({harness.stream})


async def test_a_produce_request_beyond_the_limit_ends_its_stream_after_earlier_answers(
    produced: tuple[Harness, Aborted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 10)
    harness, context = produced
    context.send(1, b"no batch")
    context.send(2, b"no batch", partitions=11)
    context.send(3, b"no batch")
    assert (await harness.response()).correlation_id == 1
    await asyncio.wait({harness.stream}, timeout=5)
    assert context.responses.empty()
    assert context.refused is not None
    code, sentence = context.refused
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 10 partitions" in sentence


async def test_a_produce_request_without_batches_is_refused_for_that_partition_alone(
    produced: tuple[Harness, Aborted],
) -> None:
    harness, context = produced
    context.send(1)
    result = (await harness.response()).partitions[0]
    assert (result.error.code, result.base_offset) == (ErrorCode.INVALID_REQUEST, -1)
    assert "has no batch for this partition" in result.error.message
    assert context.refused is None


async def test_a_produce_request_with_too_many_batches_is_refused_for_that_partition_alone(
    produced: tuple[Harness, Aborted],
) -> None:
    harness, context = produced
    context.send(1, *[sample()] * (MANY + 1))
    result = (await harness.response()).partitions[0]
    assert (result.error.code, result.base_offset) == (ErrorCode.INVALID_REQUEST, -1)
    assert "at most 1000 batches of a partition, and this one has 1001" in result.error.message
    assert context.refused is None
    assert not harness.core.arrived


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (pb.ProduceRequest(correlation_id=2, acks=-1, timeout_ms=1), "must name at least one partition"),
        (
            pb.ProduceRequest(timeout_ms=-1, partitions=[pb.PartitionProduce(topic="flights")]),
            "timeout_ms is -1: give 0 or more milliseconds",
        ),
    ],
    ids=["no partition", "negative wait"],
)
async def test_an_empty_produce_request_and_a_negative_wait_end_the_stream_after_earlier_answers(
    produced: tuple[Harness, Aborted], request_: pb.ProduceRequest, sentence: str
) -> None:
    harness, context = produced
    context.send(1, b"no batch")
    context.requests.put_nowait(request_)
    assert (await harness.response()).correlation_id == 1
    await asyncio.wait({harness.stream}, timeout=5)
    assert context.refused is not None
    code, told = context.refused
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in told


async def test_metadata_of_many_topics_is_found_and_written_in_slices() -> None:
    cache = MetadataCache("")
    cache.update(replace(ClusterView(), complete=True))
    names = [f"t{index}" for index in range(MANY)]
    async with counted_turns() as turns:
        view = await cache.describe_in_slices(names)
        found = len(turns)
        answer = await ViewWriter().answer(pb.GetMetadataResponse, view)
        written = len(turns) - found
    assert [topic.topic for topic in answer.metadata.topics] == names
    assert {topic.error.code for topic in answer.metadata.topics} == {ErrorCode.UNKNOWN_TOPIC}
    assert min(found, written) > MANY // 2


class Located:
    """Stands for `GroupCoordinators` in FindCoordinator; the first valid id waits for the topic."""

    def __init__(self) -> None:
        self.waited: list[str] = []

    async def find(self, group_id: str) -> Coordinator:
        self.waited.append(group_id)
        return self.located(group_id)

    def located(self, group_id: str) -> Coordinator:
        if not group_id:
            raise TidemarkError(ErrorCode.INVALID_GROUP_ID, "a group has a name")
        return Coordinator(3, BrokerRegistration(BrokerId(1), "here", 9), LeaderEpoch(5))


async def test_coordinators_of_many_groups_are_found_in_slices_and_the_topic_is_waited_for_once() -> None:
    groups = Located()
    service = GroupService(cast(GroupCoordinators, groups), cast(GroupOffsets, None), cast(Verify, None))
    names = ["", *(f"g{index}" for index in range(MANY))]
    async with counted_turns() as turns:
        response = await service.FindCoordinator(gpb.FindCoordinatorRequest(group_ids=names), None)
    assert [one.group_id for one in response.coordinators] == names
    assert [one.broker_id for one in response.coordinators] == [-1, *[1] * MANY]
    assert groups.waited == ["", "g0"]
    assert len(turns) > MANY // 2


def test_a_request_beyond_the_limit_is_refused_with_the_limit() -> None:
    check_named(range(request_limits.NAMED_MAX), "topics")
    with raises_code(ErrorCode.INVALID_REQUEST, "at most 20000 topics, this one 20001; send several") as refused:
        check_named(range(request_limits.NAMED_MAX + 1), "topics")
    assert refused.value.metadata == {"named_max": "20000"}
