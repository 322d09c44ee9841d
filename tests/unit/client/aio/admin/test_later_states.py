# SPDX-License-Identifier: Apache-2.0
"""States of groups and members that only a later version knows: shown by their number, and the rest as ever."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tidemark.client.aio.groups import _description
from tidemark.v1 import group_service_pb2 as pb


@pytest.mark.parametrize(
    ("state", "shown"), [(pb.GROUP_STATE_STABLE, "STABLE"), (pb.GROUP_STATE_EMPTY, "EMPTY"), (77, "77")]
)
def test_a_state_of_a_group(state: int, shown: str) -> None:
    found = pb.GroupDescription(group_id="g", state=cast(Any, state))
    assert (_description(found).group, _description(found).state) == ("g", shown)


@pytest.mark.parametrize(("state", "shown"), [(pb.GROUP_MEMBER_STATE_AWAY, "AWAY"), (77, "77")])
def test_a_state_of_a_member(state: int, shown: str) -> None:
    found = pb.GroupDescription(members=[pb.GroupMember(member_id="m", state=cast(Any, state))])
    assert [one.state for one in _description(found).members] == [shown]
