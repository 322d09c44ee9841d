# SPDX-License-Identifier: Apache-2.0
"""The page of records over a log in memory: ranges, search, forms, files, refusals; records are text, never markup."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import httpx
import pytest
from pyarrow import parquet
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.console.pages import records as pages
from tidemark.console.queries import records
from tidemark.model import ErrorCode

from tests.unit.client.typed.samples import FLIGHTS, from_records, sealed
from tests.unit.console.conftest import JSON, FakeCluster, refused, topic

HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(2)>"
PAGE = "/topics/flights/records"


@pytest.fixture(autouse=True)
def flights(cluster: FakeCluster) -> None:
    cluster.add(topic("flights", 3))
    for number in range(120):
        cluster.log.add(f'{{"n":{number}}}'.encode(), key=f"k{number}".encode())


async def offsets(browser: httpx.AsyncClient, query: str) -> list[int]:
    page = await browser.get(f"{PAGE}?{query}", headers=JSON)
    return [one["offset"] for one in page.json()["data"]["records"]]


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("", 70, 119),
        ("from=end&limit=3", 117, 119),
        ("from=earliest&limit=3", 0, 2),
        ("from=offset:7&limit=3", 7, 9),
        ("from=7&limit=3", 7, 9),
        ("from=before:7&limit=3", 4, 6),
        ("from=timestamp:1970-01-01T00:00:00.015Z&limit=2", 15, 16),
    ],
)
async def test_a_page_shows_a_range_of_records(
    query: str, first: int, last: int, browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    assert await offsets(browser, query) == list(range(first, last + 1))


async def test_a_page_names_the_command_that_reads_the_same_records(browser: httpx.AsyncClient) -> None:
    command = (await browser.get(f"{PAGE}?from=offset:7", headers=JSON)).json()["command"]
    expected = "tidemark consume flights --partition 0 --from offset:7 --until-end --output json"
    assert command == expected


async def test_a_page_has_the_addresses_of_its_neighbours(browser: httpx.AsyncClient) -> None:
    data = (await browser.get(f"{PAGE}?from=offset:10&limit=5&as=hex", headers=JSON)).json()["data"]
    assert (data["previous"], data["next"]) == ("?limit=5&as=hex&from=before%3A10", "?limit=5&as=hex&from=offset%3A15")
    assert await offsets(browser, data["previous"][1:]) == [5, 6, 7, 8, 9]
    ends = (await browser.get(f"{PAGE}?from=earliest&limit=200", headers=JSON)).json()["data"]
    assert (ends["previous"], ends["next"]) == ("", "")


async def test_a_start_outside_of_the_log_becomes_its_nearest_offset(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.log.start = 100
    low = (await browser.get(f"{PAGE}?from=offset:3&limit=1", headers=JSON)).json()["data"]
    assert (low["records"][0]["offset"], low["deleted_before"]) == (100, True)
    high = await browser.get(f"{PAGE}?from=offset:{10**18 - 1}")
    assert "The partition ends at offset 120" in high.text
    assert "This range has no records." in high.text


async def test_a_search_shows_matching_records_and_the_scanned_number(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await offsets(browser, "q=K11&field=key&from=earliest") == [11, *range(110, 120)]
    monkeypatch.setattr(records, "SCAN_RECORDS_MAX", 40)
    page = await browser.get(f"{PAGE}?q=k119&from=earliest")
    assert "The search ended after 40 records" in page.text
    assert 'href="?q=k119&amp;from=offset%3A40" rel="next"' in page.text


async def test_records_are_text_and_never_markup(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.log.add(HOSTILE, key=HOSTILE, headers=[(HOSTILE.decode(), HOSTILE)])
    cluster.log.add(HOSTILE * 20)
    text = (await browser.get(f"{PAGE}?limit=2")).text
    assert text.count("&lt;script&gt;alert(1)") >= 5
    assert "<script>alert" not in text
    assert "<img" not in text
    searched = (await browser.get(PAGE, params={"q": f'"{HOSTILE.decode()}'})).text
    assert "<script>alert" not in searched


async def test_a_large_value_is_cut_with_its_size_and_a_link_to_all_of_it(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.log.add(b"v" * 900_000)
    page = await browser.get(f"{PAGE}?limit=1")
    assert len(page.content) < 20_000
    assert "900.0 kB, start of it" in page.text
    assert 'href="/topics/flights/0/120/value" download' in page.text
    whole = await browser.get("/topics/flights/0/120/value")
    assert whole.content == b"v" * 900_000
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"] == 'attachment; filename="flights-0-120-value.bin"'
    assert whole.headers["x-content-type-options"] == "nosniff"


async def test_the_shown_range_is_downloaded_in_each_format(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    data = (await browser.get(f"{PAGE}?from=offset:5&limit=3", headers=JSON)).json()["data"]
    files = {}
    for name, address in data["files"].items():
        files[name] = await browser.get(f"{PAGE}/download{address}")
        assert files[name].headers["content-disposition"].startswith('attachment; filename="flights-0-from-5.')
    assert [json.loads(line)["offset"] for line in files["jsonl"].text.splitlines()] == [5, 6, 7]
    rows = list(csv.DictReader(io.StringIO(files["csv"].text)))
    assert [(row["offset"], row["value"]) for row in rows] == [("5", '{"n":5}'), ("6", '{"n":6}'), ("7", '{"n":7}')]
    assert files["csv"].headers["content-type"] == "text/csv; charset=utf-8"
    table = parquet.read_table(io.BytesIO(files["parquet"].content))
    assert table.column("key").to_pylist() == [b"k5", b"k6", b"k7"]


async def test_the_range_of_a_page_that_stopped_at_its_bound_is_downloaded(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    for _ in range(60):
        cluster.log.add(bytes(1 << 20))
    data = (await browser.get(f"{PAGE}?from=offset:120", headers=JSON)).json()["data"]
    assert (data["stopped"], data["end"] < 180) == ("bytes", True)
    file = await browser.get(f"{PAGE}/download{data['files']['parquet']}")
    assert parquet.read_table(io.BytesIO(file.content)).num_rows == data["end"] - 120


async def test_a_download_is_whole_or_refused(browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DOWNLOAD_BYTES_MAX", 1000)
    page = await browser.get(f"{PAGE}/download?format=jsonl", headers=JSON)
    assert page.status_code == 400
    assert "take a smaller range, or the command tidemark consume flights" in page.json()["error"]["message"]


async def test_a_download_of_too_many_records_is_refused_unless_a_limit_is_named(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a program would get the first 10,000 records, and treat them as all records."""
    for module in (records, pages):
        monkeypatch.setattr(module, "DOWNLOAD_RECORDS_MAX", 100)
    page = await browser.get(f"{PAGE}/download?format=jsonl&from=earliest", headers=JSON)
    assert (page.status_code, page.json()["error"]["message"][:39]) == (400, "a download has at most 100 records, and")
    for query, count in (("from=earliest&limit=100", 100), ("from=offset:20", 100), ("from=earliest&until=30", 30)):
        file = await browser.get(f"{PAGE}/download?format=jsonl&{query}")
        assert len(file.text.splitlines()) == count


