# SPDX-License-Identifier: Apache-2.0
"""A broker at an address that another cluster knows: ids and epochs of the two clusters are equal."""

from __future__ import annotations

from pathlib import Path

from tidemark.controller.peers import BrokerPeers
from tidemark.core.controller.effects import SendLeaderAndIsr
from tidemark.core.messages import LeaderAndIsrCommand
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import BrokerId, ControllerEpoch, ErrorCode

from tests.integration.harness.hand_controller import CONTROLLER_ID, Brokers, client_of, controller_of
from tests.unit.record.samples import sample


async def test_a_broker_refuses_the_controller_of_another_cluster(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """A complete command would set all replicas of the broker aside, and a day later the broker would delete them."""
    brokers = Brokers(tmp_path, zookeeper, 1)
    try:
        await brokers.start()
        async with controller_of(brokers) as controller, client_of(brokers, 0) as client:
            flights = await controller.create_topic("flights", replicas=[0])
            live = await controller.store.live_brokers()
            epoch = live[BrokerId(0)].broker_epoch
            codes = []
            for cluster_id in ("other", await controller.store.cluster_id()):
                peers = BrokerPeers(CONTROLLER_ID, ControllerEpoch(7), cluster_id)
                peers.follow(live)
                complete = cluster_id == "other"
                command = LeaderAndIsrCommand(CONTROLLER_ID, ControllerEpoch(7), epoch, (), complete=complete)
                answer = await peers.send_leader_and_isr(SendLeaderAndIsr(BrokerId(0), 1, (command,)))
                codes.append(answer.error and answer.error.code)
                await peers.stop()
            assert codes == [ErrorCode.BROKER_NOT_AVAILABLE, None]
            (result,) = await client.produce(flights, [sample()])
            assert not result.HasField("error"), result
    finally:
        brokers.kill_all()
