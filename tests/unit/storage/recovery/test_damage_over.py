# SPDX-License-Identifier: Apache-2.0
"""Rule T5: the core ends damage, in any lineage; a checkpoint that covers the log removes the damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import EpochEntry, LeaderEpoch, Offset, TidemarkError
from tidemark.ports import Log
from tidemark.storage.directories import log_directory
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.files import Descriptor

from tests.unit.storage.batches import (
    IDENTITY,
    PARTITION,
    at,
    follow,
    lead,
    make_batch,
    memory_directory,
    open_one,
    read_all,
)
from tests.unit.storage.directories.moving import begin, copy_all, open_in

SETTINGS = {"segment.bytes": "700"}


@pytest.fixture
def path() -> Iterator[Path]:
    """A log of 10 committed records, with damage at 6."""
    with memory_directory() as made:
        logs = open_one(made)
        log, _ = logs.open(PARTITION, IDENTITY, SETTINGS)
        lead(log, *(make_batch([str(number)]) for number in range(10)))
        logs.close_clean(3, {PARTITION: Offset(10)})
        logs.close()
        spoil(made / str(PARTITION))
        yield made


def spoil(replica: Path) -> None:
    """The segment of record 6 ends there: later segments do not join."""
    bad = max(one for one in replica.glob("*.log") if int(one.stem) <= 6)
    size = bad.stat().st_size
    records = int(min([one.stem for one in replica.glob("*.log") if int(one.stem) > 6], default="10")) - int(bad.stem)
    with bad.open("r+b") as file:
        file.truncate(size // records * (6 - int(bad.stem)))


def start(path: Path) -> tuple[LogManager, Log, RecoveredLog]:
    logs = open_one(path)
    return logs, *logs.open(PARTITION, IDENTITY, SETTINGS)


def leftovers(path: Path) -> list[str]:
    return [one.name for one in (path / str(PARTITION)).iterdir() if "damage" in one.name]


def test_damage_can_end_in_a_lineage_below_the_lost_offsets(path: Path) -> None:
    logs, log, found = start(path)
    assert (found.log_end_offset, found.damaged is None) == (6, False)
    assert leftovers(path)
    log.truncate(Offset(3))
    log.save_epochs((EpochEntry(LeaderEpoch(0), Offset(0)),))
    follow(log, at(make_batch(["new"]), 3, 7))
    log.end_damage()
    logs.checkpoint({PARTITION: Offset(4)})
    assert not leftovers(path)
    logs.close()
    logs, _, found = start(path)
    # the first high watermark reported after a truncation may be older
    assert (found.log_end_offset, found.high_watermark, found.damaged) == (4, 3, None)
    logs.close()


def test_the_end_of_damage_makes_a_checkpoint_due(path: Path) -> None:
    logs, log, _ = start(path)
    logs.checkpoint({PARTITION: Offset(6)})
    logs.checkpoint({PARTITION: Offset(6)})
    assert leftovers(path)
    log.end_damage()
    logs.checkpoint({PARTITION: Offset(6)})
    assert not leftovers(path)
    logs.close()


def test_a_checkpoint_begun_before_does_not_forget_the_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, log, _ = start(path)
    sync = log_directory.sync_file_system

    def told_meanwhile(place: Path, opened: Descriptor) -> None:
        monkeypatch.undo()
        log.end_damage()
        sync(place, opened)

    monkeypatch.setattr(log_directory, "sync_file_system", told_meanwhile)
    logs.checkpoint({PARTITION: Offset(6)})
    assert leftovers(path)
    logs.checkpoint({PARTITION: Offset(6)})
    assert not leftovers(path)
    logs.close()


def test_a_clean_stop_forgets_ended_damage(path: Path) -> None:
    logs, log, _ = start(path)
    log.end_damage()
    logs.close_clean(4, {PARTITION: Offset(6)})
    logs.close()
    logs, log, found = start(path)
    assert (found.log_end_offset, found.damaged) == (6, None)
    logs.close()


def test_damage_with_an_unreadable_file_ends(path: Path) -> None:
    logs, _, _ = start(path)
    logs.close()
    (path / str(PARTITION) / "damage.json").write_bytes(b"")
    logs, log, found = start(path)
    assert found.damaged
    follow(log, *(at(make_batch([str(number)]), number) for number in range(6, 10)))
    logs.checkpoint({PARTITION: Offset(10)})
    assert leftovers(path), "nothing gives the end of the damage"
    log.end_damage()
    logs.checkpoint({PARTITION: Offset(10)})
    assert not leftovers(path)
    logs.close()


def test_later_damage_is_damage_again(path: Path) -> None:
    logs, log, _ = start(path)
    log.end_damage()
    logs.checkpoint({PARTITION: Offset(6)})
    logs.close()
    for one in (path / str(PARTITION)).glob("*.log"):
        one.unlink()
    logs, _, found = start(path)
    assert found.damaged
    logs.close()


def test_a_move_resumes_when_damage_is_over() -> None:
    with memory_directory() as root:
        logs, log = open_in(root, configs=SETTINGS)
        lead(log, *(make_batch([str(number)]) for number in range(10)))
        logs.checkpoint({PARTITION: Offset(10)})
        logs.close()
        spoil(root / "a" / str(PARTITION))
        logs, log = open_in(root, configs=SETTINGS)
        future = begin(logs)
        copy_all(future)
        with pytest.raises(TidemarkError, match="damaged"):
            logs.mover.finish(future, future.source.log_end_offset)
        log.end_damage()
        logs.checkpoint({PARTITION: Offset(6)})
        moved = logs.mover.finish(future, future.source.log_end_offset)
        assert len(read_all(moved)) == len(read_all(log)) > 0
        logs.close()
