# SPDX-License-Identifier: Apache-2.0
"""Requests a leader to check its log after this follower refused a damaged chunk of that leader (rule T6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidemark.broker.logs.replica_peers import GrpcReplicaPeers
from tidemark.core.replication.effects import Observed
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition
from tidemark.ports import Scheduler

_log = logging.getLogger(__name__)


class RefusedChunks:
    """Asks leaders to check their logs, once at a time for a partition; another refusal of a chunk asks again."""

    def __init__(self, peers: GrpcReplicaPeers, scheduler: Scheduler, fail: Callable[[BaseException], None]) -> None:
        self._peers = peers
        self._scheduler = scheduler
        self._fail = fail
        self._asking: set[TopicPartition] = set()

    def observe(self, effect: Observed) -> None:
        """Ask the leader to check its log, if the core refused a chunk whose CRC does not match."""
        partition, fields = effect.partition, effect.fields
        if effect.kind != "chunk_refused" or fields.get("reason") != ErrorCode.CORRUPT_BATCH.value:
            return
        if partition is not None and partition not in self._asking:
            self._asking.add(partition)
            leader, offset = BrokerId(int(fields["leader"])), int(fields["log_end_offset"])
            self._scheduler.spawn(self._ask(leader, partition, offset), self._fail)

    async def stop(self) -> None:
        """Cancel the requests."""
        await self._scheduler.stop()

    async def _ask(self, leader: BrokerId, partition: TopicPartition, offset: int) -> None:
        try:
            await self._peers.have_checked(leader, partition, offset)
        except TidemarkError as error:
            extra = {"partition": str(partition), "leader": leader, "offset": offset, "why": error.message}
            _log.warning("the leader has no good batch for this follower", extra=extra)
        finally:
            self._asking.discard(partition)
