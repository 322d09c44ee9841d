# SPDX-License-Identifier: Apache-2.0
"""The pages of transactions over a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

import httpx
import pytest
from tidemark.client.aio.transaction_admin import (
    OpenInPartition,
    PartitionState,
    TransactionDescription,
    TransactionListing,
)
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.unit.console.conftest import JSON, FakeCluster, refused

HOSTILE = "a/<b>'x y'"
PAGE = "/transactions"
BEGAN_MS = 1_799_999_700_000
FLIGHTS, WEATHER = TopicPartition("flights", 0), TopicPartition("weather", 2)
LOADER, LOST = ProducerIdentity(7, 2), ProducerIdentity(9, 0)


class TransactionsCluster(FakeCluster):
    """One id with an open transaction, one without; a partition with records of a producer that no coordinator has.

    Attributes:
        missing: errors of brokers whose ids are missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: list[TidemarkError] = []
        self.listed = [
            TransactionListing("idle", "COMPLETE_COMMIT", 3, 0, 0, 0),
            TransactionListing("loader", "ONGOING", *LOADER, BEGAN_MS, 1),
        ]

    async def list_transactions(self) -> tuple[list[TransactionListing], list[TidemarkError]]:
        return self.listed, self.missing

    async def describe_transactions(self, names: Sequence[str]) -> list[TransactionDescription]:
        known = {one.transactional_id: one for one in self.listed}
        if missing := [name for name in names if name not in known]:
            raise refused(ErrorCode.TRANSACTION_NOT_FOUND, f"there is no transactional id {missing[0]}")
        return [self._described(known[name]) for name in names]

    async def describe_listed(
        self, listed: Iterable[TransactionListing]
    ) -> tuple[list[TransactionDescription], list[TidemarkError]]:
        return [self._described(one) for one in listed], []

    async def partition_states(
        self, topics: Iterable[str]
    ) -> tuple[dict[TopicPartition, PartitionState], list[TidemarkError]]:
        held = PartitionState(40, 100, (OpenInPartition(FLIGHTS, LOADER, 40, BEGAN_MS * 1000),))
        lost = PartitionState(5, 6, (OpenInPartition(WEATHER, LOST, 5, BEGAN_MS * 1000 + 1_000_000, end_offset=6),))
        return {FLIGHTS: held, WEATHER: lost, TopicPartition("idle", 0): PartitionState(9, 9, ())}, []

    def _described(self, one: TransactionListing) -> TransactionDescription:
        partitions = ((FLIGHTS, LOADER),) if one.started_at_ms else ()
        producer = (one.producer_id, one.producer_epoch)
        return TransactionDescription(
            one.transactional_id, one.phase, *producer, one.started_at_ms, 60_000, BEGAN_MS, 1, -1, partitions
        )


@pytest.fixture
def cluster() -> TransactionsCluster:
    return TransactionsCluster()


async def test_the_holders_of_stable_offsets_have_the_command_that_ends_each(browser: httpx.AsyncClient) -> None:
    data = (await browser.get(PAGE, headers=JSON)).json()["data"]
    held, lost = data["hanging"]
    assert (held["topic"], held["last_stable_offset"], held["records_behind"], held["since_ms"]) == (
        "flights",
        40,
        60,
        BEGAN_MS,
    )
    assert held["command"] == "tidemark transaction abort loader"
    assert (lost["transactional_id"], lost["command"]) == (
        None,
        "tidemark topic delete-records weather --partition 2 --before 6",
    )
    text = (await browser.get(PAGE)).text
    assert "no coordinator has it" in text
    assert "tidemark transaction abort loader" in text


async def test_open_transactions_come_first(browser: httpx.AsyncClient) -> None:
    async def names(query: str) -> list[str]:
        data = (await browser.get(f"{PAGE}?{query}", headers=JSON)).json()["data"]
        return [one["transactional_id"] for one in data["transactions"]]

    assert await names("") == ["loader", "idle"]
    assert await names("state=open") == ["loader"]
    assert await names("state=COMPLETE_COMMIT") == ["idle"]
    assert await names("q=IDL") == ["idle"]
    assert (await browser.get(f"{PAGE}?state=done")).status_code == 400


async def test_the_page_says_which_transactions_may_be_missing(
    browser: httpx.AsyncClient, cluster: TransactionsCluster
) -> None:
    cluster.missing = [refused(ErrorCode.BROKER_NOT_AVAILABLE, "broker <2> does not answer")]
    page = await browser.get(PAGE)
    assert page.text.count("Some transactions may be missing: broker &lt;2&gt; does not answer") == 1


async def test_an_id_shows_its_partitions_and_the_command_that_aborts(browser: httpx.AsyncClient) -> None:
    page = (await browser.get(f"{PAGE}/loader", headers=JSON)).json()
    assert page["command"] == "tidemark transaction describe loader"
    assert page["data"]["abort_command"] == "tidemark transaction abort loader"
    assert page["data"]["partitions"] == [{"topic": "flights", "partition": 0, "producer_id": 7, "producer_epoch": 2}]
    idle = (await browser.get(f"{PAGE}/idle", headers=JSON)).json()["data"]
    assert (idle["abort_command"], idle["started_at_ms"]) == (None, None)
    assert "not open" in (await browser.get(f"{PAGE}/idle")).text


async def test_names_of_ids_are_text(browser: httpx.AsyncClient, cluster: TransactionsCluster) -> None:
    cluster.listed.append(TransactionListing(HOSTILE, "ONGOING", 8, 0, BEGAN_MS, 0))
    listed = (await browser.get(PAGE)).text
    assert f'href="/transactions/{quote(HOSTILE, safe="")}"' in listed
    page = await browser.get(f"{PAGE}/{quote(HOSTILE, safe='')}")
    assert page.status_code == 200
    assert "<b>" not in listed + page.text


async def test_an_id_that_is_unknown_is_not_found(browser: httpx.AsyncClient) -> None:
    page = await browser.get(f"{PAGE}/none", headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (404, "there is no transactional id none")


async def test_transactions_without_an_answer_are_refused_with_the_reason(
    browser: httpx.AsyncClient, cluster: TransactionsCluster
) -> None:
    cluster.failure = refused(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")
    assert (await browser.get(PAGE)).status_code == 503
