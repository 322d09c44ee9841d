# SPDX-License-Identifier: Apache-2.0
"""Transactions in a cluster whose brokers have two versions, one of them without transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.broker.transactions.service import TransactionService
from tidemark.core.cluster_view import ClusterView
from tidemark.core.transactions.requests import Initialized
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import FEATURES, BrokerId, BrokerRegistration, ErrorCode, TidemarkError
from tidemark.v1 import transaction_service_pb2 as pb


class Requests:
    """Replaces the coordinator's requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def change_with_producer_id(self, transactional_id: str, change: Any) -> Initialized:
        self.asked.append(transactional_id)
        return Initialized(ProducerIdentity(7, 0), 1, -1)


async def test_a_coordinator_starts_no_producer_while_a_live_broker_has_no_transactions() -> None:
    """The log of such a broker does not know which transactions are open, even after the upgrade of the broker."""
    brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), "h", 1, features=FEATURES) for one in range(3)}
    older = brokers | {BrokerId(1): BrokerRegistration(BrokerId(1), "h", 1, features={"protocol": 1})}
    coordinators: Any = SimpleNamespace(metadata=SimpleNamespace(view=ClusterView(brokers=older)))
    requests: Any = Requests()
    service = TransactionService(coordinators, requests, SimpleNamespace())  # type: ignore[arg-type]
    request = pb.InitTransactionsRequest(transactional_id="t", timeout_ms=1000)
    with pytest.raises(TidemarkError, match="upgrade broker 1 first") as refused:
        await service.InitTransactions(request, None)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    silent = {one: BrokerRegistration(one, "h", 1) for one in brokers}
    coordinators.metadata.view = ClusterView(brokers=silent)
    with pytest.raises(TidemarkError, match="upgrade the active controller first"):
        await service.InitTransactions(request, None)
    assert requests.asked == []
    coordinators.metadata.view = ClusterView(brokers=brokers)
    assert (await service.InitTransactions(request, None)).producer.producer_id == 7
    assert requests.asked == ["t"]
