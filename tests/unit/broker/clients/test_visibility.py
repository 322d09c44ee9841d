# SPDX-License-Identifier: Apache-2.0
"""Metadata of topics that a client may not DESCRIBE: the broker encodes their errors in slices."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.broker.clients.visibility import visible_to
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.core.security.principals import ANONYMOUS
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration
from tidemark.rpc.security.access import Access
from tidemark.rpc.security.audit import Audit
from tidemark.runtime import slices

MANY = 100


@pytest.mark.parametrize("named", [True, False])
async def test_errors_of_many_hidden_topics_are_made_while_other_tasks_run(
    monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    authorizer = Authorizer()
    authorizer.use(Rules())
    turns, made_at = 0, list[int]()

    class Noting(Access):
        __slots__ = ()

        def hidden(self, name: str) -> TidemarkError:
            made_at.append(turns)
            return super().hidden(name)

    noting = Noting(authorizer, Audit(), ANONYMOUS, "::1", "")
    view = ClusterView(topics={f"t{index}": TopicView(f"t{index}", "") for index in range(MANY)})
    call = asyncio.create_task(visible_to(noting, view, named=named))
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    seen = (await call).topics
    assert list(seen) == (list(view.topics) if named else [])
    assert all(one.error is not None and one.error.code is ErrorCode.UNKNOWN_TOPIC for one in seen.values())
    assert len(set(made_at)) == len(seen), "one error in each slice"


async def test_a_client_without_rules_gets_the_broker_epochs_by_which_it_notices_restarts() -> None:
    """Regression: with access rules, clients connected to the address of a pod before its restart, for 2.5 s."""
    authorizer = Authorizer()
    authorizer.use(Rules())
    view = ClusterView(brokers={BrokerId(1): BrokerRegistration(BrokerId(1), "h", 1, BrokerEpoch(7))})
    seen = await visible_to(Access(authorizer, Audit(), ANONYMOUS, "::1", ""), view, named=False)
    assert seen.brokers == view.brokers
