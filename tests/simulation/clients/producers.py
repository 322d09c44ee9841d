# SPDX-License-Identifier: Apache-2.0
"""Producers of a world: plain ones without retries, and idempotent ones with retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import NO_EPOCH, BrokerId, ErrorCode, TidemarkError
from tidemark.record.envelope import Batch, Envelope

from tests.simulation.clients.transactions import TransactionalProducer
from tests.simulation.invariants.replication import InvariantError
from tests.simulation.records import make_batch, make_real_batch, values_of

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World

_DEADLINE_MS = 1500
Then = Callable[[fx.ReplyToProduce | None, TidemarkError | None], None]


class _Request:
    """A produce request in flight."""

    def __init__(self, process: BrokerNode, value: str, acks: int, then: Then) -> None:
        self.process = process
        self.value = value
        self.acks = acks
        self.then = then


class IdempotentProducer:
    """Sends its batches in order, each until it is acknowledged; short timeouts make duplicates."""

    def __init__(self, clients: Clients, producer_id: int) -> None:
        self._clients = clients
        self.producer_id = producer_id
        self.waiting: deque[int] = deque()
        self.acknowledged = 0
        self.gave_up = False
        self._last_offset = -1
        """The last acknowledged offset."""
        self._next = 0
        self._attempt = 0
        self._busy = False

    def append(self) -> None:
        self.waiting.append(self._next)
        self._next += 1
        if not self._busy:
            self._busy = True
            self._send()

    def _send(self) -> None:
        if not self.waiting or self.gave_up:
            self._busy = False
            return
        sequence = self.waiting[0]
        self._attempt += 1
        attempt = self._attempt
        batch = self._clients.batch(f"p{self.producer_id}:{sequence}", sequence=sequence, producer_id=self.producer_id)
        engine, dice = self._clients.world.engine, self._clients.dice

        def answered(reply: fx.ReplyToProduce | None, error: TidemarkError | None) -> None:
            if not self.waiting or self.waiting[0] != sequence:
                return  # another attempt succeeded
            if error is None:
                self.waiting.popleft()
                self.acknowledged += 1
                self._last_offset = reply.result.base_offset if reply is not None else -1
                engine.after(dice.choice((0, 1, 20)), self._send)
            elif not error.retriable:
                self._refused(sequence, error)
            elif attempt == self._attempt:
                engine.after(dice.choice((10, 20, 60)), self._send)

        def impatient() -> None:
            if attempt == self._attempt and self.waiting and self.waiting[0] == sequence:
                self._send()

        engine.after(dice.choice((80, 250, 600)), impatient)
        self._clients.send(batch, -1, self._clients.world.leader(), answered)

    def _refused(self, sequence: int, error: TidemarkError) -> None:
        """True if the earlier records are gone: in another lineage, or below the leader's log start (rule P4)."""
        world = self._clients.world
        is_gone = error.code is ErrorCode.UNKNOWN_PRODUCER_ID and self._last_offset < world.released_front
        if not world.recipe.unclean and not is_gone:
            raise InvariantError(f"EXACTLY-ONCE-APPEND: batch {sequence} was refused: {error}")
        self.gave_up = True


class Clients:
    """All clients of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.engine.dice("clients")
        self._make_batch = make_real_batch if world.recipe.files else make_batch
        self.acknowledged = 0
        self._requests: dict[int, _Request] = {}
        self._request_id = 0
        self._producers: dict[int, IdempotentProducer] = {}
        self._transactional: dict[int, TransactionalProducer] = {}

    def __str__(self) -> str:
        return ", ".join(
            f"producer {one.producer_id} waits for {list(one.waiting)}" for one in self._producers.values()
        )

    def done(self) -> bool:
        transactional = all(one.is_done for one in self._transactional.values())
        return transactional and all(not one.waiting or one.gave_up for one in self._producers.values())

    def batch(self, value: str, *, records: int = 1, sequence: int = -1, producer_id: int = -1) -> Batch:
        """Dated now."""
        at_us = self.world.engine.now * 1000
        return self._make_batch(value, records=records, sequence=sequence, producer_id=producer_id, at_us=at_us)

    def produce(self, value: str, records: int, acks: int, to: BrokerId) -> None:
        broker = to if to >= 0 else self.world.leader()
        self.send(self.batch(value, records=records), acks, broker, lambda reply, error: None)

    def append(self, producer_id: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = IdempotentProducer(self, producer_id)
        producer.append()

    def transact(self, producer_id: int) -> None:
        producer = self._transactional.get(producer_id)
        if producer is None:
            producer = self._transactional[producer_id] = TransactionalProducer(self, producer_id)
        producer.step()

    def end_transactions(self) -> None:
        for producer in self._transactional.values():
            producer.end()

    def decision(self, envelope: Envelope) -> bool | None:
        """Whether the transaction of a batch is committed; None: it is open."""
        return self._transactional[envelope.producer_id].decisions.get(envelope.producer_epoch)

    def send(self, batch: Batch, acks: int, broker: BrokerId, then: Then, *, transactional_id: str = "") -> None:
        engine = self.world.engine
        process = self.world.brokers.get(broker)
        if process is None:
            error = TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "connection refused")
            engine.after(5, lambda: then(None, error))
            return
        self._request_id += 1
        request_id, partition = self._request_id, self.world.partitions[0]
        self._requests[request_id] = _Request(process, str(values_of(batch)[0]), acks, then)
        arrived: ev.Event
        if batch.envelope.is_control:
            arrived = ev.MarkerArrived(request_id, partition, "", NO_EPOCH, batch)
        else:
            arrived = ev.ProduceArrived(request_id, partition, "", NO_EPOCH, acks, (batch,), transactional_id)
        engine.after(self.dice.randrange(0, 5), lambda: process.run(lambda: process.feed(arrived)))
        process.after(_DEADLINE_MS, lambda: process.feed(ev.ProduceExpired(request_id, partition)))
        engine.after(_DEADLINE_MS + 500, lambda: self._no_answer(request_id))

    def _no_answer(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        if not request.process.alive:
            del self._requests[request_id]
        request.then(None, TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))

    def acks_of(self, request_id: int) -> int:
        request = self._requests.get(request_id)
        if request is None:
            raise InvariantError(f"EXACTLY-ONCE-APPEND: request {request_id} was answered twice, or never asked")
        return request.acks

    def answered(self, process: BrokerNode, effect: fx.ReplyToProduce, error: TidemarkError | None) -> None:
        """The broker sends an answer; it may get lost in flight."""
        request = self._requests.pop(effect.request_id)
        if error is None and request.acks == -1:
            self.acknowledged += 1
            self.world.tell(f"broker {process.broker_id} acknowledges {request.value} at {effect.result.base_offset}")
            if effect.result.base_offset >= 0:  # else the answer is of a repeated marker
                self.world.acked(process, effect.partition, effect.result.base_offset, request.value)
        if self.dice.random() < self.world.recipe.lost_replies:
            lost = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")
            self.world.engine.after(200, lambda: request.then(None, lost))
        else:
            self.world.engine.after(self.dice.choice((0, 1, 3)), lambda: request.then(effect, error))
