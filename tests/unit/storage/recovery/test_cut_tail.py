# SPDX-License-Identifier: Apache-2.0
"""A start remembers that it has cut a torn tail off, if the machine has not rebooted since (rule T7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import BrokerEpoch, Offset

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one

CUT_BYTES = 100


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made / "log"


def run(path: Path, *, boot: str = "boot-1", appends: int = 0, heals: bool = False) -> RecoveredLog:
    """One process: it registers, opens the log, and is killed; with `heals` after a checkpoint."""
    logs = open_one(path)
    try:
        logs.confirm_registration(BrokerEpoch(1), boot)
        log, recovered = logs.open(PARTITION, IDENTITY, {})
        for number in range(appends):
            lead(log, make_batch([f"{number}a", f"{number}b"]), epoch=1)
        if heals:
            log.end_damage()
            logs.checkpoint({PARTITION: Offset(0)})
        return recovered
    finally:
        logs.close()


def tear(path: Path, size_bytes: int = CUT_BYTES) -> None:
    segment = max((path / str(PARTITION)).glob("*.log"))
    with segment.open("rb+") as file:
        file.truncate(segment.stat().st_size - size_bytes)


def test_a_log_remembers_a_cut_tail_until_the_replica_has_fetched_again(path: Path) -> None:
    assert run(path, appends=5).damaged is None
    tear(path)
    found = run(path)
    assert found.cut
    assert found.damaged is not None
    assert found.log_end_offset == 8
    again = run(path, appends=3)
    assert again.cut, "the second start finds no torn tail"
    assert run(path, heals=True).cut, "new records say nothing of the old ones"
    assert run(path).damaged is None


def test_a_kill_between_two_writes_cuts_nothing(path: Path) -> None:
    run(path, appends=5)
    assert run(path).damaged is None


def test_after_a_reboot_a_torn_tail_says_nothing_new(path: Path) -> None:
    run(path, appends=5)
    tear(path)
    found = run(path, boot="boot-2")
    assert (found.damaged, found.cut, found.log_end_offset) == (None, False, 8)


def test_a_cut_below_the_high_watermark_is_damage(path: Path) -> None:
    logs = open_one(path)
    logs.confirm_registration(BrokerEpoch(1), "boot-1")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    for number in range(5):
        lead(log, make_batch([f"{number}a", f"{number}b"]), epoch=1)
    logs.checkpoint({PARTITION: Offset(10)})
    logs.close()
    tear(path)
    found = run(path)
    assert found.damaged is not None
    assert not found.cut
