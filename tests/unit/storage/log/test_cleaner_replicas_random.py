# SPDX-License-Identifier: Apache-2.0
"""Replicas that are compacted on their own, with tombstones in transactions (rules L1, X6): all show the same keys.

Followers copy from a log that was compacted meanwhile, replicas change the lead, restart, and forget idle producers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.record.checks import check_batches
from tidemark.storage.log.cleaner import clean_log

from tests.unit.storage.batches import IDENTITY, PARTITION, follow, lead, make_marker, memory_directory, open_one
from tests.unit.storage.log.test_cleaner import NOW_US, Row, keyed
from tests.unit.storage.log.test_cleaner_transactions import SETTINGS, check_whole, seen, stable_offset

CONFIGS = {"segment.bytes": "4096", "index.interval.bytes": "700", "cleanup.policy": "compact"}
BEHIND_US_MAX = SETTINGS.delete_retention_ms * 1000 - 2_000_000
"""A replica that is behind for longer may miss a tombstone or a marker."""


@pytest.fixture
def root() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


class Replica:
    """A log, with the times of its last copy from the leader and of its last checkpoint."""

    def __init__(self, path: Path, now_us: int) -> None:
        self._path = path
        self.copied_us = self.checkpointed_us = now_us
        self.open()

    def open(self) -> None:
        self.logs = open_one(self._path)
        self.log = self.logs.open(PARTITION, IDENTITY, CONFIGS)[0]

    def restart(self) -> None:
        self.logs.close()
        self.open()

    def copy(self, leader: Replica, rng: random.Random, now_us: int) -> None:
        end, self.copied_us = leader.log.log_end_offset, now_us
        while self.log.log_end_offset < end:
            data = leader.log.read(self.log.log_end_offset, end_offset=end, max_bytes=rng.choice((1, 900, 90_000)))
            assert data, f"the leader has nothing at {self.log.log_end_offset}, below its end {end}"
            follow(self.log, *check_batches(data))

    def forget_idle_producers(self) -> None:
        state = self.log._replayed
        left = {one: entry for one, entry in state.producers.items() if entry.is_open}
        state._producers = state._expiring(ProducerStates(left))


class Writer:
    """Writes to the leader; `decided` has the rows of committed transactions, and those outside of any."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ids = [1, 2]
        self._epochs: dict[int, int] = {}
        self.open: dict[int, list[Row]] = {}
        self.decided: list[Row] = []

    def write(self, leader: Replica) -> None:
        rng, base = self._rng, int(leader.log.log_end_offset)
        if self.open and rng.random() < 0.3:
            self._end(leader, rng.choice(list(self.open)), commit=rng.random() < 0.6)
            return
        records = [
            (b"key-%d" % rng.randrange(5), None if rng.random() < 0.3 else rng.randbytes(rng.randrange(40)))
            for _ in range(rng.randrange(1, 4))
        ]
        rows = [(base + number, key, value) for number, (key, value) in enumerate(records)]
        if rng.random() < 0.2:
            lead(leader.log, keyed(records))
            self.decided += rows
            return
        if rng.random() < 0.4:
            self._ids[rng.randrange(2)] = 10 + base
        writer = rng.choice([*self.open, *self._ids])
        known = self.open.setdefault(writer, [])
        named = {"producer_id": writer, "producer_epoch": self._epochs.setdefault(writer, 0)}
        lead(leader.log, keyed(records, base_sequence=len(known), pending=True, **named))
        known += rows

    def _end(self, leader: Replica, writer: int, *, commit: bool) -> None:
        self._epochs[writer] += 1
        lead(leader.log, make_marker(producer_id=writer, producer_epoch=self._epochs[writer], commit=commit))
        rows = self.open.pop(writer)
        self.decided += rows if commit else []

    def values(self, end_offset: int) -> dict[bytes | None, bytes]:
        latest = {key: value for offset, key, value in sorted(self.decided) if offset < end_offset}
        return {key: value for key, value in latest.items() if value is not None}


def check(replica: Replica, writer: Writer) -> None:
    check_whole(replica.log)
    known = ProducerStates(replica.log.state().producers.entries)
    assert set(known.open_producers) == set(writer.open)
    latest = {key: value for _, key, value in seen(replica.log)}
    shown = {key: value for key, value in latest.items() if value is not None}
    assert shown == writer.values(stable_offset(replica.log))


def disturb(replica: Replica, rng: random.Random, now_us: int) -> None:
    if rng.random() < 0.4:
        clean_log(replica.log, stable_offset(replica.log), SETTINGS, now_us=now_us, pace=lambda _: None)
    if rng.random() < 0.2:
        replica.restart()
    if now_us > replica.checkpointed_us:
        replica.logs.checkpoint({PARTITION: replica.log.log_end_offset})
        replica.checkpointed_us = now_us
    if rng.random() < 0.5:
        replica.forget_idle_producers()


@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_are_compacted_on_their_own_show_the_same_values(root: Path, seed: int) -> None:
    rng, now_us = random.Random(seed), NOW_US
    writer = Writer(rng)
    replicas = [Replica(root / f"replica-{number}", now_us) for number in range(2)]
    for step in range(40):
        leader = replicas[0]
        for _ in range(rng.randrange(1, 6)):
            writer.write(leader)
        if step % 10 == 5:
            replicas.append(Replica(root / f"late-{step}", now_us))
            replicas[-1].copy(leader, rng, now_us)
        for one in replicas[1:]:
            if rng.random() < 0.6 or now_us - one.copied_us >= BEHIND_US_MAX:
                one.copy(leader, rng, now_us)
        now_us += rng.choice((0, 1_000_000, 2_000_000))
        for one in replicas:
            disturb(one, rng, now_us)
        current = [one for one in replicas if one.log.log_end_offset == leader.log.log_end_offset]
        for one in current:
            check(one, writer)
        if rng.random() < 0.2:
            following = rng.choice(current)
            replicas.sort(key=lambda one: one is not following)
    for one in replicas:
        one.logs.close()
