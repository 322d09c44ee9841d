# SPDX-License-Identifier: Apache-2.0
"""A client resolves the name of a broker again after a restart of the broker, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch
from tidemark.rpc.security.channels import ReopeningChannel


def view(broker_epoch: int, controller_epoch: int = 1) -> ClusterView:
    broker = BrokerRegistration(BrokerId(0), "broker-0.test", 9092, BrokerEpoch(broker_epoch))
    return ClusterView("c", BrokerId(100), ControllerEpoch(controller_epoch), brokers={BrokerId(0): broker})


async def test_a_new_broker_epoch_reopens_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    reopened: list[ReopeningChannel] = []
    monkeypatch.setattr(ReopeningChannel, "reopen", lambda channel: reopened.append(channel))
    cluster = Cluster(["broker-0.test:9092"])
    channel = cluster.channel("broker-0.test:9092")
    cluster._merge(view(5))
    cluster._merge(view(5, controller_epoch=2))
    cluster._merge(replace(view(5, controller_epoch=3), brokers={}))
    assert not reopened, "the broker has not restarted"
    cluster._merge(view(9, controller_epoch=4))
    assert reopened == [channel]
    await cluster.close()
