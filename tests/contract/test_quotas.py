# SPDX-License-Identifier: Apache-2.0
"""Quotas: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind, Quotas
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.metrics import Metrics
from tidemark.zookeeper import paths
from tidemark.zookeeper.feeds import QuotaFeed
from tidemark.zookeeper.whole_nodes import packed
from tidemark.zookeeper.whole_nodes.quotas import decode, encode

from tests.contract.conftest import OUTAGE_SESSION_MS, Cluster
from tests.refusals import raises_code

SOON_S = 20
BACK_S = 60
"""A new session after an outage, on a machine that starts other processes meanwhile."""
RATE = QuotaKind.PRODUCER_BYTE_RATE
ALICE, OTHERS = QuotaEntity("User:token:alice"), QuotaEntity(DEFAULT, "loader")


def failed(error: BaseException) -> None:
    raise error


async def test_one_of_two_changes_of_the_same_quotas_is_written(cluster: Cluster) -> None:
    first, second = await cluster.store(), await cluster.store()
    assert (await first.quotas()).generation == -1
    written = await asyncio.gather(
        first.write_quotas({ALICE: {RATE: 1.0}}, version=-1), second.write_quotas({OTHERS: {RATE: 2.0}}, version=-1)
    )
    assert sorted(written) == [False, True]
    assert not await second.write_quotas({}, version=7)
    assert await second.write_quotas({OTHERS: {RATE: 3.0}, ALICE: {}}, version=0)
    found = await first.quotas()
    assert (found.limits, found.generation) == ({OTHERS: {RATE: 3.0}}, 1)


async def test_a_change_takes_effect_and_the_last_known_quotas_hold_without_zookeeper(cluster: Cluster) -> None:
    store, writer = await cluster.store(OUTAGE_SESSION_MS), await cluster.store(OUTAGE_SESSION_MS)
    changes: asyncio.Queue[Quotas] = asyncio.Queue()
    feed = QuotaFeed(changes.put_nowait, store, SystemClock(), failed)
    feed.show(metrics := Metrics())

    async def change() -> Quotas:
        async with asyncio.timeout(SOON_S):
            return await changes.get()

    async def until(stale: bool, within_s: float = SOON_S) -> None:
        async with asyncio.timeout(within_s):
            while (feed.age_s() > 0) is not stale:  # noqa: ASYNC110 - the age is not an event
                await asyncio.sleep(0.01)

    await feed.start()
    await writer.write_quotas({ALICE: {RATE: 1.0}}, version=-1)
    assert (await change()).limits == {ALICE: {RATE: 1.0}}
    await writer.write_quotas({ALICE: {RATE: 2.0}}, version=0)
    assert (await change()).limits == {ALICE: {RATE: 2.0}}
    await until(stale=False)
    await cluster.corrupt(paths.QUOTAS, b"no gzip")
    await until(stale=True)
    with pytest.raises(TidemarkError, match="not a whole gzip file"):
        await writer.quotas()
    await writer.write_quotas({OTHERS: {RATE: 3.0}}, version=2)
    assert (await change()).limits == {OTHERS: {RATE: 3.0}}
    await cluster.stop_serving()
    await until(stale=True)
    assert "tidemark_quota_entities 1.0" in metrics.render().decode()
    await cluster.serve_again()
    await until(stale=False, within_s=BACK_S)
    assert changes.empty()
    await feed.stop()


@pytest.mark.parametrize(
    "quotas",
    [
        7,
        [7],
        [["User:token:a", None]],
        [["alice", None, {}]],
        [[None, None, {}]],
        [[7, None, {}]],
        [["User:token:a", None, {"ip_rate": 1}]],
        [["User:token:a", None, {"producer_byte_rate": "1"}]],
        [["User:token:a", None, {"producer_byte_rate": True}]],
        [["User:token:a", None, {"producer_byte_rate": -1}]],
        [["User:token:a", None, {"producer_byte_rate": 10**400}]],
    ],
)
def test_a_node_with_one_quota_that_is_not_understood_is_refused_as_a_whole(quotas: object) -> None:
    with raises_code(ErrorCode.INTERNAL) as refused:
        decode(gzip.compress(json.dumps({"version": 1, "quotas": quotas}).encode()), 0)
    assert paths.QUOTAS in refused.value.message


def test_quotas_that_could_not_be_read_again_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {QuotaEntity(f"User:token:{n:0200}"): {QuotaKind.PRODUCER_BYTE_RATE: 1.0} for n in range(10)}
    monkeypatch.setattr(packed, "EXPANDED_BYTES_MAX", 2_000)
    with raises_code(ErrorCode.INVALID_REQUEST, r"the quotas would take \d+ bytes, of 2000: use quotas of"):
        encode(limits)
    few = dict(list(limits.items())[:5])
    assert decode(encode(few), 0).limits == few


def test_the_same_quotas_give_the_same_bytes_and_ten_thousand_entities_fit() -> None:
    limits = {
        QuotaEntity(f"User:tidemark://shop/user/{n * 7919:x}", f"id{n}"): dict.fromkeys(QuotaKind, n + 1.0)
        for n in range(10_000)
    }
    data = encode(limits)
    assert data == encode(dict(reversed(limits.items())))
    assert len(data) < 512 << 10
    assert decode(data, 4).limits == limits
