# SPDX-License-Identifier: Apache-2.0
"""Members of a group that `consume --group --until-end` runs: the offsets they commit, and their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tidemark.cli.consume import group_source
from tidemark.cli.consume.group_source import GroupSource
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.client.outputs.shape import Shape
from tidemark.client.records import PartitionBatch
from tidemark.model import TopicPartition

ONE, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)
END = 4
"""Each partition has two records, an aborted one, and a marker."""


class Member:
    """A consumer of one partition, which returns the records in one batch, and then passes the rest."""

    def __init__(self, group: dict[TopicPartition, int], where: TopicPartition) -> None:
        self.group = group
        self.where = where
        self.position = 0
        self.batches = deque([pa.record_batch({"offset": pa.array([0, 1], pa.int64())})])

    def subscribe(self, topics: Iterable[str], *, on_assigned: Any = None, **_: Any) -> None:
        if on_assigned is not None:
            on_assigned([self.where])

    def poll(self, timeout_s: float, columns: object) -> PartitionBatch | None:
        if not self.batches:
            self.position = END
            return None
        self.position = 2
        return PartitionBatch(*self.where, self.batches.popleft())

    def health(self) -> Mapping[TopicPartition, Any]:
        return {self.where: SimpleNamespace(position=self.position)}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self.group[one] for one in partitions if one in self.group}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.group.update(offsets)

    def close(self) -> None:
        return


Open = Callable[[Shape], list[GroupSource]]


@pytest.fixture
def group() -> dict[TopicPartition, int]:
    """The committed offsets."""
    return {}


@pytest.fixture
def open_members(monkeypatch: pytest.MonkeyPatch, group: dict[TopicPartition, int]) -> Open:
    places = iter((ONE, OTHER))
    monkeypatch.setattr(group_source, "COMMIT_INTERVAL_S", 0.0)
    monkeypatch.setattr(group_source, "_look_up", lambda bootstrap, options: ({ONE: END, OTHER: END}, None))
    monkeypatch.setattr(group_source, "Consumer", lambda *_, **__: Member(group, next(places)))

    def open_both(shape: Shape) -> list[GroupSource]:
        options = ConsumeOptions(topic="a", until_end=True, output=shape)
        return [GroupSource("b:1", options, "g", "earliest") for _ in range(2)]

    return open_both


def read(member: GroupSource) -> None:
    for batch in member.poll(0.0):
        member.wrote(batch)
    member.commit_if_due()


def test_members_end_behind_markers_and_aborted_records(open_members: Open, group: dict[TopicPartition, int]) -> None:
    """Each member waits for the commit of the other member."""
    members = open_members(Shape.TEXT)
    for member in members:
        read(member)
    assert group == {ONE: 2, OTHER: 2}
    assert not any(member.finished for member in members)
    for member in members:
        read(member)
    assert group == {ONE: END, OTHER: END}
    assert all(member.finished for member in members)


def test_a_member_that_writes_parquet_ends_with_its_own_partitions(
    open_members: Open, group: dict[TopicPartition, int]
) -> None:
    """The members commit only when they end, so no member may wait for the commit of another one."""
    members = open_members(Shape.PARQUET)
    for member in members:
        read(member)
        assert not member.finished
        read(member)
        assert member.finished
    assert group == {}
    for member in members:
        member.__exit__(None)
    assert group == {ONE: END, OTHER: END}


def test_a_member_commits_no_records_that_were_not_written(
    open_members: Open, group: dict[TopicPartition, int]
) -> None:
    member, _ = open_members(Shape.TEXT)
    (batch,) = member.poll(0.0)
    member.wrote(batch._replace(rows=batch.rows.slice(0, 1)))
    member.__exit__(None)
    assert group == {ONE: 1}


def test_a_member_commits_no_offset_of_a_partition_that_it_lost_while_it_wrote(
    open_members: Open, group: dict[TopicPartition, int]
) -> None:
    """The coordinator would refuse each later commit, and the command would end with that error."""
    member, _ = open_members(Shape.TEXT)
    (batch,) = member.poll(0.0)
    member._on_lost([ONE])
    member._consumer.where = OTHER  # type: ignore[attr-defined]
    member.wrote(batch)
    member.commit_if_due()
    assert ONE not in group
