# SPDX-License-Identifier: Apache-2.0
"""Brokers that are drained: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

from tidemark.model import BrokerId
from tidemark.ports import ControllerTerm
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster

ONE, TWO = BrokerId(1), BrokerId(2)


async def test_a_broker_is_drained_until_it_is_added_again_and_saying_so_twice_is_fine(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.draining_brokers() == frozenset()
    await store.begin_draining([TWO, ONE])
    await store.begin_draining([TWO])
    assert await store.draining_brokers() == {ONE, TWO}
    await store.end_draining([TWO])
    await store.end_draining([TWO])
    assert await store.draining_brokers() == {ONE}


async def test_draining_outlives_the_session_that_began_it(cluster: Cluster) -> None:
    first, second = await cluster.store(), await cluster.store()
    await first.begin_draining([ONE])
    await first.stop()
    assert await second.draining_brokers() == {ONE}


async def test_settings_of_a_broker_that_has_none_are_forgotten_all_the_same(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.forget_broker_configs(ONE)
    assert await elected(store) is not None, "the session lives on"


async def elected(store: MetadataStore) -> ControllerTerm | None:
    return await store.elect_controller(BrokerId(100), "localhost:9193")
