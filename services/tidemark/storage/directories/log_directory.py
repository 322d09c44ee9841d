# SPDX-License-Identifier: Apache-2.0
"""One log directory: its owner, its lock, the kind of the last shutdown, and its checkpoints (rule T1,
docs/formats.md).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    EpochEntry,
    ErrorCode,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.storage.directories.checkpoint_files import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CheckpointKey,
    CheckpointOffsets,
    Checkpoints,
    read_checkpoints,
)
from tidemark.storage.directories.roster import Roster, RosterEntry
from tidemark.storage.files import (
    PARTITION_FILE,
    BadFile,
    Descriptor,
    has_no_room,
    is_unopened,
    pack_json,
    pack_lines,
    read_json,
    replace_file,
    replace_or_overwrite,
    storage_error,
    sync_directory,
    sync_file_system,
)
from tidemark.storage.log.durability import Captured
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.epoch_file import write_epochs
from tidemark.storage.recovery.log_loader import make_segment

META_FILE: Final = "meta.json"
LOCK_FILE: Final = ".lock"
CLEAN_SHUTDOWN_FILE: Final = "clean-shutdown.json"
INCARNATION_FILE: Final = "incarnation.json"
FORMAT_VERSION: Final = 1

_REPLICA_NAME: Final = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)")
_ASIDE_NAME: Final = re.compile(r".+\.[0-9a-f]{32}-(?P<suffix>stray|delete)")
_FUTURE_NAME: Final = re.compile(r".+\.[0-9a-f]{32}-future")
_NAME_BYTES_MAX: Final = 255
_LOGGER: Final = logging.getLogger(__name__)


class PreviousDirectory(NamedTuple):
    """The state in which the last process left a directory (rule T1); None for a missing or damaged file."""

    directory_id: str
    clean_broker_epoch: BrokerEpoch | None
    incarnation: tuple[str, BrokerEpoch] | None
    """Boot id and broker epoch of the last registration."""

    def is_of_boot(self, boot_id: str) -> bool:
        """Whether the last process ran on this boot of the machine, so that the page cache has survived."""
        return self.incarnation is not None and boot_id != "" and self.incarnation[0] == boot_id


class FoundReplica(NamedTuple):
    """A replica found in a directory; `identity` is None where its partition.json cannot be read."""

    partition: TopicPartition
    path: Path
    identity: ReplicaIdentity | None
    generation: int


class FoundFuture(NamedTuple):
    """The directory of an unfinished copy (rule M3).

    Attributes:
        clean_point: cleaner point of the replica's log when the copying began.
    """

    partition: TopicPartition
    path: Path
    identity: ReplicaIdentity
    clean_point: int


class _Covered(NamedTuple):
    """A log as a checkpoint covers it.

    Attributes:
        has_high_watermark: the high watermark among the offsets was reported for this checkpoint.
    """

    key: CheckpointKey
    log: PartitionLog
    capture: Captured
    offsets: CheckpointOffsets
    has_high_watermark: bool


class UnmadeDirectory:
    """A replica of the roster: makes its directory, and keeps its epochs in the roster until then."""

    __slots__ = ("_found", "_roster")

    def __init__(self, roster: Roster, found: FoundReplica) -> None:
        self._roster = roster
        self._found = found

    def make(self) -> None:
        """Make the directory, with partition.json last, since a directory without that file is ignored; then leave
        the roster.
        """
        partition, path, identity, generation = self._found
        assert identity is not None, "a roster entry has an identity"
        path.mkdir(exist_ok=True)
        make_segment(path, 0)
        entry = self._roster.get(partition)
        if entry is not None and entry.epochs:
            write_epochs(path, entry.epochs)
        write_identity(path, identity, generation=generation)
        self._roster.forget(partition)

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Keep the epochs in the roster."""
        assert self._found.identity is not None, "a roster entry has an identity"
        self._roster.put(self._found.partition, RosterEntry(self._found.identity, tuple(entries)))


