# SPDX-License-Identifier: Apache-2.0
"""The broker process: what is wired with what, and the order in which it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.broker.clients.describe_log_dirs import LogDirs
from tidemark.broker.clients.fetch import FetchService, Waiters
from tidemark.broker.clients.fetch_streams import FetchStreams
from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.clients.produce import ProduceService
from tidemark.broker.clients.producer_ids import ProducerIds
from tidemark.broker.clients.read_replica import ReplicaReads
from tidemark.broker.clients.service import BrokerService
from tidemark.broker.groups.coordinators import Groups
from tidemark.broker.groups.lag_metrics import GroupLagMetrics
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.broker.groups.offsets_log import GroupLogs
from tidemark.broker.groups.offsets_topic import GroupTopic
from tidemark.broker.groups.partition_ends import PartitionEnds
from tidemark.broker.groups.service import GroupService
from tidemark.broker.lifecycle.advertised_address import check_advertised
from tidemark.broker.lifecycle.controlled_shutdown import ControlledShutdown
from tidemark.broker.lifecycle.readiness import Readiness
from tidemark.broker.lifecycle.registration import UNREGISTERED, Registration, identity_of
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.checkpoints import Checkpoints
from tidemark.broker.logs.full_directories import FullDirectories
from tidemark.broker.logs.log_cleaner import LogCleaner
from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.logs.offline_directories import OfflineDirectories
from tidemark.broker.logs.recovery_progress import RecoveryProgress
from tidemark.broker.logs.recovery_threads import LogOpeners
from tidemark.broker.logs.retention import Retention
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.metrics.replicas import ReplicaMetrics
from tidemark.broker.metrics.state import BrokerState
from tidemark.broker.metrics.streams import OpenStreams
from tidemark.broker.node.core_driver import BrokerDriver, EffectHandler
from tidemark.broker.node.dynamic_config import DynamicConfig
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.broker.replication.control_service import BrokerControl
from tidemark.broker.replication.follower_reads import FollowerReads
from tidemark.broker.replication.isr_store import IsrWriter
from tidemark.broker.replication.stream_transport import FollowerStreams, LeaderStreams
from tidemark.core.config import ReplicationConfig
from tidemark.core.replication import effects as ef
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.events import SessionExpired, SettingsChanged
from tidemark.model import BrokerEpoch, BrokerId, ReplicaIdentity, TopicPartition
from tidemark.rpc.raw_methods import add_broker_service, add_replica_service
from tidemark.rpc.server import Service, make_server
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.configuration import BrokerSettings, HostPort
from tidemark.runtime.coordination import start_when_reachable
from tidemark.runtime.limits import log_files_max
from tidemark.runtime.metrics import METRICS, MetricsServer, start_metrics_server, tell_what_runs
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.v1.controller_service_pb2_grpc import add_BrokerControlServiceServicer_to_server
from tidemark.v1.group_service_pb2_grpc import add_GroupServiceServicer_to_server
from tidemark.zookeeper.store import ZooKeeperMetadataStore

_SERVICES: Final = tuple(
    f"tidemark.v1.{name}" for name in ("BrokerService", "GroupService", "ReplicaService", "BrokerControlService")
)


class BrokerProcess:
    """Made once; started and stopped as the two lists say."""

    def __init__(self, settings: BrokerSettings) -> None:
        clock = SystemClock()
        broker_id = BrokerId(settings.broker_id)
        self._settings = settings
        self._store = ZooKeeperMetadataStore(settings.zookeeper_connect, settings.zookeeper_session_timeout_ms, clock)
        self._core = BrokerCore(broker_id, _replication_config(settings))
        self._driver = BrokerDriver(self._core, clock)
        self.failed = self._driver.failed
        self._lease = Lease(
            clock,
            self._store,
            self._core.holds_epoch_since,
            lambda: self._control.broker_epoch == self._core.broker_epoch,
        )
        tell_what_runs("broker")
        self._metrics = BrokerMetrics(METRICS)
        self._state = BrokerState()
        for source in (self._state, self._metrics.topics, self._store.metrics):
            METRICS.show(source)
        self._topics = TopicTable()
        self._metadata = MetadataCache(str(settings.admin_address or ""))
        self._waiters = Waiters()
        self._fetch_streams: FetchStreams | None = None
        self._readers = ThreadPoolExecutor(settings.num_read_threads, thread_name_prefix="read")
        self._isr = IsrWriter(broker_id, self._store, self._driver.submit, self._driver.fail)
        self._to_leaders = LeaderStreams(broker_id, self._driver.submit)
        self._from_followers = FollowerStreams(self._driver.submit)
        self._shutdown = ControlledShutdown(
            max_wait_ms=settings.controlled_shutdown_max_wait_ms,
            leader_count=self._core.leader_count,
            announce=lambda: self._control.want_shutdown(),
            now_s=time.monotonic,
        )
        self._control = BrokerControl(
            self._driver, self._topics, self._metadata, self._offline_directories, self._shutdown.on_ping
        )
        self._produce = ProduceService(self._driver, self._topics, self._metadata, self._lease, clock, self._metrics)
        self._appends = InternalAppends(self._driver.submit, self._produce.reply)
        self._delete_records = DeleteRecords(self._core, self._driver.submit, self._lease, clock.now_ms)
        self._configs = DynamicConfig(settings, self._store, self._use_settings, self._driver.fail)
        self._clock = clock
        self._server = make_server(settings.listeners.host, settings.listeners.port, [], later=_SERVICES)
        self._readiness = Readiness(
            broker_id,
            self._store,
            self._metadata,
            self._replicas,
            self._core.replica,
            self._server.set_ready,
            self._driver.fail,
        )
        self._metrics_server: MetricsServer | None = None
        self._logs: LogManager | None = None
        self._directory_ids: tuple[str, ...] = ()
        self._registration: Registration | None = None

    async def start(self) -> None:
        """Alive at once; session, logs, services NOT_SERVING, registration; then SERVING, and ready when in sync."""
        metrics = self._settings.metrics_listeners
        await self._server.start()
        self._metrics_server = start_metrics_server(metrics.host, metrics.port)
        await self._check_and_prepare()
        self._serve_nothing_yet()
        self._threads.start()
        self._checkpoints.start()
        self._cleaner.start()
        self._offline.start()
        self._retention.start()
        self._driver.start()
        self._groups.start()
        assert self._registration is not None, "made with the server"
        await self._configs.start()
        await self._registration.start()
        await self._server.set_serving(True, ready=False)
        self._state.state = "running"
        self._readiness.start()

    async def stop(self) -> None:
        """Not ready; wait until nobody needs this broker; NOT_SERVING; lead nothing, answer who waits; leave ZooKeeper,
        so that others lead at once; flush and mark."""
        self._state.state = "stopping"
        if self._registration is None or self._logs is None:
            await self._store.stop()
            await self._server.stop(0)
            if self._logs is not None:
                self._logs.close()
            self._close_metrics()
            return
        await self._readiness.stop()
        if self._control.broker_epoch != UNREGISTERED and not self.failed.done():
            await self._shutdown.run(given_up=self.failed)
        await self._server.set_serving(False)
        await self._registration.stop()
        self._set_broker_epoch(UNREGISTERED)
        self._driver.submit(SessionExpired())
        self._groups.stop()
        self._produce.stop()
        self._waiters.close()
        if self._fetch_streams is not None:
            self._fetch_streams.stop()
        self._metadata.close()
        self._control.stop()
        await self._configs.stop()
        await self._isr.stop()
        await self._store.stop()
        self._from_followers.stop()
        await self._to_leaders.stop()
        await self._group_lags.stop()
        await self._ends.close()
        await self._server.stop(self._settings.shutdown_grace_ms / 1000 / 4)
        self._driver.stop()
        self._offline.stop()
        await self._cleaner.stop()
        self._retention.stop()
        await self._dir_moves.stop()
        await self._checkpoints.stop()
        await asyncio.to_thread(self._threads.stop)
        self._readers.shutdown(wait=True)
        if self._registration.broker_epoch == UNREGISTERED:
            self._logs.close()  # the marks on disk are those of the last registration, and stay
        else:
            high_watermarks = self._core.high_watermarks()  # later than those of the last checkpoint
            await asyncio.to_thread(self._logs.close_clean, self._registration.broker_epoch, high_watermarks)
        self._close_metrics()

    def _close_metrics(self) -> None:
        if self._metrics_server is not None:
            self._metrics_server.close()

    async def _check_and_prepare(self) -> None:
        """Session and logs, while it is checked that the advertised address leads here; the first failure counts."""
        name = f"process/{uuid.uuid4().hex}"
        await self._server.answer_to(name)
        check = check_advertised(self._advertised(), name, self._settings.advertised_check_timeout_ms)
        both = {asyncio.create_task(check, name="advertised address"), asyncio.create_task(self._prepare())}
        try:
            await asyncio.gather(*both)
        finally:
            for one in both:
                one.cancel()
            await asyncio.wait(both)

    async def _prepare(self) -> None:
        await start_when_reachable(self._store, self._settings.zookeeper_connect)
        self._metadata.set_cluster_id(await self._store.cluster_id())
        await self._open_logs()

    def _advertised(self) -> HostPort:
        advertised = self._settings.advertised_listeners
        return HostPort(advertised.host, advertised.port or self._server.port)

    async def _open_logs(self) -> None:
        settings = self._settings
        logs = await asyncio.to_thread(
            open_logs,
            settings.log_dirs,
            cluster_id=self._metadata.view.cluster_id,
            broker_id=BrokerId(settings.broker_id),
            stray_grace_ms=settings.stray_grace_ms,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
            open_files_max=log_files_max(),
            directory_choice=settings.log_dir_choice,
        )
        self._logs = logs
        self._directory_ids = logs.directory_ids
        self._show_replicas(logs)
        progress = RecoveryProgress(logs, [str(one.path) for one in logs.directories()], METRICS)
        self._state.remaining_logs = lambda: progress.remaining_logs
        self._threads = LogThreads(
            logs,
            self._topics,
            self._driver.submit_all,
            self._driver.fail,
            self._metrics.append_seconds.observe,
            self._metrics.flush_seconds.observe,
            FullDirectories(self._metrics.full_log_directories.set).note,
            LogOpeners(logs, settings.num_recovery_threads_per_data_dir, progress),
        )
        self._offline = OfflineDirectories(
            logs, self._threads, self._metrics.offline_log_directories.set, self._driver.fail
        )
        self._dir_moves = DirMoves(self._core, logs, self._threads, self._topics, METRICS, self._driver.fail)
        self._control.directories = self._dir_moves
        self._control.on_disk = logs.replicas
        self._retention = Retention(
            self._core,
            self._threads,
            self._topics,
            self._driver.submit,
            settings.log_retention_check_interval_ms,
            lambda: self._clock.wall_us() // 1000,
            self._driver.fail,
            self._dir_moves.is_copying,
        )
        self._checkpoints = Checkpoints(
            logs,
            self._core.high_watermarks,
            settings.replica_high_watermark_checkpoint_interval_ms,
            self._driver.fail,
        )
        self._cleaner = LogCleaner(
            logs, self._topics, self._core.high_watermarks, settings, METRICS, self._dir_moves.is_copying
        )

    def _show_replicas(self, logs: LogManager) -> None:
        broker_id, keep = BrokerId(self._settings.broker_id), self._metrics.topics.keep
        self._replica_metrics = ReplicaMetrics(broker_id, self._core, logs, self._clock.now_ms, keep)
        self._replica_metrics.partitions = self._settings.metrics_partitions
        METRICS.show(self._replica_metrics)

    def _serve_nothing_yet(self) -> None:
        settings = self._settings
        assert self._logs is not None
        fetch = FetchService(
            self._core,
            self._threads,
            self._waiters,
            self._metadata,
            self._lease,
            self._clock,
            self._metrics,
            self._readers,
            self._driver.submit,
        )
        self._fetch_streams = FetchStreams(fetch)
        log_dirs = LogDirs(self._core, self._logs, self._threads, self._dir_moves)
        clients = BrokerService(
            self._metadata,
            self._produce,
            fetch,
            self._fetch_streams,
            ProducerIds(self._store),
            log_dirs,
            self._configs,
            self._delete_records,
            self._dir_moves,
            ReplicaReads(self._core, self._threads, self._readers),
            OpenStreams(METRICS, lambda: self._from_followers.count),
        )
        self._make_groups(fetch)
        offsets = GroupOffsets(self._groups, self._ends)
        groups = GroupService(self._groups, offsets)
        self._group_lags = GroupLagMetrics(self._groups.known, offsets.is_current, self._ends.ask)
        self._group_lags.groups_shown = settings.metrics_groups
        METRICS.show(self._group_lags)
        add_and_servicer: tuple[tuple[Callable[[Any, grpc.aio.Server], None], object], ...] = (
            (add_broker_service, clients),
            (add_GroupServiceServicer_to_server, groups),
            (add_replica_service, self._from_followers),
            (add_BrokerControlServiceServicer_to_server, self._control),
        )
        self._server.add([Service(*both, name) for both, name in zip(add_and_servicer, _SERVICES, strict=True)])
        reads = FollowerReads(self._threads, self._readers, self._metrics, self._driver.submit)
        self._driver.wire(self._handlers(reads))
        advertised = self._advertised()
        self._registration = Registration(
            identity_of(settings.broker_id, advertised.host, advertised.port, settings.broker_rack),
            self._store,
            self._logs,
            self._driver,
            self._set_broker_epoch,
            trust_boot_id=settings.log_dirs_trust_boot_id,
        )

    def _make_groups(self, fetch: FetchService) -> None:
        settings, broker_id = self._settings, BrokerId(self._settings.broker_id)
        self._ends = PartitionEnds(broker_id, self._metadata, fetch.list_offsets)
        self._groups = Groups(
            broker_id,
            settings,
            GroupLogs(self._core, self._threads, self._readers, self._waiters, self._appends, self._lease, self._clock),
            self._metadata,
            GroupTopic(
                self._store,
                partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
            ),
            GroupMetrics(METRICS),
            self._driver.fail,
        )

    def _on_leadership(self, effect: ef.LeadershipChanged) -> None:
        self._waiters.on_leadership(effect)
        self._groups.on_leadership(effect)

    def _append(self, effect: ef.AppendToLog) -> None:
        self._metrics.appended(effect)
        self._threads.submit(effect)

    def _handlers(self, reads: FollowerReads) -> dict[type[ef.Effect], EffectHandler]:
        log = self._threads.submit
        return {
            ef.OpenLog: log,
            ef.CloseLog: log,
            ef.AppendToLog: self._append,
            ef.TruncateLog: log,
            ef.ResetLog: log,
            ef.TrimLog: log,
            ef.ResumeLog: log,
            ef.DamageOver: log,
            ef.SaveEpochs: log,
            ef.ReplyToProduce: self._appends.reply,
            ef.ReplyToControl: self._control.reply,
            ef.ConnectToLeader: self._to_leaders.connect,
            ef.DisconnectFromLeader: self._to_leaders.disconnect,
            ef.SendToLeader: self._to_leaders.send,
            ef.SendToFollower: self._from_followers.send,
            ef.DisconnectFollower: self._from_followers.disconnect,
            ef.ReadForFollower: reads.read,
            ef.WriteIsr: self._isr.write,
            ef.ReadIsr: self._isr.read,
            ef.ReportIsrChange: self._isr.report,
            ef.GiveUpLeadership: self._isr.give_up,
            ef.ReportLogFailed: self._isr.report_failed,
            ef.HighWatermarkAdvanced: self._waiters.on_high_watermark,
            ef.LowWatermarkMoved: self._delete_records.on_low_watermark,
            ef.LeadershipChanged: self._on_leadership,
            ef.Observed: self._metrics.observe,
        }

    def _set_broker_epoch(self, broker_epoch: BrokerEpoch) -> None:
        """Everything that speaks for this broker speaks for this epoch of it."""
        self._control.broker_epoch = broker_epoch
        self._to_leaders.broker_epoch = broker_epoch
        self._from_followers.broker_epoch = broker_epoch
        self._isr.broker_epoch = broker_epoch
        self._readiness.on_epoch(broker_epoch)
        if broker_epoch != UNREGISTERED:
            self._configs.read_anew()

    def _use_settings(self, settings: BrokerSettings) -> None:
        """Those of the table whose scope is broker-dynamic."""
        logging.getLogger().setLevel(settings.log_level.upper())
        self._driver.submit(SettingsChanged(_replication_config(settings)))
        self._replica_metrics.partitions = settings.metrics_partitions
        self._group_lags.groups_shown = settings.metrics_groups
        self._dir_moves.use_throttle(settings.replica_alter_log_dirs_io_max_bytes_per_second)

    def _replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        return self._logs.replicas() if self._logs is not None else {}

    def _offline_directories(self) -> tuple[str, ...]:
        online = self._logs.directory_ids if self._logs is not None else ()
        return tuple(directory for directory in self._directory_ids if directory not in online)


def _replication_config(settings: BrokerSettings) -> ReplicationConfig:
    return ReplicationConfig(
        replica_lag_time_max_ms=settings.replica_lag_time_max_ms,
        replica_lag_max_bytes=settings.replica_lag_max_bytes,
        replica_fetch_max_bytes=settings.replica_fetch_max_bytes,
        replica_heartbeat_interval_ms=settings.replica_heartbeat_interval_ms,
        rack_aware_reads=settings.replica_selector_class == "rack-aware",
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
    )
