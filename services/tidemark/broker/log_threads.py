"""Effects on logs, carried out in order by one append thread for each log directory.

A thread takes everything that waits, does it, and hands all completions back to the event loop at once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from tidemark.broker.topics import TopicTable
from tidemark.core.effects import AppendToLog, CloseLog, OpenLog, ResetLog, SaveEpochs, TruncateLog
from tidemark.core.events import Event, LogAppended, LogFailed, LogOpened, LogTruncated
from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.ports import Log, Logs

_log = logging.getLogger(__name__)

LogEffect = OpenLog | CloseLog | AppendToLog | TruncateLog | ResetLog | SaveEpochs
_DRAIN_MAX: Final = 64


class LogThreads:
    """Owns the open logs. `deliver` is called on the event loop with each completion."""

    def __init__(self, logs: Logs, topics: TopicTable, deliver: Callable[[Event], None]) -> None:
        self._logs = logs
        self._topics = topics
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._open: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, int] = {}
        self._queues: list[queue.SimpleQueue[LogEffect | None]] = [
            queue.SimpleQueue() for _ in range(max(1, len(logs.directory_ids)))
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(jobs,), name=f"append-{index}", daemon=True)
            for index, jobs in enumerate(self._queues)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what was submitted; blocks until it is."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, effect: LogEffect) -> None:
        """Queue an effect behind those of the same directory."""
        home = self._home.get(effect.partition)
        if home is None:
            home = hash(effect.partition) % len(self._queues)
            self._home[effect.partition] = home
        self._queues[home].put(effect)

    def log(self, partition: TopicPartition) -> Log | None:
        """The open log of a replica, for reads."""
        return self._open.get(partition)

    def _run(self, jobs: queue.SimpleQueue[LogEffect | None]) -> None:
        while True:
            batch = [jobs.get()]
            try:
                while len(batch) < _DRAIN_MAX:
                    batch.append(jobs.get_nowait())
            except queue.Empty:
                pass
            done = [event for effect in batch if effect is not None and (event := self._carry_out(effect))]
            if done:
                self._loop.call_soon_threadsafe(self._deliver_all, done)
            if None in batch:
                return

    def _deliver_all(self, events: list[Event]) -> None:
        for event in events:
            self._deliver(event)

    def _carry_out(self, effect: LogEffect) -> Event | None:
        try:
            return self._do(effect)
        except TidemarkError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever befell the log, the replica goes offline
            _log.exception("log effect failed", extra={"partition": str(effect.partition)})
            failure = TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: {type(error).__name__}: {error}")
        return LogFailed(effect.partition, effect.identity, failure)

    def _do(self, effect: LogEffect) -> Event | None:
        if isinstance(effect, OpenLog):
            return self._do_open(effect)
        if isinstance(effect, CloseLog):
            self._do_close(effect)
            return None
        log = self._open.get(effect.partition)
        if log is None:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: its log is not open")
        if isinstance(effect, AppendToLog):
            end = log.append(
                effect.batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
            )
            return LogAppended(effect.partition, effect.identity, end)
        if isinstance(effect, TruncateLog):
            producers = log.truncate(effect.end_offset)
            return LogTruncated(effect.partition, effect.identity, log.log_start_offset, log.log_end_offset, producers)
        if isinstance(effect, ResetLog):
            log.reset(effect.start_offset)
            producers = log.truncate(Offset(effect.start_offset))
            return LogTruncated(effect.partition, effect.identity, log.log_start_offset, log.log_end_offset, producers)
        log.save_epochs(effect.entries)
        return None

    def _do_open(self, effect: OpenLog) -> Event:
        configs = self._topics.configs(effect.partition.topic)
        log, recovered = self._logs.open(effect.partition, effect.identity, configs)
        self._open[effect.partition] = log
        return LogOpened(effect.partition, effect.identity, recovered)

    def _do_close(self, effect: CloseLog) -> None:
        log = self._open.pop(effect.partition, None)
        if effect.set_aside is not None:
            self._logs.set_aside(effect.partition, effect.set_aside)
        elif log is not None:
            log.close()
