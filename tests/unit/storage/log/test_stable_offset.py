# SPDX-License-Identifier: Apache-2.0
"""The first unstable offset of a log whose start passed an open transaction: no replay lowers it (rule X3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.model import BrokerEpoch, Offset
from tidemark.record.envelope import Batch
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, make_pending, open_one


def pending(sequence: int, count: int = 1) -> list[Batch]:
    return [make_pending(["x"], producer_id=7, sequence=number) for number in range(sequence, sequence + count)]


def unstable(states: ProducerStates, log: PartitionLog) -> int | None:
    """The first unstable offset by these states, as the replica opens them."""
    states.close_deleted(log.log_start_offset)
    return states.first_open_offset


def written(logs: LogManager, after: Sequence[Batch]) -> tuple[PartitionLog, int]:
    """A log with an open transaction at 0 to 2 and others to 5; its start is 5, and then it continues at offset 5."""
    log = logs.open(PARTITION, IDENTITY, {"segment.bytes": "2000"})[0]
    states = ProducerStates()
    for batch in (*pending(0, 3), make_batch(["other"] * 2)):
        states.observe(batch.envelope._replace(base_offset=log.log_end_offset))
        lead(log, batch)
    assert states.first_open_offset == 0
    log.trim(Offset(5))
    states.close_deleted(Offset(5))
    for batch in after:
        states.observe(batch.envelope._replace(base_offset=log.log_end_offset))
        lead(log, batch)
    found = states.first_open_offset
    assert found is not None
    return log, found


AFTER = [make_batch(["other"] * 2), *pending(3, 9)]


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_start_does_not_lower_it(tmp_path: Path, stop: str) -> None:
    logs = open_one(tmp_path)
    log, before = written(logs, AFTER)
    assert before == 7
    logs.checkpoint({PARTITION: Offset(5)})
    if stop == "clean":
        logs.close_clean(BrokerEpoch(1), {PARTITION: log.log_end_offset})
    logs.close()
    again = open_one(tmp_path)
    opened, recovered = again.open(PARTITION, IDENTITY, {})
    assert opened.log_start_offset == 5
    assert unstable(recovered.producers, opened) == before
    again.close()


def test_a_truncation_does_not_lower_it(tmp_path: Path) -> None:
    logs = open_one(tmp_path)
    log, before = written(logs, [*AFTER, make_batch(["truncated"])])
    states = log.truncate(Offset(log.log_end_offset - 1))
    assert unstable(states, log) == before
    logs.close()


def test_a_log_start_within_a_transaction_leaves_its_first_record_unstable() -> None:
    states = ProducerStates()
    for number, batch in enumerate(pending(0, 3)):
        states.observe(batch.envelope._replace(base_offset=10 * number))
    states.close_deleted(Offset(5))
    assert states.first_open_offset == 10
    states.close_deleted(Offset(10))
    assert states.first_open_offset == 10
    states.close_deleted(Offset(11))
    assert states.first_open_offset == 20
    states.close_deleted(Offset(21))
    assert states.first_open_offset is None


def test_a_transaction_whose_first_record_is_not_known_stays_unstable_from_the_log_start() -> None:
    states = ProducerStates()
    for number, batch in enumerate(pending(0, 40)):
        states.observe(batch.envelope._replace(base_offset=10 * number))
    states.close_deleted(Offset(25))
    assert states.first_open_offset == 0
