# SPDX-License-Identifier: Apache-2.0
"""`tidemark group reset-offsets`: the error if some offsets were set and others were refused."""

from __future__ import annotations

import pytest
from tidemark.cli.group import commands
from tidemark.cli.group.commands import reset_offsets
from tidemark.client.group.offset_reset import OffsetChange
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code


class Groups:
    """One group with two partitions; `gone` are deleted after the dry run."""

    def __init__(self, gone: list[int]) -> None:
        self.refused = {
            TopicPartition("a", one): TidemarkError(ErrorCode.UNKNOWN_PARTITION, "it is deleted") for one in gone
        }

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan_reset(self, group: str, *_: object, **__: object) -> list[OffsetChange]:
        return [OffsetChange(TopicPartition("a", index), 7, 0) for index in range(2)]

    def set_offsets(self, *_: object) -> dict[TopicPartition, TidemarkError]:
        return self.refused


@pytest.mark.parametrize(
    ("gone", "told"),
    [([1], "1 of 2 offsets is set, the others are not: a-1: it is deleted"), ([0, 1], "nothing was changed: a-0: ")],
)
def test_a_reset_that_is_refused_in_part_counts_the_offsets_that_are_set(
    monkeypatch: pytest.MonkeyPatch, gone: list[int], told: str
) -> None:
    monkeypatch.setattr(commands, "_connect", lambda _: Groups(gone))
    with raises_code(ErrorCode.UNKNOWN_PARTITION, told):
        reset_offsets("g", ["a"], "earliest", yes=True, bootstrap="b:1")
