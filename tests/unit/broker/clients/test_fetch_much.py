# SPDX-License-Identifier: Apache-2.0
"""A request for very many partitions is answered as a whole, and the event loop runs other tasks meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tidemark.broker.clients.fetch import FetchService
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.core.security.principals import ANONYMOUS
from tidemark.model import ErrorCode
from tidemark.rpc import request_limits
from tidemark.rpc.security.access import Access
from tidemark.rpc.security.audit import Audit
from tidemark.runtime import slices
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import broker_service_pb2 as pb

from tests.refusals import raises_code
from tests.turns import counted_turns
from tests.unit.broker.clients.test_fetch import END, clock, service

__all__ = ["clock", "service"]

MANY = 300


def fetches() -> pb.FetchRequest:
    named = [pb.PartitionFetch(topic="flights", partition=index, fetch_offset=END) for index in range(MANY)]
    return pb.FetchRequest(partitions=named, max_bytes=100)


def listings() -> pb.ListOffsetsRequest:
    named = [pb.PartitionListOffsets(topic="flights", partition=index, latest=True) for index in range(MANY)]
    return pb.ListOffsetsRequest(partitions=named)


def epochs() -> pb.OffsetsForLeaderEpochRequest:
    named = [pb.PartitionEpoch(topic="flights", partition=index, leader_epoch=1) for index in range(MANY)]
    return pb.OffsetsForLeaderEpochRequest(partitions=named)


@pytest.mark.parametrize(
    ("asked", "of"),
    [
        (fetches, lambda service: service.fetch),
        (listings, lambda service: service.list_offsets),
        (epochs, lambda service: service.epoch_ends),
    ],
)
async def test_other_tasks_run_between_its_partitions(
    service: FetchService,
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[], Any],
    of: Callable[[FetchService], Callable[[Any], Awaitable[Any]]],
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    async with counted_turns() as turns:
        answer = await of(service)(asked())
    facts = [one.facts for one in answer] if isinstance(answer, list) else answer.partitions
    assert [one.partition for one in facts] == list(range(MANY))
    assert not any(one.error.code for one in facts)
    assert len(turns) > MANY // 2


async def test_a_fetch_of_too_many_partitions_is_refused(
    service: FetchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", MANY - 1)
    with raises_code(ErrorCode.INVALID_REQUEST, f"at most {MANY - 1} partitions"):
        await service.fetch(fetches())


async def test_a_denied_topic_of_many_partitions_is_decided_and_written_once(
    service: FetchService,
) -> None:
    authorizer, metrics = Authorizer(), Metrics()
    authorizer.use(Rules())
    access = Access(authorizer, Audit(metrics), ANONYMOUS, "::1", "")
    results = await service.fetch(fetches(), access)
    assert [one.facts.error.code for one in results] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * MANY
    assert 'operation="READ",resource_type="TOPIC"} 1.0' in metrics.render().decode()
