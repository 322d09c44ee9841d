# SPDX-License-Identifier: Apache-2.0
"""The parts that coordinate consumer groups on this broker: coordinators, their log, the RPCs, the lag of groups."""

from __future__ import annotations

from typing import Final

from tidemark.broker.clients.fetch import FetchService
from tidemark.broker.clients.pending_batches import PendingBatches
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.state_log import InTransaction, StateLogs
from tidemark.broker.groups.coordinators import GroupCoordinators
from tidemark.broker.groups.lag_metrics import GroupLagMetrics
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.broker.groups.partition_ends import PartitionEnds
from tidemark.broker.groups.service import GroupService
from tidemark.broker.node.broker_node import BrokerNode
from tidemark.core.internal_topics import OFFSETS_TOPIC
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import TopicPartition
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.metrics import METRICS

_VERIFY_S: Final = 5.0


class GroupCoordination:
    """The parts of a broker that coordinate consumer groups.

    Attributes:
        coordinators: started by the process, notified of leaderships, and stopped.
        service: the servicer of the groups' RPCs.
    """

    def __init__(self, node: BrokerNode, logs: StateLogs, fetch: FetchService, pending: PendingBatches) -> None:
        settings = node.settings
        self._ends = PartitionEnds(node.broker_id, node.metadata, fetch.list_offsets)
        self.coordinators = GroupCoordinators(
            node.broker_id,
            settings,
            logs,
            node.metadata,
            InternalTopic(
                OFFSETS_TOPIC,
                node.store,
                partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
                factor_setting="offsets.topic.replication.factor",
            ),
            GroupMetrics(METRICS),
            node.driver.fail,
        )
        offsets = GroupOffsets(self.coordinators, self._ends)

        async def verify(transaction: InTransaction, partition: TopicPartition) -> None:
            producer = ProducerIdentity(*transaction.writer)
            await pending.require(transaction.transactional_id, producer, partition, _VERIFY_S)

        logs.appends.on_marker = self.coordinators.on_marker
        self.service = GroupService(self.coordinators, offsets, verify)
        self._lags = GroupLagMetrics(self.coordinators.known, offsets.progress, self._ends.ask)
        METRICS.show(self._lags)
        self.use_settings(settings)

    def use_settings(self, settings: BrokerSettings) -> None:
        """Apply the dynamic settings."""
        self._lags.groups_shown = settings.metrics_groups

    async def stop(self) -> None:
        """Stop the lag metrics, and close the channels to other brokers."""
        await self._lags.stop()
        await self._ends.close()
