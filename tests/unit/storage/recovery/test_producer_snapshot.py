# SPDX-License-Identifier: Apache-2.0
"""Producer snapshots of both versions (rule X7), and open transactions after a start and a truncation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerEntry, ProducerStates, RememberedBatch
from tidemark.model import Offset
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.files import pack_json, read_json
from tidemark.storage.log import replayed_state
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.producer_snapshot import read_snapshot, snapshot_path, write_snapshot

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, make_marker, make_pending, open_one

PLAIN = ProducerEntry(2, (RememberedBatch(0, 3, Offset(5), Offset(8)),), 77)
OPEN = ProducerEntry(1, (RememberedBatch(0, 0, Offset(9), Offset(9)),), 78, Offset(9), 4)
STAMPED = ProducerEntry(0, (RememberedBatch(0, 0, Offset(3), Offset(3), 55),), 55)
ENDED = ProducerEntry(3, (), 79, Offset(-1), 6)
SMALL = {"segment.bytes": "2048"}


def open_log(logs: LogManager) -> tuple[PartitionLog, ProducerStates]:
    log, recovered = logs.open(PARTITION, IDENTITY, SMALL)
    return log, recovered.producers


def test_a_snapshot_has_open_transactions_and_coordinator_epochs(directory: Path) -> None:
    states = ProducerStates({4: PLAIN, 5: OPEN, 6: ENDED, 7: STAMPED})
    write_snapshot(directory, 12, states)
    assert read_snapshot(directory, 12) == states
    found = read_snapshot(directory, 12)
    assert found is not None
    assert found.open_producers == (5,)


def test_a_snapshot_of_version_1_is_read(directory: Path) -> None:
    document = {"offset": 12, "producers": [[4, 2, 77, [[0, 3, 5, 8]]]]}
    snapshot_path(directory, 12).write_bytes(pack_json(document))
    assert read_snapshot(directory, 12) == ProducerStates({4: PLAIN})


def test_producers_without_transactions_are_written_as_in_version_1(directory: Path) -> None:
    write_snapshot(directory, 12, ProducerStates({4: PLAIN}))
    document = read_json(snapshot_path(directory, 12), offset=int, producers=list)
    assert document is not None
    assert document["producers"] == [[4, 2, 77, [[0, 3, 5, 8]]]]


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_start(directory: Path, clean: bool) -> None:
    logs = open_one(directory)
    log, _ = open_log(logs)
    lead(log, make_batch(["a"]), make_pending(["b"], producer_id=1), make_pending(["c"], producer_id=2))
    lead(log, make_marker(producer_id=1, coordinator_epoch=3), make_pending(["d"], producer_id=1, producer_epoch=1))
    if clean:
        logs.close_clean(0, {PARTITION: log.log_end_offset})
    else:
        logs.checkpoint({})
        logs.close()
    logs = open_one(directory)
    _, found = open_log(logs)
    assert found.open_producers == (2, 1)
    assert [entry.open_offset for entry in found.entries.values()] == [4, 2]
    assert found.entries[1].coordinator_epoch == 3
    logs.close()


def test_a_truncation_at_every_batch_opens_again_the_transactions_whose_markers_it_removes(directory: Path) -> None:
    batches = []
    for round_ in range(6):
        for producer_id in (1, 2):
            batches.append(make_pending(["x" * 300] * 2, producer_id=producer_id, producer_epoch=round_))
        batches.append(make_batch(["plain"]))
        for producer_id in (2, 1):
            commit = producer_id == 1
            batches.append(make_marker(producer_id=producer_id, producer_epoch=round_ + 1, commit=commit))
    logs = open_one(directory)
    log, _ = open_log(logs)
    ends = [lead(log, batch) for batch in batches]
    expected: list[ProducerStates] = []
    states = ProducerStates()
    for batch, end in zip(batches, ends, strict=True):
        base = end - batch.envelope.last_offset_delta - 1
        states.observe_batch(batch._replace(envelope=batch.envelope._replace(base_offset=base)))
        expected.append(states.copy())
    assert len(log.state().epochs) == 1
    for end, producers in reversed(list(zip(ends, expected, strict=True))):
        assert log.truncate(end) == producers
        logs.checkpoint({})
        logs.close()
        logs = open_one(directory)
        log, found = open_log(logs)
        assert found == producers
        assert found.open_producers == producers.open_producers
    logs.close()


def test_a_kill_during_a_checkpoint_keeps_the_producers_of_deleted_batches(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed_state, "snapshot_due", lambda batches, states: True)
    logs = open_one(directory)
    log, _ = open_log(logs)
    lead(log, make_batch(["first"], producer_id=7, producer_epoch=2, sequence=0))
    plain = [make_batch(["x" * 600]) for _ in range(12)]
    ends = [lead(log, batch) for batch in plain]
    log.trim(ends[5])
    logs.checkpoint({})
    lead(log, *plain)
    log.trim(Offset(log.segments.active.base_offset))
    assert log.durability.capture() is not None, "a checkpoint has begun"
    logs.close()
    logs = open_one(directory)
    _, found = open_log(logs)
    assert found.entries[7].producer_epoch == 2
    logs.close()
