# SPDX-License-Identifier: Apache-2.0
"""The parts that serve clients of topics: produce, fetch, DeleteRecords, producer ids, log directories."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.broker.clients.describe_log_dirs import LogDirs
from tidemark.broker.clients.fetch import FetchService, Purgatory
from tidemark.broker.clients.fetch_streams import FetchStreams
from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.clients.pending_batches import PendingBatches
from tidemark.broker.clients.produce import ProduceService
from tidemark.broker.clients.producer_ids import ProducerIds
from tidemark.broker.clients.read_replica import ReplicaReads
from tidemark.broker.clients.service import BrokerService
from tidemark.broker.clients.topic_schemas import SchemaReads
from tidemark.broker.logs.storage import Storage
from tidemark.broker.metrics.streams import OpenStreams
from tidemark.broker.node.broker_node import BrokerNode
from tidemark.broker.node.core_driver import EffectHandler
from tidemark.broker.node.dynamic_config import DynamicConfig
from tidemark.core.quotas.quotas import Quotas
from tidemark.core.replication import effects as ef
from tidemark.core.security.listeners import ListenerViews
from tidemark.rpc.quotas.enforcement import ClientQuotas
from tidemark.rpc.security.access import Accesses
from tidemark.runtime.metrics import METRICS


class Clients:
    """The parts of a broker that serve clients' reads and writes.

    Attributes:
        service: the servicer of the clients' RPCs.
        fetch: reads, for the lag of groups, too.

    Args:
        node: node of the broker.
        storage: its logs.
        configs: its settings.
        pending: the check of pending batches.
        producer_ids: that were never given before.
        appends: the broker's own appends, whose replies come here.
        purgatory: requests that wait for a high watermark or a leadership.
        stream_count: number of followers' streams.
        accesses: rights of the clients; None: all.
        quotas: quotas of the clients.
    """

    def __init__(
        self,
        node: BrokerNode,
        storage: Storage,
        configs: DynamicConfig,
        pending: PendingBatches,
        producer_ids: ProducerIds,
        appends: InternalAppends,
        purgatory: Purgatory,
        stream_count: Callable[[], int],
        accesses: Accesses | None,
        quotas: ClientQuotas,
    ) -> None:
        driver = node.driver
        self._quotas = quotas
        self._appends = appends
        self._purgatory = purgatory
        self._produce = ProduceService(
            driver, node.topics, node.metadata, node.lease, node.clock, node.metrics, pending
        )
        self._delete_records = DeleteRecords(node.core.queries, driver.submit, node.lease, node.clock.now_ms)
        self.fetch = FetchService(
            node.core.queries,
            storage.threads,
            purgatory,
            node.metadata,
            node.lease,
            node.clock,
            node.metrics,
            node.readers,
            storage.repairs,
            driver.submit,
            node.topics.layouts,
            searches=max(1, node.settings.num_read_threads - 1),
        )
        self._fetch_streams = FetchStreams(self.fetch)
        self.service = BrokerService(
            node.metadata,
            self._produce,
            self.fetch,
            self._fetch_streams,
            producer_ids,
            LogDirs(node.core.queries, storage.logs, storage.threads, storage.dir_moves, node.isr_history),
            configs,
            self._delete_records,
            storage.dir_moves,
            ReplicaReads(node.core.queries, storage.threads, node.readers, storage.repairs),
            SchemaReads(node.topics, node.metadata, node.store),
            OpenStreams(METRICS, stream_count),
            ListenerViews(node.settings.admin_address.by_name if node.settings.admin_address else {}),
            quotas,
            accesses,
        )

    def handlers(self) -> dict[type[ef.Effect], EffectHandler]:
        """The effects of the core that answer clients, with their handlers."""
        return {
            ef.ReplyToProduce: self._reply,
            ef.NoteAppend: self._appends.note_append,
            ef.HighWatermarkAdvanced: self._purgatory.on_high_watermark,
            ef.LowWatermarkMoved: self._delete_records.on_low_watermark,
        }

    def _reply(self, effect: ef.ReplyToProduce) -> None:
        if not self._appends.reply(effect):
            self._produce.reply(effect)

    def stop(self) -> None:
        """Accept no more requests, and answer the waiting ones."""
        self._quotas.use(Quotas())  # without quotas, no caller has to wait
        self._produce.stop()
        self._purgatory.close()
        self._fetch_streams.stop()
