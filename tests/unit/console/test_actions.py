# SPDX-License-Identifier: Apache-2.0
"""Changes through the console: the dry run, the button, refusals, and pages of other sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tidemark.client.aio.admin.results import AlteredReassignments, Reassignments
from tidemark.client.group.offset_reset import OffsetChange
from tidemark.client.records import Timestamp
from tidemark.console.identity import COOKIE
from tidemark.core.reassignment.progress import ReassignmentOutcome, ReassignmentPhase
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.unit.console.conftest import JSON, refused
from tests.unit.console.test_groups_pages import HOSTILE, GroupsCluster, member, partition
from tests.unit.console.test_reassignments_page import move

SAME = {"Origin": "http://localhost:9195"}
RESET = "/reset-offsets/nightly"
CANCEL = "/reassignments/cancel"
WRITES = pytest.mark.parametrize("write", [True])
SECURE = pytest.mark.parametrize("secure", [True])


class ChangingCluster(GroupsCluster):
    """A cluster with reassignments, and with offsets of groups that can be set.

    Attributes:
        set: offsets by group, of the calls that changed something.
        cancelled: partitions whose reassignment was cancelled.
        end: high watermark of each partition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set: list[tuple[str, dict[TopicPartition, int]]] = []
        self.cancelled: list[TopicPartition] = []
        self.moves = [move("flights", one, ReassignmentPhase.COPYING) for one in (1, 3)]
        self.end = 100

    async def plan_reset(
        self, group: str, start: Any, *, topics: Sequence[str] = (), partitions: Sequence[TopicPartition] = ()
    ) -> list[OffsetChange]:
        found = self.groups[group]
        if found.members:
            raise refused(ErrorCode.GROUP_NOT_EMPTY, f"group {group} has {len(found.members)} members")
        offsets = {"earliest": 0, "latest": self.end, Timestamp(0): 7}
        return [
            OffsetChange(one.partition, one.committed, offsets.get(start, start))
            for one in found.partitions
            if one.partition.topic in topics or one.partition in partitions
        ]

    async def set_offsets(self, group: str, offsets: Sequence[OffsetChange]) -> dict[TopicPartition, TidemarkError]:
        self.set.append((group, {one.partition: one.offset for one in offsets}))
        self.add_group(group, *(partition(one.partition.partition, one.offset) for one in offsets))
        return {}

    async def list_partition_reassignments(self, partitions: Any = ()) -> Reassignments:
        return Reassignments(self.moves, [])

    async def alter_partition_reassignments(self, *, cancel: Sequence[TopicPartition]) -> AlteredReassignments:
        self.cancelled += cancel
        self.moves = [one for one in self.moves if one.partition not in cancel]
        return AlteredReassignments([ReassignmentOutcome(one, cancelled=True) for one in cancel], None)


@pytest.fixture
def cluster() -> ChangingCluster:
    made = ChangingCluster()
    made.add_group("nightly", partition(0, 90), partition(1, -1))
    made.add_group(HOSTILE, partition(0, 1))
    return made


def form_of(text: str) -> dict[str, str]:
    """The fields of the button's form."""
    form = text[text.index('method="post"') :]
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form))


async def press(browser: httpx.AsyncClient, address: str, **headers: str) -> httpx.Response:
    """Load a dry run, and press its button."""
    page = await browser.get(address, headers=headers)
    path = address.partition("?")[0]
    return await browser.post(path, data=form_of(page.text), headers={**SAME, **headers})


