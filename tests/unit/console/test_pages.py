# SPDX-License-Identifier: Apache-2.0
"""The pages over a cluster in memory: their facts, their twins, their search and their refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tidemark.console.app import Console
from tidemark.console.metrics import ConsoleMetrics
from tidemark.console.queries import shared
from tidemark.core.isr_change_reasons import IsrChange
from tidemark.core.planning.restart_safety import Obstacle, RestartObstacle
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch
from tidemark.runtime.metrics import Metrics

from tests.unit.console.conftest import JSON, Clock, FakeClients, FakeCluster, refused, topic

EVERY_PAGE = ("/", "/brokers", "/brokers/1", "/topics", "/topics/flights", "/topics/flights/0", "/elections")


@pytest.mark.parametrize("path", EVERY_PAGE)
async def test_a_page_names_the_command_that_shows_the_same(
    path: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights", 3))
    page = await browser.get(path)
    assert page.status_code == 200
    assert "The same on the command line: <code>tidemark " in page.text


@pytest.mark.parametrize("path", EVERY_PAGE)
async def test_a_page_has_a_json_twin_at_the_same_address(
    path: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights", 3))
    twin = await browser.get(path, headers=JSON)
    assert twin.headers["content-type"] == "application/json"
    assert twin.json().keys() == {"title", "command", "read_at_ms", "problems", "data"}
    assert "Accept" in twin.headers["vary"]


async def test_the_overview_says_that_a_cluster_is_healthy(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights", 3))
    data = (await browser.get("/", headers=JSON)).json()["data"]
    assert data["health"] == {
        "level": "healthy",
        "sentence": "Healthy: 3 brokers live, 3 partitions, all replicas in sync.",
    }


async def test_the_overview_names_a_broker_that_is_away_and_since_when(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.add(topic("flights"))
    await browser.get("/")
    clock.ms += 60_000
    cluster.live.remove(2)
    cluster.add(topic("flights", isr=(0, 1)))
    data = (await browser.get("/", headers=JSON)).json()["data"]
    assert data["away"] == [{"broker_id": 2, "since_ms": clock.ms, "may_be_longer": False}]
    assert data["needs"][0]["command"] == "tidemark cluster remove-brokers 2 --dry-run"
    assert (await browser.get("/brokers/2")).text.count("away") > 0


async def test_the_overview_shows_a_change_of_the_controller(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    await browser.get("/")
    clock.ms += 60_000
    cluster.controller = 101
    shown = (await browser.get("/", headers=JSON)).json()["data"]["controller"]
    assert shown == {"id": 101, "since_ms": clock.ms, "before": 100}


async def test_the_topics_are_searched_filtered_and_sorted(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights", 3), topic("Flight-delays", 5, isr=(0, 1)), topic("weather", 1))

    async def names(query: str) -> list[str]:
        return [one["topic"] for one in (await browser.get(f"/topics?{query}", headers=JSON)).json()["data"]["topics"]]

    assert await names("q=flight") == ["Flight-delays", "flights"]
    assert await names("sort=partitions") == ["Flight-delays", "flights", "weather"]
    assert await names("state=out-of-sync") == ["Flight-delays"]


async def test_the_topics_come_in_pages_whose_links_keep_the_search(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(*(topic(f"t{number:03}") for number in range(120)))
    second = (await browser.get("/topics?q=t&page=2", headers=JSON)).json()["data"]
    assert [one["topic"] for one in second["topics"]] == [f"t{number:03}" for number in range(50, 100)]
    assert (second["previous"], second["next"]) == ("?q=t&page=1", "?q=t&page=3")
    beyond = (await browser.get("/topics?page=99", headers=JSON)).json()["data"]
    assert (beyond["page"], len(beyond["topics"]), beyond["next"]) == (3, 20, "")


@pytest.mark.parametrize(
    "query", ["page=0", "page=-1", "page=x", "page=1e9", "page=%C2%B2", "sort=size;", "state=none", "q=" + "x" * 250]
)
async def test_a_parameter_that_is_wrong_is_refused_with_the_valid_ones(
    query: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    page = await browser.get(f"/topics?{query}", headers=JSON)
    assert page.status_code == 400
    assert "expected " in page.json()["error"]["message"]


async def test_a_topic_shows_sizes_offsets_and_sources_of_settings(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights", 2))
    data = (await browser.get("/topics/flights", headers=JSON)).json()["data"]
    first = data["partitions"][0]
    assert (first["log_end_offset"], first["high_watermark"], first["bytes_in_per_s"]) == (12, 10, 50.0)
    assert [(one["key"], one["source"]) for one in data["configs"]] == [
        ("retention.ms", "topic"),
        ("segment.ms", "default"),
    ]


async def test_a_partition_shows_the_lag_of_each_replica(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights", 1, isr=(0, 1)))
    data = (await browser.get("/topics/flights/0", headers=JSON)).json()["data"]
    assert [(one["broker_id"], one["lag"], one["in_sync"]) for one in data["replica_states"]] == [
        (0, 0, True),
        (1, 0, True),
        (2, 5, False),
    ]


async def test_a_partition_shows_the_last_isr_changes_with_their_reasons(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights", 1, isr=(0, 1)))
    assert "No leader has noted a change" in (await browser.get("/topics/flights/0")).text
    left = IsrChange(1_700_000_000_000, LeaderEpoch(3), 4, (BrokerId(0), BrokerId(1)), ((BrokerId(2), "lagging"),))
    elected = IsrChange(1_600_000_000_000, LeaderEpoch(2), 1, (BrokerId(1),), ((BrokerId(0), "<new>"),))
    cluster.isr_changes = {0: [left], 1: [elected, left]}
    cluster.add(topic("delays", 1))
    data = (await browser.get("/topics/delays/0", headers=JSON)).json()["data"]
    assert [(one["changed_at_ms"], one["left"], one["isr"]) for one in data["isr_changes"]] == [
        (1_700_000_000_000, [{"broker_id": 2, "reason": "lagging"}], [0, 1]),
        (1_600_000_000_000, [{"broker_id": 0, "reason": "<new>"}], [1]),
    ]
    text = (await browser.get("/topics/delays/0")).text
    assert "2: lagged" in text
    assert "0: &lt;new&gt;" in text


async def test_a_broker_shows_the_obstacles_to_its_restart(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights"))
    cluster.obstacles = [RestartObstacle(Obstacle.OTHER_BROKER_AWAY, "not live: broker <2>; start it first")]
    text = (await browser.get("/brokers/1")).text
    assert "OTHER_BROKER_AWAY: not live: broker &lt;2&gt;; start it first" in text


@pytest.mark.parametrize(
    "path",
    [
        "/topics/none",
        "/topics/flights/9",
        "/topics/flights/x",
        "/topics/%2E%2E%2Fetc",
        "/topics/..%2f..%2fetc%2fpasswd",
        "/topics/a%00b",
        "/brokers/77",
        "/brokers/1.5",
        "/brokers/" + "9" * 400,
        "/none",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/",
        "//etc/passwd",
    ],
)
async def test_a_path_that_names_nothing_is_refused_with_a_page(
    path: str, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.add(topic("flights"))
    page = await browser.get(httpx.URL("http://localhost:9195").copy_with(raw_path=path.encode()))
    assert page.status_code in (400, 404), page.text
    assert "<h1>" in page.text
    assert "SPDX" not in page.text.replace("{#", "")


async def test_a_failed_question_leaves_the_page_with_older_data_and_the_time_of_the_failure(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.add(topic("flights"))
    await browser.get("/topics")
    clock.ms += 10_000
    failed_at_ms = clock.ms
    cluster.failure = refused(ErrorCode.COORDINATION_UNAVAILABLE, "ZooKeeper does not answer")
    await browser.get("/topics")
    clock.ms += 10_000
    page = (await browser.get("/topics", headers=JSON)).json()
    assert page["data"]["topics"][0]["topic"] == "flights"
    problem = page["problems"][0]
    assert (problem["code"], problem["since_ms"]) == ("COORDINATION_UNAVAILABLE", failed_at_ms)
    assert "ZooKeeper does not answer" in (await browser.get("/topics")).text


async def test_a_page_without_any_data_says_why_and_since_when(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.failure = refused(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")
    page = await browser.get("/", headers=JSON)
    assert page.status_code == 503
    assert page.json()["error"] == {
        "status": 503,
        "code": "BROKER_NOT_AVAILABLE",
        "message": "no broker answers",
        "since_ms": clock.ms,
    }
    assert "no broker answers" in (await browser.get("/")).text


async def test_a_page_that_the_user_may_not_see_is_forbidden(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.failure = refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert (await browser.get("/")).status_code == 403


async def test_a_fault_of_the_console_shows_a_page_without_details(
    browser: httpx.AsyncClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.console.pages.topics.out_of_sync", lambda view: 1 / 0)
    cluster.add(topic("flights"))
    page = await browser.get("/topics")
    assert page.status_code == 500
    assert "The console failed (ZeroDivisionError). Its log has the details." in page.text
    assert "Traceback" not in page.text
    assert page.headers["x-frame-options"] == "DENY"


async def test_console_counts_a_page_that_fails(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.console.pages.topics.out_of_sync", lambda view: 1 / 0)
    cluster.add(topic("flights"))
    metrics = Metrics()
    clients: Any = FakeClients(cluster)
    console = Console(clients, metrics=ConsoleMetrics(metrics), now_ms=clock)
    transport = httpx.ASGITransport(console.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9195") as browser:
        await browser.get("/topics")
    assert b'tidemark_console_requests_total{page="topics",status="500"} 1.0' in metrics.render()


async def test_many_pages_at_once_share_one_call_of_each_kind(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights"))
    cluster.hangs = asyncio.Event()
    opened = [asyncio.create_task(browser.get("/")) for _ in range(100)]
    await cluster.called.wait()
    cluster.hangs.set()
    await asyncio.gather(*opened)
    assert sorted(cluster.calls) == ["describe_cluster", "describe_topics"]


async def test_a_user_sees_the_part_of_a_page_that_is_allowed(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights"))
    cluster.failures["describe_log_dirs"] = refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no right to describe")
    page = (await browser.get("/topics", headers=JSON)).json()
    assert page["data"]["topics"][0]["topic"] == "flights"
    assert page["problems"][0]["denied"]
    assert "Not allowed" in (await browser.get("/topics")).text


async def test_data_that_a_user_may_not_see_any_more_are_not_shown(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.add(topic("flights"))
    assert (await browser.get("/topics")).status_code == 200
    clock.ms += 10_000
    cluster.failures["describe_topics"] = refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    await browser.get("/topics")
    page = await browser.get("/topics")
    assert page.status_code == 403
    assert "flights" not in page.text


async def test_one_cause_is_listed_once(browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock) -> None:
    cluster.add(topic("flights"))
    await browser.get("/brokers/1")
    clock.ms += 100_000
    cluster.failure = refused(ErrorCode.COORDINATION_UNAVAILABLE, "ZooKeeper does not answer")
    await browser.get("/brokers/1")
    assert len((await browser.get("/brokers/1", headers=JSON)).json()["problems"]) == 1


@pytest.mark.parametrize("path", ["/brokers", "/brokers/1"])
async def test_an_address_of_ipv6_has_brackets(path: str, browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.host = "fd00::7"
    assert "<code>[fd00::7]:9001</code>" in (await browser.get(path)).text


async def test_a_page_states_the_time_of_its_oldest_data(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.add(topic("flights"))
    read_at_ms = clock.ms
    await browser.get("/brokers")
    clock.ms += 1_500
    assert (await browser.get("/", headers=JSON)).json()["read_at_ms"] == read_at_ms
    clock.ms += 60_000
    assert (await browser.get("/", headers=JSON)).json()["read_at_ms"] == clock.ms


async def test_a_page_says_that_it_shows_old_data_while_the_cluster_is_silent(
    browser: httpx.AsyncClient, cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "OLD_S", 0.01)
    cluster.add(topic("flights"))
    read_at_ms = clock.ms
    await browser.get("/topics")
    clock.ms += 60_000
    cluster.hangs = asyncio.Event()
    page = (await browser.get("/topics", headers=JSON)).json()
    assert page["data"]["topics"][0]["topic"] == "flights"
    problem = page["problems"][0]
    assert (problem["code"], problem["since_ms"], problem["read_at_ms"]) == ("REQUEST_TIMED_OUT", clock.ms, read_at_ms)
    cluster.hangs.set()
