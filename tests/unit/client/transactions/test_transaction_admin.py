# SPDX-License-Identifier: Apache-2.0
"""Descriptions of many transactional ids: one call for each coordinator, and ids that have moved or expired."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio import transaction_admin
from tidemark.client.aio.transaction_admin import TransactionAdmin, TransactionDescription, TransactionListing
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb

MOVED, EXPIRED = "moved", "expired"


class Brokers:
    """Brokers 0 and 1 answer; `calls` has the ids of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def stub(self, _: object, address: str) -> Any:
        def describe(request: pb.DescribeTransactionsRequest, *, timeout: float) -> Any:
            self.calls.append((address, list(request.transactional_ids)))
            return pb.DescribeTransactionsResponse(transactions=map(self._described, request.transactional_ids))

        return SimpleNamespace(DescribeTransactions=describe)

    def _described(self, name: str) -> pb.TransactionDescription:
        described = pb.TransactionDescription(transactional_id=name)
        codes = {MOVED: ErrorCode.NOT_COORDINATOR, EXPIRED: ErrorCode.TRANSACTION_NOT_FOUND}
        if name in codes:
            described.error.CopyFrom(errors.to_proto(TidemarkError(codes[name], "not here")))
        return described


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()

    async def answer_of(call: Any, address: str) -> Any:
        return call

    monkeypatch.setattr(transaction_admin, "transaction_stub", made.stub)
    monkeypatch.setattr(transaction_admin, "answer_of", answer_of)
    return made


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> TransactionAdmin:
    made = TransactionAdmin("127.0.0.1:1")
    found = {broker_id: SimpleNamespace(host=f"b{broker_id}", port=9) for broker_id in (0, 1)}
    made._cluster = cast(Any, SimpleNamespace(view=SimpleNamespace(brokers=found)))
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


@pytest.mark.usefixtures("brokers")
async def test_an_id_that_has_moved_is_looked_up_again_and_an_expired_one_is_left_out(
    admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        def __init__(self, name: str) -> None:
            self._name = name

        def describe(self) -> Awaitable[TransactionDescription]:
            return described(self._name)

    async def described(name: str) -> TransactionDescription:
        if name == MOVED:
            return TransactionDescription(name, "ONGOING", 7, 0, 1, 1, 1, 1, -1, ())
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

    monkeypatch.setattr(admin, "_coordinator", Elsewhere)
    found, missing = await admin.describe_listed([listed(EXPIRED, 0), listed(MOVED, 0), listed("a", 0), listed("b", 5)])
    assert sorted(one.transactional_id for one in found) == ["a", MOVED]
    assert [error.code for error in missing] == [ErrorCode.BROKER_NOT_AVAILABLE]
