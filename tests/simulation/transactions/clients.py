# SPDX-License-Identifier: Apache-2.0
"""Simulated clients of transactions: producers, sinks with members, and readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.core.transactions.requests import CommitMembers, End, Init, Initialized, Join
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError

from tests.simulation.coordination.coordinator import Reply, Request
from tests.simulation.engine import Node
from tests.simulation.transactions.brokers import CALL_MS
from tests.simulation.transactions.partition_log import Row, Source, Tag, data_entry, visible

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

TIMEOUT_MS = 1500
_RETRY_MS = 20
_PATIENCE_MS = 700
_READ_MS = 40
_KEEP_MS = 400
FATAL = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_NOT_FOUND, ErrorCode.INVALID_TXN_STATE})
"""A producer does not retry a request after these."""


class Sender:
    """The writes of one identity in one transaction; `finished` gets the error that ends them, or None."""

    def __init__(
        self, client: ClientNode, tag: Tag, producer: ProducerIdentity, finished: Callable[[TidemarkError | None], None]
    ) -> None:
        self.rows: dict[TransactionPartition, int] = {}
        self._client = client
        self._tag = tag
        self._producer = producer
        self._finished: Callable[[TidemarkError | None], None] | None = finished
        self._acknowledged: dict[TransactionPartition, set[int]] = {}
        self._sources: Mapping[TransactionPartition, Sequence[Source]] = {}

    def start(
        self,
        counts: dict[TransactionPartition, int],
        sources: Mapping[TransactionPartition, Sequence[Source]] | None = None,
    ) -> None:
        """Send `count` rows to each partition, one after the other, and each until an answer arrives."""
        self.rows, self._sources = counts, sources or {}
        for key in counts:
            self._acknowledged[key] = set()
            self._send(key, 0, self._client.next_number(key))
        self._client.after(_PATIENCE_MS, lambda: self.stop(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "too slow")))

    def stop(self, error: TidemarkError | None) -> None:
        """Send nothing more; requests in flight may still arrive."""
        finished, self._finished = self._finished, None
        if finished is not None:
            finished(error)

    def _send(self, key: TransactionPartition, sequence: int, number: int) -> None:
        if self._finished is None:
            return
        world, client = self._client.world, self._client
        row = Row(self._tag, number, self._sources[key][sequence] if key in self._sources else None)
        entry = data_entry(self._producer, sequence, row)
        leader = world.partitions[key.partition].leader
        assert leader is not None
        answered = False

        def arrived(error: TidemarkError | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._answered(key, sequence, number, error)

        def reply(error: TidemarkError | None) -> None:
            world.send(leader, client, lambda: arrived(error))

        world.invariants.sends(key, row)
        world.send(client, leader, lambda: leader.produce(self._tag.name, key, entry, reply), twice=True)
        client.after(CALL_MS, lambda: arrived(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")))

    def _answered(self, key: TransactionPartition, sequence: int, number: int, error: TidemarkError | None) -> None:
        if self._finished is None:
            return
        if error is None:
            self._acknowledged[key].add(sequence)
            if sequence + 1 < self.rows[key]:
                self._send(key, sequence + 1, self._client.next_number(key))
            elif all(len(self._acknowledged[one]) == count for one, count in self.rows.items()):
                self.stop(None)
        elif error.code in FATAL or error.code is ErrorCode.TRANSACTION_ABORTABLE:
            self.stop(error)
        else:
            self._client.after(_RETRY_MS, lambda: self._send(key, sequence, number))


class ClientNode(Node):
    """A process with requests to the coordinator, each until an answer comes."""

    def __init__(self, world: TransactionWorld, transactional_id: str, name: str) -> None:
        super().__init__(world.engine, name)
        self.world = world
        self.transactional_id = transactional_id
        self.dice = world.engine.dice(f"client {name}")
        self._numbers: dict[TransactionPartition, int] = {}

    def next_number(self, key: TransactionPartition) -> int:
        """Rows of a partition are numbered in the order in which the process sends them."""
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]

    def some_partitions(self) -> dict[TransactionPartition, int]:
        chosen = self.dice.sample(self.world.partitions, self.dice.randrange(1, len(self.world.partitions) + 1))
        return {log.key: self.dice.randrange(1, 4) for log in chosen}

    def ask(self, request: Request, then: Reply) -> None:
        """Repeat the request until an answer decides it.

        `then` also gets whether an earlier request may have arrived.
        """
        answered = False

        def arrived(answer: Any) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            if isinstance(answer, TidemarkError) and answer.code not in FATAL | {ErrorCode.TRANSACTION_ABORTABLE}:
                self.after(self.dice.choice((3, _RETRY_MS)), lambda: self.ask(request, then))
            else:
                then(answer)

        self.world.ask(self, request, arrived)
        self.after(CALL_MS, lambda: arrived(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")))

    def init(self, producer: ProducerIdentity | None, then: Reply) -> None:
        def request(core: Any, now: Any) -> Any:
            fresh = self.world.next_producer_id() if core.needs_producer_id(self.transactional_id) else None
            return core.init(Init(self.transactional_id, TIMEOUT_MS, producer, fresh), now)

        self.ask(request, then)

    def end(self, producer: ProducerIdentity, commit: bool, then: Reply) -> None:
        def request(core: Any, now: Any) -> Any:
            fresh = self.world.next_producer_id() if core.needs_producer_id(self.transactional_id) else None
            return core.end(End(self.transactional_id, producer, commit, fresh), now)

        self.ask(request, then)

    def die(self) -> None:
        """The process ends, with requests in flight."""
        self.alive = False
        self.world.ended(self)


class ProducerNode(ClientNode):
    """Writes one transaction after the other (rules X10 to X12)."""

    _serial = 0

    def start(self) -> None:
        self.init(None, self._initialized)

    def _initialized(self, answer: Any) -> None:
        if isinstance(answer, Initialized):
            self.world.invariants.starts(self.name, answer.generation)
            self._begin(answer.producer)
        else:
            self.world.fenced += 1
            self.die()

    def _begin(self, producer: ProducerIdentity) -> None:
        self._serial += 1
        tag = Tag(self.transactional_id, self.name, self._serial)
        sender = Sender(self, tag, producer, lambda error: self._written(tag, producer, error))
        if self.dice.random() < 0.1:
            self.after(self.dice.choice((5, 60, 200)), lambda: sender.stop(_impatient()))
        sender.start(self.some_partitions())

    def _written(self, tag: Tag, producer: ProducerIdentity, error: TidemarkError | None) -> None:
        if error is not None and error.code in FATAL:
            self.world.invariants.ends(tag, commit=False)
            self.init(producer, self._initialized)
            return
        commit = error is None and self.dice.random() < 0.8
        self.world.invariants.ends(tag, commit=commit)
        pause_ms = self.dice.choice((0, 0, 0, 0, 20, 20, TIMEOUT_MS + 300))
        self.after(
            pause_ms, lambda: self.end(producer, commit, lambda answer: self._ended(tag, producer, commit, answer))
        )

    def _ended(self, tag: Tag, producer: ProducerIdentity, commit: bool, answer: Any) -> None:
        if isinstance(answer, ProducerIdentity):
            self.world.invariants.answered(tag, commit=commit)
            self.world.transactions += commit
            self._begin(answer)
        else:
            self.init(producer, self._initialized)


class SinkNode(ClientNode):
    """The driver of a streaming sink: tasks write as members, and the driver commits them by name (rule X16)."""

    def __init__(self, world: TransactionWorld, transactional_id: str, name: str) -> None:
        super().__init__(world, transactional_id, name)
        self._generation = 0
        self._attempts = 0

    def start(self) -> None:
        self.init(None, self._initialized)

    def _initialized(self, answer: Any) -> None:
        if not isinstance(answer, Initialized):
            self.die()
            return
        self._generation = answer.generation
        self.world.invariants.starts(self.name, answer.generation)
        self._keep()
        self._run_batch()

    def _keep(self) -> None:
        generation = self._generation
        self.world.ask(self, lambda core, now: core.keep(self.transactional_id, generation, now), lambda _: None)
        self.after(_KEEP_MS, self._keep)

    def _run_batch(self) -> None:
        """The batch after the checkpoint; the last one again if the checkpoint was lost with a driver."""
        batch = self.world.checkpoints.get(self.transactional_id, 0)
        tasks = self.dice.randrange(1, 4)
        done: dict[int, tuple[ProducerIdentity, Tag]] = {}
        state = {"over": False}

        def finished(task: int, producer: ProducerIdentity, tag: Tag, error: TidemarkError | None) -> None:
            if state["over"] or task in done:
                return
            if error is None:
                done[task] = (producer, tag)
                if len(done) == tasks:
                    state["over"] = True
                    self._commit(batch, tuple(done.values()))
            elif error.code in FATAL:
                state["over"] = True
                self._fenced()
            else:
                self._run_task(batch, task, finished)

        for task in range(tasks):
            for _ in range(1 + (self.dice.random() < 0.2)):  # a speculative attempt, concurrent with the first
                self._run_task(batch, task, finished)

    def _run_task(
        self, batch: int, task: int, finished: Callable[[int, ProducerIdentity, Tag, TidemarkError | None], None]
    ) -> None:
        self._attempts += 1
        tag = Tag(self.transactional_id, self.name, batch, f"task {task}, attempt {self._attempts}")
        generation = self._generation

        def joined(answer: Any) -> None:
            if isinstance(answer, ProducerIdentity):
                sender = Sender(self, tag, answer, lambda error: finished(task, answer, tag, error))
                if self.dice.random() < 0.1:
                    self.after(self.dice.choice((5, 60)), lambda: sender.stop(_impatient()))
                sender.start(self.some_partitions())
            else:
                finished(task, ProducerIdentity(-1, -1), tag, answer)

        def request(core: Any, now: Any) -> Any:
            return core.join(Join(self.transactional_id, generation, self.world.next_producer_id()), now)

        self.ask(request, joined)

    def _commit(self, batch: int, members: tuple[tuple[ProducerIdentity, Tag], ...]) -> None:
        ids = tuple(producer.producer_id for producer, _ in members)
        asked = CommitMembers(self.transactional_id, self._generation, ids, batch)
        tags = [tag for _, tag in members]
        for tag in tags:
            self.world.invariants.ends(tag, commit=True)
        self.ask(lambda core, now: core.commit_members(asked, now), lambda answer: self._committed(batch, tags, answer))

    def _committed(self, batch: int, tags: list[Tag], answer: Any) -> None:
        if isinstance(answer, bool):
            self.world.invariants.batch_done(self.transactional_id, batch)
            self.world.batches += not answer
            if self.dice.random() < 0.3:  # the driver dies before it writes the checkpoint
                self.die()
                return
            self.world.checkpoints[self.transactional_id] = batch + 1
            self._run_batch()
        elif answer.code is ErrorCode.TRANSACTION_ABORTABLE:
            self._run_batch()
        else:
            self._fenced()

    def _fenced(self) -> None:
        self.world.fenced += 1
        self.die()


class ReaderNode(Node):
    """Reads every partition with read_committed, from the leader or from a follower."""

    def __init__(self, world: TransactionWorld, name: str) -> None:
        super().__init__(world.engine, name)
        self._world = world
        self._dice = world.engine.dice(f"reader {name}")
        self._positions: dict[TransactionPartition, int] = {}

    def start(self) -> None:
        for log in self._world.partitions:
            position = self._positions.get(log.key, 0)
            read = log.read(position, self._dice.choice((1, 3, 100)), follower=self._dice.random() < 0.03)
            if read is not None:
                rows = visible(read)
                self._world.invariants.reads(self.name, log, position, read, rows)
                self._positions[log.key] = position + len(read.entries)
        self.after(_READ_MS, self.start)


def _impatient() -> TidemarkError:
    return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the client gives up")
