# SPDX-License-Identifier: Apache-2.0
"""Descriptions of transactional ids: one call for each coordinator, and ids that have moved or expired; leaders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio import coordinator_admin, transaction_admin
from tidemark.client.aio.transaction_admin import TransactionAdmin, TransactionDescription, TransactionListing
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2, metadata_pb2
from tidemark.v1 import transaction_service_pb2 as pb

MOVED, EXPIRED, LOADED = "moved", "expired", "loaded"


class Brokers:
    """Brokers 0 and 1 answer; `calls` has the ids of each call, `lists` those that a broker lists.

    Ids that have moved are at broker 1; that of a partition which is loaded has no coordinator.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.lists: dict[str, list[str]] = {}

    def stub(self, _: object, address: str) -> Any:
        def describe(request: pb.DescribeTransactionsRequest, **_: object) -> Any:
            self.calls.append((address, list(request.transactional_ids)))
            return pb.DescribeTransactionsResponse(
                transactions=[self._described(name, address) for name in request.transactional_ids]
            )

        def list_all(request: pb.ListTransactionsRequest, **_: object) -> Any:
            there = self.lists.get(address, ())
            return pb.ListTransactionsResponse(
                transactions=[pb.TransactionSummary(transactional_id=one) for one in there]
            )

        return SimpleNamespace(DescribeTransactions=describe, ListTransactions=list_all)

    def _described(self, name: str, address: str) -> pb.TransactionDescription:
        described = pb.TransactionDescription(transactional_id=name)
        codes = {LOADED: ErrorCode.NOT_COORDINATOR, EXPIRED: ErrorCode.TRANSACTION_NOT_FOUND}
        if name.startswith(MOVED) and address == "b0:9":
            codes[name] = ErrorCode.NOT_COORDINATOR
        if name in codes:
            described.error.CopyFrom(errors.to_proto(TidemarkError(codes[name], "not here")))
        return described


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()

    async def answer_of(call: Any, address: str) -> Any:
        return call

    monkeypatch.setattr(transaction_admin, "transaction_stub", made.stub)
    for module in (transaction_admin, coordinator_admin):
        monkeypatch.setattr(module, "answer_of", answer_of)
    return made


async def look_again(*, timeout_s: float) -> None:
    """The metadata stay."""


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> TransactionAdmin:
    made = TransactionAdmin("127.0.0.1:1")
    found = {broker_id: SimpleNamespace(address=f"b{broker_id}:9") for broker_id in (0, 1)}
    made._cluster = cast(Any, SimpleNamespace(view=SimpleNamespace(brokers=found), look_again=look_again, headers=()))
    made._is_open = True
    return made


def listed(name: str, coordinator_id: int) -> TransactionListing:
    return TransactionListing(name, "ONGOING", 7, 0, 1, coordinator_id)


async def test_each_coordinator_is_asked_for_all_its_ids_at_once(
    brokers: Brokers, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_admin, "_IDS", 2)
    names = ["a", "b", "c"]
    found, missing = await admin.describe_listed([*(listed(name, 0) for name in names), listed("d", 1)])
    assert [one.transactional_id for one in found] == ["a", "b", "c", "d"]
    assert brokers.calls == [("b0:9", ["a", "b"]), ("b0:9", ["c"]), ("b1:9", ["d"])]
    assert missing == []


async def test_ids_that_have_moved_are_asked_for_at_once_and_expired_ones_are_left_out(
    brokers: Brokers, admin: TransactionAdmin
) -> None:
    names = ["a", "moved-1", EXPIRED, "moved-2", LOADED]
    brokers.lists = {"b1:9": ["moved-1", "moved-2", "other"]}
    found, missing = await admin.describe_listed([*(listed(name, 0) for name in names), listed("b", 5)])
    assert [one.transactional_id for one in found] == ["a", "moved-1", "moved-2"]
    assert brokers.calls == [("b0:9", names), ("b1:9", ["moved-1", "moved-2"])]
    assert [error.code for error in missing] == [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]


async def test_an_abort_names_the_described_transaction(
    admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repetition after a lost answer aborts no later transaction."""
    sent: list[tuple[str, pb.AbortTransactionRequest]] = []

    async def describe(_: object) -> TransactionDescription:
        return TransactionDescription("a", "ONGOING", 7, 0, 5, 60_000, 6, 3, -1, ())

    async def call(_: object, name: str, request: pb.AbortTransactionRequest) -> None:
        sent.append((name, request))

    monkeypatch.setattr(transaction_admin._Administered, "describe", describe)
    monkeypatch.setattr(transaction_admin._Administered, "_call", call)
    await admin.abort("a")
    request = pb.AbortTransactionRequest(transactional_id="a", generation=3, started_at_ms=5)
    assert sent == [("AbortTransaction", request)]


async def test_leaders_are_those_of_a_broker_with_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker is down, the next has just started: it has no metadata, and would name no topic at all."""
    started = metadata_pb2.ClusterMetadata()
    known = metadata_pb2.ClusterMetadata(
        brokers=[metadata_pb2.BrokerEndpoint(broker_id=7, host="b7", port=9)],
        topics=[
            metadata_pb2.TopicMetadata(topic="a", partitions=[metadata_pb2.PartitionMetadata(partition=0, leader=7)])
        ],
    )
    told = {"b1:9": started, "b2:9": known}

    async def answer_of(call: str, address: str) -> Any:
        if call not in told:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{call} is down")
        return broker_service_pb2.GetMetadataResponse(metadata=told[call])

    def stub(address: str) -> Any:
        return SimpleNamespace(GetMetadata=lambda *_, **__: address)

    monkeypatch.setattr(transaction_admin, "answer_of", answer_of)
    made = TransactionAdmin("127.0.0.1:1")
    addresses = ["b0:9", *told]
    brokers = SimpleNamespace(brokers={})
    made._cluster = cast(Any, SimpleNamespace(view=brokers, addresses=lambda: addresses, stub=stub, headers=()))
    made._is_open = True
    assert await made._leaders(["a"]) == [(TopicPartition("a", 0), "b7:9")]
    del told["b2:9"]
    with pytest.raises(TidemarkError, match="b2:9 is down"):
        await made._leaders(["a"])
