# SPDX-License-Identifier: Apache-2.0
"""The creation of `__consumer_offsets` (docs/groups.md, G1)."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.core.internal_topics import OFFSETS_TOPIC, partition_of
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode
from tidemark.runtime.configuration.settings import topic_settings

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.refusals import raises_code


async def store_of(ensemble: FakeZooKeeper, broker: int) -> FakeMetadataStore:
    """The session of a registered broker."""
    store = ensemble.store()
    await store.start()
    registration = BrokerRegistration(BrokerId(broker), "here", 1, directory_ids=(f"d{broker}",), boot_id="b")
    await store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
    return store


def topic_of(store: FakeMetadataStore) -> InternalTopic:
    return InternalTopic(OFFSETS_TOPIC, store, partitions=8, replication_factor=3, factor_setting="the.setting")


async def test_several_brokers_at_once_create_the_topic_once() -> None:
    ensemble = FakeZooKeeper()
    stores = [await store_of(ensemble, broker) for broker in range(4)]
    await asyncio.gather(*(topic_of(store).ensure() for store in stores))
    made = (await stores[0].topics())[OFFSETS_TOPIC]
    assert len(made.partitions) == len(set(made.incarnations.values())) == 8
    assert all(len(set(replicas)) == 3 for replicas in made.partitions.values())
    assert {replicas[0] for replicas in made.partitions.values()} == {BrokerId(broker) for broker in range(4)}
    assert topic_settings(made.configs).cleanup_policy == "compact"
    await topic_of(stores[1]).ensure()
    assert (await stores[0].topics())[OFFSETS_TOPIC].topic_id == made.topic_id


async def test_a_cluster_of_one_broker_has_one_replica_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The first client may connect before the second broker registers; the topic then keeps its one replica."""
    store = await store_of(FakeZooKeeper(), 0)
    await topic_of(store).ensure()
    assert set((await store.topics())[OFFSETS_TOPIC].partitions.values()) == {(BrokerId(0),)}
    (warning,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "tidemark reassign" in warning.message
    assert (vars(warning)["replicas"], vars(warning)["the.setting"]) == (1, 3)


async def test_registered_brokers_that_are_down_are_waited_for() -> None:
    ensemble = FakeZooKeeper()
    stores = [await store_of(ensemble, broker) for broker in range(3)]
    await stores[2].stop()
    with raises_code(ErrorCode.COORDINATOR_NOT_AVAILABLE) as refused:
        await topic_of(stores[0]).ensure()
    assert "2 of 3 brokers are up" in refused.value.message
    await stores[0].begin_draining([BrokerId(2)])  # the topic does not wait for a broker that is being removed
    await topic_of(stores[0]).ensure()
    assert set((await stores[0].topics())[OFFSETS_TOPIC].partitions[0]) == {BrokerId(0), BrokerId(1)}


async def test_unavailable_zookeeper_means_no_coordinator_and_is_not_called_for_every_request() -> None:
    store = await store_of(FakeZooKeeper(), 0)
    topic = topic_of(store)
    store.session.lose_answers(1, applied=False)
    with raises_code(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        await topic.ensure()
    await topic.ensure()
    assert await store.topics() == {}, "the next attempt waits a moment"


def test_groups_spread_over_the_partitions_and_stay_in_theirs() -> None:
    found = {partition_of(f"group-{number}", 16) for number in range(200)}
    assert found == set(range(16))
    assert partition_of("a", 16) == partition_of("a", 16)
    assert (partition_of("orders", 16), partition_of("gruppe-ü", 16)) == (ORDERS, UMLAUT)


ORDERS, UMLAUT = 12, 12
"""Fixed values: another hash would lose every existing group."""
