# SPDX-License-Identifier: Apache-2.0
"""The async client for groups: later states, calls before the start, new brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio import groups as groups_module
from tidemark.client.aio.groups import Groups, _description
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code


@pytest.mark.parametrize(
    ("state", "shown"), [(pb.GROUP_STATE_STABLE, "STABLE"), (pb.GROUP_STATE_EMPTY, "EMPTY"), (77, "77")]
)
def test_later_group_state_is_shown_by_its_number(state: int, shown: str) -> None:
    found = pb.GroupDescription(group_id="g", state=cast(Any, state))
    assert (_description(found).group, _description(found).state) == ("g", shown)


@pytest.mark.parametrize(("state", "shown"), [(pb.GROUP_MEMBER_STATE_AWAY, "AWAY"), (77, "77")])
def test_later_member_state_is_shown_by_its_number(state: int, shown: str) -> None:
    found = pb.GroupDescription(members=[pb.GroupMember(member_id="m", state=cast(Any, state))])
    assert [one.state for one in _description(found).members] == [shown]


async def test_a_client_that_is_not_started_or_closed_refuses_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_: Cluster) -> None:
        return

    monkeypatch.setattr(Cluster, "start", start)
    groups = Groups("127.0.0.1:1")
    with raises_code(ErrorCode.CLIENT_CLOSED):
        await groups.list_groups()
    async with groups:
        assert await groups.list_groups() == ([], [])
    with raises_code(ErrorCode.CLIENT_CLOSED):
        await groups.list_groups()


async def test_a_list_has_the_groups_of_a_broker_that_has_started_since_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console keeps its client for days; groups of the new broker would be missing without a word."""
    live = {0}

    async def ask_any(cluster: Cluster, **_: float) -> dict[str, TidemarkError] | None:
        brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), f"b{one}", 9) for one in live}
        cluster._merge(ClusterView(brokers=brokers))
        return None

    def stub(_: Cluster, address: str) -> Any:
        async def list_groups(*_: object, **__: float) -> pb.ListGroupsResponse:
            return pb.ListGroupsResponse(groups=[pb.GroupListing(group_id=f"of {address}")])

        return SimpleNamespace(ListGroups=list_groups)

    monkeypatch.setattr(Cluster, "_ask_any", ask_any)
    monkeypatch.setattr(groups_module, "group_stub", stub)
    async with Groups("b0:9") as groups:
        live.add(1)
        found, missing = await groups.list_groups()
    assert ([one.group for one in found], missing) == (["of b0:9", "of b1:9"], [])
