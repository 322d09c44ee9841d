# SPDX-License-Identifier: Apache-2.0
"""Files and records that version 0.1.0 wrote, and those that it reads after a downgrade (docs/formats.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidemark.core.groups import records
from tidemark.core.producer_state import ProducerEntry, ProducerStates, RememberedBatch
from tidemark.model import Offset
from tidemark.storage.recovery.producer_snapshot import read_snapshot, snapshot_path, write_snapshot

GROUP_RECORDS = {
    b'["group","g"]': b'{"protocol":"consumer","epoch":4,"topics":{"t":["id",3]},"empty_since_ms":-1}',
    b'["assigned","g"]': b'{"epoch":4,"assignor":"uniform"}',
    b'["member","g","m"]': (
        b'{"instance_id":"inst","client_id":"client","client_host":"host","rebalance_timeout_ms":60000,'
        b'"topics":["t"],"assignor":"uniform"}'
    ),
    b'["target","g","m"]': b'{"partitions":[["t","id",[0,2]]]}',
    b'["holding","g","m"]': (
        b'{"epoch":4,"previous_epoch":3,"state":"stable","assigned":[["t","id",[0,2]]],"revoking":[],'
        b'"sequence":7,"joined":2}'
    ),
    b'["offset","g","t",0]': (
        b'{"offset":9,"leader_epoch":5,"metadata":"note","topic_id":"id","incarnation":"i0",'
        b'"committed_at_ms":1700000000000,"turn":["c",6]}'
    ),
}
"""One record of each kind, by key."""

SNAPSHOT = {"offset": 21, "producers": [[4711, 3, 1700000000000000, [[0, 4, 10, 14], [5, 5, 20, 20]]]]}
CRC = 3111491291
STATES = ProducerStates(
    {
        4711: ProducerEntry(
            3,
            (RememberedBatch(0, 4, Offset(10), Offset(14)), RememberedBatch(5, 5, Offset(20), Offset(20))),
            1700000000000000,
        )
    }
)


@pytest.mark.parametrize("key", GROUP_RECORDS, ids=bytes.decode)
def test_records_of_groups_are_the_same_in_both_versions(key: bytes) -> None:
    change = records.decode(key, GROUP_RECORDS[key])
    assert change is not None
    assert records.encode(change) == (key, GROUP_RECORDS[key])


def test_a_producer_snapshot_without_transactions_is_read_by_both_versions(tmp_path: Path) -> None:
    """Version 0.1.0 takes items of four members and batches of four numbers, and ignores other members."""
    snapshot_path(tmp_path, 21).write_text(json.dumps(SNAPSHOT | {"crc": CRC}))
    assert read_snapshot(tmp_path, 21) == STATES
    write_snapshot(tmp_path, 21, STATES)
    written = json.loads(snapshot_path(tmp_path, 21).read_text())
    assert {name: written[name] for name in SNAPSHOT} == SNAPSHOT
