# SPDX-License-Identifier: Apache-2.0
"""Random appends, truncations, checkpoints, stops and kills: a start always finds a prefix (rule T5)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import BrokerEpoch, Offset
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log import durability
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery import producer_snapshot as snapshot_module
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX
from tidemark.storage.segments.index import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from tidemark.storage.segments.segment import LOG_SUFFIX

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all

SEEDS = range(40)
STEPS = 60
PRODUCERS = 3


class World:
    """A log and its expected content; `durable`: the end offset of the last checkpoint or stop."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path / str(PARTITION)
        self.root = path
        self.rng = rng
        self.configs = {"segment.bytes": str(rng.choice((2_000, 6_000, 100_000))), "index.interval.bytes": "500"}
        self.batches: list[Batch] = []
        self.durable = 0
        self.epoch = 0
        self.sequences = [0] * PRODUCERS
        self.logs: LogManager
        self.log: PartitionLog
        self.open()

    def open(self) -> RecoveredLog:
        self.logs = open_one(self.root)
        self.log, recovered = self.logs.open(PARTITION, IDENTITY, self.configs)
        return recovered

    def append(self) -> None:
        self.epoch += self.rng.random() < 0.2
        some = []
        for _ in range(self.rng.randint(1, 6)):
            values = ["v" * self.rng.randint(1, 60)] * self.rng.randint(1, 5)
            producer = self.rng.randrange(-1, PRODUCERS)
            if producer < 0:
                some.append(make_batch(values))
            else:
                sequence, self.sequences[producer] = self.sequences[producer], self.sequences[producer] + len(values)
                some.append(make_batch(values, producer_id=producer, producer_epoch=0, sequence=sequence))
        first = self.log.log_end_offset
        lead(self.log, *some, epoch=self.epoch)
        self.batches += check_batches(read_all(self.log, first))

    def read(self) -> None:
        if self.batches:
            wanted = self.rng.choice(self.batches)
            found = self.log.read(Offset(wanted.envelope.base_offset), end_offset=self.log.log_end_offset, max_bytes=1)
            assert found == wanted.data

    def cut(self) -> None:
        if self.batches:
            end = self.rng.choice(self.batches[-8:]).envelope.base_offset
            self.log.truncate(Offset(end))
            self.shorten(end)
            self.durable = min(self.durable, end)

    def shorten(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.envelope.next_offset <= end]
        last = self.log.log_end_offset if not self.batches else self.batches[-1].envelope.next_offset
        assert last == end == self.log.log_end_offset
        self.sequences = [
            max(
                (
                    batch.envelope.base_sequence + batch.envelope.record_count
                    for batch in self.batches
                    if batch.envelope.producer_id == producer
                ),
                default=0,
            )
            for producer in range(PRODUCERS)
        ]

    def checkpoint(self) -> None:
        self.logs.checkpoint({})
        self.durable = int(self.log.log_end_offset)

    def stop(self) -> None:
        self.logs.close_clean(BrokerEpoch(1), {})
        self.durable = self.batches[-1].envelope.next_offset if self.batches else 0
        self.holds_a_prefix(self.open())

    def kill(self) -> None:
        self.logs.close()
        if self.rng.random() < 0.6:
            self.tear()
        for file in sorted(self.path.iterdir()):
            spoils = file.name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)) or file.name == EPOCH_FILE
            if spoils and self.rng.random() < 0.3:
                self.spoil(file)
        self.holds_a_prefix(self.open())

    def tear(self) -> None:
        """Bytes that were not durable are missing, or zeros."""
        volatile = sum(len(batch.data) for batch in self.batches if batch.envelope.base_offset >= self.durable)
        missing = self.rng.randint(0, volatile)
        for file in sorted(self.path.glob(f"*{LOG_SUFFIX}"), reverse=True):
            taken = min(missing, file.stat().st_size)
            content = file.read_bytes()
            kept = content[: len(content) - taken]
            missing -= taken
            if taken and not kept and self.rng.random() < 0.5 and int(file.name[:20]):
                file.unlink()
            elif taken:
                file.write_bytes(kept + bytes(self.rng.choice((0, taken))))

    def spoil(self, file: Path) -> None:
        content = bytearray(file.read_bytes())
        how = self.rng.randrange(3)
        if how == 0 or not content:
            file.unlink()
        elif how == 1:
            file.write_bytes(content[: self.rng.randrange(len(content))])
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
            file.write_bytes(content)

    def holds_its_batches(self) -> None:
        assert read_all(self.log) == b"".join(batch.data for batch in self.batches)

    def holds_a_prefix(self, recovered: RecoveredLog) -> None:
        assert recovered.damaged is None
        end = int(recovered.log_end_offset)
        assert end >= self.durable
        self.shorten(end)
        self.holds_its_batches()
        producers = ProducerStates()
        epochs: list[tuple[int, int]] = []
        for batch in self.batches:
            envelope = batch.envelope
            if envelope.producer_id >= 0:
                producers.observe(envelope)
            if not epochs or envelope.leader_epoch > epochs[-1][0]:
                epochs.append((envelope.leader_epoch, envelope.base_offset))
        assert recovered.producers.entries == producers.entries
        assert [tuple(entry) for entry in recovered.epochs if entry[1] < end] == epochs


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_stop_or_kill_the_log_holds_a_prefix_with_all_that_was_durable(
    directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(snapshot_module, "_BATCHES", rng.choice((1, 8)))
    monkeypatch.setattr(durability, "_INDEX_BEHIND_ENTRIES", rng.choice((1, 5)))
    world = World(directory, rng)
    world.append()
    for _ in range(STEPS):
        step = rng.choices(
            (world.append, world.read, world.checkpoint, world.cut, world.stop, world.kill),
            weights=(8, 4, 3, 1, 1, 2),
        )[0]
        step()
    world.holds_its_batches()
    world.logs.close()


def by_producer(producer: int, sequence: int) -> Batch:
    return make_batch(["v"] * 10, producer_id=producer, producer_epoch=0, sequence=sequence)


def test_a_snapshot_and_epochs_of_lost_batches_are_ignored_after_other_appends(directory: Path) -> None:
    length = len(by_producer(1, 0).data)
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": str(10 * length)})
    lead(log, *[by_producer(1, 10 * number) for number in range(9)], epoch=1)
    lead(log, *[by_producer(1, 10 * number) for number in range(9, 12)], epoch=2)  # rolled at 100, with a snapshot
    log.save_epochs(log.state().epochs)
    logs.close()
    place = directory / str(PARTITION)
    (place / f"{100:020d}{LOG_SUFFIX}").unlink()
    first = place / f"{0:020d}{LOG_SUFFIX}"
    first.write_bytes(first.read_bytes()[: 5 * length])

    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.log_end_offset == 50
    lead(log, *[by_producer(2, 10 * number) for number in range(8)], epoch=2)
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.log_end_offset == 130
    assert [tuple(entry) for entry in recovered.epochs] == [(1, 0), (2, 50)]
    logs.checkpoint({})
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    sequences = {producer: entry.batches[-1].last_sequence for producer, entry in recovered.producers.entries.items()}
    assert sequences == {1: 49, 2: 79}
    logs.close()
