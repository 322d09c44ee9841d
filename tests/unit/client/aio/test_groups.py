# SPDX-License-Identifier: Apache-2.0
"""The async client for groups: states of a later version, and calls before the start."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tidemark.client.aio.groups import Groups, _description
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode
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
