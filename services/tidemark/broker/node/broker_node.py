# SPDX-License-Identifier: Apache-2.0
"""The parts that all other parts of the broker use: settings, clock, ZooKeeper session, core, driver, lease."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.metrics.state import BrokerState
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.isr_history import IsrHistory
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.config import ReplicationConfig
from tidemark.core.replication.broker import BrokerCore
from tidemark.model import BrokerId
from tidemark.ports import Clock
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.runtime.started_pool import started_pool
from tidemark.zookeeper.store import ZooKeeperMetadataStore, store_of


@dataclass(frozen=True)
class BrokerNode:
    """One for each process, made on its event loop.

    Attributes:
        failed: completes with the error after which the process ends.
        epoch: this broker's epoch.
        readers: threads that read logs for clients and followers.
    """

    settings: BrokerSettings
    broker_id: BrokerId
    clock: Clock
    store: ZooKeeperMetadataStore
    core: BrokerCore
    driver: BrokerDriver
    failed: asyncio.Future[object]
    epoch: OwnEpoch
    lease: Lease
    topics: TopicTable
    metadata: MetadataCache
    metrics: BrokerMetrics
    isr_history: IsrHistory
    state: BrokerState
    readers: ThreadPoolExecutor


def make_node(settings: BrokerSettings) -> BrokerNode:
    """Make the node and register its metrics. The node is not started."""
    clock = SystemClock()
    broker_id = BrokerId(settings.broker_id)
    store = store_of(settings, clock)
    core = BrokerCore(broker_id, replication_config(settings))
    failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    epoch, metrics, state = OwnEpoch(), BrokerMetrics(METRICS), BrokerState()
    for source in (state, metrics.topics, store.metrics):
        METRICS.show(source)
    return BrokerNode(
        settings=settings,
        broker_id=broker_id,
        clock=clock,
        store=store,
        core=core,
        driver=BrokerDriver(core, clock, AsyncioScheduler(), partial(_complete, failed)),
        failed=failed,
        epoch=epoch,
        lease=Lease(clock, store, core.queries.holds_epoch_since, lambda: epoch.value == core.broker_epoch),
        topics=TopicTable(),
        metadata=MetadataCache(str(settings.admin_address.main) if settings.admin_address else ""),
        metrics=metrics,
        isr_history=IsrHistory(clock.wall_us),
        state=state,
        readers=started_pool(settings.num_read_threads, "read"),
    )


def _complete(failed: asyncio.Future[object], error: BaseException) -> None:
    if failed.done():
        return
    failed.set_exception(error)
    failed.exception()  # marks the error as retrieved: awaiting `failed` is optional


def replication_config(settings: BrokerSettings) -> ReplicationConfig:
    """The part of the settings that the core needs."""
    return ReplicationConfig(
        replica_lag_time_max_ms=settings.replica_lag_time_max_ms,
        replica_lag_max_bytes=settings.replica_lag_max_bytes,
        replica_fetch_max_bytes=settings.replica_fetch_max_bytes,
        replica_heartbeat_interval_ms=settings.replica_heartbeat_interval_ms,
        rack_aware_reads=settings.replica_selector_class == "rack-aware",
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
    )
