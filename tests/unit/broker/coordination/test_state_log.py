# SPDX-License-Identifier: Apache-2.0
"""Reads of a coordinator's log: damaged records are repaired (rule T6), markers decide (rule X17)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.broker.clients.fetch import Purgatory
from tidemark.broker.coordination.state_log import StateLog, StateLogs
from tidemark.broker.groups.group_shard import GROUP_RECORDS
from tidemark.core.groups.records import encode
from tidemark.core.groups.state import Change, Committed, GroupKey, GroupMetadata, OffsetKey
from tidemark.core.pending_writes import Writer
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Batch, parse_envelope
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_own_batch

from tests.refusals import raises_code
from tests.unit.core.replication.stage import P, Stage, batch
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, memory_directory, open_one


@pytest.mark.parametrize("byte", [2, ENVELOPE_BYTES + 90])
async def test_a_damaged_offsets_log_is_suspected(byte: int) -> None:
    """Without a repair, the groups of the partition would have no coordinator until the scrubber reads its log."""
    with memory_directory() as root, ThreadPoolExecutor(1) as pool:
        stored = open_one(root).open(PARTITION, IDENTITY, {})[0]
        for number in range(3):
            key, value = encode(Change(GroupKey(f"g{number}"), GroupMetadata(protocol="p" * 100)))
            data = build_own_batch([key], [value], 1)
            lead(stored, Batch(parse_envelope(data), data))
        suspected: list[tuple[TopicPartition, int]] = []
        broker = SimpleNamespace(
            threads=SimpleNamespace(log=lambda partition: stored),
            pool=pool,
            purgatory=Purgatory(),
            suspect=lambda partition, offset: suspected.append((partition, offset)),
        )
        log = ReadLog(cast(StateLogs, broker), GROUP_RECORDS, PARTITION, LeaderEpoch(1), 3)
        assert len(await log.read()) == 3
        [path] = root.glob("*/*.log")
        whole = path.read_bytes()
        at = parse_envelope(whole).batch_length + byte
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

        with raises_code(ErrorCode.CORRUPT_BATCH):
            await log.read()

        assert suspected in ([(PARTITION, 0)], [(PARTITION, 1)])


async def test_records_of_a_transaction_are_read_as_its_marker_says() -> None:
    """An aborted value counts for nothing, an open one is pending, a committed one counts in the order of the log."""
    events = [
        (Writer(1, 0), "a", 1),
        (Writer(2, 0), "b", 2),
        (Writer(3, 0), "c", 3),
        (None, "a", 4),
        (Writer(1, 1), "", 1),
        (Writer(2, 1), "", 0),
        (None, "d", 5),
        (Writer(4, 0), "d", 6),
        (Writer(4, 1), "", 1),
        (Writer(3, 0), "e", 7),
    ]
    with memory_directory() as root, ThreadPoolExecutor(1) as pool:
        stored = open_one(root).open(PARTITION, IDENTITY, {})[0]
        for writer, name, number in events:
            if writer is not None and not name:
                marker = EndMarker(bool(number), 1)
                data = build_marker(**writer._asdict(), marker=marker, timestamp_us=1)
            else:
                key, value = encode(Change(OffsetKey("g", name, 0), Committed(number, -1, "", "id", "", 0)))
                of = {} if writer is None else writer._asdict() | {"attributes": Attributes.PENDING}
                data = build_own_batch([key], [value], 1, **of)
            lead(stored, Batch(parse_envelope(data), data))
        broker = SimpleNamespace(
            threads=SimpleNamespace(log=lambda partition: stored), pool=pool, purgatory=Purgatory()
        )
        log = ReadLog(cast(StateLogs, broker), GROUP_RECORDS, PARTITION, LeaderEpoch(1), len(events))
        found = await log.read()
    assert {change.key.topic: change.value.offset for change in found} == {"a": 4, "d": 6}  # type: ignore[union-attr]
    assert [(writer, [change.key.topic for change in some]) for writer, some in found.pending] == [  # type: ignore[union-attr]
        (Writer(3, 0), ["c"]),
        (Writer(3, 0), ["e"]),
    ]


def test_a_read_waits_for_a_write_that_expired_while_a_slow_disk_appends_it() -> None:
    """Otherwise the coordinator would load its state without a record that its log gets afterwards."""
    stage = Stage().leads((1,))
    stage.write(batch())
    expired = stage.produce(batch())
    stage.feed(ev.ProduceExpired(expired, P))
    broker = SimpleNamespace(queries=stage.core.queries, clock=SimpleNamespace(now_ms=lambda: stage.now))
    leader_epoch = stage.core.queries.leader(P, "", LeaderEpoch(-1)).leader_epoch
    log = StateLog(cast(StateLogs, broker), GROUP_RECORDS, P, leader_epoch)
    assert log._decided_end() is None
    stage.appended(2)
    assert log._decided_end() == 2


class ReadLog(StateLog[Change]):
    """The log of a leader with this number of committed records."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments[:4])
        self._end = Offset(arguments[4])

    def _decided_end(self) -> Offset | None:
        return self._end

    def _led(self) -> Any:
        return SimpleNamespace(log=SimpleNamespace(log_start_offset=Offset(0)))

    def check(self) -> None:
        """The broker leads."""
