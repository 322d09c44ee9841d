# SPDX-License-Identifier: Apache-2.0
"""`tidemark group reset-offsets`, if some offsets are refused; `tidemark group delete`."""

from __future__ import annotations

import json

import pytest
from tidemark.cli.common.output import Output
from tidemark.cli.group import commands
from tidemark.cli.group.commands import delete, reset_offsets
from tidemark.client.group.offset_reset import OffsetChange
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code


class Groups:
    """One group with two partitions; `gone` are deleted after the dry run."""

    def __init__(self, gone: list[int]) -> None:
        self.deleted: list[str] = []
        self.refused = {
            TopicPartition("a", one): TidemarkError(ErrorCode.UNKNOWN_PARTITION, "it is deleted") for one in gone
        }

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan_reset(self, group: str, *_: object, **__: object) -> list[OffsetChange]:
        return [OffsetChange(TopicPartition("a", index), 7, 0, "id", f"incarnation {index}") for index in range(2)]

    def set_offsets(self, _: str, plan: list[OffsetChange]) -> dict[TopicPartition, TidemarkError]:
        assert plan == self.plan_reset("g"), "otherwise old offsets could go into a topic that was created again"
        return self.refused

    def describe_groups(self, groups: list[str], *, offsets: bool) -> None:
        pass

    def delete(self, group: str) -> None:
        if group in self.deleted:
            raise TidemarkError(ErrorCode.GROUP_NOT_FOUND, f"there is no group {group}")
        self.deleted.append(group)


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


def test_delete_deletes_a_group_that_is_named_twice_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = Groups([])
    monkeypatch.setattr(commands, "_connect", lambda _: groups)
    delete(["g", "h", "g"], yes=True, bootstrap="b:1")
    assert groups.deleted == ["g", "h"]
    assert capsys.readouterr().out == "deleted group g\ndeleted group h\n"


def test_delete_names_the_deleted_groups_in_json_if_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = Groups([])
    groups.deleted = ["h"]
    monkeypatch.setattr(commands, "_connect", lambda _: groups)
    with raises_code(ErrorCode.GROUP_NOT_FOUND):
        delete(["g", "h"], yes=True, bootstrap="b:1", output=Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"deleted": ["g"]}
