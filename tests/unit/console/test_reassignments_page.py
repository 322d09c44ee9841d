# SPDX-License-Identifier: Apache-2.0
"""The page of reassignments over a cluster in memory."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tidemark.client.aio.admin.results import Reassignments
from tidemark.core.reassignment.progress import ReassignmentPhase, ReassignmentProgress
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import BrokerId, ErrorCode, Refusal, TopicPartition

from tests.unit.console.conftest import JSON, FakeCluster, refused

PAGE = "/reassignments"


def move(name: str, index: int, phase: ReassignmentPhase, **more: Any) -> ReassignmentProgress:
    zero, one, two = map(BrokerId, range(3))
    states = {zero: ReplicaState.ONLINE, one: ReplicaState.ONLINE, two: ReplicaState.NEW}
    return ReassignmentProgress(
        TopicPartition(name, index), (zero, one), (one, two), (zero, one, two), (two,), (zero,), states, phase, **more
    )


class MovingCluster(FakeCluster):
    """A cluster with reassignments."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Reassignments([], [])

    async def list_partition_reassignments(self, partitions: Any = ()) -> Reassignments:
        return self.found


@pytest.fixture
def cluster() -> MovingCluster:
    return MovingCluster()


@pytest.fixture
def moving(cluster: MovingCluster) -> MovingCluster:
    copying = {"bytes_done": 50, "bytes_total": 200, "rate_bytes_per_s": 10.0, "eta_s": 15.0, "sizes_bytes": {}}
    cluster.found.moves.extend(
        [
            move("weather", 0, ReassignmentPhase.QUEUED, waiting_for="broker <2> is away"),
            move("flights", 3, ReassignmentPhase.COPYING, throttle_bytes_per_s=5_000, **copying),
            move("flights", 1, ReassignmentPhase.FINISHING, bytes_done=0, bytes_total=0),
        ]
    )
    return cluster


async def names(browser: httpx.AsyncClient, query: str) -> list[tuple[str, int]]:
    data = (await browser.get(f"{PAGE}?{query}", headers=JSON)).json()["data"]
    return [(one["topic"], one["partition"]) for one in data["moves"]]


async def test_a_reassignment_shows_plan_progress_throttle_and_the_command_that_cancels_it(
    moving: MovingCluster, browser: httpx.AsyncClient
) -> None:
    data = (await browser.get(f"{PAGE}?state=copying", headers=JSON)).json()["data"]
    (shown,) = data["moves"]
    assert (shown["original_replicas"], shown["target_replicas"], shown["percent"]) == ([0, 1], [1, 2], 25)
    assert shown["cancel_command"] == "tidemark reassign cancel flights:3"
    assert data["sums"] == {
        "count": 3,
        "waiting": 1,
        "bytes_done": 50,
        "bytes_total": 200,
        "rate_bytes_per_s": 10.0,
    }
    text = (await browser.get(PAGE)).text
    for part in ("25% of 200 B", "5.0 kB/s", "15 s", "nothing to copy", "2 (added): new", "0 (removed): online"):
        assert part in text


async def test_the_reassignments_are_searched_and_filtered(moving: MovingCluster, browser: httpx.AsyncClient) -> None:
    assert await names(browser, "") == [("flights", 1), ("flights", 3), ("weather", 0)]
    assert await names(browser, "q=WEA") == [("weather", 0)]
    assert await names(browser, "state=waiting") == [("weather", 0)]
    assert (await browser.get(f"{PAGE}?state=done")).status_code == 400


async def test_the_reason_for_a_wait_is_text(moving: MovingCluster, browser: httpx.AsyncClient) -> None:
    assert "broker &lt;2&gt; is away" in (await browser.get(PAGE)).text


async def test_recent_refusals_are_shown_the_newest_first(cluster: MovingCluster, browser: httpx.AsyncClient) -> None:
    error = refused(ErrorCode.INVALID_REQUEST, "no <b>such</b> broker")
    cluster.found.refusals.extend(
        [Refusal("reassign", None, error, at_ms=1), Refusal("reassign", TopicPartition("flights", 0), error, at_ms=2)]
    )
    data = (await browser.get(PAGE, headers=JSON)).json()["data"]
    assert [one["refused_at_ms"] for one in data["refusals"]] == [2, 1]
    text = (await browser.get(PAGE)).text
    assert "no &lt;b&gt;such&lt;/b&gt; broker" in text
    assert "No reassignment is requested or running." in text


async def test_reassignments_without_an_answer_are_refused_with_the_reason(
    cluster: MovingCluster, browser: httpx.AsyncClient
) -> None:
    cluster.failure = refused(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")
    page = await browser.get(PAGE, headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (503, "no broker answers")
