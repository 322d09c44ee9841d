# SPDX-License-Identifier: Apache-2.0
"""ReadReplica: the contents of this broker's replica, for the comparison of replicas.

The replica may be leader or follower, in sync or not. The answer is read from the disk, with every CRC checked. Records
need not be committed (rule K1 is for consumers): the caller compares below a high watermark (LOG-MATCH, L1). A damaged
batch is repaired in the background, or before the answer if the request demands this (rule T6).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.log_repairs import LogRepairs
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.ports import Log
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import ENVELOPE_BYTES
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.v1 import replica_reads_pb2 as pb

_READ_BYTES_MAX: Final = 4 << 20
"""A response may exceed this by one batch of the largest size; even then gRPC accepts the message."""


class ReplicaReads:
    """Reads on the pool of readers, never past the replica's log end."""

    def __init__(
        self, queries: BrokerQueries, threads: LogThreads, pool: ThreadPoolExecutor, repairs: LogRepairs
    ) -> None:
        self._queries = queries
        self._threads = threads
        self._pool = pool
        self._repairs = repairs

    async def read(self, request: pb.ReadReplicaRequest) -> pb.ReadReplicaResponse:
        """Read a range of the log.

        Raises:
            TidemarkError: NOT_A_REPLICA, UNKNOWN_TOPIC_ID, REPLICA_OFFLINE; OFFSET_NOT_AVAILABLE while the log is
                being opened; CORRUPT_BATCH (metadata offset) or STORAGE_ERROR when the disk returns no valid batch.
        """
        partition = TopicPartition(request.topic, request.partition)
        repaired: list[int] = []
        while True:
            try:
                response = await self._read(partition, request)
            except TidemarkError as error:
                offset = damaged_offset(error, request.start_offset)
                if offset is None or offset in repaired:
                    raise
                if not request.repair:
                    self._repairs.suspect(partition, offset)
                    raise
                if not await self._repairs.repair(partition, offset):
                    raise
                repaired.append(offset)
            else:
                response.repaired_offsets.extend(repaired)
                return response

    async def _read(self, partition: TopicPartition, request: pb.ReadReplicaRequest) -> pb.ReadReplicaResponse:
        view = self._queries.replica(partition)
        if view is None:
            raise TidemarkError(ErrorCode.NOT_A_REPLICA, f"this broker has no replica of {partition}")
        log = self._open_log(view, request)
        start = Offset(max(request.start_offset, view.log_start_offset))
        end = Offset(min(request.end_offset, view.log_end_offset))
        limit = min(request.max_bytes or _READ_BYTES_MAX, _READ_BYTES_MAX)
        loop = asyncio.get_running_loop()
        clean_offset, data = await loop.run_in_executor(
            self._pool, _read_checked, partition, log, start, end, max(limit, 1), request.envelopes_only
        )
        now = self._queries.replica(partition)
        if now is None or now.identity != view.identity or self._threads.log(partition) is not log:
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition}: the log was closed while it was read")
        return pb.ReadReplicaResponse(
            log_start_offset=now.log_start_offset,
            log_end_offset=now.log_end_offset,
            high_watermark=now.high_watermark,
            clean_offset=clean_offset,
            leader_epoch=now.leader_epoch,
            leader=now.role == "leader",
            batches=data,
        )

    def _open_log(self, view: ReplicaView, request: pb.ReadReplicaRequest) -> Log:
        partition = view.partition
        meant = (request.topic_id or view.identity.topic_id, request.incarnation or view.identity.incarnation)
        if meant != (view.identity.topic_id, view.identity.incarnation):
            raise TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, f"{partition} is another incarnation here")
        if view.role == "offline":
            raise TidemarkError(ErrorCode.REPLICA_OFFLINE, f"{partition} cannot be read here: its log failed")
        log = self._threads.log(partition)
        if log is None:
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition}: its log is not open; retry")
        return log


def _read_checked(
    partition: TopicPartition, log: Log, start: Offset, end: Offset, max_bytes: int, envelopes_only: bool
) -> tuple[int, bytes]:
    """The cleaner point, then the batches: batches cleaned meanwhile lie below the next answer's cleaner point."""
    view = log.cleaning.view(0) if isinstance(log, PartitionLog) else None
    clean_offset = view.clean_point if view is not None else 0
    if start >= end:
        return clean_offset, b""
    data = log.read(start, end_offset=end, max_bytes=max_bytes) or b""
    envelopes = checked_envelopes(partition, data, start)
    return clean_offset, envelopes if envelopes_only else data


def damaged_offset(error: TidemarkError, start_offset: int) -> int | None:
    """The offset of the damaged batch that a read from `start_offset` found; None for another error."""
    if error.code is not ErrorCode.CORRUPT_BATCH:
        return None
    return int(error.metadata.get("offset", start_offset))


def checked_envelopes(partition: TopicPartition, data: bytes, start_offset: int) -> bytes:
    """The envelopes of the batches from the one that holds `start_offset` on, after a check of both CRCs of each.

    Raises:
        TidemarkError: CORRUPT_BATCH; its metadata have the offset where the damage begins.
    """
    envelopes: list[bytes] = []
    position, offset = 0, start_offset
    while position < len(data):
        try:
            batch = check_envelope(data, position)
        except TidemarkError as error:
            raise TidemarkError(
                ErrorCode.CORRUPT_BATCH,
                f"{partition}: the batch at offset {offset} is damaged on this broker's disk: {error.message}",
                {"offset": str(offset)},
            ) from error
        envelopes.append(data[position : position + ENVELOPE_BYTES])
        offset = batch.envelope.next_offset
        position += batch.envelope.batch_length
    return b"".join(envelopes)
