# SPDX-License-Identifier: Apache-2.0
"""Logs that a killed and a stopped process have left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.model import BrokerEpoch, Offset

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all
from tests.unit.storage.recovery.damaging import BATCHES, CHECKPOINTED, CONFIGS


@pytest.fixture
def killed(directory: Path) -> tuple[Path, bytes]:
    """A log of 16 batches of 2 in several segments, checkpointed at 18, killed at 32; and its content."""
    logs = open_one(directory / "killed")
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    for number in range(BATCHES):
        batch = make_batch([f"{number}a", f"{number}b"], producer_id=4, producer_epoch=0, sequence=2 * number)
        lead(log, batch, epoch=number // 4)
        if log.log_end_offset == CHECKPOINTED:
            logs.checkpoint({PARTITION: Offset(CHECKPOINTED)})
    whole = read_all(log)
    logs.close()
    return directory / "killed", whole


@pytest.fixture
def stopped(killed: tuple[Path, bytes]) -> tuple[Path, bytes]:
    """The same, stopped cleanly."""
    path, whole = killed
    logs = open_one(path)
    logs.open(PARTITION, IDENTITY, CONFIGS)
    logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(30)})
    return path, whole
