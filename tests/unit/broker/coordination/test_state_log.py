# SPDX-License-Identifier: Apache-2.0
"""A coordinator has the damaged records of its groups repaired (rule T6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.broker.clients.fetch import Purgatory
from tidemark.broker.coordination.state_log import StateLog, StateLogs
from tidemark.broker.groups.group_shard import GROUP_RECORDS
from tidemark.core.groups.records import encode
from tidemark.core.groups.state import Change, GroupKey, GroupMetadata
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, parse_envelope
from tidemark.record.payload import build_batch, from_bytes

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, memory_directory, open_one


@pytest.mark.parametrize("byte", [2, ENVELOPE_BYTES + 90])
async def test_a_damaged_offsets_log_is_suspected(byte: int) -> None:
    """Without a repair, the groups of the partition would have no coordinator until the scrubber reads its log."""
    with memory_directory() as root, ThreadPoolExecutor(1) as pool:
        stored = open_one(root).open(PARTITION, IDENTITY, {})[0]
        for number in range(3):
            key, value = encode(Change(GroupKey(f"g{number}"), GroupMetadata(protocol="p" * 100)))
            data = build_batch(from_bytes([key], [value], 1))
            lead(stored, Batch(parse_envelope(data), data))
        suspected: list[tuple[TopicPartition, int]] = []
        broker = SimpleNamespace(
            threads=SimpleNamespace(log=lambda partition: stored),
            pool=pool,
            purgatory=Purgatory(),
            suspect=lambda partition, offset: suspected.append((partition, offset)),
        )
        log = ReadLog(cast(StateLogs, broker), GROUP_RECORDS, PARTITION, LeaderEpoch(1))
        assert len(await log.read()) == 3
        [path] = root.glob("*/*.log")
        whole = path.read_bytes()
        at = parse_envelope(whole).batch_length + byte
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

        with pytest.raises(TidemarkError) as damaged:
            await log.read()

        assert damaged.value.code is ErrorCode.CORRUPT_BATCH
        assert suspected in ([(PARTITION, 0)], [(PARTITION, 1)])


class ReadLog(StateLog[Change]):
    """Of a leader with three committed records."""

    def _decided_end(self) -> Offset | None:
        return Offset(3)

    def _led(self) -> Any:
        return SimpleNamespace(log_start_offset=Offset(0))

    def check(self) -> None:
        """It leads."""
