# SPDX-License-Identifier: Apache-2.0
"""Nodes of brokers with unusable content are ignored, without an effect on other brokers."""

from __future__ import annotations

import json

import pytest
from tidemark.model import BrokerId, ErrorCode, Refusal, TidemarkError, TopicPartition

from tests.contract.conftest import Cluster
from tests.contract.test_lost_epochs import ONE, in_sync, registered, session_ends
from tests.contract.test_metadata_store import elected

HEALTHY = {"version": 1, "host": "h", "port": 9192, "broker_epoch": 0}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("99999999999", HEALTHY),
        ("007", HEALTHY),
        ("7", {**HEALTHY, "port": 70_000}),
        ("7", {**HEALTHY, "port": -1}),
        ("7", {**HEALTHY, "broker_epoch": -7}),
        ("7", {**HEALTHY, "broker_epoch": 1 << 62}),
        ("7", {**HEALTHY, "features": {"protocol": 1 << 40}}),
        ("7", {**HEALTHY, "endpoints": ["clients.mtls://nowhere"]}),
        ("7", {**HEALTHY, "endpoints": [9392]}),
    ],
)
async def test_an_absurd_registration_is_skipped(cluster: Cluster, name: str, fields: dict[str, object]) -> None:
    store = await cluster.store()
    await registered(store)
    session = store._session
    await session.commit(lambda multi: multi.create(f"/brokers/ids/{name}", json.dumps(fields).encode()))
    await session.commit(lambda multi: multi.create(f"/brokers/epochs/{name}", b"{}"))
    assert set(await store.live_brokers()) == {ONE}
    assert set(await store.broker_epochs()) <= {ONE, BrokerId(7)}


@pytest.mark.parametrize("field", ["unclean_at", "lost_at", "crashed_at"])
@pytest.mark.parametrize("number", [1 << 40, -2])
async def test_an_absurd_mark_of_a_registration_counts_until_the_present_registration_only(
    cluster: Cluster, field: str, number: int
) -> None:
    """Regression: such a broker was never elected again."""
    store, other = await cluster.store(), await cluster.store()
    await registered(store)
    document = json.dumps({"version": 1, field: number}).encode()
    await store._session.commit(lambda multi: multi.set_data(f"/brokers/epochs/{ONE}", document, -1))
    record = (await other.broker_epochs())[ONE]
    assert record.unclean_at == record.lost_at == record.broker_epoch == 1
    await session_ends(cluster, store)
    assert await registered(store) == 2
    record = (await other.broker_epochs())[ONE]
    assert max(record.unclean_at, record.lost_at, record.crashed_at) <= record.broker_epoch == 2


async def test_a_broker_that_has_registered_millions_of_times_still_counts(cluster: Cluster) -> None:
    store = await cluster.store()
    document = json.dumps({**HEALTHY, "broker_epoch": 16_000_000}).encode()
    await store._session.commit(lambda multi: multi.create("/brokers/ids/7", document))
    assert (await store.live_brokers())[BrokerId(7)].broker_epoch == 16_000_000


async def test_an_epoch_that_no_broker_comes_to_is_not_counted_up_to(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await in_sync(other, 1 << 60)
    assert await registered(store) == 0


async def test_refusals_of_an_impossible_partition_are_read_with_the_others(cluster: Cluster) -> None:
    store = await cluster.store()
    error = TidemarkError(ErrorCode.UNKNOWN_PARTITION, "there is none")
    refused = [Refusal("move", TopicPartition("t", index), error) for index in (3, 99_999_999_999)]
    await store.finish_moves(await elected(store), (), refused)
    assert [one.partition for one in await store.refusals()] == [TopicPartition("t", 3), TopicPartition("t", -1)]
