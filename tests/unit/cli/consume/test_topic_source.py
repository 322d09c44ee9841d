# SPDX-License-Identifier: Apache-2.0
"""`consume --from offset:N` on partitions whose log starts differ; the reader of ranges is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.cli.consume import topic_source
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.cli.consume.topic_source import TopicReader
from tidemark.client.consuming.range_reader import Bounds
from tidemark.client.outputs.record_format import Start
from tidemark.model import ErrorCode

from tests.refusals import raises_code


def positions(
    starts: list[int],
    offset: int,
    monkeypatch: pytest.MonkeyPatch,
    partition: int | None = None,
    *,
    until_end: bool = False,
    end: int = 100,
) -> dict[int, int]:
    """The positions at which `consume` begins, if the partitions have these log starts."""
    bounds = {index: Bounds(start, end + index) for index, start in enumerate(starts)}
    view = SimpleNamespace(partitions=dict.fromkeys(bounds), schema_version=0, topic_id="t")
    reader = SimpleNamespace(
        topics=lambda _: {"t": view},
        bounds=lambda _, wanted: {index: bounds[index] for index in wanted},
        close=lambda: None,
    )
    monkeypatch.setattr(topic_source, "RangeReader", lambda *_, **__: reader)
    monkeypatch.setattr(topic_source, "reader_of", lambda *_: None)
    options = ConsumeOptions(topic="t", partition=partition, until_end=until_end)
    return TopicReader("b", options, Start(offset=offset))._positions


def test_partitions_without_the_offset_are_read_from_their_log_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One option names the offset for all partitions; a partition without that offset is read, too."""
    assert positions([50, 0, 7], 7, monkeypatch) == {0: 50, 1: 7, 2: 7}
    assert capsys.readouterr().err == "warning: t:0 is read from offset 50: earlier records were deleted\n"


def test_an_offset_that_each_partition_has_deleted_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read of the position raises OFFSET_OUT_OF_RANGE."""
    assert positions([50, 8], 7, monkeypatch) == {0: 7, 1: 7}


def test_an_offset_that_one_partition_has_reached_is_read_up_to_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has read all records requests the offset at the log end."""
    assert positions([0, 0], 101, monkeypatch, until_end=True) == {0: 101, 1: 101}


def test_consume_waits_for_an_offset_that_no_partition_has_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert positions([0, 0], 102, monkeypatch) == {0: 102, 1: 102}


def test_an_offset_that_no_partition_has_reached_is_an_error_of_a_read_up_to_the_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a program whose records are lost ends successfully, without a record, each time."""
    with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE, "t:1 ends at offset 101, before offset 102: there is nothing"):
        positions([0, 0], 102, monkeypatch, until_end=True)
    with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE, "t:0 ends at offset 0, before offset 1"):
        positions([0], 1, monkeypatch, until_end=True, end=0)


def test_consume_reads_only_the_partition_that_its_option_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert positions([0, 3, 50], 7, monkeypatch, partition=1) == {1: 7}


def test_consume_refuses_a_partition_that_the_topic_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(ErrorCode.UNKNOWN_PARTITION, "topic t has no partition 2; it has 2, from 0"):
        positions([0, 0], 7, monkeypatch, partition=2)


@pytest.mark.parametrize("position", ["earliest", "latest"])
def test_consume_continues_with_the_epoch_of_the_records_before(monkeypatch: pytest.MonkeyPatch, position: str) -> None:
    """Otherwise the command silently skips records of the new log below its position after an unclean election."""
    ends = iter([Bounds(0, 100, 5), Bounds(0, 100, 5), Bounds(0, 120, 6), Bounds(0, 150, 7)])
    asked: list[tuple[int, int, int]] = []

    def read(topic: str, index: int, start: int, end: int, *, last_epoch: int, **_: Any) -> Iterator[Any]:
        asked.append((start, end, last_epoch))
        return iter(())

    view = SimpleNamespace(partitions={0: SimpleNamespace(incarnation="i")}, schema_version=0, topic_id="t")
    reader = SimpleNamespace(topics=lambda _: {"t": view}, bounds=lambda *_: {0: next(ends)}, read=read)
    monkeypatch.setattr(topic_source, "RangeReader", lambda *_, **__: reader)
    monkeypatch.setattr(topic_source, "reader_of", lambda *_: None)
    source = TopicReader("b", ConsumeOptions(topic="t"), Start(position))
    for _ in range(2):
        assert list(source.poll(0)) == []
    assert asked == [(0 if position == "earliest" else 100, 120, -1 if position == "earliest" else 5), (120, 150, 6)]