class _Lock:
    """Locks other processes out: by a lock file, and by the directory itself in case the file is deleted.

    Raises:
        BlockingIOError: another process has the lock.
    """

    def __init__(self, path: Path) -> None:
        self._file = Descriptor(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        self._place = Descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(self._place.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a network file system may not support locks of directories
            _LOGGER.info("the lock file alone locks the directory", extra={"directory": str(path)})

    def is_at(self, path: Path) -> bool:
        """Whether the locked directory still has this path."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._place.number))
        except OSError:
            return False

    def sync(self, path: Path) -> None:
        """Make all earlier writes durable, by `sync_file_system` of the directory."""
        sync_file_system(path, self._place)

    def release(self) -> None:
        for descriptor in (self._place, self._file):
            fcntl.flock(descriptor.number, fcntl.LOCK_UN)


class LogDirectory:
    """A log directory locked by this process.

    Attributes:
        failed: why the directory is offline; None while it is online; a failed sync is never retried.
        on_failed: called once `failed` is set, on the thread that got the error.
        logs: the open logs.
        futures: open copies of replicas that move into this directory (rule M3).
        unfinished: unfinished copies found at the start.
    """

    def __init__(self, path: Path, directory_id: str, lock: _Lock, *, is_new: bool) -> None:
        self.path = path
        self.directory_id = directory_id
        self._is_new = is_new
        self.failed: str | None = None
        self.on_failed: Callable[[], None] = lambda: None
        self.logs: dict[CheckpointKey, PartitionLog] = {}
        self.futures: dict[CheckpointKey, PartitionLog] = {}
        self._held: _Lock | None = lock
        self._checkpoint_lock = threading.Lock()
        self._to_delete: deque[tuple[float, list[Path]]] = deque()
        self.previous = PreviousDirectory(directory_id, _clean_epoch(path), _incarnation(path))
        self.unfinished: list[FoundFuture] = []
        self._unusable: list[tuple[Path, str]] = []
        self.found = [*_found_replicas(path), *self._finished_futures()]
        self.roster = Roster(path)
        self.roster.forget_shadowed([found.partition for found in self.found])
        for partition, entry in self.roster.entries.items():
            self.found.append(FoundReplica(partition, path / str(partition), entry.identity, 0))
        known = [(found.partition, found.identity.incarnation) for found in self.found if found.identity]
        self.checkpoints: Checkpoints = read_checkpoints(path, known)
        for key in self.roster.set_aside.difference(known):
            self.checkpoints.forget(key)

    @classmethod
    def open(cls, path: Path, *, cluster_id: str, broker_id: BrokerId) -> LogDirectory:
        """Lock the directory and check its owner; a new directory gets this owner.

        Raises:
            TidemarkError: INVALID_CONFIG (another cluster's or broker's), STORAGE_ERROR (locked, unreadable).
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _Lock(path)
        except BlockingIOError:
            raise _refusal(path, "is locked by another process: stop that broker first") from None
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            return cls._open_locked(path, lock, cluster_id, broker_id)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(cls, path: Path, lock: _Lock, cluster_id: str, broker_id: BrokerId) -> LogDirectory:
        try:
            meta = read_json(path / META_FILE, format_version=int)
            if meta is not None and meta["format_version"] == FORMAT_VERSION:
                meta = read_json(path / META_FILE, cluster_id=str, broker_id=int, directory_id=str)
        except BadFile as error:
            raise _refusal(path, f"cannot be identified: {error}. Restore the file, or empty the directory") from None
        is_new = meta is None
        try:
            if meta is None:
                meta = _format(path, cluster_id, broker_id)
            _check_owner(path, meta, cluster_id, broker_id)
            return cls(path, meta["directory_id"], lock, is_new=is_new)
        except PermissionError as error:
            raise _unusable(path, error) from error
        except OSError as error:
            raise storage_error(f"read the log directory {path}", error) from error

    def fail(self, reason: str) -> None:
        """Take the directory offline until the next start, which must not trust unsynced writes (rule T1).

        The kernel reports a writeback error once, so the next process would not get the error."""
        if self.failed is None:
            self.failed = f"the log directory {self.path} is offline: {reason}"
            if self._held is not None and self._held.is_at(self.path):
                self._forget_boot()
            _LOGGER.error("log directory offline", extra={"directory": str(self.path), "reason": reason})
            self.on_failed()

    def _forget_boot(self) -> None:
        """Remove the boot id; the broker epoch stays, since all data flushed in that epoch is on disk."""
        place = self.path / INCARNATION_FILE
        try:
            known = _incarnation(self.path)
            if known is not None:
                replace_file(place, pack_json({"boot_id": "", "broker_epoch": known[1]}))
        except OSError:
            try:
                place.unlink(missing_ok=True)
            except OSError as error:
                _LOGGER.error(
                    "boot id not removed from a failed log directory", extra={"path": str(place), "why": str(error)}
                )

    def delete_later(self, paths: list[Path], delay_ms: int) -> None:
        """Delete these files, which are in no log, after the delay: `due_files` then returns them."""
        self._to_delete.append((time.monotonic() + delay_ms / 1000, paths))

    def due_files(self) -> list[Path]:
        """The files whose delay is over."""
        now_s = time.monotonic()
        waiting = [self._to_delete.popleft() for _ in range(len(self._to_delete))]
        self._to_delete.extend(one for one in waiting if one[0] > now_s)
        return [path for due_s, paths in waiting if due_s <= now_s for path in paths]

    def sync(self) -> None:
        """Make all earlier writes durable, by one syncfs.

        Raises:
            TidemarkError: STORAGE_ERROR; the directory is offline.
        """
        self._check_online()
        try:
            self._sync_file_system()
        except OSError as error:
            if not is_unopened(error):
                self.fail(f"syncfs: {error.strerror}")
            raise storage_error(f"sync the log directory {self.path}", error) from error

    def open_logs(self) -> tuple[tuple[CheckpointKey, PartitionLog], ...]:
        """The open logs, those included that a move copies to this directory.

        Other threads open logs. A copy of a dict is atomic. A list of its items is not: each may begin a collection.
        """
        return (*self.logs.copy().items(), *self.futures.copy().items())

    def checkpoint(self, high_watermarks: Mapping[PartitionLog, Offset]) -> None:
        """Write the three checkpoints with one syncfs, unless nothing has changed.

        Raises:
            TidemarkError: STORAGE_ERROR; the directory is offline. DISK_FULL: the next checkpoint retries.
        """
        self._check_online()
        with self._checkpoint_lock:
            try:
                try:
                    self._checkpoint(high_watermarks)
                except OSError as error:
                    if not (has_no_room(error) and self.failed is None and self._make_room()):
                        raise
                    self.checkpoints.changed = True
                    self._checkpoint(high_watermarks)
            except OSError as error:
                self.checkpoints.changed = True
                if not has_no_room(error):
                    self.fail(f"checkpoint: {error.strerror}")
                raise storage_error(f"checkpoint the log directory {self.path}", error) from error

    def _make_room(self) -> bool:
        """Release trimmed segments by marks, since the checkpoint that releases them needs space itself."""
        logs = [log for _, log in self.open_logs()]
        had_trimmed = any(log.segments.has_trimmed for log in logs)
        prepared = [(log, one) for log in logs if (one := log.durability.prepare_release()) is not None]
        if prepared:
            self.sync()
        for log, release in prepared:
            log.durability.release_by_mark(release)
        return had_trimmed

    def _checkpoint(self, high_watermarks: Mapping[PartitionLog, Offset]) -> None:
        covered: list[_Covered] = []
        points = self.checkpoints
        changed = points.changed
        points.changed = False
        for key, log in self.open_logs():
            if not log.has_directory:
                continue  # the replica holds no records, as does a replica without offsets in the checkpoints
            capture = log.durability.capture()
            if capture is None:
                continue
            has_high_watermark = log in high_watermarks
            high_watermark = high_watermarks.get(log, max(points.high_watermarks.get(key, 0), 0))
            offsets = CheckpointOffsets(
                min(high_watermark, capture.high_watermark_max), capture.log_end, capture.log_start
            )
            covered.append(_Covered(key, log, capture, offsets, has_high_watermark))
            bounded = has_high_watermark and capture.high_watermark_max < capture.log_end
            changed = changed or not points.has(key, offsets) or log.durability.checkpoint_due or bounded
        if not changed:
            return
        renames = points.write_temporaries(self.path, {one.key: one.offsets for one in covered if not one.log.broken})
        try:
            self._sync_file_system()
            for temporary, place in renames:
                temporary.replace(place)
            sync_directory(self.path)
        except OSError as error:  # also ENOSPC: the page cache has dropped the unwritten data
            if not is_unopened(error):
                self.fail(f"checkpoint: {error.strerror}")
            raise
        for one in covered:
            with points.guard:
                if one.log.broken:  # closed meanwhile: its replica may have been set aside, or is opened again
                    points.changed = True
                    continue
                points.put(one.key, one.offsets)
            one.log.durability.checkpointed(one.capture, has_high_watermark=one.has_high_watermark)

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        """After a confirmed registration: write its boot id and broker epoch (rule T1), also on a full disk.

        If the file is missing or incomplete, the next start counts as unclean.

        Raises:
            TidemarkError: STORAGE_ERROR; the directory is offline. DISK_FULL if the directory had no such file; a later
                call may succeed.
        """
        self._check_online()
        action = f"confirm the registration in {self.path}"
        refusal: OSError | None = None
        try:
            try:
                document = pack_json({"boot_id": boot_id, "broker_epoch": broker_epoch})
                replace_or_overwrite(self.path / INCARNATION_FILE, document)
            except OSError as error:
                if not has_no_room(error):
                    raise
                refusal = error
            (self.path / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
            sync_directory(self.path)
        except OSError as error:
            if not is_unopened(error):
                self.fail(f"confirm the registration: {error.strerror}")
            raise storage_error(action, error) from error
        if refusal is not None:
            raise storage_error(action, refusal) from refusal

    def close_clean(self, broker_epoch: BrokerEpoch, high_watermarks: Mapping[PartitionLog, Offset]) -> None:
        """Write the files of the next start, with one syncfs; then the clean-shutdown marker.

        Raises:
            TidemarkError: STORAGE_ERROR; without the marker.
        """
        self._check_online()
        try:
            for log in (*self.logs.values(), *self.futures.values()):
                log.finish()
        except OSError as error:
            raise storage_error(f"finish the logs in {self.path}", error) from error
        self.checkpoints.changed = True
        self.checkpoint(high_watermarks)
        if any(log.broken for log in self.logs.values()):
            return
        try:
            replace_file(self.path / CLEAN_SHUTDOWN_FILE, pack_json({"broker_epoch": broker_epoch}), durable=True)
        except OSError as error:
            raise storage_error(f"write {CLEAN_SHUTDOWN_FILE} in {self.path}", error) from error

    def disown(self) -> None:
        """Remove the owner if this process has made it: the broker was refused, and has made no replica.

        Raises:
            OSError: the disk does not answer.
        """
        if self._is_new:
            (self.path / META_FILE).unlink(missing_ok=True)

    def release(self) -> None:
        """Close every log and unlock the directory."""
        for log in (*self.logs.values(), *self.futures.values()):
            log.close()
        self.logs.clear()
        self.futures.clear()
        if self._held is not None:
            self._held.release()
            self._held = None

    def asides(self) -> list[tuple[Path, str]]:
        """(path, "stray" or "delete") of replicas that were set aside."""
        matches = ((path, _ASIDE_NAME.fullmatch(path.name)) for path in self.path.iterdir())
        return [*((path, match["suffix"]) for path, match in matches if match), *self._unusable]

    def _finished_futures(self) -> Iterator[FoundReplica]:
        """Committed copies that were not renamed yet are replicas; others go to `unfinished` or are set aside."""
        for path in list(self.path.iterdir()):
            if _FUTURE_NAME.fullmatch(path.name) is None:
                continue
            try:
                document = read_json(path / PARTITION_FILE)
            except BadFile:  # the replica of an uncommitted copy is still in its directory
                self._unusable.append((path, "stray"))
                continue
            if document is None:
                self._unusable.append((path, "delete"))
                continue
            partition = TopicPartition(document["topic"], document["partition"])
            identity = ReplicaIdentity(document["topic_id"], document["incarnation"])
            if document["future"]:
                self.unfinished.append(FoundFuture(partition, path, identity, document["clean_point"]))
            else:
                yield FoundReplica(partition, path, identity, document["generation"])

    def _sync_file_system(self) -> None:
        assert self._held is not None, "a released directory is not written"
        self._held.sync(self.path)

    def _check_online(self) -> None:
        """Raise if the directory is offline, or if another directory has its path: syncfs uses the path."""
        if self.failed is None and self._held is not None and not self._held.is_at(self.path):
            self.fail("the directory was removed or replaced since it was opened")
        if self.failed is not None:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, self.failed)


def aside_path(path: Path, suffix: str) -> Path:
    """Path for a replica's directory that is set aside: <name>.<uuid>-<suffix>, at most 255 bytes."""
    ending = f".{uuid.uuid4().hex}-{suffix}"
    return path.with_name(path.name[: _NAME_BYTES_MAX - len(ending)] + ending)


def write_identity(path: Path, identity: ReplicaIdentity, *, generation: int) -> None:
    """Write partition.json; durable with the next syncfs."""
    document = {"topic_id": identity.topic_id, "incarnation": identity.incarnation, "generation": generation}
    replace_file(path / PARTITION_FILE, pack_json(document))


def future_document(
    partition: TopicPartition, identity: ReplicaIdentity, *, generation: int, future: bool, clean_point: int = 0
) -> bytes:
    """The partition.json of a copy (`future`), or of a copy that became the replica.

    The file names the partition, since the name of a copy's directory may be shortened."""
    return pack_json(
        {
            "topic_id": identity.topic_id,
            "incarnation": identity.incarnation,
            "generation": generation,
            "topic": partition.topic,
            "partition": partition.partition,
            "future": future,
            "clean_point": clean_point,
        }
    )


def _found_replicas(directory: Path) -> Iterator[FoundReplica]:
    for entry in os.scandir(directory):
        match = _REPLICA_NAME.fullmatch(entry.name)
        if match is None or not entry.is_dir():
            continue
        partition = TopicPartition(match["topic"], int(match["partition"]))
        path = Path(entry.path)
        try:
            document = read_json(path / PARTITION_FILE, topic_id=str, incarnation=str, generation=int)
        except BadFile:
            document = None
        if document is None:
            yield FoundReplica(partition, path, None, -1)
        else:
            identity = ReplicaIdentity(document["topic_id"], document["incarnation"])
            yield FoundReplica(partition, path, identity, document["generation"])


def stored_cluster_id(paths: Iterable[Path]) -> str:
    """The id of the cluster in the first log directory that has one; "" in new directories.

    Unreadable files are left to `LogDirectory.open`.
    """
    for path in paths:
        with contextlib.suppress(BadFile):
            meta = read_json(path / META_FILE, cluster_id=str)
            if meta is not None:
                return str(meta["cluster_id"])
    return ""


def _format(path: Path, cluster_id: str, broker_id: BrokerId) -> dict[str, Any]:
    foreign = [entry.name for entry in os.scandir(path) if entry.is_dir() and _REPLICA_NAME.fullmatch(entry.name)]
    if foreign:
        raise _refusal(
            path, f"has replicas ({foreign[0]}, ...) and no {META_FILE}: restore the file, or empty the directory"
        )
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS):
        replace_file(path / name, pack_lines([]))
    meta = {
        "cluster_id": cluster_id,
        "broker_id": broker_id,
        "directory_id": uuid.uuid4().hex,
        "format_version": FORMAT_VERSION,
    }
    replace_file(path / META_FILE, pack_json(meta), durable=True)
    sync_directory(path.parent)
    return meta


def _check_owner(path: Path, meta: Mapping[str, Any], cluster_id: str, broker_id: BrokerId) -> None:
    if meta["format_version"] != FORMAT_VERSION:
        raise _refusal(
            path,
            f"has format version {meta['format_version']}, this program reads {FORMAT_VERSION}: use a newer one",
            ErrorCode.INVALID_CONFIG,
        )
    if meta["cluster_id"] != cluster_id:
        raise _refusal(
            path,
            f"belongs to cluster {meta['cluster_id']}, this is {cluster_id}: correct zookeeper.connect or log.dirs",
            ErrorCode.INVALID_CONFIG,
        )
    if meta["broker_id"] != broker_id:
        raise _refusal(
            path,
            f"belongs to broker {meta['broker_id']}, this is broker {broker_id}: correct broker.id or log.dirs",
            ErrorCode.INVALID_CONFIG,
        )


def _refusal(path: Path, sentence: str, code: ErrorCode = ErrorCode.STORAGE_ERROR) -> TidemarkError:
    return TidemarkError(code, f"the log directory {path} {sentence}")


def _unusable(path: Path, error: OSError) -> TidemarkError:
    user = ""
    if isinstance(error, PermissionError):
        groups = sorted({os.getegid(), *os.getgroups()})
        user = f" for user {os.geteuid()} of the groups {groups}{_owner(path)}. In a pod, set securityContext.fsGroup"
    sentence = f"cannot be used: {error.strerror}{user}. Let this user write to the directory, or correct log.dirs"
    return _refusal(path, sentence, storage_error("", error).code)


def _owner(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"; the owner is user {found.st_uid} and group {found.st_gid}, with mode {stat.S_IMODE(found.st_mode):04o}"


def _clean_epoch(path: Path) -> BrokerEpoch | None:
    try:
        document = read_json(path / CLEAN_SHUTDOWN_FILE, broker_epoch=int)
    except BadFile:
        return None
    return None if document is None else BrokerEpoch(document["broker_epoch"])


def _incarnation(path: Path) -> tuple[str, BrokerEpoch] | None:
    try:
        document = read_json(path / INCARNATION_FILE, boot_id=str, broker_epoch=int)
    except BadFile:
        return None
    return None if document is None else (document["boot_id"], BrokerEpoch(document["broker_epoch"]))
