# SPDX-License-Identifier: Apache-2.0
"""Readers and checkpoints during appends, and a writer that is killed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError
from tidemark.ports import Log, ReadBytes
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch
from tidemark.storage.log.reader import LogReader
from tidemark.storage.recovery import producer_snapshot
from tidemark.storage.segments.segment import Damage

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all

CONFIGS = {"segment.bytes": "20000", "index.interval.bytes": "1500"}

WRITER = """
import sys
from pathlib import Path
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one
logs = open_one(Path(sys.argv[1]))
log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "100000"})
batches = [make_batch([f"{n}" * 50] * 20, producer_id=1, producer_epoch=0, sequence=20 * n) for n in range(2000)]
for number, batch in enumerate(batches):
    end = lead(log, batch, epoch=number // 100)
    if number % 50 == 7:
        logs.checkpoint({PARTITION: end})
    sys.stdout.write(f"{end}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("acknowledged", [1, 60, 333])
def test_a_writer_killed_while_it_appends_loses_nothing_it_reported(directory: Path, acknowledged: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["services", "."])}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert writer.stdout is not None
    reported = 0
    for _ in range(acknowledged):
        reported = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read()
    writer.stdout.close()
    writer.wait(10)
    reported = max([reported, *map(int, rest[: rest.rfind("\n") + 1].split())])

    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.damaged is None
    assert recovered.log_end_offset >= reported > 0
    batches = check_batches(read_all(log))
    assert [batch.envelope.base_offset for batch in batches] == list(range(0, recovered.log_end_offset, 20))
    assert recovered.producers.entries[1].batches[-1].last_offset == recovered.log_end_offset - 1
    assert recovered.epochs[-1].leader_epoch == (len(batches) - 1) // 100
    logs.close()


def test_readers_beside_an_appender_that_truncates_see_only_whole_batches(directory: Path) -> None:
    logs = open_one(directory, open_files_max=2)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    done = threading.Event()
    failures: list[BaseException] = []
    seen = [0, 0]

    def read(number: int) -> None:
        chance = random.Random(number)
        try:
            while not done.is_set() or seen[number] == 0:
                seen[number] += read_somewhere(log, chance)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for reader in readers:
        reader.start()
    batches = [make_batch([f"{number}" * 20] * (1 + number % 3)) for number in range(40)]
    for turn in range(4):
        for batch in batches:
            lead(log, batch, epoch=turn)
        log.truncate(Offset(log.log_end_offset - 37))
    done.set()
    for reader in readers:
        reader.join(20)
    assert failures == []
    assert min(seen) > 0
    assert [batch.envelope.leader_epoch for batch in check_batches(read_all(log))][-1] == 3
    logs.close()


def test_a_checkpoint_during_an_append_keeps_producer_and_epoch_of_its_batch(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill no start reads the batch again: it lies below the recovery point of that checkpoint."""
    monkeypatch.setattr(producer_snapshot, "_BATCHES", 1)
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, make_batch(["a"], producer_id=1, producer_epoch=0, sequence=0))
    logs.checkpoint({PARTITION: Offset(1)})
    checkpoint = threading.Thread(target=logs.checkpoint, args=({PARTITION: Offset(1)},))

    class Published(list[Batch]):
        """Starts the checkpoint as soon as the log ends past these batches."""

        def __getitem__(self, index: Any) -> Any:
            if log.log_end_offset == 2 and checkpoint.ident is None:
                checkpoint.start()
                checkpoint.join(0.2)
            return super().__getitem__(index)

    batches = Published([make_batch(["b"], producer_id=2, producer_epoch=0, sequence=0)])
    log.append(batches, base_offset=Offset(1), leader_epoch=LeaderEpoch(3), stamp=True)
    checkpoint.join()
    logs.close()
    _, recovered = open_one(directory).open(PARTITION, IDENTITY, CONFIGS)
    assert set(recovered.producers.entries) == {1, 2}
    assert recovered.epochs == ((0, 0), (3, 1))


def test_a_read_that_meets_a_truncation_is_repeated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    for number in range(8):
        lead(log, make_batch([f"{number}"] * 10))
    met_the_cut = threading.Event()
    found: list[bytes | TidemarkError | None] = []
    read_far, ftruncate = LogReader._read_far, os.ftruncate

    def failing_read(*arguments: Any) -> bytes | None:
        try:
            return read_far(*arguments)
        except (OSError, Damage):
            met_the_cut.set()
            raise

    def read() -> None:
        try:
            found.append(log.read(Offset(0), end_offset=80, max_bytes=1 << 20))
        except TidemarkError as error:
            found.append(error)

    reader = threading.Thread(target=read)

    def cut_and_read(descriptor: int, length: int) -> None:
        ftruncate(descriptor, length)
        reader.start()
        assert met_the_cut.wait(20), "the read used the size from before the truncation"

    monkeypatch.setattr(LogReader, "_read_far", failing_read)
    monkeypatch.setattr(os, "ftruncate", cut_and_read)
    log.truncate(Offset(35))
    reader.join(20)
    (data,) = found
    assert isinstance(data, bytes)
    assert [batch.envelope.base_offset for batch in check_batches(data)] == [0, 10, 20]
    logs.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_read_in_parts_beside_a_truncation_is_repeated(directory: Path, fails: bool) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["x" * 20] * 10) for _ in range(4)))
    sizes: list[int] = []

    def take(read: ReadBytes, size_bytes: int) -> bytes:
        sizes.append(size_bytes)
        data = read(0, size_bytes)
        if len(sizes) == 1:
            log.truncate(Offset(20))
            if fails:
                raise TidemarkError(ErrorCode.INVALID_BATCH, "torn by the truncation")
        return data

    data = log.read_parts(Offset(0), end_offset=40, max_bytes=100_000, take=take)
    assert [batch.envelope.base_offset for batch in check_batches(data)] == [0, 10]
    assert len(sizes) == 2

    def refuse(read: ReadBytes, size_bytes: int) -> bytes:
        raise TidemarkError(ErrorCode.INVALID_BATCH, "not fit to read")

    with pytest.raises(TidemarkError, match="not fit to read"):
        log.read_parts(Offset(0), end_offset=20, max_bytes=100_000, take=refuse)
    logs.close()


def read_somewhere(log: Log, chance: random.Random) -> int:
    """One read of a random place; everything it gives passes every check and is contiguous."""
    end = log.log_end_offset
    if end == 0:
        return 0
    offset = chance.randrange(end)
    max_bytes, cached_only = chance.choice([1, 3000, 100_000]), chance.random() < 0.2

    def in_parts(read: ReadBytes, size_bytes: int) -> bytes:
        parts = [read(at, min(1_000, size_bytes - at)) for at in range(0, size_bytes, 1_000)]
        check_batches(b"".join(parts))  # an error counts only if no truncation came in between
        return b"".join(parts)

    try:
        if chance.random() < 0.3:
            data: bytes | None = log.read_parts(Offset(offset), end_offset=end, max_bytes=max_bytes, take=in_parts)
        else:
            data = log.read(Offset(offset), end_offset=end, max_bytes=max_bytes, cached_only=cached_only)
    except TidemarkError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:  # a truncation came in between
            raise
        return 0
    batches = check_batches(data or b"")
    for batch, following in itertools.pairwise(batches):
        assert batch.envelope.next_offset == following.envelope.base_offset
    if batches:
        assert batches[0].envelope.base_offset <= offset < batches[0].envelope.next_offset
    return len(batches)
