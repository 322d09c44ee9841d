# SPDX-License-Identifier: Apache-2.0
"""Moves a replica to another log directory.

A kill, power loss or broken disk at any point leaves one complete log (M3).

1. The copy `<name>.<uuid>-future` is made in the target and filled during appends (`FutureLog`). A start continues the
   copy if the replica exists, and otherwise deletes the copy.
2. Appends stop. The last records are copied, and the copy is compared with the log and checkpointed, durably by one
   syncfs.
3. partition.json of the copy gets generation + 1, durably: the copy is the replica now. A start takes the highest
   generation and carries out the remaining steps.
4. The copy is renamed to `<name>`, durably.
5. The old directory is renamed to `-delete`, durably; where its disk does not answer, the old log directory goes
   offline. Appends resume, on the new log.

If the target fails in steps 3 or 4, it may later return as the replica, or not. So the old replica gets generation + 2
before its appends resume.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidemark.model import ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.directories.checkpoint_files import CheckpointKey
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_directory import (
    FoundFuture,
    FoundReplica,
    LogDirectory,
    aside_path,
    future_document,
)
from tidemark.storage.files import (
    PARTITION_FILE,
    Descriptor,
    has_no_room,
    is_broken,
    open_directory,
    replace_file,
    storage_error,
    sync_directory,
    write_temporary,
)
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.log_loader import Expected, Recovered, make_segment, recover
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.settings import StorageSettings, storage_settings

_log: Final = logging.getLogger(__name__)

Places = dict[TopicPartition, list[tuple[LogDirectory, FoundReplica]]]
"""The directories of each replica."""


class ReplicaMover:
    """The part of a LogManager that moves replicas.

    Callers move a replica in one thread at a time, and stop its appends and truncations during `finish`.

    Args:
        found, lock: the manager's replicas, and the lock that guards them.
        take_aside: called with a directory that was set aside and its suffix. A plain function, because a reference
            back to the manager would keep the manager in memory.
        moved: called after a replica has moved.
    """

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        found: Places,
        lock: threading.RLock,
        pool: DescriptorPool,
        take_aside: Callable[[Path, str], None],
        moved: Callable[[], None] = lambda: None,
        *,
        producer_id_expiration_ms: int,
    ) -> None:
        self._directories = directories
        self._found = found
        self._lock = lock
        self._pool = pool
        self._take_aside = take_aside
        self._moved = moved
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._futures: dict[TopicPartition, tuple[LogDirectory, FoundFuture]] = {}
        for directory in directories:
            for future in directory.unfinished:
                identities = [place.identity for _, place in found.get(future.partition, [])]
                if future.identity in identities and future.partition not in self._futures:
                    self._futures[future.partition] = (directory, future)
                else:
                    take_aside(future.path, "delete")

    def target_of(self, partition: TopicPartition) -> int | None:
        """Index of the directory with a copy of the replica, of this process or the last one."""
        known = self._futures.get(partition)
        return None if known is None else self._directories.index(known[0])

    # -- step 1

    def begin(self, partition: TopicPartition, directory: int, configs: Mapping[str, str]) -> FutureLog:
        """Create a copy, or continue the copy in this directory; a copy in another directory is deleted.

        So is a copy of a log that was cleaned since: a tombstone that the log has lost would be missing in the copy.

        Raises:
            TidemarkError: REPLICA_OFFLINE: the replica is not open; LOG_DIR_OFFLINE; STORAGE_ERROR, DISK_FULL.
        """
        target = self._directories[directory]
        with self._lock:
            home, found, source = self._open_replica(partition)
            assert home is not target, "a replica moves to another directory"
            if target.failed is not None:
                raise TidemarkError(ErrorCode.LOG_DIR_OFFLINE, target.failed)
            assert found.identity is not None, "an open replica has an identity"
            known = self._futures.get(partition)
            if known is not None and not (known[0] is target and _continues(known[1], found, source)):
                self.abandon(partition)
                known = None
        try:
            source.make_directory()
            settings = storage_settings(configs, producer_id_expiration_ms=self._producer_id_expiration_ms)
            log = self._open_copy(target, found, known[1].path if known else None, source, settings)
        except OSError as error:
            if is_broken(error):
                target.fail(f"copy {partition} into it: {error.strerror}")
            raise storage_error(f"make a copy of {partition} in {target.path}", error) from error
        with self._lock:
            registered = self._futures.get(partition)
            if registered is None or registered[0] is not target or source.broken:
                log.close()
                raise _not_open(partition)
            target.futures[_key(found)] = log
        future = FutureLog(
            partition,
            found.identity,
            source=source,
            log=log,
            directory=directory,
            clean_point=registered[1].clean_point,
        )
        if known is not None:
            future.continue_after_start()
        return future

    def _open_replica(self, partition: TopicPartition) -> tuple[LogDirectory, FoundReplica, PartitionLog]:
        for home, found in self._found.get(partition, []):
            source = home.logs.get(_key(found)) if found.identity is not None else None
            if source is not None and source.broken is None:
                return home, found, source
        raise _not_open(partition)

    def _open_copy(
        self,
        target: LogDirectory,
        found: FoundReplica,
        path: Path | None,
        source: PartitionLog,
        settings: StorageSettings,
    ) -> PartitionLog:
        key = _key(found)
        old = target.futures.pop(key, None)
        if old is not None:
            old.close()
        recovered: Recovered | None = None
        if path is not None:
            points = target.checkpoints
            expected = Expected(points.recovery_points.get(key, 0), 0, points.log_starts.get(key))
            recovered = recover(path, expected, interval_bytes=settings.index_interval_bytes)
            if recovered.damage is not None:
                _log.warning(
                    "damaged copy: copying starts over", extra={"path": str(path), "why": recovered.damage.reason}
                )
                self.abandon(found.partition)
                path = None
        if path is None or recovered is None:
            path = self._make(target, found, source)
            recovered = recover(path, Expected(), interval_bytes=settings.index_interval_bytes)
        return PartitionLog(path, recovered, settings=settings, pool=self._pool, home=target)

    def _make(self, target: LogDirectory, found: FoundReplica, source: PartitionLog) -> Path:
        """Make an empty copy, partition.json last: without it a start deletes the directory."""
        assert found.identity is not None, "a moved replica has an identity"
        place = target.path / str(found.partition)
        if place.exists():  # an old directory, which this process never opened
            aside = aside_path(place, "stray")
            place.rename(aside)
            self._take_aside(aside, "stray")
        target.checkpoints.forget(_key(found))
        path = aside_path(place, "future")
        future = FoundFuture(found.partition, path, found.identity, source.cleaning.clean_point)
        document = future_document(
            found.partition,
            found.identity,
            generation=found.generation,
            future=True,
            clean_point=future.clean_point,
        )
        try:
            path.mkdir()
            make_segment(path, 0)
            replace_file(path / PARTITION_FILE, document)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)  # a full disk needs the space; a start would also delete the copy
            raise
        with self._lock:
            self._futures[found.partition] = (target, future)
        return path

    def sync(self, future: FutureLog) -> None:
        """Write back the copied bytes before appends stop, which makes the syncfs of step 2 short.

        Raises:
            TidemarkError: STORAGE_ERROR; the target is offline.
        """
        self._directories[future.directory].sync()

    # -- steps 2 to 5

    def finish(self, future: FutureLog, high_watermark: Offset) -> PartitionLog:
        """Replace the replica by its copy; returns the open log of the copy. No append may be pending.

        Raises:
            TidemarkError: LOG_DIR_OFFLINE: the target failed; STORAGE_ERROR, DISK_FULL. The replica stays in its
                directory, and in service unless that directory is offline.
        """
        with self._lock:
            home, found, source = self._open_replica(future.partition)
            target = self._directories[future.directory]
            if source is not future.source or target.futures.get(_key(found)) is not future.log:
                raise _not_open(future.partition)
        future.complete()
        target.checkpoints.changed = True
        target.checkpoint({future.log: high_watermark})
        if home.failed is not None:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, home.failed)
        try:
            opened = {path: open_directory(path) for path in (home.path, target.path, future.log.path)}
        except OSError as error:  # nothing has changed yet
            raise storage_error(f"move {future.partition} to {target.path}", error) from error
        found = self._commit(home, found, target, future, opened)
        source.give_way(future.log)
        key = _key(found)
        with self._lock:
            old_path = source.path
            self._found[future.partition] = [(target, found)]
            self._futures.pop(future.partition, None)
            home.logs.pop(key, None)
            target.logs[key] = target.futures.pop(key)
            self._moved()
        self._retire(home, key, old_path, opened[home.path])
        return future.log

    def _commit(
        self,
        home: LogDirectory,
        found: FoundReplica,
        target: LogDirectory,
        future: FutureLog,
        opened: Mapping[Path, Descriptor],
    ) -> FoundReplica:
        path, place = future.log.path, target.path / str(future.partition)
        document = future_document(future.partition, future.identity, generation=found.generation + 1, future=False)
        doing = f"move {future.partition} to {target.path}"
        try:
            temporary = write_temporary(path / PARTITION_FILE, document, durable=True)
        except OSError as error:
            if not has_no_room(error):
                target.fail(f"{doing}: {error.strerror}")
            raise storage_error(doing, error) from error
        try:
            temporary.replace(path / PARTITION_FILE)
            sync_directory(opened[path])
            future.log.rename(place)
            sync_directory(opened[target.path])
        except OSError as error:
            target.fail(f"{doing}: {error.strerror}")
            self._outbid(home, found)
            raise TidemarkError(ErrorCode.LOG_DIR_OFFLINE, f"{target.failed}") from error
        return FoundReplica(future.partition, place, future.identity, found.generation + 1)

    def _outbid(self, home: LogDirectory, found: FoundReplica) -> None:
        """Set the replica's generation above that of a copy whose commit is unknown."""
        assert found.identity is not None, "a moved replica has an identity"
        better = found._replace(generation=found.generation + 2)
        document = future_document(found.partition, found.identity, generation=better.generation, future=False)
        try:
            replace_file(found.path / PARTITION_FILE, document, durable=True)
            sync_directory(home.path)
        except OSError as error:
            home.fail(f"raise the generation of {found.partition}: {error.strerror}")
        with self._lock:
            self._found[found.partition] = [(home, better)]

    def _retire(self, home: LogDirectory, key: CheckpointKey, path: Path, opened: Descriptor) -> None:
        home.checkpoints.forget(key)
        if home.failed is not None:
            return
        aside = aside_path(path, "delete")
        try:
            path.rename(aside)
            home.roster.was_set_aside(*key)
            sync_directory(opened)
        except OSError as error:
            home.fail(f"set aside {key[0]}, which has moved: {error.strerror}")
        else:
            self._take_aside(aside, "delete")

    # -- abandoned copies

    def abandon(self, partition: TopicPartition) -> None:
        """Delete the copy, if any; the replica stays in its directory."""
        with self._lock:
            known = self._futures.pop(partition, None)
            if known is None:
                return
            target, future = known
            key = (partition, future.identity.incarnation)
            log = target.futures.pop(key, None)
            if log is not None:
                log.close()
            target.checkpoints.forget(key)
        if target.failed is not None:
            return
        aside = aside_path(target.path / str(partition), "delete")
        try:
            future.path.rename(aside)
            target.roster.was_set_aside(*key)
            sync_directory(target.path)
        except OSError as error:
            _log.warning("a copy could not be set aside", extra={"path": str(future.path), "why": str(error)})
            if is_broken(error):
                target.fail(f"set aside {future.path.name}: {error.strerror}")
        else:
            self._take_aside(aside, "delete")

    def abandon_others(self, partition: TopicPartition, identity: ReplicaIdentity) -> None:
        """Delete a copy of another identity than the replica's (rule F4)."""
        known = self._futures.get(partition)
        if known is not None and known[1].identity != identity:
            self.abandon(partition)

    @staticmethod
    def settle(directory: LogDirectory, found: FoundReplica) -> FoundReplica:
        """Step 4 of a committed move that was interrupted.

        Raises:
            OSError: the disk does not answer.
        """
        name = str(found.partition)
        if found.path.name == name or found.identity is None or not found.path.exists():
            return found
        place = directory.path / name
        found.path.rename(place)
        sync_directory(directory.path)
        return found._replace(path=place)


def _continues(future: FoundFuture, found: FoundReplica, source: PartitionLog) -> bool:
    return future.identity == found.identity and future.clean_point == source.cleaning.clean_point


def _key(found: FoundReplica) -> CheckpointKey:
    assert found.identity is not None, "a moved replica has an identity"
    return found.partition, found.identity.incarnation


def _not_open(partition: TopicPartition) -> TidemarkError:
    return TidemarkError(ErrorCode.REPLICA_OFFLINE, f"the log of {partition} is not open: retry later")
