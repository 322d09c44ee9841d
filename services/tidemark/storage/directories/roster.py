# SPDX-License-Identifier: Apache-2.0
"""The roster of a log directory: a line for each replica that never held a record, instead of a directory.

Making a directory with its files costs about as much as a thousand appends, so a partition gets a directory with its
first record. Until then the replica has a line in the roster. The line survives a kill (rule T5) and is durable with
the next syncfs. A lost line loses no record: the replica is created again, and is empty as before. A directory
overrides a line of that name.

Each line ends with the CRC-32C of the text before it. "+ topic partition topic_id incarnation epochs" adds a replica or
replaces its entry (`epochs`: "epoch:start,...", or "-" for none); "- topic partition" removes it. "x topic partition
incarnation" records that a replica was set aside: older checkpoints of it are ignored.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import EpochEntry, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.storage.files import Descriptor, checksum, has_no_room, replace_file

ROSTER_FILE: Final = "empty-replicas"

_VERSION: Final = b"1\n"
_DEAD_LINES_MIN: Final = 4096
"""Smallest number of obsolete lines at which the file is rewritten."""
_LOGGER: Final = logging.getLogger(__name__)


class RosterEntry(NamedTuple):
    """The identity of the replica, and its leader epochs that began without a record (rule E1)."""

    identity: ReplicaIdentity
    epochs: tuple[EpochEntry, ...] = ()


class Roster:
    """The roster in memory and its file; thread-safe. Every method raises OSError when the disk does not answer."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ROSTER_FILE
        self._lock = threading.Lock()
        self._descriptor: Descriptor | None = None
        self._entries: dict[TopicPartition, RosterEntry] = {}
        self.set_aside: set[tuple[TopicPartition, str]] = set()
        """Partition and incarnation of replicas that were set aside, according to the file when it was read."""
        self._lines = 0
        self._torn = False
        """Whether the last line may be incomplete."""
        if not self._read() or self._has_many_dead_lines():
            self._rewrite()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[TopicPartition, RosterEntry]:
        """A copy of all entries, by partition."""
        with self._lock:
            return dict(self._entries)

    def get(self, partition: TopicPartition) -> RosterEntry | None:
        """The entry of a replica that never held a record."""
        return self._entries.get(partition)

    def put(self, partition: TopicPartition, entry: RosterEntry) -> None:
        """Add or replace an entry; a kill does not undo that."""
        with self._lock:
            self._append(_line(partition, entry))
            self._entries[partition] = entry

    def forget(self, partition: TopicPartition) -> bool:
        """Remove an entry; returns whether there was one."""
        with self._lock:
            if partition not in self._entries:
                return False
            self._append(_sealed(f"- {partition.topic} {partition.partition}"))
            del self._entries[partition]
            return True

    def was_set_aside(self, partition: TopicPartition, incarnation: str) -> None:
        """Record that a replica's directory was set aside: checkpoints are written after that.

        A full disk needs the space of that directory. Without the line, a replica that is made again after a kill, with
        the same incarnation, counts as damaged.
        """
        with self._lock:
            try:
                self._append(_sealed(f"x {partition.topic} {partition.partition} {incarnation}"))
            except OSError as error:
                if not has_no_room(error):
                    raise

    def forget_shadowed(self, directories: Collection[TopicPartition]) -> None:
        """Remove the entries of replicas with a directory: a kill came between the two steps."""
        for partition in directories:
            self.forget(partition)

    def _append(self, line: bytes) -> None:
        if self._torn or self._has_many_dead_lines():
            self._rewrite()
        if self._descriptor is None:
            self._descriptor = Descriptor(self._path, os.O_WRONLY | os.O_APPEND)
        self._torn = True
        if os.write(self._descriptor.number, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False
        self._lines += 1

    def _has_many_dead_lines(self) -> bool:
        return self._lines > 2 * len(self._entries) + _DEAD_LINES_MIN

    def _read(self) -> bool:
        """Read the file; whether every line is complete."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return False
        *lines, rest = content.removeprefix(_VERSION).split(b"\n") if content.startswith(_VERSION) else [content]
        whole = content.startswith(_VERSION) and not rest
        if not whole:
            _LOGGER.warning("incomplete line in the roster of empty replicas", extra={"path": str(self._path)})
        for line in lines:
            whole = self._take(line) and whole
        self._lines = len(lines)
        return whole

    def _take(self, line: bytes) -> bool:
        body, _, crc = line.rpartition(b" ")
        if crc != f"{checksum(body):08x}".encode():
            return False
        try:
            self._enter(*body.decode().split(" "))
        except (TypeError, ValueError):
            return False
        return True

    def _enter(self, sign: str, topic: str, index: str, *rest: str) -> None:
        """Apply a line. Raises TypeError or ValueError, without a change, if the line does not parse."""
        partition = TopicPartition(topic, int(index))
        if sign == "-":
            self._entries.pop(partition, None)
        elif sign == "x":
            (incarnation,) = rest
            self.set_aside.add((partition, incarnation))
        else:
            topic_id, incarnation, epochs = rest
            entry = RosterEntry(ReplicaIdentity(topic_id, incarnation), _epochs(epochs))
            self.set_aside.discard((partition, incarnation))
            self._entries[partition] = entry

    def _rewrite(self) -> None:
        lines = [_line(partition, entry) for partition, entry in self._entries.items()]
        replace_file(self._path, _VERSION + b"".join(lines))
        self._descriptor = None
        self._torn = False
        self._lines = len(lines)


def _line(partition: TopicPartition, entry: RosterEntry) -> bytes:
    identity = entry.identity
    epochs = ",".join(f"{epoch}:{start}" for epoch, start in entry.epochs) or "-"
    return _sealed(f"+ {partition.topic} {partition.partition} {identity.topic_id} {identity.incarnation} {epochs}")


def _sealed(text: str) -> bytes:
    body = text.encode()
    return body + f" {checksum(body):08x}\n".encode()


def _epochs(text: str) -> tuple[EpochEntry, ...]:
    pairs: Sequence[list[str]] = [] if text == "-" else [pair.split(":") for pair in text.split(",")]
    return tuple(EpochEntry(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in pairs)
