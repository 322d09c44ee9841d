# SPDX-License-Identifier: Apache-2.0
"""Calls to the coordinator of a transactional id: the search, the retries, and the refusals."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.transactions import coordinator
from tidemark.client.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import transaction_service_pb2 as pb

from tests.refusals import raises_code

IDENTITY = ProducerIdentity(7, 3)


class Brokers:
    """Two brokers, of which "b:1" is the coordinator; it gives `refusals` first, one for each request."""

    def __init__(self, *refusals: TidemarkError, moved_from: str = "") -> None:
        self.refusals = list(refusals)
        self.requests: list[Any] = []
        self.searches = 0
        self.named = moved_from or "b:1"

    headers = (("receiver-cluster", "c"),)

    def addresses(self) -> tuple[str, ...]:
        return ("a:1", "b:1")

    def used(self, address: str) -> None:
        pass

    def refresh(self) -> None:
        self.named = "b:1"

    def stub(self, cluster: object, address: str) -> Any:
        return Stub(self, address)

    def answer(self, address: str, request: Any) -> None:
        if address != "b:1":
            raise TidemarkError(ErrorCode.NOT_COORDINATOR, "another broker is the coordinator")
        self.requests.append(request)
        if self.refusals:
            raise self.refusals.pop(0)


class Stub:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers = brokers
        self._address = address

    async def FindTransactionCoordinator(self, request: Any, metadata: object, **_: float) -> Any:  # noqa: N802
        assert metadata == Brokers.headers, "a broker of another cluster would answer"
        self._brokers.searches += 1
        host, _, port = self._brokers.named.rpartition(":")
        return pb.FindTransactionCoordinatorResponse(host=host, port=int(port))

    async def InitTransactions(self, request: Any, metadata: object, **_: float) -> Any:  # noqa: N802
        assert metadata == Brokers.headers, "the id would fence producers of another cluster"
        self._brokers.answer(self._address, request)
        producer = pb.ProducerIdentity(producer_id=7, producer_epoch=4)
        return pb.InitTransactionsResponse(producer=producer, generation=9, last_sequence=-1)

    async def EndTransaction(self, request: Any, **_: object) -> Any:  # noqa: N802
        self._brokers.answer(self._address, request)
        return pb.EndTransactionResponse(producer=pb.ProducerIdentity(producer_id=7, producer_epoch=4))

    async def CommitMembers(self, request: Any, **_: object) -> Any:  # noqa: N802
        self._brokers.answer(self._address, request)
        return pb.CommitMembersResponse(already=True)


def coordinator_at(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, timeout_s: float = 5
) -> TransactionCoordinator:
    monkeypatch.setattr(coordinator, "transaction_stub", brokers.stub)
    return TransactionCoordinator(cast(Cluster, brokers), "loader", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
async def test_a_call_is_repeated_unchanged_until_it_is_answered(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(TidemarkError(code, "not now"), TidemarkError(code, "not now"))
    assert await coordinator_at(brokers, monkeypatch).end(IDENTITY, commit=True) == ProducerIdentity(7, 4)
    assert len(brokers.requests) == 3
    first = brokers.requests[0]
    assert (first.transactional_id, first.producer.producer_epoch, first.commit) == ("loader", 3, True)
    assert all(request == first for request in brokers.requests)


async def test_a_coordinator_that_is_busy_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(TidemarkError(ErrorCode.CONCURRENT_TRANSACTIONS, "not now"))
    started = await coordinator_at(brokers, monkeypatch).init(60_000)
    assert started == (ProducerIdentity(7, 4), 9, -1)
    assert brokers.searches == 1


async def test_a_broker_that_is_not_the_coordinator_any_more_leads_to_a_new_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(moved_from="a:1")
    assert await coordinator_at(brokers, monkeypatch).commit_members(9, [11, 12], sequence=4)
    assert brokers.searches == 2
    assert list(brokers.requests[0].producer_ids) == [11, 12]
    assert (brokers.requests[0].generation, brokers.requests[0].sequence) == (9, 4)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TRANSACTION_TIMEOUT])
async def test_a_refusal_that_no_retry_clears_is_raised_at_once(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(TidemarkError(code, "stop"))
    with raises_code(code):
        await coordinator_at(brokers, monkeypatch).init(60_000, IDENTITY)
    assert len(brokers.requests) == 1
    assert brokers.requests[0].producer.producer_id == 7


async def test_a_timeout_names_the_id_and_the_last_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(*[TidemarkError(ErrorCode.COORDINATOR_LOADING, "it still loads")] * 50)
    with raises_code(ErrorCode.REQUEST_TIMED_OUT, r"transactional id 'loader': .*it still loads"):
        await coordinator_at(brokers, monkeypatch, timeout_s=0.1).end(IDENTITY, commit=False)
