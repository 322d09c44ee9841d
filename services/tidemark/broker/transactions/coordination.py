# SPDX-License-Identifier: Apache-2.0
"""The parts that coordinate transactions on this broker: coordinators, their log, the RPCs, the markers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemark.broker.clients.pending_batches import PendingBatches
from tidemark.broker.clients.producer_ids import ProducerIds
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.state_log import StateLogs
from tidemark.broker.node.broker_node import BrokerNode
from tidemark.broker.transactions.coordination_service import TransactionCoordinationService
from tidemark.broker.transactions.coordinators import TransactionCoordinators
from tidemark.broker.transactions.marker_sender import MarkerSender
from tidemark.broker.transactions.marker_writer import MarkerWriter
from tidemark.broker.transactions.metrics import TransactionMetrics
from tidemark.broker.transactions.partition_producers import PartitionProducers
from tidemark.broker.transactions.requests import Requests
from tidemark.broker.transactions.service import TransactionService
from tidemark.broker.transactions.verification import Verification
from tidemark.core.internal_topics import TRANSACTIONS_TOPIC
from tidemark.model import TopicDescription
from tidemark.runtime.metrics import METRICS


class TransactionCoordination:
    """The parts of a broker that coordinate transactions.

    Attributes:
        coordinators: started by the process, notified of leaderships, and stopped.
        service: the servicer of the clients' RPCs.
        internal_service: the servicer of the brokers' RPCs.
        pending: the check of pending batches.
    """

    def __init__(self, node: BrokerNode, logs: StateLogs, producer_ids: ProducerIds) -> None:
        settings, metrics = node.settings, TransactionMetrics(METRICS)
        topic = InternalTopic(
            TRANSACTIONS_TOPIC,
            node.store,
            partitions=settings.transaction_state_log_num_partitions,
            replication_factor=settings.transaction_state_log_replication_factor,
            factor_setting="transaction.state.log.replication.factor",
        )
        writer = MarkerWriter(logs.appends, node.metadata, node.lease, node.clock.wall_us)

        async def existing(names: Collection[str]) -> Mapping[str, TopicDescription]:
            await node.store.states((), sync=True)  # the sync makes the next read at least as new as this call
            return await node.store.topics(tuple(names))

        self._sender = MarkerSender(node.broker_id, node.metadata, writer.write, existing, metrics)
        self.coordinators = TransactionCoordinators(
            node.broker_id, settings, logs, node.metadata, topic, metrics, self._sender, node.driver.fail
        )
        requests = Requests(self.coordinators, producer_ids.next)
        producers = PartitionProducers(node.core.queries, node.metadata, node.lease)
        self.service = TransactionService(self.coordinators, requests, producers)
        self.internal_service = TransactionCoordinationService(requests, writer)
        self._verification = Verification(
            node.broker_id, node.metadata, self.internal_service.add_partitions, self.coordinators.located
        )
        self.pending = PendingBatches(node.core.queries, self._verification)

    async def stop(self) -> None:
        """Stop sending markers and verifying transactions."""
        await self._verification.stop()
        await self._sender.stop()
