# SPDX-License-Identifier: Apache-2.0
"""The console's process with a real cluster: pages, live updates, login, stop."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidemark.client import AdminClient, Consumer, Groups, Producer
from tidemark.client.quotas import QuotaChange, QuotaEntity, QuotaKind
from tidemark.local.cluster import LocalCluster
from tidemark.model import TopicPartition
from tidemark.rpc.security.paths import FILE_VARIABLES

from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.console import RunningConsole, console_of
from tests.integration.harness.waiting import wait_for

TOPIC = "console-flights"
JSON = {"Accept": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
RECORDS = 7
THROTTLE_BYTES_PER_S = 10_000
STOP_S = 8.0
OPEN_PAGES = 100
QUESTIONS_OF_THE_OVERVIEW = 2


@pytest.fixture(scope="module")
def console(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(TOPIC, partitions=2, replication_factor=3, configs={"retention.ms": 86_400_000})
        for number in range(RECORDS):
            producer.send(TOPIC, str(number).encode(), partition=0)
        producer.flush(60)
    with console_of(cluster, tmp_path_factory.mktemp("console")) as running:
        yield running
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(TOPIC)


@pytest.fixture
def browser(console: RunningConsole) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.url, timeout=30) as client:
        yield client


def test_the_overview_shows_the_live_cluster(browser: httpx.Client) -> None:
    data = browser.get("/", headers=JSON).json()["data"]
    assert data["brokers"] == [0, 1, 2]
    assert data["controller"]["id"] in (100, 101)
    assert data["health"]["level"] == "healthy"
    assert "Healthy: 3 brokers live" in browser.get("/").text


def test_the_brokers_show_their_disks_and_whether_a_restart_is_safe(
    browser: httpx.Client, cluster: LocalCluster
) -> None:
    found: list[dict[str, Any]] = []

    def all_answer() -> bool:
        """A page omits the disks of a broker that does not answer in time, as on a busy machine."""
        found[:] = browser.get("/brokers", headers=JSON).json()["data"]["brokers"]
        return all(one["log_dirs"] for one in found)

    wait_for(all_answer, "the disks of all brokers")
    assert len(found) == 3
    for one in found:
        assert one["live"]
        assert one["log_dirs"][0]["free_bytes"] > 0
    shown = browser.get("/brokers/0", headers=JSON).json()["data"]
    with AdminClient(cluster.admin_address) as admin:
        obstacles = [str(one.reason) for one in admin.obstacles_to_restart(0)]  # topics of other tests may have one
    assert [one["reason"] for one in shown["restart"]["obstacles"]] == obstacles
    assert shown["restart"]["safe"] is not bool(obstacles)
    assert {one["key"] for one in shown["configs"]} >= {"log.dirs", "broker.id"}


def test_the_topics_are_found_by_a_part_of_their_name(browser: httpx.Client) -> None:
    (found,) = browser.get("/topics", params={"q": "SOLE-FLI"}, headers=JSON).json()["data"]["topics"]
    assert (found["topic"], found["partition_count"], found["replication_factor"]) == (TOPIC, 2, 3)
    assert found["size_bytes"] > 0


def test_a_topic_shows_its_settings_with_their_sources(browser: httpx.Client) -> None:
    data = browser.get(f"/topics/{TOPIC}", headers=JSON).json()["data"]
    sources = {one["key"]: one["source"] for one in data["configs"]}
    assert (sources["retention.ms"], sources["segment.bytes"]) == ("topic", "default")
    assert data["partitions"][0]["log_end_offset"] == RECORDS


def test_a_partition_shows_each_replica_with_its_directory(browser: httpx.Client, cluster: LocalCluster) -> None:
    data = browser.get(f"/topics/{TOPIC}/0", headers=JSON).json()["data"]
    assert {one["log_dir"] for one in data["replica_states"]} == {
        str(cluster.directory / f"broker-{one}") for one in range(3)
    }
    assert all(one["in_sync"] for one in data["replica_states"])


def test_records_are_read_searched_and_downloaded_without_a_commit(browser: httpx.Client) -> None:
    page = f"/topics/{TOPIC}/records"
    data = browser.get(page, params={"limit": 3}, headers=JSON).json()["data"]
    assert [(one["offset"], one["value"]["text"]) for one in data["records"]] == [(4, "4"), (5, "5"), (6, "6")]
    earlier = browser.get(page + data["previous"], headers=JSON).json()["data"]
    assert [one["offset"] for one in earlier["records"]] == [1, 2, 3]
    found = browser.get(page, params={"q": "5", "from": "timestamp:2020-01-01"}, headers=JSON).json()["data"]
    assert [one["offset"] for one in found["records"]] == [5]
    file = browser.get(f"{page}/download{data['files']['csv']}")
    assert [line.split(",")[1] for line in file.text.splitlines()[1:]] == ["4", "5", "6"]
    assert browser.get(f"/topics/{TOPIC}/0/6/value").content == b"6"
    assert browser.get(f"/topics/{TOPIC}/0/7/value").status_code == 404


def test_a_group_shows_its_members_and_its_lag(browser: httpx.Client, cluster: LocalCluster) -> None:
    with Consumer(cluster.bootstrap, group="console-readers") as consumer:
        consumer.subscribe([TOPIC])
        assert consumer.poll_records(30, 1)
        consumer.commit({(TOPIC, 0): 2})
        (listed,) = browser.get("/groups", params={"q": "console-readers"}, headers=JSON).json()["data"]["groups"]
        assert (listed["members"], listed["state"]) == (1, "STABLE")
        data = browser.get("/groups/console-readers", headers=JSON).json()["data"]
        (first, _) = data["partitions"]
        assert (first["committed"], first["lag"]) == (2, RECORDS - 2)
        assert len(data["members"][0]["assigned"]) == 2
    assert browser.get("/groups/none-such", headers=JSON).status_code == 404


def test_a_running_reassignment_shows_its_progress_and_its_throttle(
    browser: httpx.Client, cluster: LocalCluster
) -> None:
    where = TopicPartition("console-moving", 0)
    with (
        AdminClient(cluster.admin_address) as admin,
        Producer(cluster.bootstrap) as producer,
        kazoo_of(cluster) as zookeeper,
    ):
        admin.create_topic(where.topic, replication_factor=1)
        for _ in range(60):  # a batch each: a throttle delays batches, and cuts none
            producer.send(where.topic, bytes(10_000), partition=0).result(60)
        leader = admin.describe_topics([where.topic])[0].partitions[0].leader
        plan = {**where._asdict(), "replicas": [(leader + 1) % 3], "throttle_bytes_per_s": THROTTLE_BYTES_PER_S}
        # By hand: just after so much was produced, the admin service refuses so low a throttle.
        zookeeper.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": [plan]}).encode())

        def copying() -> bool:
            found = browser.get("/reassignments", params={"q": where.topic}, headers=JSON).json()["data"]["moves"]
            wanted = {"original_replicas": [leader], "target_replicas": plan["replicas"], "state": "copying"}
            return any(wanted.items() <= one.items() and one["bytes_total"] for one in found)

        wait_for(copying, "the page shows the copy")
        assert "10.0 kB/s" in browser.get("/reassignments").text
        admin.alter_partition_reassignments(cancel=[where])
        wait_for(lambda: not admin.list_partition_reassignments([where]).moves, "the reassignment is cancelled")
        admin.delete_topic(where.topic)


def test_an_open_transaction_is_shown_with_the_offset_that_it_holds_back(
    browser: httpx.Client, cluster: LocalCluster
) -> None:
    name, topic = "console loader", "console-held"
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, transactional_id=name) as producer:
        admin.create_topic(topic, replication_factor=3)
        with producer.transaction():
            producer.send(topic, b"held").result(60)

            def held() -> bool:
                found = browser.get("/transactions", params={"state": "open"}, headers=JSON).json()["data"]["hanging"]
                wanted = {"topic": topic, "transactional_id": name, "last_stable_offset": 0, "records_behind": 1}
                return any(wanted.items() <= one.items() for one in found)

            wait_for(held, "the page shows the open transaction")
            page = browser.get("/transactions/console%20loader", headers=JSON).json()
            assert page["data"]["phase"] == "ONGOING"
            assert [one["topic"] for one in page["data"]["partitions"]] == [topic]
            assert page["data"]["abort_command"] == "tidemark transaction abort 'console loader'"
        admin.delete_topic(topic)
    assert browser.get("/transactions/none-such", headers=JSON).status_code == 404


def test_the_access_rules_and_the_quotas_are_shown(browser: httpx.Client, cluster: LocalCluster) -> None:
    entity = QuotaEntity(client_id="console-test")
    with AdminClient(cluster.admin_address) as admin:
        admin.alter_client_quotas([QuotaChange(entity, {QuotaKind.PRODUCER_BYTE_RATE: 5e6})])
        (shown,) = browser.get("/quotas", params={"q": "console-test"}, headers=JSON).json()["data"]["quotas"]
        assert shown["limits"] == {"producer_byte_rate": 5e6}
        admin.alter_client_quotas([QuotaChange(entity, {}, remove=frozenset([QuotaKind.PRODUCER_BYTE_RATE]))])
    audit = browser.get("/audit", params={"q": "console-test"}, headers=JSON).json()["data"]
    assert [(one["service"], one["event"], one["outcome"]) for one in audit["lines"]][-2:] == [
        ("admin", "AlterClientQuotas", "OK")
    ] * 2
    assert not audit["authorization_enabled"]
    page = browser.get("/acls", headers=JSON).json()
    assert (page["command"], page["data"]["acls"]) == ("tidemark acl list", [])


async def events(response: httpx.Response) -> AsyncGenerator[str, None]:
    """The parts that a stream sends."""
    part: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            part = [line]
        elif line:
            part.append(line)
        elif part[0] == "event: part":
            yield "\n".join(part)


async def test_an_open_page_is_updated_when_records_arrive(console: RunningConsole, cluster: LocalCluster) -> None:
    async with (
        httpx.AsyncClient(base_url=console.url, timeout=30) as client,
        client.stream("GET", f"/topics/{TOPIC}/1", headers=EVENTS) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = events(response)
        first = await anext(parts)
        assert "<html" not in first
        with Producer(cluster.bootstrap) as producer:
            producer.send(TOPIC, b"new", partition=1).result(30)
        async with asyncio.timeout(30):
            async for part in parts:
                if "<dt>Log end offset</dt><dd>1</dd>" in part:
                    break


def questions(samples: Mapping[tuple[str, str], float]) -> float:
    """Calls to the cluster so far, for the overview."""
    return sum(count for (name, labels), count in samples.items() if name == "tidemark_console_queries_total")


async def test_a_hundred_open_pages_share_their_questions(cluster: LocalCluster, tmp_path: Path) -> None:
    with console_of(cluster, tmp_path, console_refresh_ms="60000") as console:
        unbounded = httpx.Limits(max_connections=None)
        opened, closing = asyncio.Semaphore(0), asyncio.Event()
        async with (
            httpx.AsyncClient(base_url=console.url, timeout=60, limits=unbounded) as client,
            asyncio.TaskGroup() as tasks,
        ):

            async def tab() -> None:
                async with client.stream("GET", "/", headers=EVENTS) as response:
                    parts = events(response)
                    await anext(parts)
                    opened.release()
                    await closing.wait()
                    await parts.aclose()

            for _ in range(OPEN_PAGES):
                tasks.create_task(tab())
            for _ in range(OPEN_PAGES):
                await opened.acquire()
            samples = await asyncio.to_thread(console.samples)
            closing.set()
        assert samples["tidemark_console_streams", ""] == OPEN_PAGES
        assert questions(samples) == QUESTIONS_OF_THE_OVERVIEW


def test_a_wrong_topic_is_not_found(browser: httpx.Client) -> None:
    page = browser.get("/topics/none-such", headers=JSON)
    assert (page.status_code, page.json()["error"]["code"]) == (404, "UNKNOWN_TOPIC")


async def test_a_console_stops_cleanly_below_an_open_page(cluster: LocalCluster, tmp_path: Path) -> None:
    with console_of(cluster, tmp_path) as running:
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=30) as client,
            client.stream("GET", "/", headers=EVENTS) as response,
        ):
            parts = events(response)
            await anext(parts)
            running.process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.process.wait, STOP_S)
        assert running.process.exit_status == 0, running.process.tail()


def test_a_token_is_asked_for_and_handed_on_where_the_cluster_is_secure(secure: LocalCluster, tmp_path: Path) -> None:
    assert secure.token_file is not None
    token = secure.token_file.read_text().strip()
    with (
        console_of(secure, tmp_path, secure=True) as running,
        httpx.Client(base_url=running.url, headers={"Origin": running.url}, timeout=30) as client,
    ):
        assert client.get("/", headers=JSON).status_code == 401
        assert client.post("/login", data={"token": "tidemark_wrong"}).status_code == 401
        page = client.post("/login", data={"token": token, "next": "/brokers"})
        assert (page.status_code, page.headers["location"]) == (303, "/brokers")
        bearer = {"Authorization": f"Bearer {token}"}
        shown = client.get("/", headers={**JSON, **bearer}).json()
        assert shown["data"]["brokers"] == [0, 1, 2]
        assert "Log out" in client.get("/", headers=bearer).text
        assert client.get("/", headers={**JSON, "Authorization": "Bearer wrong"}).status_code == 401
    assert token not in running.process.log.read_text()


def test_a_token_resets_offsets_where_the_cluster_is_secure(
    secure: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, path in zip(FILE_VARIABLES, secure.client_files, strict=True):
        monkeypatch.setenv(variable, path)
    assert secure.token_file is not None
    topic, group = "console-secure", "console-secure-readers"
    where = TopicPartition(topic, 0)
    bearer = {"Authorization": f"Bearer {secure.token_file.read_text().strip()}"}
    with (
        AdminClient(secure.admin_address) as admin,
        Groups(secure.bootstrap) as groups,
        console_of(secure, tmp_path, secure=True) as running,
        httpx.Client(base_url=running.url, headers={**JSON, **bearer}, timeout=30) as client,
    ):
        admin.create_topic(topic)
        groups.set_offsets(group, {where: 0})
        shown = client.get(f"/reset-offsets/{group}").json()["data"]
        assert (shown["may_change"], shown["unchanged"]) == (True, 1)
        done = client.post(f"/reset-offsets/{group}", data={**shown["fields"], "plan": shown["plan"]}).json()["data"]
        assert (done["changed"], done["partitions"]) == (
            True,
            [{"topic": topic, "partition": 0, "before": 0, "offset": 0}],
        )
        client.headers["Authorization"] = "Bearer wrong"
        refused = client.post(f"/reset-offsets/{group}", data={"plan": shown["plan"]})
        assert refused.status_code == 401
        groups.delete(group)
        admin.delete_topic(topic)
