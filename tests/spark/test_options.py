"""Options of the Spark source and the ranges planned from them; pure, no Spark."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_spark.options import parse_options
from tidemark_spark.ranges import OffsetRange, PartitionBounds, plan_ranges

BOOTSTRAP = {"tidemark.bootstrap": "127.0.0.1:9192"}
FLIGHTS = {**BOOTSTRAP, "subscribe": "flights"}
HELD = {"flights": {0: PartitionBounds(10, 110), 1: PartitionBounds(0, 50), 2: PartitionBounds(7, 7)}}


def test_everything_is_read_when_no_offsets_are_given() -> None:
    planned = plan_ranges(parse_options(FLIGHTS), HELD)
    assert planned == [OffsetRange("flights", 0, 10, 110), OffsetRange("flights", 1, 0, 50)]


def test_option_names_are_read_in_any_case() -> None:
    options = parse_options({**FLIGHTS, "ENDINGOFFSETS": "latest", "minpartitions": "3", "IncludeHeaders": "True"})
    assert (options.min_partitions, options.include_headers) == (3, True)


def test_explicit_offsets_are_inclusive_at_the_start_and_exclusive_at_the_end() -> None:
    offsets = {"startingOffsets": '{"flights": {"0": 20, "1": -2}}', "endingOffsets": '{"flights": {"0": 30, "1": -1}}'}
    planned = plan_ranges(parse_options({**FLIGHTS, **offsets}), HELD)
    assert planned == [OffsetRange("flights", 0, 20, 30), OffsetRange("flights", 1, 0, 50)]


def test_assign_reads_the_partitions_it_names_and_no_others() -> None:
    planned = plan_ranges(parse_options({**BOOTSTRAP, "assign": '{"flights": [1]}'}), HELD)
    assert planned == [OffsetRange("flights", 1, 0, 50)]


@given(least=st.integers(1, 400), lengths=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_splitting_covers_every_offset_once_in_order(least: int, lengths: list[int]) -> None:
    held = {"flights": {index: PartitionBounds(index, index + length) for index, length in enumerate(lengths)}}
    planned = plan_ranges(parse_options({**FLIGHTS, "minPartitions": str(least)}), held)
    covered = [(part.partition, offset) for part in planned for offset in range(part.start, part.end)]
    assert covered == [(index, index + offset) for index, length in enumerate(lengths) for offset in range(length)]
    assert len(planned) >= min(least, sum(lengths))
    assert all(part.end > part.start for part in planned)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "flights"}, "tidemark.bootstrap"),
        (BOOTSTRAP, "one of the options"),
        ({**FLIGHTS, "assign": '{"flights": [0]}'}, "one of the options"),
        ({**BOOTSTRAP, "subscribe": " , "}, "names no topic"),
        ({**FLIGHTS, "startingOffset": "earliest"}, "no option 'startingoffset'"),
        ({**FLIGHTS, "startingOffsets": "latest"}, "startingOffsets is 'latest'"),
        ({**FLIGHTS, "endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({**FLIGHTS, "startingOffsets": '{"flights": {"0": -1}}'}, "-2 for earliest"),
        ({**FLIGHTS, "endingOffsets": '{"flights": {"0": -2}}'}, "-1 for latest"),
        ({**FLIGHTS, "startingOffsets": '{"flights": {"0": 1}'}, "is not JSON"),
        ({**FLIGHTS, "startingOffsets": '{"trains": {"0": 1}}'}, "trains"),
        ({**BOOTSTRAP, "assign": '{"flights": [true]}'}, "want a list of partitions"),
        ({**FLIGHTS, "minPartitions": "0"}, "want a whole number from 1"),
        ({**FLIGHTS, "includeHeaders": "yes"}, "want true or false"),
        ({**FLIGHTS, "failOnDataLoss": "false"}, "every record or fails"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_options(options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": '{"flights": {"0": 9}}'}, "holds 10 to 110"),
        ({"endingOffsets": '{"flights": {"0": 111}}'}, "holds 10 to 110"),
        ({"startingOffsets": '{"flights": {"9": 0}}'}, "do not exist: [9]"),
        ({"startingOffsets": '{"flights": {"1": 9}}', "endingOffsets": '{"flights": {"1": 8}}'}, "is below"),
    ],
)
def test_offsets_that_the_topic_does_not_hold_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        plan_ranges(parse_options({**FLIGHTS, **options}), HELD)
