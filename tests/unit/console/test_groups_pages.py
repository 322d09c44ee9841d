# SPDX-License-Identifier: Apache-2.0
"""The pages of consumer groups over a cluster in memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tidemark.client.aio.groups import GroupDescription, GroupListing, GroupMember, GroupPartition, PendingOffset
from tidemark.console.queries.group_lags import AT_ONCE, describe_each
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.turns import turns
from tests.unit.console.conftest import JSON, FakeCluster, refused

HOSTILE = "a/<b>'x y'"


def partition(index: int, committed: int, *, end: int = 100) -> GroupPartition:
    lag = end - max(committed, 0)
    where = TopicPartition("flights", index)
    return GroupPartition(where, f"m{index}", committed, 1_700_000_000_000, 0, end, lag, None, "", "")


def member(name: str, *indexes: int) -> GroupMember:
    assigned = tuple(TopicPartition("flights", index) for index in indexes)
    return GroupMember(name, "", "<i>client</i>", "10.0.0.1", 3, "STABLE", ("flights",), assigned)


class GroupsCluster(FakeCluster):
    """A cluster with consumer groups.

    Attributes:
        unanswered: errors of brokers whose groups may be missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, GroupDescription] = {}
        self.unanswered: list[TidemarkError] = []

    def add_group(self, name: str, *partitions: GroupPartition, members: Sequence[GroupMember] = ()) -> None:
        state = "STABLE" if members else "EMPTY"
        self.groups[name] = GroupDescription(name, "consumer", state, 5, "sticky", 1, tuple(members), tuple(partitions))

    async def list_groups(self) -> tuple[list[GroupListing], list[TidemarkError]]:
        listed = [
            GroupListing(one.group, one.protocol, one.state, len(one.members), one.coordinator_id)
            for _, one in sorted(self.groups.items())
        ]
        return listed, self.unanswered

    async def describe_groups(self, names: Sequence[str]) -> list[GroupDescription]:
        if missing := [name for name in names if name not in self.groups]:
            raise refused(ErrorCode.GROUP_NOT_FOUND, f"there is no group {missing[0]}")
        return [self.groups[name] for name in names]


@pytest.fixture
def cluster() -> GroupsCluster:
    made = GroupsCluster()
    made.add_group("billing", partition(0, 90), partition(1, -1), members=[member("m0", 0), member("m1", 1)])
    made.add_group("nightly", partition(0, 100))
    made.add_group(HOSTILE, partition(0, 1), members=[member("<script>", *range(30))])
    return made


async def test_the_groups_show_members_state_and_lag(browser: httpx.AsyncClient) -> None:
    data = (await browser.get("/groups?q=BILL", headers=JSON)).json()["data"]
    assert data["groups"] == [
        {
            "group": "billing",
            "state": "STABLE",
            "members": 2,
            "coordinator_id": 1,
            "lag": 110,
            "partitions_of_unknown_lag": 0,
        }
    ]
    assert "110" in (await browser.get("/groups")).text


async def test_the_groups_are_filtered_and_sorted(browser: httpx.AsyncClient) -> None:
    async def names(query: str) -> list[str]:
        return [one["group"] for one in (await browser.get(f"/groups?{query}", headers=JSON)).json()["data"]["groups"]]

    assert await names("state=EMPTY") == ["nightly"]
    assert await names("sort=members") == ["billing", HOSTILE, "nightly"]
    assert (await browser.get("/groups?state=none")).status_code == 400


async def test_the_groups_say_which_may_be_missing(browser: httpx.AsyncClient, cluster: GroupsCluster) -> None:
    cluster.unanswered = [refused(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2 does not answer")]
    assert "Some groups may be missing: broker 2 does not answer" in (await browser.get("/groups")).text


async def test_a_group_that_is_deleted_meanwhile_leaves_the_other_lags(
    browser: httpx.AsyncClient, cluster: GroupsCluster
) -> None:
    listed = await cluster.list_groups()
    del cluster.groups["nightly"]
    cluster.list_groups = lambda: _answer(listed)  # type: ignore[method-assign]
    found = (await browser.get("/groups", headers=JSON)).json()["data"]["groups"]
    assert {one["group"]: one["lag"] for one in found} == {"billing": 110, "nightly": None, HOSTILE: 99}


async def _answer(
    listed: tuple[list[GroupListing], list[TidemarkError]],
) -> tuple[list[GroupListing], list[TidemarkError]]:
    return listed


async def test_a_group_shows_its_progress_in_each_partition(browser: httpx.AsyncClient) -> None:
    page = (await browser.get("/groups/billing?sort=lag", headers=JSON)).json()
    assert page["command"] == "tidemark group describe billing"
    rows = [
        (one["partition"], one["committed"], one["high_watermark"], one["lag"]) for one in page["data"]["partitions"]
    ]
    assert rows == [(1, None, 100, 100), (0, 90, 100, 10)]
    assert 'records?partition=0&amp;from=offset:90"' in (await browser.get("/groups/billing")).text


async def test_a_group_shows_offsets_of_open_transactions(browser: httpx.AsyncClient, cluster: GroupsCluster) -> None:
    cluster.add_group("open", partition(0, 5)._replace(pending=(PendingOffset(9, 77, 1),)))
    assert "9 pending in the transaction of producer 77, epoch 1" in (await browser.get("/groups/open")).text


async def test_names_of_groups_and_members_are_text(browser: httpx.AsyncClient) -> None:
    listed = (await browser.get("/groups")).text
    assert f'href="/groups/{quote(HOSTILE, safe="")}"' in listed
    page = await browser.get(f"/groups/{quote(HOSTILE, safe='')}")
    assert page.status_code == 200
    for text in (listed, page.text):
        assert "<b>" not in text
        assert "<i>client" not in text
        assert "<script>" not in text
    assert "and 10 more" in page.text


async def test_a_group_that_is_unknown_is_not_found(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/groups/none", headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (404, "there is no group none")


class SlowGroups:
    """Describes a group after some turns of the event loop; `most`: the most descriptions in flight."""

    def __init__(self) -> None:
        self.in_flight = self.most = 0

    async def describe_groups(self, names: Sequence[str]) -> list[GroupDescription]:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await turns(3)
        self.in_flight -= 1
        return [GroupDescription(name, "consumer", "EMPTY", 5, "sticky", 1, (), ()) for name in names]


async def test_the_lags_of_a_page_leave_turns_of_the_event_loop_to_other_pages() -> None:
    groups: Any = SlowGroups()
    names = [f"group-{number}" for number in range(50)]
    assert list(await describe_each(groups, names)) == names
    assert groups.most == AT_ONCE


@pytest.mark.parametrize("name", [".", "..", "~.", "~~..", "...", "%2e", "~"])
async def test_the_link_to_a_group_of_any_name_survives_a_browser(
    name: str, browser: httpx.AsyncClient, cluster: GroupsCluster
) -> None:
    """Regression: a browser removes the segments . and .., also as %2E, from an address."""
    cluster.add_group(name)
    (link,) = re.findall(rf'href="(/groups/[^"]+)">{re.escape(name)}<', (await browser.get("/groups")).text)
    assert not re.search(r"/(\.|%2e){1,2}(/|$)", link, re.IGNORECASE)
    page = await browser.get(link, headers=JSON)
    assert page.json()["data"]["group"] == name
