# SPDX-License-Identifier: Apache-2.0
"""The broker's parts that work on logs: append and flush threads, recovery, retention, cleaning, checkpoints."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.checkpoints import Checkpoints
from tidemark.broker.logs.full_directories import FullDirectories
from tidemark.broker.logs.log_cleaner import LogCleaner
from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.logs.log_repairs import LogRepairs
from tidemark.broker.logs.log_scrubber import LogScrubber
from tidemark.broker.logs.offline_directories import OfflineDirectories
from tidemark.broker.logs.recovery_progress import RecoveryProgress
from tidemark.broker.logs.recovery_threads import RecoveryThreads
from tidemark.broker.logs.refused_chunks import RefusedChunks
from tidemark.broker.logs.replica_peers import GrpcReplicaPeers
from tidemark.broker.logs.retention import Retention
from tidemark.broker.logs.suspect_logs import OpenSuspectLogs
from tidemark.broker.metrics.repairs import RepairCounts
from tidemark.broker.node.broker_node import BrokerNode
from tidemark.broker.node.core_driver import EffectHandler
from tidemark.broker.node.own_epoch import UNREGISTERED
from tidemark.core.replication import effects as ef
from tidemark.core.replication import events as ev
from tidemark.model import BrokerEpoch
from tidemark.runtime.limits import log_files_max
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.runtime.wall_bounds import WallBounds
from tidemark.storage.directories.log_manager import LogManager, open_logs


async def open_log_directories(node: BrokerNode) -> LogManager:
    """Lock and read the log directories of `log.dirs`; the cluster id must be known.

    Raises:
        TidemarkError: INVALID_CONFIG (another broker's directory), STORAGE_ERROR.
    """
    settings = node.settings
    return await asyncio.to_thread(
        open_logs,
        settings.log_dirs,
        cluster_id=node.metadata.view.cluster_id,
        broker_id=node.broker_id,
        stray_grace_ms=settings.stray_grace_ms,
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
        open_files_max=log_files_max(),
        directory_choice=settings.log_dir_choice,
    )


class Storage:
    """The log directories of this broker, and the threads and tasks that work on them.

    Attributes:
        logs: the log manager; it holds the locks of the directories until `close`.
        threads: the only writers of logs.
        dir_moves: log directory moves (rule M3).
        refused_chunks: asks leaders to check the chunks that this broker refused.
        repairs: repairs of damaged batches (rule T6).
    """

    def __init__(self, node: BrokerNode, logs: LogManager) -> None:
        settings, driver, metrics = node.settings, node.driver, node.metrics
        self.logs = logs
        self._node = node
        self._stopped = False
        self._opened_directory_ids = logs.directory_ids
        progress = RecoveryProgress(logs, [str(one.path) for one in logs.directories()], METRICS)
        node.state.remaining_logs = lambda: progress.remaining_logs
        self.threads = LogThreads(
            logs,
            node.topics,
            driver.submit_all,
            driver.fail,
            metrics.append_seconds.observe,
            metrics.flush_seconds.observe,
            FullDirectories(metrics.full_log_directories.set).note,
            RecoveryThreads(logs, settings.num_recovery_threads_per_data_dir, progress),
        )
        self.dir_moves = DirMoves(
            node.core.queries,
            logs,
            self.threads,
            node.topics,
            METRICS,
            driver.fail,
            lambda partition, offset: self.repairs.suspect(partition, offset),
        )
        self._offline = OfflineDirectories(logs, self.threads, metrics.offline_log_directories.set, driver.fail)
        wall = WallBounds(node.clock)
        self._retention = Retention(
            node.core.queries,
            self.threads,
            node.topics,
            driver.submit,
            settings.log_retention_check_interval_ms,
            lambda: wall.earliest_us() // 1000,
            driver.fail,
        )
        self._checkpoints = Checkpoints(
            logs, node.core.queries.high_watermarks, settings.replica_high_watermark_checkpoint_interval_ms, driver.fail
        )
        peers = GrpcReplicaPeers(node.broker_id, node.metadata)
        self.refused_chunks = RefusedChunks(peers, AsyncioScheduler(), driver.fail)
        self.repairs = LogRepairs(
            OpenSuspectLogs(node.core.queries, self.threads, node.topics),
            peers,
            AsyncioScheduler(),
            RepairCounts(METRICS),
            lambda partition, identity, repairable: driver.submit(ev.LogDamaged(partition, identity, repairable)),
            driver.fail,
        )
        self._cleaner = LogCleaner(
            logs,
            node.topics,
            node.core.queries.last_stable_offsets,
            settings,
            METRICS,
            wall,
            self.dir_moves.has_copied,
            self.repairs.suspect,
        )
        self._scrubber = LogScrubber(
            logs, node.core.queries.high_watermarks, self.repairs.repair, settings, METRICS, driver.fail
        )

    def handlers(self) -> dict[type[ef.Effect], EffectHandler]:
        """The effects that the append threads carry out."""
        submit, count = self.threads.submit, self._node.metrics.appended

        def append(effect: ef.AppendToLog) -> None:
            count(effect)
            submit(effect)

        others = (ef.OpenLog, ef.CloseLog, ef.TruncateLog, ef.ResetLog, ef.AdvanceLogStart, ef.ResumeLog)
        return {
            **dict.fromkeys((*others, ef.ClearDamage, ef.SaveEpochs), submit),
            ef.AppendToLog: append,
        }

    def offline_directory_ids(self) -> tuple[str, ...]:
        """The directories that were opened at the start and are offline now."""
        online = self.logs.directory_ids
        return tuple(directory for directory in self._opened_directory_ids if directory not in online)

    def start(self) -> None:
        """Start the threads, then the tasks that give them work."""
        self.threads.start()
        self._checkpoints.start()
        self._cleaner.start()
        self.repairs.start()
        self._scrubber.start()
        self._offline.start()
        self._retention.start()

    async def stop(self) -> None:
        """Stop the tasks, then the threads once their queues are empty; a failure of one does not delay the other
        threads and tasks.
        """
        async with AsyncExitStack() as last_first:
            last_first.callback(self._node.readers.shutdown, wait=True)
            last_first.push_async_callback(asyncio.to_thread, self.threads.stop)
            last_first.push_async_callback(self._checkpoints.stop)
            last_first.push_async_callback(self.dir_moves.stop)
            last_first.callback(self._retention.stop)
            last_first.push_async_callback(self._cleaner.stop)
            last_first.push_async_callback(self.repairs.stop)
            last_first.push_async_callback(self.refused_chunks.stop)
            last_first.push_async_callback(self._scrubber.stop)
            last_first.callback(self._offline.stop)
        self._stopped = True

    async def close(self, broker_epoch: BrokerEpoch) -> None:
        """Flush, and write the clean shutdown files of this epoch.

        Without a registration, or after a `stop` that failed, only close: the next start then judges the files that the
        last registration left (rule T1).
        """
        if broker_epoch == UNREGISTERED or not self._stopped:
            self.logs.close()
            return
        high_watermarks = self._node.core.queries.high_watermarks()  # read after the last checkpoint
        await asyncio.to_thread(self.logs.close_clean, broker_epoch, high_watermarks)
