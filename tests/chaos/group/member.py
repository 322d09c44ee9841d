# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group as a user would write it: `python -m` with this module and a JSON argument.

The member processes its records, for a moment each, and keeps a journal. SIGTERM: the member leaves, as for Ctrl-C.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tidemark.client import Consumer, PartitionBatch
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.chaos.checks.group_history import (
    Closed,
    CommittedByHand,
    GaveUp,
    Given,
    Journal,
    LetGo,
    Named,
    Processed,
    Taken,
    Troubled,
)

_BEGUN_S = 20.0
_POLL_S = 0.2
_WORK_S = (0.0, 0.003)
_LONG_WORK_S = 0.5
_LONG_WORKS = 0.003
"""Fraction of batches and records whose processing takes long."""
_COMMIT_S = 0.2
_NOT_OURS = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER,
        ErrorCode.PARTITION_NOT_ASSIGNED,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""Errors of a commit after which other members may read the partitions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a member behaves.

    Attributes:
        by_hand: the member commits from time to time, and before a revocation; else its client commits.
        one_by_one: the member iterates over records; else it polls for batches.
        instance_id: of a static member.
        slowness: of the machine; waits may take this much longer.
        faults_s: length of the round's faults, in seconds; before their end, possibly no broker answers.
    """

    bootstrap: str
    group: str
    topic: str
    journal: str
    by_hand: bool = False
    one_by_one: bool = False
    instance_id: str = ""
    assignor: str = ""
    slowness: float = 1.0
    faults_s: float = 0.0

    @property
    def command(self) -> tuple[str, str]:
        """The module to run, and its argument."""
        return __name__, json.dumps(asdict(self))


class _Batch(NamedTuple):
    partition: int
    first: int
    end: int


def _begun(plan: Plan) -> Consumer:
    """True if no broker answered: then the call is repeated."""
    until_s = time.monotonic() + plan.faults_s + _BEGUN_S * plan.slowness
    while True:
        try:
            return Consumer(
                plan.bootstrap,
                group=plan.group,
                instance_id=plan.instance_id,
                assignor=plan.assignor,
                request_timeout_ms=int(5000 * plan.slowness),
                auto_commit_interval_ms=0 if plan.by_hand else 300,
                rebalance_timeout_ms=10_000,
            )
        except TidemarkError as error:
            if error.code is not ErrorCode.BROKER_NOT_AVAILABLE or time.monotonic() > until_s:
                raise


class _Leave(Exception):  # noqa: N818 - a wish, not an error
    """Raised in any call that waits."""


class _Warnings(logging.Handler):
    """Writes the client's warnings to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("group "):
            self._journal.add(Troubled, record.getMessage())


class Member:
    """Reads until SIGTERM."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._leaves = self._waits = False
        self._done: dict[int, int] = {}
        self._turns: Counter[int] = Counter()
        """How often each partition was revoked."""
        self._committed_s = time.monotonic()
        self._chance = random.Random()
        self._consumer = _begun(plan)
        self._reader = self._consumer._client.reading_group

    def leave(self) -> None:
        """Leave as soon as the fetched records are processed."""
        self._leaves = True
        if self._waits:
            raise _Leave

    def run(self) -> None:
        """Read and process until the member leaves."""
        try:
            with self._consumer as consumer:
                consumer.subscribe(
                    [self._plan.topic], on_assigned=self._taken, on_revoked=self._let_go, on_lost=self._lost
                )
                self._journal.add(Named, self._reader.member_id, self._plan.instance_id, self._plan.by_hand)
                while not self._leaves:
                    self._work()
        except _Leave:  # as for any error, the last records given do not count as processed
            self._journal.add(Troubled, "the member left while it polled")
        except TidemarkError as error:
            self._journal.add(GaveUp, f"{error.code}: {error}")
            return
        self._journal.add(Closed)

    def _work(self) -> None:
        batch = self._next()
        if batch is None:
            return
        turn = self._turns[batch.partition]
        short_s = self._chance.uniform(*_WORK_S) / (10 if self._plan.one_by_one else 1)
        time.sleep(_LONG_WORK_S if self._chance.random() < _LONG_WORKS else short_s)
        self._journal.add(Processed, *batch)
        if turn == self._turns[batch.partition]:  # else the partition was lost meanwhile
            self._done[batch.partition] = batch.end
        if self._plan.by_hand and time.monotonic() > self._committed_s + _COMMIT_S:
            self._commit(tuple(self._done))

    def _next(self) -> _Batch | None:
        asked_s, before = time.monotonic(), self._epoch
        with self._waiting():
            if self._plan.one_by_one:
                record = next(self._consumer)
                found = _Batch(record.partition, record.offset, record.offset + 1)
            else:
                polled = self._polled()
                if polled is None:
                    return None
                offsets = [row["offset"] for row in polled.rows.select(["offset"]).to_pylist()]
                found = _Batch(polled.partition, offsets[0], offsets[-1] + 1)
                assert len(offsets) == found.end - found.first, "of a topic that is not compacted"
        self._journal.add(Given, asked_s, (before, self._epoch), *found)
        return found

    def _polled(self) -> PartitionBatch | None:
        """A batch, or None without records; also None if the call timed out because the process was stopped."""
        try:
            return self._consumer.poll(_POLL_S)
        except TidemarkError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            self._journal.add(Troubled, f"a poll: {error}")
            return None

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A request to leave interrupts this block: the member need not wait for a record."""
        self._waits = True
        try:
            if self._leaves:
                raise _Leave
            yield
        finally:
            self._waits = False

    def _commit(self, partitions: Sequence[int]) -> None:
        """Commit the processed records of these partitions."""
        done = {one: end for one, end in dict(self._done).items() if one in partitions}
        try:
            self._consumer.commit({TopicPartition(self._plan.topic, one): end for one, end in done.items()})
        except TidemarkError as error:
            if error.code not in _NOT_OURS and not error.retriable:
                raise
            self._journal.add(Troubled, f"a manual commit: {error.code}: {error}")
        else:
            for one, end in done.items():
                self._journal.add(CommittedByHand, one, end)
            self._committed_s = time.monotonic()

    @property
    def _epoch(self) -> int:
        return self._reader.member_epoch

    def _taken(self, partitions: list[TopicPartition]) -> None:
        self._journal.add(Taken, self._epoch, [one.partition for one in partitions])

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        going = [one.partition for one in partitions]
        sys.stderr.write(f"{time.monotonic():.3f} on_revoked begins: {going}\n")  # for a journal without its end
        try:
            if self._plan.by_hand:
                self._commit(going)
        except BaseException as error:
            self._journal.add(Troubled, f"a commit of revoked partitions: {error!r}")
            raise
        finally:  # on_revoked ran, even if its commit failed
            self._forget(going)
            self._journal.add(LetGo, self._epoch, going)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        gone = [one.partition for one in partitions]
        self._forget(gone)
        self._journal.add(LetGo, self._epoch, gone, True)

    def _forget(self, partitions: Sequence[int]) -> None:
        for one in partitions:
            self._turns[one] += 1
            self._done.pop(one, None)


def main(arguments: list[str]) -> None:
    """Be a member until SIGTERM."""
    plan = Plan(**json.loads(arguments[0]))
    journal = Journal(Path(plan.journal))
    logging.getLogger("tidemark.client").addHandler(_Warnings(journal))
    try:
        member = Member(plan, journal)
    except TidemarkError as error:
        journal.add(GaveUp, f"{error.code}: {error}")
        return
    signal.signal(signal.SIGTERM, lambda *_: member.leave())
    member.run()


if __name__ == "__main__":
    main(sys.argv[1:])