async def test_a_csv_file_of_binary_values_is_refused_with_other_formats(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    cluster.log.add(b"\xff")
    page = await browser.get(f"{PAGE}/download?format=csv&from=offset:120", headers=JSON)
    assert page.status_code == 400
    assert "json" in page.json()["error"]["message"]


async def test_a_typed_topic_shows_its_columns(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.add(topic("flights", 3, schema_version=1))
    typed = TypedFormat("flights", "id", FLIGHTS)
    row = {
        "carrier": "<b>UA</b>" * 30,
        "price": Decimal("1.50"),
        "scheduled_at": datetime.fromtimestamp(0, UTC),
        "tags": {"a": 1},
    }
    batch = sealed(typed, from_records(typed, [row]), base_offset=0)
    cluster.log.end, cluster.log.versions, cluster.log.typed_batches = 1, {1: FLIGHTS}, [batch]
    data = (await browser.get(PAGE, headers=JSON)).json()["data"]
    assert data["columns"][:4] == ["carrier", "flight", "delay", "price"]
    (record,) = data["records"]
    assert [cell["text"] for cell in record["cells"]][3] == "1.50"
    assert record["cells"][0]["cut"]
    text = (await browser.get(PAGE)).text
    assert "&lt;b&gt;UA&lt;/b&gt;" in text
    assert "<b>UA" not in text
    whole = await browser.get("/topics/flights/0/0/value")
    assert whole.json()["carrier"] == row["carrier"]
    assert whole.headers["content-disposition"].endswith('-value.json"')


async def test_a_followed_page_is_live_and_shows_the_newest_record_first(browser: httpx.AsyncClient) -> None:
    assert (await offsets(browser, "follow=yes&limit=3")) == [119, 118, 117]
    assert "data-live" in (await browser.get(f"{PAGE}?follow=yes")).text
    fixed = await browser.get(PAGE)
    assert "data-live" not in fixed.text
    events = await browser.get(PAGE, headers={"Accept": "text/event-stream"})
    assert "event: refused\ndata: This page has no live updates." in events.text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/topics/none/records", 404),
        (f"{PAGE}?partition=9", 404),
        (f"{PAGE}?partition=x", 400),
        (f"{PAGE}?from=latest", 400),
        (f"{PAGE}?from=offset:", 400),
        (f"{PAGE}?from=before:x", 400),
        (f"{PAGE}?from=offset:{'9' * 30}", 400),
        (f"{PAGE}?from=timestamp:yesterday", 400),
        (f"{PAGE}?limit=0", 400),
        (f"{PAGE}?limit=201", 400),
        (f"{PAGE}?field=none", 400),
        (f"{PAGE}?as=html", 400),
        (f"{PAGE}?q=" + "x" * 201, 400),
        (f"{PAGE}/download?format=exe", 400),
        (f"{PAGE}/download?from=end", 400),
        (f"{PAGE}/download?limit=10001", 400),
        ("/topics/flights/0/500/value", 404),
        ("/topics/flights/0/5/headers", 404),
        ("/topics/flights/0/x/value", 400),
    ],
)
async def test_a_wrong_address_is_refused_with_a_sentence(
    address: str, status: int, browser: httpx.AsyncClient
) -> None:
    page = await browser.get(address, headers=JSON)
    assert page.status_code == status
    assert page.json()["error"]["message"]


async def test_records_without_an_answer_are_refused_with_the_reason(
    browser: httpx.AsyncClient, cluster: FakeCluster
) -> None:
    await browser.get("/topics/flights")
    cluster.failure = refused(ErrorCode.REQUEST_TIMED_OUT, "flights-0 has no leader")
    page = await browser.get(PAGE, headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (503, "flights-0 has no leader")
    cluster.failure = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (await browser.get(PAGE)).status_code == 403
