# SPDX-License-Identifier: Apache-2.0
"""The states of `Consumer.health()`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.consuming.health import PartitionHealth, health_of
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.metadata.cluster import Leader
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition

T0 = TopicPartition("t", 0)
ROOT = Path(__file__).parents[4]
LEADER = Leader(BrokerId(1), "b:1", LeaderEpoch(0), "id", "i")
LED: Any = SimpleNamespace(leader=lambda _: LEADER)
RECREATED: Any = SimpleNamespace(leader=lambda _: LEADER._replace(topic_id="another"))
LEADERLESS: Any = SimpleNamespace(leader=lambda _: None)
OF_LEADER: Any = SimpleNamespace(replica=lambda _: None)
ERROR = TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")


@pytest.mark.parametrize(
    ("fields", "cluster", "suspended", "state"),
    [
        ({}, LED, False, "reading"),
        ({"high_watermark": 0}, LED, False, "caught up"),
        ({"paused": True}, LED, False, "paused"),
        ({"withheld": True}, LED, False, "reconciling"),
        ({}, RECREATED, False, "reconciling"),
        ({}, LED, True, "suspended"),
        ({}, LEADERLESS, False, "without leader"),
        ({"refusal": ERROR}, LED, False, "not answered"),
        ({"error": ERROR}, LED, False, "failed"),
    ],
)
def test_health_has_the_state_of_a_cursor_and_the_docs_list_the_state(
    fields: dict[str, Any], cluster: Any, suspended: bool, state: str
) -> None:
    cursor = Cursor(T0, 0, topic_id="id", incarnation="i")
    for name, value in fields.items():
        setattr(cursor, name, value)
    assert health_of({T0: cursor}, cluster, OF_LEADER, suspended=suspended)[T0].state == state
    listed = re.search(r"Its states are ([^.;]*);", (ROOT / "docs/clients.md").read_text())
    assert listed is not None
    for text in (listed[1], PartitionHealth.__doc__ or ""):
        assert f'"{state}"' in text
