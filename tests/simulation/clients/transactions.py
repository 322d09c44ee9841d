# SPDX-License-Identifier: Apache-2.0
"""Producers that write in transactions, with the markers of their coordinator, and read_committed consumers.

Coordinators have worlds of their own (`tests/simulation/transactions`). The coordinators of these worlds never fail:
each decides once, and sends the marker until the answer arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.core.replication import effects as fx
from tidemark.core.replication.queries import ReadableRange
from tidemark.model import LeaderEpoch, Offset, TidemarkError
from tidemark.record.envelope import Batch
from tidemark.record.transactions import AbortedBatches, has_records

from tests.simulation.clients.consumers import Reader
from tests.simulation.invariants.replication import InvariantError
from tests.simulation.records import make_real_batch, make_real_marker

if TYPE_CHECKING:
    from tests.simulation.clients.producers import Clients
    from tests.simulation.nodes.broker import BrokerNode

ENDS = 0.35
"""Fraction of steps that end the open transaction; other steps write to it."""


class TransactionalProducer:
    """Takes its steps in order: a batch or the end of a transaction, each sent until it is acknowledged.

    Attributes:
        decisions: by producer epoch, whether the transaction is committed; without an entry it is open.
    """

    def __init__(self, clients: Clients, producer_id: int) -> None:
        self.decisions: dict[int, bool] = {}
        self._clients = clients
        self._producer_id = producer_id
        self._epoch = self._sequence = self._written = self._waiting = 0
        self._is_open = self._ending = False
        self._sending: Batch | None = None
        self._attempt = 0

    @property
    def is_done(self) -> bool:
        return self._ending and not self._is_open and self._sending is None

    def step(self) -> None:
        self._waiting += 1
        if self._sending is None:
            self._next()

    def end(self) -> None:
        """The only step left is the end of the open transaction."""
        self._ending = True
        if self._sending is None:
            self._next()

    def _next(self) -> None:
        dice = self._clients.dice
        if self._ending:
            self._waiting = 0
            if self._is_open:
                self._decide()
        elif self._waiting:
            self._waiting -= 1
            if self._is_open and dice.random() < ENDS:
                self._decide()
            else:
                self._write()

    def _write(self) -> None:
        """The serial numbers of the producer's batches continue over all its transactions."""
        self._is_open = True
        name = f"t{self._producer_id}:{self._written}"
        self._written += 1
        self._send(
            make_real_batch(
                name,
                records=self._clients.dice.choice((1, 1, 2)),
                sequence=self._sequence,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                pending=True,
                at_us=self._clients.world.engine.now * 1000,
            )
        )

    def _decide(self) -> None:
        commit = self.decisions[self._epoch] = self._clients.dice.random() < 0.5
        at_us = self._clients.world.engine.now * 1000
        self._send(make_real_marker(self._producer_id, self._epoch + 1, commit=commit, at_us=at_us))

    def _send(self, batch: Batch) -> None:
        """Short timeouts make repeated requests."""
        self._sending = batch
        self._attempt += 1
        attempt, clients = self._attempt, self._clients
        engine, dice = clients.world.engine, clients.dice

        def answered(reply: fx.ReplyToProduce | None, error: TidemarkError | None) -> None:
            if self._sending is not batch:
                return  # another attempt succeeded
            if error is None:
                self._sent(batch)
            elif not error.retriable:
                raise InvariantError(f"EXACTLY-ONCE-APPEND: {batch.envelope} was refused: {error}")
            elif attempt == self._attempt:
                engine.after(dice.choice((10, 20, 60)), again)

        def again() -> None:
            if attempt != self._attempt or self._sending is not batch:
                return
            if not batch.envelope.is_control and dice.random() < 0.2:
                self.decisions[self._epoch] = False  # the transaction is too old; its batch may still arrive
                self._sending = None
                at_us = engine.now * 1000
                self._send(make_real_marker(self._producer_id, self._epoch + 1, commit=False, at_us=at_us))
            else:
                self._send(batch)

        engine.after(dice.choice((80, 250, 600)), again)
        clients.send(batch, -1, clients.world.leader(), answered, transactional_id=f"t{self._producer_id}")

    def _sent(self, batch: Batch) -> None:
        self._sending = None
        if batch.envelope.is_control:
            self._epoch, self._sequence, self._is_open = batch.envelope.producer_epoch, 0, False
        else:
            self._sequence += batch.envelope.last_offset_delta + 1
        self._clients.world.engine.after(self._clients.dice.choice((0, 1, 20)), self._continue)

    def _continue(self) -> None:
        if self._sending is None:
            self._next()


class CommittedReader(Reader):
    """Reads in steps up to the last stable offset, and drops the batches of aborted transactions."""

    committed_only = True

    def _deliver(self, process: BrokerNode, readable: ReadableRange) -> None:
        partition, first = self._world.partitions[0], self._position
        batches = process.logs.read(partition, Offset(first), Offset(readable.end_offset))
        if not batches:
            return
        last = batches[-1].envelope
        self._position, self._epoch = last.next_offset, LeaderEpoch(last.leader_epoch)
        aborted = AbortedBatches(process.logs.aborted(partition, Offset(first), Offset(last.next_offset)))
        visible = [batch for batch in batches if has_records(batch.envelope, aborted)]
        for invariant in self._world.invariants:
            invariant.on_committed_read(self._world, partition, batches, visible)
