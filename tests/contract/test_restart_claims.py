# SPDX-License-Identifier: Apache-2.0
"""Claims of a restart: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tidemark.model import BrokerEpoch, BrokerId
from tidemark.ports import RestartClaim

from tests.contract.conftest import Cluster

ONE = RestartClaim(BrokerId(1), BrokerEpoch(4), until_ms=1_700_000_000_000)
TWO = RestartClaim(BrokerId(2), BrokerEpoch(7), until_ms=1_700_000_009_000)


async def test_one_of_two_claims_at_the_same_moment_is_written(cluster: Cluster) -> None:
    first, second = await cluster.store(), await cluster.store()
    assert await first.restart_claim() is None
    written = await asyncio.gather(first.write_restart_claim(ONE), second.write_restart_claim(TWO))
    assert sorted(written) == [False, True]
    winner = replace(ONE if written[0] else TWO, version=0)
    assert await first.restart_claim() == await second.restart_claim() == winner


async def test_a_claim_is_written_over_the_version_that_was_read(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.write_restart_claim(ONE)
    assert not await store.write_restart_claim(TWO)
    assert await store.write_restart_claim(replace(TWO, version=0))
    assert not await store.write_restart_claim(replace(ONE, version=0))
    assert await store.restart_claim() == replace(TWO, version=1)


async def test_only_the_claim_that_is_there_can_be_ended(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.end_restart_claim(replace(ONE, version=0))
    await store.write_restart_claim(ONE)
    await store.write_restart_claim(replace(TWO, version=0))
    await store.end_restart_claim(replace(ONE, version=0))
    assert await store.restart_claim() == replace(TWO, version=1)
    await store.end_restart_claim(replace(TWO, version=1))
    assert await store.restart_claim() is None
