# SPDX-License-Identifier: Apache-2.0
"""Wires the controller's drivers to asyncio, gRPC and Prometheus."""

from __future__ import annotations

from functools import partial

from tidemark.controller.heartbeats import Heartbeats
from tidemark.controller.loop import ControllerLoop
from tidemark.controller.metrics import ControllerMetrics
from tidemark.controller.peers import BrokerPeers
from tidemark.controller.term import ActiveTerm, policy_of
from tidemark.core.config import ControllerConfig
from tidemark.core.controller.controller import ControllerCore
from tidemark.model import BrokerId
from tidemark.ports import Clock, ControllerTerm
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.runtime.configuration.settings import ControllerSettings
from tidemark.runtime.host_port import Listeners
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.zookeeper.store import MetadataStore


def new_loop(
    settings: ControllerSettings,
    store: MetadataStore,
    clock: Clock,
    metrics: ControllerMetrics,
    receiver: ReceiverCheck,
) -> ControllerLoop:
    """Connect the parts of a controller process to its loop, which is not started."""
    return ControllerLoop(
        BrokerId(settings.controller_id),
        _address(settings.advertised_listeners),
        store=store,
        clock=clock,
        scheduler=AsyncioScheduler(),
        observer=metrics,
        new_term=partial(new_term, settings=settings, store=store, clock=clock, metrics=metrics, receiver=receiver),
        election_wait_ms=settings.leader_election_wait_ms,
    )


def _address(advertised: Listeners) -> str:
    """The address in ZooKeeper; with names if there are two."""
    return str(advertised if len(advertised.by_name) > 1 else advertised.main)


def new_term(
    won: ControllerTerm,
    cluster_id: str,
    *,
    settings: ControllerSettings,
    store: MetadataStore,
    clock: Clock,
    metrics: ControllerMetrics,
    receiver: ReceiverCheck,
) -> ActiveTerm:
    """A won term, with its own core, channels, heartbeats and tasks."""
    receiver.cluster_id = cluster_id
    config = ControllerConfig(
        won.controller_id,
        won.epoch,
        cluster_id,
        session_timeout_ms=settings.zookeeper_session_timeout_ms,
        moves_per_broker_max=settings.reassignment_moves_per_broker_max,
        election_wait_ms=settings.leader_election_wait_ms,
        leader_rebalance_interval_ms=settings.leader_imbalance_check_interval_ms,
        leader_imbalance_percent=settings.leader_imbalance_per_broker_percentage,
    )
    heartbeats = partial(
        Heartbeats,
        won.controller_id,
        won.epoch,
        cluster_id,
        interval_ms=settings.controller_heartbeat_interval_ms,
        timeout_ms=settings.controller_heartbeat_timeout_ms,
    )
    return ActiveTerm(
        won,
        ControllerCore(config, policy_of),
        store=store,
        channels=BrokerPeers(won.controller_id, won.epoch, cluster_id),
        heartbeats=heartbeats,
        clock=clock,
        scheduler=AsyncioScheduler(),
        observer=metrics,
    )
