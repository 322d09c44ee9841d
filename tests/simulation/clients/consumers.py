# SPDX-License-Identifier: Apache-2.0
"""Consumers of a simulated cluster: one continues at its position, one starts from the beginning each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.core.replication.queries import ReadableRange
from tidemark.model import NO_EPOCH, ErrorCode, LeaderEpoch, Offset, TidemarkError

from tests.simulation.invariants.replication import InvariantError, Read
from tests.simulation.records import Values, values_of

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World


class Reader:
    """One consumer; `goes_on`: each read continues at the position of the last one.

    Else each begins at the log start.
    """

    committed_only = False

    def __init__(self, world: World, *, goes_on: bool) -> None:
        self._world = world
        self._goes_on = goes_on
        self._position = 0
        self._epoch = LeaderEpoch(NO_EPOCH)
        """Epoch of the record before the position."""
        self._leader_epoch = LeaderEpoch(NO_EPOCH)
        """The leader epoch in this client's metadata, which never goes back."""
        self._dice = world.engine.dice("consumer" if not goes_on else "patient consumer")

    def start(self) -> None:
        world = self._world

        def ask() -> None:
            if world.brokers:
                process = world.brokers[self._dice.choice(sorted(world.brokers))]
                process.run(lambda: self._read(process))
            world.engine.after(world.recipe.read_ms, ask)

        world.engine.after(world.recipe.read_ms, ask)

    def _read(self, process: BrokerNode) -> None:
        """Read as broker/clients/fetch.py does: up to the high watermark, with a check of the lease at the answer."""
        if not self._goes_on:
            self._position, self._epoch = 0, LeaderEpoch(NO_EPOCH)
        partition, now_ms = self._world.partitions[0], self._world.engine.now
        leader = process.leading(partition)
        if leader is None:
            return
        if self._goes_on:
            self._leader_epoch = max(self._leader_epoch, leader.leader_epoch)
        for _ in range(2):
            try:
                readable = process.core.queries.readable(
                    partition,
                    topic_id="",
                    incarnation="",
                    current_leader_epoch=self._leader_epoch,
                    fetch_offset=Offset(self._position),
                    last_fetched_epoch=self._epoch,
                    now_ms=now_ms,
                    committed_only=self.committed_only,
                )
                process.lease.check(partition)
            except TidemarkError as error:
                if error.code is ErrorCode.LOG_TRUNCATED:
                    self._diverged(error)
                elif error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._position, self._epoch = int(error.metadata["log_start_offset"]), LeaderEpoch(NO_EPOCH)
                    continue
                return
            break
        else:
            return
        self._deliver(process, readable)

    def _deliver(self, process: BrokerNode, readable: ReadableRange) -> None:
        partition, values = self._world.partitions[0], self._take(process, readable.end_offset)
        read = Read(self._position - len(values), values, readable.log_start_offset, readable.high_watermark)
        for invariant in self._world.invariants:
            invariant.on_release(self._world, process, partition)
            invariant.on_read(self._world, process, partition, read)

    def _take(self, process: BrokerNode, end_offset: int) -> Values:
        """The records from the position on; never an offset twice, nor out of order."""
        values: Values = []
        following = -1
        for batch in process.logs.read(self._world.partitions[0], Offset(self._position), Offset(end_offset)):
            envelope = batch.envelope
            if envelope.base_offset < following or envelope.next_offset <= self._position:
                raise InvariantError(f"READ-IN-ORDER: {envelope} was read at {self._position}, after {following}")
            following = envelope.next_offset
            if envelope.base_offset > self._position:
                values += [None] * (envelope.base_offset - self._position)
                self._position = envelope.base_offset
            values += values_of(batch)[self._position - envelope.base_offset :]
            self._position = envelope.next_offset
            self._epoch = LeaderEpoch(envelope.leader_epoch)
        return values

    def _diverged(self, error: TidemarkError) -> None:
        if not self._world.recipe.unclean:
            raise InvariantError(f"COMMITTED-READ: records read up to {self._position} are gone: {error}")
        self._position, self._epoch = 0, LeaderEpoch(NO_EPOCH)