async def test_a_dry_run_of_a_reset_shows_the_change_of_each_partition_and_its_command(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    data = (await browser.get(f"{RESET}?to=earliest", headers=JSON)).json()["data"]
    assert [(one["partition"], one["before"], one["offset"]) for one in data["partitions"]] == [
        (0, 90, 0),
        (1, None, 0),
    ]
    assert data["command"] == "tidemark group reset-offsets nightly --topic flights --to earliest"
    assert cluster.set == []


@pytest.mark.parametrize(
    ("query", "command", "offset"),
    [
        ("topic=flights&partition=1&to=offset&value=42", "--topic flights:1 --to offset:42", 42),
        ("topic=flights&partition=1&to=offset:42", "--topic flights:1 --to offset:42", 42),
        ("topic=flights&partition=1&to=timestamp&value=1970-01-01", "--topic flights:1 --to timestamp:1970-01-01", 7),
        ("topic=flights&partition=1&to=latest&value=9", "--topic flights:1 --to latest", 100),
    ],
)
async def test_a_reset_goes_to_an_offset_a_time_or_an_end_of_one_partition(
    query: str, command: str, offset: int, browser: httpx.AsyncClient
) -> None:
    data = (await browser.get(f"{RESET}?{query}", headers=JSON)).json()["data"]
    assert [(one["partition"], one["offset"]) for one in data["partitions"]] == [(1, offset)]
    assert data["command"].endswith(command)


@pytest.mark.parametrize(
    "query",
    ["to=never", "to=offset&value=-1", "to=timestamp&value=x", "partition=1", "topic=a/b", "topic=t&partition=x"],
)
async def test_a_wrong_reset_is_refused_with_the_reason(query: str, browser: httpx.AsyncClient) -> None:
    assert (await browser.get(f"{RESET}?{query}", headers=JSON)).status_code == 400


@WRITES
async def test_the_button_resets_the_offsets_and_leads_to_the_result(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    answer = await press(browser, f"{RESET}?to=earliest")
    assert answer.status_code == 303
    zero = {TopicPartition("flights", 0): 0, TopicPartition("flights", 1): 0}
    assert cluster.set == [("nightly", zero)]
    for _ in range(2):  # a second load repeats nothing
        result = await browser.get(f"{RESET}{answer.headers['location']}")
        assert "The offsets of 2 partitions are set to earliest" in result.text
        assert ">90</td>" in result.text
    assert len(cluster.set) == 1
    assert (await browser.get(f"{RESET}?result=none")).status_code == 404


@WRITES
async def test_a_program_gets_the_result_of_a_reset_as_json(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    shown = (await browser.get(f"{RESET}?to=latest", headers=JSON)).json()["data"]
    fields = {**shown["fields"], "plan": shown["plan"]}
    done = (await browser.post(RESET, data=fields, headers={**SAME, **JSON})).json()["data"]
    assert done["changed"] is True
    assert [(one["before"], one["offset"]) for one in done["partitions"]] == [(90, 100), (None, 100)]


@WRITES
async def test_a_reset_to_the_end_is_carried_out_while_records_arrive(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    page = await browser.get(f"{RESET}?to=latest")
    cluster.end = 105
    assert (await browser.post(RESET, data=form_of(page.text), headers=SAME)).status_code == 303
    assert set(cluster.set[0][1].values()) == {105}


@WRITES
async def test_a_reset_is_refused_if_offsets_moved_since_its_dry_run(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    page = await browser.get(f"{RESET}?to=earliest")
    cluster.add_group("nightly", partition(0, 91), partition(1, -1))
    again = await browser.post(RESET, data=form_of(page.text), headers=SAME)
    assert (again.status_code, cluster.set) == (409, [])
    assert "The plan has changed since the dry run" in again.text
    assert ">91</td>" in again.text
    assert (await browser.post(RESET, data=form_of(again.text), headers=SAME)).status_code == 303


@WRITES
async def test_a_reset_is_refused_while_the_group_has_members(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    page = await browser.get(f"{RESET}?to=earliest")
    cluster.add_group("nightly", partition(0, 90), members=[member("m0", 0)])
    for answer in (
        await browser.post(RESET, data=form_of(page.text), headers=SAME),
        await browser.get(f"{RESET}?to=earliest"),
    ):
        assert answer.status_code == 409
        assert "group nightly has 1 members" in answer.text
        assert 'method="post"' not in answer.text
    assert cluster.set == []


async def test_a_console_without_console_write_only_shows_the_dry_run(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    for page in (RESET, CANCEL):
        shown = await browser.get(page)
        assert "This console only reads: run the command instead." in shown.text
        assert 'method="post"' not in shown.text
        plan = (await browser.get(page, headers=JSON)).json()["data"]["plan"]
        assert (await browser.post(page, data={"plan": plan}, headers=SAME)).status_code == 403
    assert (cluster.set, cluster.cancelled) == ([], [])


@SECURE
async def test_the_rights_of_the_token_decide_on_a_change(browser: httpx.AsyncClient, cluster: ChangingCluster) -> None:
    alice = {"Cookie": f"{COOKIE}=alice"}
    answer = await press(browser, RESET, **alice)
    assert (answer.status_code, len(cluster.set), cluster.tokens[-1]) == (303, 1, "alice")
    result = f"{RESET}{answer.headers['location']}"
    assert (await browser.get(result, headers=alice)).status_code == 200
    assert (await browser.get(result, headers={"Cookie": f"{COOKIE}=bob"})).status_code == 404
    cluster.failures["set_offsets"] = refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "alice may not")
    cluster.add_group("nightly", partition(0, 5))
    assert (await press(browser, RESET, **alice)).status_code == 403
    assert len(cluster.set) == 1


@WRITES
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9196"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
    ],
)
async def test_a_change_that_a_page_of_another_site_sends_changes_nothing(
    headers: dict[str, str], browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    for page in (f"{RESET}?to=earliest", CANCEL):
        fields = form_of((await browser.get(page)).text)
        answer = await browser.post(page.partition("?")[0], data=fields, headers=headers)
        assert answer.status_code in (403, 421)
    assert (cluster.set, cluster.cancelled) == ([], [])


@WRITES
async def test_a_change_without_the_plan_of_a_dry_run_changes_nothing(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    for fields in ({"to": "earliest"}, {"to": "earliest", "plan": "x"}):
        assert (await browser.post(RESET, data=fields, headers=SAME)).status_code == 409
        assert (await browser.post(CANCEL, data=fields, headers=SAME)).status_code == 409
    assert (await browser.get(f"{RESET}?to=earliest&plan=x")).status_code == 200
    assert (cluster.set, cluster.cancelled) == ([], [])


@WRITES
async def test_a_change_without_an_answer_says_that_it_may_have_been_made(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    cluster.failures["set_offsets"] = refused(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
    answer = await press(browser, RESET)
    assert answer.status_code == 503
    assert "The change may still have been made" in answer.text


@WRITES
async def test_the_name_of_a_group_is_text_on_the_pages_of_a_reset(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    path = f"/reset-offsets/{quote(HOSTILE, safe='')}"
    assert f'action="{path}"' in (await browser.get(f"/groups/{quote(HOSTILE, safe='')}")).text
    answer = await press(browser, path)
    assert cluster.set[0][0] == HOSTILE
    result = await browser.get(f"{path}{answer.headers['location']}")
    assert "are set to earliest" in result.text
    for text in (result.text, (await browser.get(path)).text):
        assert "<b>" not in text
        assert "reset-offsets 'a/<" not in text


async def test_a_dry_run_of_a_cancellation_shows_the_replicas_and_the_command(browser: httpx.AsyncClient) -> None:
    data = (await browser.get(f"{CANCEL}?topic=flights&partition=3", headers=JSON)).json()["data"]
    (shown,) = data["partitions"]
    assert (shown["partition"], shown["original_replicas"], shown["target_replicas"]) == (3, [0, 1], [1, 2])
    assert data["command"] == "tidemark reassign cancel flights:3"
    assert (await browser.get(CANCEL, headers=JSON)).json()["data"]["command"] == "tidemark reassign cancel --all"
    assert 'href="/reassignments/cancel?topic=flights&amp;partition=3"' in (await browser.get("/reassignments")).text


@WRITES
@pytest.mark.parametrize(
    ("query", "cancelled"), [("?topic=flights&partition=3", [3]), ("?topic=flights", [1, 3]), ("", [1, 3])]
)
async def test_the_button_cancels_the_reassignments_of_its_dry_run(
    query: str, cancelled: list[int], browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    answer = await press(browser, CANCEL + query)
    assert cluster.cancelled == [TopicPartition("flights", one) for one in cancelled]
    result = await browser.get(CANCEL + answer.headers["location"])
    assert f"The cancellation of {len(cancelled)} reassignment" in result.text
    assert "flights:3" in result.text


@WRITES
async def test_a_cancellation_is_refused_if_a_reassignment_ended_since_its_dry_run(
    browser: httpx.AsyncClient, cluster: ChangingCluster
) -> None:
    page = await browser.get(CANCEL)
    cluster.moves.pop()
    again = await browser.post(CANCEL, data=form_of(page.text), headers=SAME)
    assert (again.status_code, cluster.cancelled) == (409, [])
    assert "The plan has changed since the dry run" in again.text
    cluster.moves.clear()
    none = await browser.get(CANCEL)
    assert none.status_code == 409
    assert "there is nothing to cancel" in none.text
