# SPDX-License-Identifier: Apache-2.0
"""Traffic between brokers, and between broker and controller: replica streams, ISR changes, commands."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.broker.logs.storage import Storage
from tidemark.broker.node.broker_node import BrokerNode
from tidemark.broker.node.core_driver import EffectHandler
from tidemark.broker.replication.control_service import BrokerControl
from tidemark.broker.replication.controller_hints import GrpcControllerHints
from tidemark.broker.replication.follower_reads import FollowerReads
from tidemark.broker.replication.isr_store import IsrStore
from tidemark.broker.replication.stream_transport import FollowerStreams, LeaderStreams
from tidemark.core.replication import effects as ef
from tidemark.runtime.scheduler import AsyncioScheduler


class Replication:
    """The parts of a broker that replicate: the controller's commands, and the streams of followers and leaders.

    Attributes:
        control: the servicer of the controller's commands.
        from_followers: the servicer of followers' streams.
    """

    def __init__(self, node: BrokerNode, storage: Storage, on_ping: Callable[[bool], None]) -> None:
        driver, cluster_id = node.driver, node.metadata.view.cluster_id
        self.control = BrokerControl(
            driver,
            node.topics,
            node.metadata,
            node.epoch,
            storage.dir_moves,
            storage.logs.replicas,
            storage.offline_directory_ids,
            on_ping,
        )
        self.from_followers = FollowerStreams(driver.submit, node.epoch)
        self._to_leaders = LeaderStreams(node.broker_id, cluster_id, driver.submit, node.epoch)
        self._isr = IsrStore(
            node.store,
            GrpcControllerHints(node.broker_id, cluster_id, node.store, node.epoch),
            AsyncioScheduler(),
            driver.submit,
            driver.fail,
        )
        self._reads = FollowerReads(storage.threads, node.readers, node.metrics, driver.submit, storage.repairs.suspect)

    def handlers(self) -> dict[type[ef.Effect], EffectHandler]:
        """The effects that replication carries out."""
        return {
            ef.ReplyToControl: self.control.reply,
            ef.ConnectToLeader: self._to_leaders.connect,
            ef.DisconnectFromLeader: self._to_leaders.disconnect,
            ef.SendToLeader: self._to_leaders.send,
            ef.SendToFollower: self.from_followers.send,
            ef.DisconnectFollower: self.from_followers.disconnect,
            ef.ReadForFollower: self._reads.read,
            ef.WriteIsr: self._isr.write,
            ef.ReadIsr: self._isr.read,
            ef.ReportIsrChange: self._isr.report,
            ef.ResignLeadership: self._isr.resign,
            ef.ReportLogFailed: self._isr.report_failed,
        }

    async def stop_isr_changes(self) -> None:
        """End all ISR writes and reports; needs the ZooKeeper session."""
        await self._isr.stop()

    async def stop_following(self) -> None:
        """End the streams to leaders."""
        await self._to_leaders.stop()

    async def stop_streams(self) -> None:
        """End the streams from followers, and those to leaders that began since `stop_following`."""
        self.from_followers.stop()
        await self._to_leaders.stop()
