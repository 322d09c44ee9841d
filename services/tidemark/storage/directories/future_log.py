# SPDX-License-Identifier: Apache-2.0
"""FutureLog: the copy of a replica's log in another directory, which will replace the log (rule M3).

Batches are copied byte by byte from the local log. The copy follows truncations and log starts of the log one step
later. One thread copies. The copy has no effect on the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.model import ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.storage.files import storage_error
from tidemark.storage.log.log_segments import NOT_TRUNCATED
from tidemark.storage.log.log_state import disagreement, shared_end
from tidemark.storage.log.partition_log import PartitionLog

_REST_BYTES: Final = 4 << 20


class Copied(NamedTuple):
    """The result of one copying step; `caught_up`: the copy reached the log end as of this step."""

    size_bytes: int
    caught_up: bool


class FutureLog:
    """A copy, filled by one thread.

    Args:
        source: the replica's log.
        log: the copy; only this object appends to and reads the copy.
        directory: index of the directory of the copy.
        clean_point: cleaner point of the log when the copying began. Records cleaned later may have been copied before.
    """

    def __init__(
        self,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        *,
        source: PartitionLog,
        log: PartitionLog,
        directory: int,
        clean_point: int,
    ) -> None:
        self.partition = partition
        self.identity = identity
        self.source = source
        self.log = log
        self.directory = directory
        self.clean_point = clean_point
        self._pending_truncation = NOT_TRUNCATED
        """Lowest truncation of the log that the copy lacks; a full disk may delay the truncation of the copy."""

    @property
    def offset_lag(self) -> int:
        """Offsets of the log past the end of the copy."""
        return max(0, self.source.log_end_offset - self.log.log_end_offset)

    def continue_after_start(self) -> None:
        """Truncate a copy of an earlier process to the part that agrees with the log.

        Raises:
            TidemarkError: STORAGE_ERROR, DISK_FULL.
        """
        self.source.segments.take_lowest_truncation()
        source, copy = self.source.state(), self.log.state()
        if source.log_start_offset < copy.log_start_offset:
            self.log.reset(source.log_start_offset)
        else:
            self.log.truncate(shared_end(copy, source))
        self.clean_point = min(self.clean_point, self.log.log_end_offset)

    def copy(self, max_bytes: int) -> Copied:
        """Copy about `max_bytes` of whole batches, at least one batch if the log has one.

        Raises:
            TidemarkError: STORAGE_ERROR of either log; DISK_FULL of the copy, which is then unchanged.
        """
        size_bytes = 0
        while True:  # a read ends at the end of a segment
            copied = self._copy_some(max_bytes - size_bytes)
            size_bytes += copied.size_bytes
            if copied.caught_up or copied.size_bytes == 0 or size_bytes >= max_bytes:
                return Copied(size_bytes, copied.caught_up)

    def _copy_some(self, max_bytes: int) -> Copied:
        truncations = self.source.segments.truncations
        self._follow_truncations()
        at, end = self.log.log_end_offset, self.source.log_end_offset
        if at >= end:
            return Copied(0, at == end)
        try:
            data = self.source.read(at, end_offset=end, max_bytes=max_bytes)
        except TidemarkError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # the log was truncated or trimmed after the last step
                return Copied(0, False)
            raise
        if self.source.segments.truncations != truncations:  # the bytes may not continue the copy
            return Copied(0, False)
        if not data:  # the log ends in a hole
            return Copied(0, True)
        self.log.append(check_batches(data), base_offset=at, leader_epoch=LeaderEpoch(-1), stamp=False)
        return Copied(len(data), self.log.log_end_offset >= self.source.log_end_offset)

    def _follow_truncations(self) -> None:
        self._pending_truncation = min(self._pending_truncation, self.source.segments.take_lowest_truncation())
        self.clean_point = min(self.clean_point, self._pending_truncation)
        if self._pending_truncation < self.log.log_end_offset:
            self.log.truncate(Offset(self._pending_truncation))
        self._pending_truncation = NOT_TRUNCATED
        start = self.source.log_start_offset
        if start > self.log.log_end_offset:
            self.log.reset(start)
        elif start > self.log.log_start_offset:
            self.log.trim(start)

    def complete(self) -> None:
        """Copy the last records of a log without appends, compare the two logs, and write the small files of the copy.

        Raises:
            TidemarkError: STORAGE_ERROR, DISK_FULL; also where the two logs differ.
        """
        while (copied := self.copy(_REST_BYTES)).size_bytes and not copied.caught_up:
            pass
        source, copy = self.source.state(), self.log.state()
        if copied.caught_up:  # the log may end in a hole
            copy = copy._replace(log_end_offset=max(copy.log_end_offset, source.log_end_offset))
        why = disagreement(copy, source)
        if why is None and self.source.is_damaged:
            why = "the log is damaged and not refetched yet"
        if why is not None:
            sentence = f"the copy of {self.partition} in {self.log.path.parent} cannot take its place: {why}"
            raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence)
        try:
            point = self.source.cleaning.point
            self.log.adopt(source, point._replace(offset=min(point.offset, self.clean_point)))
            self.log.finish()
        except OSError as error:
            raise storage_error(f"finish the copy of {self.partition}", error) from error
