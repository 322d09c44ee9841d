# SPDX-License-Identifier: Apache-2.0
"""Transactions in a replicated log (rules X3 to X5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch

from tests.simulation.invariants.replication import Invariant

if TYPE_CHECKING:
    from tests.simulation.world import World


class ReadCommitted(Invariant):
    """A read_committed consumer returns every batch of committed transactions, and none of others."""

    name = "READ-COMMITTED"

    def on_committed_read(
        self, world: World, partition: TopicPartition, batches: Sequence[Batch], shown: Sequence[Batch]
    ) -> None:
        expected = []
        for batch in batches:
            envelope = batch.envelope
            if envelope.is_control:
                continue
            if not envelope.is_pending or world.clients.decision(envelope):
                expected.append(batch)
            elif world.clients.decision(envelope) is None:
                self.fails(f"{partition}: {envelope} was read, and its transaction is open")
        if list(shown) != expected:
            bases = [[one.envelope.base_offset for one in some] for some in (shown, expected)]
            self.fails(f"{partition}: of the batches {bases[0]} are shown, {bases[1]} are committed")


class Stable(Invariant):
    """Once all transactions have ended, the last stable offset is the high watermark."""

    name = "STABLE"

    def at_the_end(self, world: World) -> None:
        for partition in world.partitions:
            for process in world.brokers.values():
                log = process.replica_log(partition)
                if log is not None and process.leading(partition) is not None:
                    self.require(
                        log.last_stable_offset == log.high_watermark == log.log_end_offset,
                        f"{partition}: LSO {log.last_stable_offset}, HW {log.high_watermark} of {log.log_end_offset}",
                    )
