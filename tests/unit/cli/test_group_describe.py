# SPDX-License-Identifier: Apache-2.0
"""`tidemark group describe`: offsets that open transactions have written are shown next to their partition."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidemark.cli.common.output import Output
from tidemark.cli.group import commands
from tidemark.cli.group.commands import describe
from tidemark.client.aio.groups import GroupDescription, GroupPartition, PendingOffset
from tidemark.model import TopicPartition

PENDING = (PendingOffset(9, 17, 3),)


class Groups:
    """One group with two partitions; a transaction has written an offset of the second one."""

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_groups(self, groups: list[str]) -> list[GroupDescription]:
        rows = tuple(
            GroupPartition(TopicPartition("orders", index), "", 7, 0, 0, 10, 3, None, "id", "i", pending)
            for index, pending in enumerate(((), PENDING))
        )
        return [GroupDescription(groups[0], "consumer", "EMPTY", 1, "", 2, (), rows)]


@pytest.fixture(autouse=True)
def _groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_connect", lambda _: Groups())


def test_a_pending_offset_is_noted_beside_its_partition(capsys: pytest.CaptureFixture[str]) -> None:
    describe(["sizes"])
    first, second = (line for line in capsys.readouterr().out.splitlines() if "orders" in line)
    assert "pending" not in first
    assert "9 pending in the transaction of producer 17, epoch 3" in second


def test_pending_offsets_are_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    describe(["sizes"], output=Output.JSON)
    found: list[Any] = json.loads(capsys.readouterr().out)
    assert [one["pending"] for one in found[0]["partitions"]] == [
        [],
        [{"offset": 9, "producer_id": 17, "producer_epoch": 3}],
    ]
