# SPDX-License-Identifier: Apache-2.0
"""Verifications share calls to their coordinator, and end with errors that a producer can act on (rule X11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidemark.broker.coordination.lookup import Coordinator
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.transactions.verification import Verification
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb

HERE = BrokerId(0)
OWN = ProducerIdentity(7, 2)


class Service:
    """AddPartitions of this broker, which coordinates every id but "unknown" and "elsewhere"."""

    def __init__(self) -> None:
        self.calls: list[dict[str, list[int]]] = []
        self.refusals: dict[str, ErrorCode] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, request: pb.AddPartitionsRequest) -> pb.AddPartitionsResponse:
        self.calls.append({one.transactional_id: [p.partition for p in one.partitions] for one in request.additions})
        await self.may_answer.wait()
        response = pb.AddPartitionsResponse()
        for one in request.additions:
            code = self.refusals.get(one.transactional_id)
            error = None if code is None else errors.to_proto(TidemarkError(code, "not now"))
            response.outcomes.append(pb.AdditionOutcome(error=error))
        return response

    def locate(self, transactional_id: str) -> Coordinator:
        if transactional_id == "unknown":
            raise TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no leader")
        broker_id = BrokerId(9) if transactional_id == "elsewhere" else HERE
        return Coordinator(0, BrokerRegistration(broker_id, "127.0.0.1", 1), LeaderEpoch(1))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def verification(service: Service) -> AsyncIterator[Verification]:
    made = Verification(HERE, MetadataCache(""), service, service.locate)
    yield made
    await made.stop()


def at(index: int) -> TransactionPartition:
    return TransactionPartition("a", "a-id", index)


async def test_verifications_that_come_together_share_a_call(service: Service, verification: Verification) -> None:
    asked = [verification.verify(name, OWN, at(index)) for name in ("t", "u") for index in range(2)]
    assert await asyncio.gather(*asked) == [None] * 4
    assert service.calls == [{"t": [0, 1], "u": [0, 1]}]


async def test_a_verification_that_is_under_way_is_shared(service: Service, verification: Verification) -> None:
    service.may_answer.clear()
    first = verification.verify("t", OWN, at(0))
    await asyncio.sleep(0)
    second = verification.verify("t", OWN, at(0))
    service.may_answer.set()
    assert await asyncio.gather(first, second) == [None, None]
    assert await verification.verify("t", OWN, at(0)) is None
    assert service.calls == [{"t": [0]}] * 2, "the third one came later"


@pytest.mark.parametrize(
    ("transactional_id", "refusal", "code"),
    [
        ("t", ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED),
        ("t", ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("t", ErrorCode.COORDINATOR_LOADING, ErrorCode.COORDINATOR_LOADING),
        ("t", ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("unknown", ErrorCode.INTERNAL, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("elsewhere", ErrorCode.INTERNAL, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_refusal_keeps_its_code_and_a_coordinator_that_cannot_be_called_is_retriable(
    service: Service, verification: Verification, transactional_id: str, refusal: ErrorCode, code: ErrorCode
) -> None:
    service.refusals["t"] = refusal
    error = await verification.verify(transactional_id, OWN, at(0))
    assert error is not None
    assert error.code is code


async def test_a_refusal_of_one_transaction_does_not_refuse_the_others_of_the_call(
    service: Service, verification: Verification
) -> None:
    service.refusals["t"] = ErrorCode.PRODUCER_FENCED
    asked = [verification.verify(name, OWN, at(0)) for name in ("t", "u")]
    refused, added = await asyncio.gather(*asked)
    assert refused is not None
    assert added is None


async def test_verifications_under_way_are_refused_when_the_broker_stops(
    service: Service, verification: Verification
) -> None:
    service.may_answer.clear()
    waiting = verification.verify("t", OWN, at(0))
    await asyncio.sleep(0)
    await verification.stop()
    error = await waiting
    assert error is not None
    assert error.code is ErrorCode.SHUTTING_DOWN
