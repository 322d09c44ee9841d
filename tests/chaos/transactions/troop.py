# SPDX-License-Identifier: Apache-2.0
"""The transactional senders of a round: processes that are killed, stopped, and replaced while they still run."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidemark.client import Consumer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.process import ServiceProcess
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.arena.arena import Arena
from tests.chaos.checks.history import Polled
from tests.chaos.checks.transaction_history import TransactionHistory, read_transactions
from tests.chaos.clients import request_ms
from tests.chaos.transactions.sender import TIMEOUT_MS, SenderPlan

TOPIC = "transactional"
PARTITIONS = 3
NAMES = ("tx-0", "tx-1")
TRANSFORMS = "tx-1"
"""The transactional id of the senders that commit offsets of an input with their records."""
READER = "t"
_PAUSE_S = (1.0, 4.0)
_STOP_S = (1.0, 8.0)
_END_S = 90.0
_PROCESSES_MAX = 3
_GROUP = "transforms"  # the checker reads the log of the other group: markers are not there


class TransactionTroop:
    """Transactional senders and a reader; one thread at a time calls the methods, except `read_until_ended`."""

    def __init__(self, directory: Path, arena: Arena, input_topic: str, seed: int) -> None:
        self.told: list[str] = []
        self.lives = 0
        self.history = TransactionHistory(readers=(READER,))
        self._directory = directory
        self._arena = arena
        self._input = input_topic
        self._chance = random.Random(seed)
        self._senders: list[tuple[str, ServiceProcess]] = []
        self._asleep: dict[ServiceProcess, float] = {}
        self._ends: dict[int, int] | None = None

    def __enter__(self) -> TransactionTroop:
        """A sender for each transactional id starts."""
        self._directory.mkdir()
        for name in NAMES:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for _name, sender in self._senders:
            sender.kill()

    def live_until(self, ended: threading.Event) -> None:
        """Inject one fault after the other, from the first committed record on; at the return every sender runs."""
        acts = [self._kill, self._stop, self._stop, self._replace]
        dealt: list[Callable[[], None]] = []
        next_s = time.monotonic()
        while not ended.wait(0.05):
            self._wake(time.monotonic())
            if not self.history.polled or time.monotonic() < next_s:
                continue
            dealt = dealt or self._chance.sample(acts, len(acts))
            dealt.pop()()
            self._start_missing()
            next_s = time.monotonic() + self._chance.uniform(*_PAUSE_S) * self._arena.slowness
        self._wake(float("inf"))

    def end(self, abandoned: threading.Event) -> None:
        """End the senders, wait until no transaction is open, and read everything, unless the round is abandoned.

        Brokers must serve.
        """
        if abandoned.is_set():
            return
        slowness = self._arena.slowness
        for _, sender in self._senders:
            sender.signal(signal.SIGTERM)
        for _, sender in self._senders:
            if not sender.wait(_END_S * slowness):
                self.history.failures.append(f"{sender.name} did not end within {_END_S * slowness:.0f} s")
                sender.kill()
        self._senders = []
        self._read_back(time.monotonic() + _END_S * slowness)
        with Consumer(
            self._arena.bootstrap, group=_GROUP, request_timeout_ms=request_ms(self._arena.slowness)
        ) as consumer:
            self.history.input_offsets = {where.partition: offset for where, offset in consumer.committed().items()}
        journals = sorted(self._directory.glob("*.journal"))
        self.history.transactions, failures = read_transactions(journals)
        self.history.failures += failures

    def read_until_ended(self, bootstrap: str) -> None:
        """Read everything with read_committed, until the end that `end` has found; in a thread of its own."""
        positions = dict.fromkeys(range(PARTITIONS), 0)
        with Consumer(
            bootstrap, isolation_level="read_committed", request_timeout_ms=request_ms(self._arena.slowness)
        ) as consumer:
            consumer.assign(TOPIC)
            while not self._at_end(positions):
                try:
                    batch = consumer.poll(0.2)
                except TidemarkError as error:
                    if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                        raise
                    continue
                for row in () if batch is None else batch.rows.select(["offset", "value"]).to_pylist():
                    assert batch is not None
                    self.history.polled.append(Polled(READER, batch.partition, row["offset"], row["value"].decode()))
                    positions[batch.partition] = row["offset"] + 1

    def give_up(self) -> None:
        """End the reader at its position."""
        if self._ends is None:
            self._ends = {}

    def _at_end(self, positions: dict[int, int]) -> bool:
        return self._ends is not None and all(positions[one] >= end for one, end in self._ends.items())

    def _read_back(self, until_s: float) -> None:
        """With an open transaction in a partition, read_committed readers end below its high watermark."""
        while True:
            with (
                RangeReader(self._arena.bootstrap, deadline_s=_END_S) as plain,
                RangeReader(self._arena.bootstrap, deadline_s=_END_S, isolation_level="read_committed") as committed,
            ):
                ends = {one: bounds.latest for one, bounds in plain.bounds(TOPIC, range(PARTITIONS)).items()}
                stable = {one: bounds.latest for one, bounds in committed.bounds(TOPIC, range(PARTITIONS)).items()}
                if stable == ends or time.monotonic() > until_s:
                    break
            time.sleep(0.2)
        if stable != ends:
            self.history.failures.append(f"transactions stay open: the stable offsets are {stable}, the ends {ends}")
        with RangeReader(self._arena.bootstrap, deadline_s=_END_S, isolation_level="read_committed") as reader:
            for partition, end in stable.items():
                records = self.history.final[partition] = []
                for rows in reader.read(TOPIC, partition, 0, end):
                    for row in rows.select(["offset", "value"]).to_pylist():
                        records.append((row["offset"], row["value"].decode()))
        self._ends = {one: records[-1][0] + 1 for one, records in self.history.final.items() if records}

    # -- faults --------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        life = f"{name}-{self.lives:03}"
        self.lives += 1
        journal = self._directory / f"{life}.journal"
        journal.touch()
        arena = self._arena
        group = (_GROUP, self._input) if name == TRANSFORMS else ()
        plan = SenderPlan(arena.bootstrap, TOPIC, PARTITIONS, name, life, str(journal), arena.slowness, *group)
        module, argument = plan.command
        sender = ServiceProcess(life, module, [argument], log=self._directory / f"{life}.log", environment={})
        sender.start()
        arena.guests[life] = sender.pid
        self._senders.append((name, sender))
        self.told.append(f"{life} starts")

    def _start_missing(self) -> None:
        """A sender that is fenced ends by itself."""
        for one in tuple(self._senders):
            if not one[1].running:
                self._forget(one)
                one[1].wait(timeout_s=0)  # ends the child process that guards this one
                if one[1].exit_status not in (0, -signal.SIGKILL):
                    self.history.failures.append(f"{one[1].name} ended with {one[1].exit_status}: {one[1].tail()}")
        for name in NAMES:
            if name not in (one for one, sender in self._senders if sender not in self._asleep):
                self._start(name)

    def _forget(self, one: tuple[str, ServiceProcess]) -> None:
        self._senders.remove(one)
        self._asleep.pop(one[1], None)
        self._arena.guests.pop(one[1].name, None)

    def _one(self) -> tuple[str, ServiceProcess] | None:
        running = [one for one in self._senders if one[1].running and one[1] not in self._asleep]
        return self._chance.choice(running) if running else None

    def _kill(self) -> None:
        one = self._one()
        if one is not None:
            self._forget(one)
            one[1].kill()
            self.told.append(f"kill -9 {one[1].name}")

    def _stop(self) -> None:
        """Stop a sender, start another process of its transactional id, and continue the stopped one as a zombie."""
        one = self._one()
        if one is not None and len(self._senders) < _PROCESSES_MAX:
            one[1].pause()
            self._asleep[one[1]] = time.monotonic() + self._chance.uniform(*_STOP_S)
            self.told.append(f"SIGSTOP {one[1].name}")

    def _replace(self) -> None:
        if len(self._senders) < _PROCESSES_MAX:
            self._start(self._chance.choice(NAMES))

    def _wake(self, now_s: float) -> None:
        for sender, until_s in tuple(self._asleep.items()):
            if now_s >= until_s:
                del self._asleep[sender]
                sender.signal(signal.SIGCONT)


assert TIMEOUT_MS < _END_S * 1000
