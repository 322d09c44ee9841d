# SPDX-License-Identifier: Apache-2.0
"""Dynamic settings: read, watched, applied. The store is the fake of the contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from tidemark.broker.node.dynamic_config import DynamicConfig
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.runtime.configuration.entries import ConfigSource
from tidemark.runtime.configuration.settings import BrokerSettings, read_settings

from tests.fakes.metadata_store import FakeZooKeeper

OWN = ConfigResource(ConfigKind.BROKER, "3")
EVERY = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)
ARGUMENTS = ["--broker.id=3", "--zookeeper.connect=z:1", "--log.dirs=/data/a,/data/b", "--replica.lag.time.max.ms=7000"]


class Broker:
    """The settings that were applied, in order."""

    def __init__(self, ensemble: FakeZooKeeper) -> None:
        self.used: asyncio.Queue[BrokerSettings] = asyncio.Queue()
        self.failures: list[BaseException] = []
        self.store = ensemble.store()
        settings = read_settings(BrokerSettings, ARGUMENTS, {})
        self.configs = DynamicConfig(settings, self.store, self.used.put_nowait, self.failures.append)
        self._operator = ensemble.store()

    async def start(self) -> None:
        await self.store.start()
        await self._operator.start()
        await self.configs.start()

    async def operator_sets(self, resource: ConfigResource, configs: Mapping[str, str]) -> None:
        found = (await self._operator.configs([resource]))[resource]
        assert await self._operator.write_configs(resource, configs, version=found.version)

    async def uses(self, **expected: object) -> None:
        async with asyncio.timeout(5):
            settings = await self.used.get()
        assert {name: getattr(settings, name) for name in expected} == expected


@pytest.fixture
async def ensemble() -> FakeZooKeeper:
    return FakeZooKeeper()


@pytest.fixture
async def broker(ensemble: FakeZooKeeper) -> AsyncIterator[Broker]:
    broker = Broker(ensemble)
    await broker.start()
    yield broker
    await broker.configs.stop()
    assert broker.failures == []


async def test_own_settings_override_cluster_defaults_and_both_override_start_settings(broker: Broker) -> None:
    await broker.operator_sets(EVERY, {"replica.lag.time.max.ms": "20000", "log.level": "error"})
    await broker.uses(replica_lag_time_max_ms=20_000, log_level="error")
    await broker.operator_sets(OWN, {"replica.lag.time.max.ms": "30000"})
    await broker.uses(replica_lag_time_max_ms=30_000, log_level="error")
    sources = {entry.key: (entry.value, entry.source) for entry in broker.configs.entries()}
    assert sources["replica.lag.time.max.ms"] == ("30000", ConfigSource.BROKER)
    assert sources["log.level"] == ("error", ConfigSource.CLUSTER)
    assert sources["log.dirs"] == ("/data/a,/data/b", ConfigSource.STATIC)
    assert sources["replica.fetch.max.bytes"] == ("1048576", ConfigSource.DEFAULT)
    await broker.operator_sets(OWN, {})
    await broker.uses(replica_lag_time_max_ms=20_000)
    await broker.operator_sets(EVERY, {})
    await broker.uses(replica_lag_time_max_ms=7000, log_level="info")
    assert {entry.key: entry.source for entry in broker.configs.entries()}["replica.lag.time.max.ms"] is (
        ConfigSource.STATIC
    )


async def test_stored_settings_are_in_effect_after_the_start(ensemble: FakeZooKeeper) -> None:
    broker = Broker(ensemble)
    await broker.store.start()
    assert await broker.store.write_configs(EVERY, {"log.level": "error"}, version=-1)
    await broker.configs.start()
    assert broker.used.get_nowait().log_level == "error"
    await broker.configs.stop()


async def test_unusable_settings_are_ignored_and_the_others_are_applied(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"log.level": "loud", "num.read.threads": "9", "from.the.future": "1"}
    await broker.operator_sets(OWN, {**wrong, "replica.fetch.max.bytes": "4096"})
    await broker.uses(log_level="info", num_read_threads=2, replica_fetch_max_bytes=4096)
    ignored = {getattr(record, "config", "") for record in caplog.records if "setting ignored" in record.message}
    assert ignored == set(wrong)
    assert {entry.key: entry.value for entry in broker.configs.entries()}["num.read.threads"] == "2"


async def test_a_maximum_lag_below_the_heartbeat_interval_is_ignored(broker: Broker) -> None:
    await broker.operator_sets(EVERY, {"replica.lag.time.max.ms": "999", "log.level": "error"})
    await broker.uses(replica_lag_time_max_ms=7000, log_level="error")
    await broker.operator_sets(EVERY, {"replica.lag.time.max.ms": "1000"})
    await broker.uses(replica_lag_time_max_ms=1000)


async def test_a_node_that_does_not_parse_changes_nothing_and_the_other_one_is_applied(
    broker: Broker, ensemble: FakeZooKeeper
) -> None:
    await broker.operator_sets(EVERY, {"log.level": "debug"})
    await broker.uses(log_level="debug")
    ensemble.corrupt("/config/brokers/default", b"{")
    await broker.operator_sets(OWN, {"replica.fetch.max.bytes": "4096"})
    await broker.uses(log_level="debug", replica_fetch_max_bytes=4096)
    ensemble.corrupt("/config/brokers/default", b'{"version":1,"config":{"log.level":"error"}}')
    broker.configs.read_again()
    await broker.uses(log_level="error", replica_fetch_max_bytes=4096)


async def test_settings_stay_while_zookeeper_is_unavailable_and_are_read_again_afterwards(broker: Broker) -> None:
    await broker.operator_sets(OWN, {"log.level": "debug"})
    await broker.uses(log_level="debug")
    broker.store.session.suspend()
    await broker.operator_sets(OWN, {"log.level": "error"})
    broker.configs.read_again()
    assert {entry.key: entry.value for entry in broker.configs.entries()}["log.level"] == "debug"
    broker.store.session.resume()
    await broker.uses(log_level="error")


async def test_changes_during_an_expired_session_are_applied_afterwards(broker: Broker) -> None:
    await broker.operator_sets(OWN, {"log.level": "debug"})
    await broker.uses(log_level="debug")
    broker.store.session.expire()
    await broker.operator_sets(OWN, {"log.level": "error"})
    await broker.store.new_session()
    broker.configs.read_again()
    await broker.uses(log_level="error")
    await broker.operator_sets(OWN, {"log.level": "warning"})
    await broker.uses(log_level="warning")
