# SPDX-License-Identifier: Apache-2.0
"""The page of unclean elections."""

from __future__ import annotations

import httpx
from tidemark.model import ErrorCode, Offset, TopicPartition, UncleanElection

from tests.unit.console.conftest import JSON, FakeCluster, refused


def report(topic: str, at_ms: int, **more: object) -> UncleanElection:
    return UncleanElection(TopicPartition(topic, 0), "t", 1, 2, 7, at_ms, **more)  # type: ignore[arg-type]


async def test_the_newest_loss_comes_first_with_its_offsets(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.elections = [
        report("old", 1_000),
        report("<b>", 2_000, log_end_offset=Offset(5), high_watermark=Offset(12), unheard=(1,), request_id="<i>"),
    ]
    first, second = (await browser.get("/elections", headers=JSON)).json()["data"]["reports"]
    assert (first["topic"], first["records_maybe_lost"], first["unheard"]) == ("<b>", 7, [1])
    assert (second["topic"], second["records_maybe_lost"]) == ("old", None)
    text = (await browser.get("/elections")).text
    assert "5 to 11" in text
    assert "&lt;b&gt;:0" in text
    assert "<i>" not in text


async def test_a_cluster_without_unclean_elections_shows_no_report(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/elections")
    assert "0 reports" in page.text
    assert "<code>tidemark elect --reports</code>" in page.text


async def test_an_unknown_topic_has_no_reports(browser: httpx.AsyncClient, cluster: FakeCluster) -> None:
    cluster.failures["list_unclean_elections"] = refused(ErrorCode.UNKNOWN_TOPIC, "there is no topic none")
    page = await browser.get("/elections?topic=none", headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (404, "there is no topic none")
