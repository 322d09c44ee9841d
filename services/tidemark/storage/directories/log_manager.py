# SPDX-License-Identifier: Apache-2.0
"""LogManager: all log directories of a broker, the `Logs` of ports.py (rules F4, T1, C8)."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tidemark.core.replication.events import RecoveredLog
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.directories.log_directory import (
    FoundReplica,
    LogDirectory,
    PreviousDirectory,
    UnmadeDirectory,
    aside_path,
)
from tidemark.storage.directories.placement import FEWEST_REPLICAS, Placement
from tidemark.storage.directories.replica_mover import ReplicaMover
from tidemark.storage.directories.roster import RosterEntry
from tidemark.storage.files import PARTITION_FILE, storage_error
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.damage import KnownDamage, valid_batches_in_file, write_damage
from tidemark.storage.recovery.log_loader import Expected, nothing_yet, recover, segment_offsets
from tidemark.storage.recovery.scan_estimate import bytes_to_scan
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.segments.segment import Segment
from tidemark.storage.settings import PRODUCER_ID_EXPIRATION_MS, storage_settings

STRAY_GRACE_MS: Final = 24 * 3600 * 1000
_LOGGER: Final = logging.getLogger(__name__)


def open_logs(
    directories: Sequence[Path],
    *,
    cluster_id: str,
    broker_id: BrokerId,
    stray_grace_ms: int = STRAY_GRACE_MS,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    open_files_max: int = 4096,
    directory_choice: str = FEWEST_REPLICAS,
) -> LogManager:
    """Lock and read the log directories of a broker; a new directory gets this owner. No replica is opened yet.

    Raises:
        TidemarkError: INVALID_CONFIG or STORAGE_ERROR, with the remedy; no directory is locked then.
    """
    if not directories:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, "log.dirs names no directory: name at least one")
    named = [os.path.realpath(path) for path in directories]
    twice = next((one for number, one in enumerate(named) if one in named[:number]), None)
    if twice is not None:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"log.dirs names {twice} twice: name it once")
    opened: list[LogDirectory] = []
    try:
        for path in directories:
            directory = LogDirectory.open(Path(path), cluster_id=cluster_id, broker_id=broker_id)
            opened.append(directory)
            _check_not_copied(directory, opened[:-1])
    except TidemarkError:
        for directory in opened:
            directory.release()
        raise
    return LogManager(
        opened,
        stray_grace_ms=stray_grace_ms,
        producer_id_expiration_ms=producer_id_expiration_ms,
        open_files_max=open_files_max,
        directory_choice=directory_choice,
    )


def _check_not_copied(directory: LogDirectory, others: Sequence[LogDirectory]) -> None:
    original = next((one for one in others if one.directory_id == directory.directory_id), None)
    if original is not None:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"log.dirs: {directory.path} is a copy of {original.path}, or the reverse: remove the older one",
        )


class DirectoryState(NamedTuple):
    """A log directory; `failed`: why it is offline, None while it is online."""

    directory_id: str
    path: Path
    failed: str | None


class LogManager:
    """The log directories of a broker, in the order of `log.dirs`. Only one thread at a time may open a partition.

    `_lock` guards the replicas of each directory (`_found`) and the stray ones; it is held across file operations.
    """

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        stray_grace_ms: int,
        producer_id_expiration_ms: int,
        open_files_max: int,
        directory_choice: str = FEWEST_REPLICAS,
    ) -> None:
        self.on_scanned: Callable[[TopicPartition, int], None] = lambda partition, size_bytes: None
        """Called during recovery with the number of bytes scanned past the recovery point."""
        self._directories = tuple(directories)
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._pool = DescriptorPool(open_files_max)
        self._boot_id = ""
        self._lock = threading.RLock()
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="log-deleter")
        self._found: dict[TopicPartition, list[tuple[LogDirectory, FoundReplica]]] = {}
        self._strays: dict[Path, float] = {}
        self._take_aside = partial(_take_aside, self._deleter, self._strays, stray_grace_ms / 1000)
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        for directory in self._directories:
            for found in directory.found:
                self._found.setdefault(found.partition, []).append((directory, found))
            for path, suffix in directory.asides():
                self._take_aside(path, suffix)
        self._placement = Placement(self._directories, self._found, directory_choice)
        self.mover = ReplicaMover(
            self._directories,
            self._found,
            self._lock,
            self._pool,
            self._take_aside,
            self._placement.changed,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """Uuids of the online directories, by index; this process holds their locks (rule Z3)."""
        return tuple(directory.directory_id for directory in self._directories if directory.failed is None)

    @property
    def previous(self) -> tuple[PreviousDirectory, ...]:
        """The state in which the last process left each directory (rule T1)."""
        return tuple(directory.previous for directory in self._directories)

    def directories(self) -> tuple[DirectoryState, ...]:
        """All directories, by index."""
        return tuple(DirectoryState(one.directory_id, one.path, one.failed) for one in self._directories)

    def watch_failures(self, on_failed: Callable[[], None]) -> None:
        """Set the function that is called when a directory goes offline, on the thread that got the error."""
        for directory in self._directories:
            directory.on_failed = on_failed

    def directory_of(self, partition: TopicPartition) -> int | None:
        """Index of the directory of a replica, usable or not; None if there is no such replica."""
        places = self._found.get(partition)
        return self._directories.index(places[0][0]) if places else None

    def directory_named(self, name: str) -> int | None:
        """Index of the directory with this path or uuid; None if there is no such directory."""
        path = os.path.realpath(name)
        for index, directory in enumerate(self._directories):
            if name == directory.directory_id or path == os.path.realpath(directory.path):
                return index
        return None

    def prefer(self, partition: TopicPartition, directory: int | None) -> None:
        """Choose the directory of a replica that may be made; None: by the configured choice. Lost with a restart."""
        if directory is None:  # on the event loop: without the lock, which is held across file operations
            self._preferred.pop(partition, None)
        else:
            self._preferred[partition] = self._directories[directory]

    def bytes_to_scan(self, partition: TopicPartition) -> int:
        """Estimated bytes that opening the replica scans; 0 for no replica, or after a clean stop."""
        places = self._found.get(partition)
        if not places:
            return 0
        directory, found = places[0]
        if found.identity is None or directory.previous.clean_broker_epoch is not None:
            return 0
        key = (partition, found.identity.incarnation)
        return bytes_to_scan(found.path, directory.checkpoints.recovery_points.get(key, 0))

    def logs_in(self, directory: int) -> list[tuple[TopicPartition, PartitionLog]]:
        """The open logs of the directory with this index."""
        return [(key[0], log) for key, log in self._directories[directory].logs.copy().items()]

    def sync(self) -> None:
        """One syncfs for each directory, which must report no error (rule T1).

        Raises:
            TidemarkError: STORAGE_ERROR; that directory is offline, all others are synced.
        """
        self._on_each(LogDirectory.sync)

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        """After the registration is confirmed: write incarnation.json, remove the clean-shutdown markers (rule T1).

        A directory that fails is offline; the other directories continue.

        Raises:
            TidemarkError: DISK_FULL, as `LogDirectory.confirm_registration`; STORAGE_ERROR if no directory is left.
        """
        self._boot_id = boot_id
        try:
            self._on_each(lambda directory: directory.confirm_registration(broker_epoch, boot_id))
        except TidemarkError as error:
            if error.code is ErrorCode.DISK_FULL or not self.directory_ids:
                raise

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        """The replicas on disk (not stray, not deleted); of two directories, the one with the highest generation."""
        with self._lock:
            best = {
                partition: max((found for _, found in places), key=lambda found: found.generation).identity
                for partition, places in self._found.items()
            }
        return {partition: identity for partition, identity in best.items() if identity is not None}

    def open(
        self, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[PartitionLog, RecoveredLog]:
        """Open or create a replica; first set aside a replica of another identity as stray (rule F4).

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        try:
            return self._open(partition, identity, configs)
        except OSError as error:
            raise storage_error(f"open the log of {partition}", error) from error

    def _open(
        self, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[PartitionLog, RecoveredLog]:
        key = (partition, identity.incarnation)
        with self._lock:
            assumed = self._set_others_aside(partition, identity)
            self.mover.abandon_others(partition, identity)
            places = self._found.get(partition)
            fresh = not places
            if places:
                directory, found = places[0]
            else:
                directory = self._place_for(partition)
                found = self._make(directory, partition, identity, assumed)
        if directory.failed:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, directory.failed)
        old = directory.logs.pop(key, None)
        if old is not None:
            old.close()  # a checkpoint in progress releases none of its segments from here on
        points = directory.checkpoints
        expected = Expected(
            points.recovery_points.get(key, 0), points.high_watermarks.get(key, 0), points.log_starts.get(key)
        )
        settings = storage_settings(configs, producer_id_expiration_ms=self._producer_id_expiration_ms)
        unmade = self._unmade(directory, found, expected)
        if unmade is not None:
            entry = directory.roster.get(partition)
            recovered = nothing_yet(found.path, entry.epochs if entry is not None else ())
        else:
            recovered = recover(
                found.path,
                expected,
                interval_bytes=settings.index_interval_bytes,
                scanned=partial(self.on_scanned, partition),
                notes_cut=directory.previous.is_of_boot(self._boot_id),
            )
        log = PartitionLog(found.path, recovered, settings=settings, pool=self._pool, home=directory, unmade=unmade)
        directory.logs[key] = log
        return log, RecoveredLog(
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            high_watermark=Offset(recovered.high_watermark),
            epochs=recovered.epochs.entries,
            producers=recovered.producers.copy(),
            damaged=recovered.damage.reason if recovered.damage else None,
            cut=recovered.damage is not None and recovered.damage.cut,
            fresh=fresh,
            directory=self._directories.index(directory),
        )

    def _unmade(self, directory: LogDirectory, found: FoundReplica, expected: Expected) -> UnmadeDirectory | None:
        """The stand-in for the directory of an empty replica, None where there is a directory.

        A replica that held records according to the checkpoints gets a directory, and is damaged."""
        if directory.roster.get(found.partition) is None:
            return None
        unmade = UnmadeDirectory(directory.roster, found)
        if expected.is_nothing:
            return unmade
        unmade.make()
        return None

    def _set_others_aside(self, partition: TopicPartition, identity: ReplicaIdentity) -> KnownDamage | None:
        """Set aside all directories except the one to open; returns the damage to assume after an unreadable
        directory.
        """
        assumed = None
        places = self._found.get(partition, [])
        ours = [place for place in places if place[1].identity == identity]
        keep = max(ours, key=lambda place: place[1].generation, default=None)
        for directory, found in places:
            if keep is not None and found is keep[1]:
                continue
            if found.identity is None and keep is None:
                assumed = _assumed_damage(found.path)
            try:
                self._move_aside(directory, found, "stray")
            except OSError as error:
                if keep is None or found.identity != identity:
                    raise
                directory.fail(f"set aside {found.path.name}, which has moved: {error.strerror}")  # rule M3
        if keep is None:
            self._found.pop(partition, None)
        else:
            self._found[partition] = [(keep[0], self.mover.settle(*keep))]
        return assumed

    def _place_for(self, partition: TopicPartition) -> LogDirectory:
        """The preferred directory if online, else the configured choice."""
        preferred = self._preferred.pop(partition, None)
        if preferred is None or preferred.failed is None:
            return preferred or self._placement.choose()
        _LOGGER.warning(
            "preferred log directory is offline: replica created in another directory",
            extra={"partition": str(partition), "why": preferred.failed},
        )
        return self._placement.choose()

    def _make(
        self, directory: LogDirectory, partition: TopicPartition, identity: ReplicaIdentity, assumed: KnownDamage | None
    ) -> FoundReplica:
        """Make a replica: a line in the roster, or a directory where there is damage to record."""
        found = FoundReplica(partition, directory.path / str(partition), identity, 0)
        directory.roster.put(partition, RosterEntry(identity))
        if assumed is not None:
            found.path.mkdir()
            write_damage(found.path, assumed)
            UnmadeDirectory(directory.roster, found).make()
        self._found[partition] = [(directory, found)]
        self._placement.added(directory)
        return found

    def set_aside(self, partition: TopicPartition, suffix: str) -> None:
        """Rename the directory to <name>.<uuid>-stray or -delete; "-delete" is deleted in the background (rule C8).

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        assert suffix in ("stray", "delete"), suffix
        with self._lock:
            self.mover.abandon(partition)
            for directory, found in self._found.pop(partition, []):
                try:
                    self._move_aside(directory, found, suffix)
                except OSError as error:
                    raise storage_error(f"set {partition} aside", error) from error

    def _move_aside(self, directory: LogDirectory, found: FoundReplica, suffix: str) -> None:
        self._placement.changed()
        if found.identity is not None:
            key = (found.partition, found.identity.incarnation)
            log = directory.logs.pop(key, None)
            if log is not None:
                log.close()
            directory.checkpoints.forget(key)
        if directory.roster.forget(found.partition):
            return  # the replica never held a record
        aside = aside_path(found.path, suffix)
        found.path.rename(aside)
        if found.identity is not None:
            directory.roster.was_set_aside(*key)
        self._take_aside(aside, suffix)

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Write the HW, recovery-point and log-start checkpoints of every directory, one syncfs each.

        Args:
            high_watermarks: of the logs that are open now; one opened meanwhile may be of a later topic of the name.

        Raises:
            TidemarkError: STORAGE_ERROR; that directory is offline, all others are written.
        """
        found = self._by_log(high_watermarks)
        try:
            self._on_each(lambda directory: directory.checkpoint(found))
        finally:  # even if the disk is full
            self._sweep_strays()
            self._sweep_files()

    def close_clean(self, broker_epoch: BrokerEpoch, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """A clean stop: write all files, run one syncfs for each directory, and write its marker last.

        Raises:
            TidemarkError: STORAGE_ERROR; that directory has no marker. All logs are closed, even after an error.
        """
        found = self._by_log(high_watermarks)
        try:
            self._on_each(lambda directory: directory.close_clean(broker_epoch, found))
        finally:
            self.close()

    def _by_log(self, high_watermarks: Mapping[TopicPartition, Offset]) -> dict[PartitionLog, Offset]:
        return {
            log: high_watermarks[partition]
            for directory in self._directories
            for (partition, _), log in directory.open_logs()
            if partition in high_watermarks
        }

    def disown(self) -> None:
        """Let other brokers use the directories that were new at this start: this broker was refused."""
        for directory in self._directories:
            try:
                directory.disown()
            except OSError as error:
                _LOGGER.warning("the owner stays", extra={"directory": str(directory.path), "why": str(error)})

    def close(self) -> None:
        """Close without a write: for the next start, this is a kill."""
        for directory in self._directories:
            directory.release()
        self._deleter.shutdown(wait=True)

    def _on_each(self, act: Callable[[LogDirectory], None]) -> None:
        errors = []
        for directory in self._directories:
            if directory.failed is not None:
                continue
            try:
                act(directory)
            except TidemarkError as error:
                errors.append(error)
        if errors:
            raise next((one for one in errors if one.code is ErrorCode.DISK_FULL), errors[0])

    def _sweep_files(self) -> None:
        for directory in self._directories:
            paths = directory.due_files()
            if paths:
                _delete_later(self._deleter, _delete_files, paths)

    def _sweep_strays(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            due = [path for path, due_s in self._strays.copy().items() if due_s <= now_s]
            for path in due:
                del self._strays[path]
        for path in due:
            _delete_later(self._deleter, _delete, path)


def _take_aside(
    deleter: ThreadPoolExecutor, strays: dict[Path, float], grace_s: float, path: Path, suffix: str
) -> None:
    if suffix == "delete":
        _delete_later(deleter, _delete, path)
    else:
        strays[path] = time.monotonic() + max(0.0, grace_s - _age_s(path))


def _delete_later(deleter: ThreadPoolExecutor, delete: Callable[[Any], None], deleted: Path | list[Path]) -> None:
    """Delete on the thread of the deleter. If the machine refuses that thread, the next deletion or start deletes."""
    try:
        deleter.submit(delete, deleted)
    except RuntimeError as error:
        _LOGGER.warning("could not delete yet", extra={"path": str(deleted), "error": str(error)})


def _age_s(path: Path) -> float:
    """Seconds since the directory was renamed, by the file system's clock; the wall clock is read only here."""
    try:
        return max(0.0, time.time() - path.stat().st_ctime)
    except OSError:
        return 0.0


def _delete_files(paths: list[Path]) -> None:
    """Remove renamed files; the next start removes those that cannot be removed now."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _LOGGER.warning("could not delete", extra={"path": str(path), "error": str(error)})


def _delete(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        _LOGGER.warning("could not delete", extra={"path": str(path), "error": str(error)})


def _assumed_damage(path: Path) -> KnownDamage | None:
    """Damage of the successor of a replica with an unreadable identity, up to the end of that replica's records.

    None for a replica without records. partition.json is written before the first batch. Without this file and without
    a byte in any segment, the broker was killed while it created the replica.
    """
    logs = [Segment(path, base).log_path for base in segment_offsets(path)]
    if not (path / PARTITION_FILE).exists() and not any(log.exists() and log.stat().st_size for log in logs):
        return None
    ends = _ends(logs)
    return KnownDamage(f"{PARTITION_FILE} was missing or damaged, so the log was set aside", max(ends, default=1))


def _ends(paths: Iterable[Path]) -> list[int]:
    return [end for path in paths if (end := valid_batches_in_file(path, at_least=0)) is not None]
