# SPDX-License-Identifier: Apache-2.0
"""A client resolves the name of a broker again after a restart of the broker, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch
from tidemark.rpc.security.channels import ReopeningChannel

ADDRESS = "broker-0.test:9092"


def view(broker_epoch: int, controller_epoch: int = 1, *, broker_id: int = 0, cluster_id: str = "c") -> ClusterView:
    broker = BrokerRegistration(BrokerId(broker_id), "broker-0.test", 9092, BrokerEpoch(broker_epoch))
    brokers = {broker.broker_id: broker}
    return ClusterView(cluster_id, BrokerId(100), ControllerEpoch(controller_epoch), brokers=brokers)


async def test_a_new_broker_epoch_reopens_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    reopened: list[ReopeningChannel] = []
    monkeypatch.setattr(ReopeningChannel, "reopen", lambda channel: reopened.append(channel))
    cluster = Cluster([ADDRESS])
    channel = cluster.channel(ADDRESS)
    cluster._merge(view(5))
    cluster._merge(view(5, controller_epoch=2))
    cluster._merge(replace(view(5, controller_epoch=3), brokers={}))
    assert not reopened, "the broker has not restarted"
    cluster._merge(view(9, controller_epoch=4))
    assert reopened == [channel]
    await cluster.close()


async def test_a_lower_epoch_of_another_broker_or_cluster_at_the_address_is_the_first_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reopened: list[ReopeningChannel] = []
    monkeypatch.setattr(ReopeningChannel, "reopen", lambda channel: reopened.append(channel))
    cluster = Cluster([ADDRESS])
    channel = cluster.channel(ADDRESS)
    cluster._merge(view(9))
    cluster._merge(view(0, controller_epoch=2, broker_id=1))
    assert not reopened
    cluster._merge(view(1, controller_epoch=3, broker_id=1))
    assert reopened == [channel]
    cluster._merge(view(0, broker_id=1, cluster_id="next"))
    assert reopened == [channel]
    cluster._merge(view(1, controller_epoch=2, broker_id=1, cluster_id="next"))
    assert reopened == [channel, channel]
    await cluster.close()
