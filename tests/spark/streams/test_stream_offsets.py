# SPDX-License-Identifier: Apache-2.0
"""Steps of a streaming query's offset; pure, no Spark and no brokers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_spark.stream_offsets import (
    Available,
    CheckpointError,
    Position,
    StreamOffset,
    TopicPosition,
    advance,
    check_cluster,
    clamp,
    from_json,
    losses,
    share,
    waiting,
)

CLUSTER = "cluster-1"


def offset_of(topics: dict[str, dict[int, int]], *, epoch: int = 3, topic_id: str = "id") -> StreamOffset:
    """Offsets by topic and partition, all stated in one leader epoch."""
    return StreamOffset(
        CLUSTER,
        {
            name: TopicPosition(
                f"{topic_id}-{name}",
                {index: Position(offset, epoch, f"incarnation-{index}") for index, offset in partitions.items()},
            )
            for name, partitions in topics.items()
        },
    )


def offsets_in(offset: StreamOffset) -> dict[str, dict[int, int]]:
    return {
        name: {index: position.offset for index, position in topic.partitions.items()}
        for name, topic in offset.topics.items()
    }


TOPICS = st.dictionaries(
    st.sampled_from(["flights", "trains"]),
    st.dictionaries(st.integers(0, 4), st.integers(0, 60), min_size=1, max_size=4),
    min_size=1,
)


@settings(deadline=None)
@given(ends=TOPICS, limits=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_any_cut_into_micro_batches_reads_every_offset_once_in_order(
    ends: dict[str, dict[int, int]], limits: list[int]
) -> None:
    available = Available(offset_of(ends))
    position = offset_of({name: dict.fromkeys(partitions, 0) for name, partitions in ends.items()}, epoch=-1)
    read: dict[tuple[str, int], list[int]] = {}
    rounds = 0
    while offsets_in(position) != ends:
        limit = limits[rounds % len(limits)]
        before, position = position, advance(position, available, limit)
        moved, waiting_ones = 0, 0
        for name, topic in position.topics.items():
            for index, end in topic.partitions.items():
                start = before.topics[name].partitions[index]
                read.setdefault((name, index), []).extend(range(start.offset, end.offset))
                moved += end.offset - start.offset
                waiting_ones += start.offset < ends[name][index]
        assert 0 < moved <= max(limit, waiting_ones)
        rounds += 1
    for (name, index), found in read.items():
        assert found == list(range(ends[name][index]))
    assert advance(position, available, 5) == position


@settings(deadline=None)
@given(lengths=st.dictionaries(st.integers(0, 9), st.integers(0, 1000), min_size=1), limit=st.integers(1, 500))
def test_a_limit_is_used_up_and_starves_no_partition(lengths: dict[int, int], limit: int) -> None:
    wanted = {("flights", index): length for index, length in lengths.items()}
    shares = share(wanted, limit)
    waiting_ones = [where for where in wanted if wanted[where]]
    assert sum(shares.values()) == min(max(limit, len(waiting_ones)), sum(wanted.values()))
    assert all(0 <= shares[where] <= wanted[where] for where in wanted)
    assert all(shares[where] for where in waiting_ones)


def test_unchanged_offsets_serialize_identically() -> None:
    start = offset_of({"flights": {0: 5, 1: 7, 10: 2}}, epoch=1)
    later = advance(start, Available(offset_of({"flights": {0: 5, 1: 9, 10: 2}}, epoch=4)), None)
    assert later.topics["flights"].partitions[0] == start.topics["flights"].partitions[0]
    assert later.topics["flights"].partitions[1] == Position(9, 4, "incarnation-1")
    still = advance(later, Available(offset_of({"flights": {10: 2, 1: 9, 0: 5}}, epoch=6)), 100)
    assert json.dumps(still.to_json()) == json.dumps(later.to_json())


@settings(deadline=None)
@given(topics=TOPICS)
def test_a_checkpoint_gives_back_the_offset(topics: dict[str, dict[int, int]]) -> None:
    offset = offset_of(topics)
    assert from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_a_new_partition_is_read_from_its_first_offset_and_logged_once() -> None:
    start = offset_of({"flights": {0: 5}})
    available = Available(offset_of({"flights": {0: 5, 1: 30}}), {("flights", 1): 10})
    first = advance(start, available, 8)
    assert first.topics["flights"].partitions[1] == Position(18, 3, "incarnation-1", begin=10)
    second = advance(first, available, None)
    assert second.topics["flights"].partitions[1] == Position(30, 3, "incarnation-1")


def test_records_of_a_new_partition_wait_until_they_are_read_and_no_longer() -> None:
    start = offset_of({"flights": {0: 5}})
    available = Available(offset_of({"flights": {0: 5, 1: 30}}), {("flights", 1): 10})
    assert waiting(start, available) == 20
    assert waiting(advance(start, available, 8), available) == 12
    assert waiting(advance(start, available, None), available) == 0


def test_an_available_now_query_stops_at_its_target() -> None:
    target = offset_of({"flights": {0: 10}})
    now = offset_of({"flights": {0: 25, 1: 4}, "trains": {0: 3}})
    assert offsets_in(clamp(now, target)) == {"flights": {0: 10}}
    assert offsets_in(clamp(offset_of({"flights": {0: 7}}), target)) == {"flights": {0: 7}}


def test_an_available_now_query_keeps_its_place_in_partitions_that_its_target_lacks() -> None:
    start = offset_of({"flights": {0: 5, 1: 4}, "trains": {0: 3}})
    now = Available(offset_of({"flights": {0: 25, 1: 9, 2: 8}, "trains": {0: 6}, "ships": {0: 1}}))
    end = clamp(now.latest, offset_of({"flights": {0: 10}}), start)
    assert offsets_in(end) == {"flights": {0: 10, 1: 4}, "trains": {0: 3}}
    assert losses(advance(start, Available(end), None), now) == []


def test_an_available_now_query_that_starts_behind_its_target_stays_at_its_start() -> None:
    target, now = offset_of({"flights": {0: 10, 1: 4}}), Available(offset_of({"flights": {0: 25, 1: 9}}))
    start = offset_of({"flights": {0: 12, 1: 4}}, epoch=-1)
    assert advance(start, Available(clamp(now.latest, target, start)), None) == start


def test_pending_records_are_counted_over_all_partitions() -> None:
    start = offset_of({"flights": {0: 5, 1: 5}})
    available = Available(offset_of({"flights": {0: 9, 1: 5, 2: 20}}), {("flights", 2): 18})
    assert waiting(start, available) == 4 + 2


def recreated_partition() -> StreamOffset:
    return StreamOffset(CLUSTER, {"flights": TopicPosition("id-flights", {0: Position(90, 3, "other")})})


@pytest.mark.parametrize(
    ("available", "sentence", "goes_on_at", "skipped"),
    [
        (Available(offset_of({"trains": {0: 1}})), "flights (id-flights) was deleted", None, 0),
        (Available(offset_of({"flights": {0: 90}}, topic_id="new")), "was deleted and created again", 90, 0),
        (Available(offset_of({"flights": {1: 90}})), "flights-0 was removed, or is not read any more", None, 0),
        (Available(recreated_partition()), "flights-0 was removed and added again", 90, 0),
        (Available(offset_of({"flights": {0: 30}}, epoch=5)), "An unclean election truncated its log", 30, 20),
        (Available(offset_of({"flights": {0: 90}}), {("flights", 0): 60}), "offsets 50 to 60 were deleted", 90, 10),
    ],
)
def test_a_loss_is_named_and_counted_where_it_is_skipped(
    available: Available, sentence: str, goes_on_at: int | None, skipped: int
) -> None:
    start = offset_of({"flights": {0: 50}})
    told = losses(start, available)
    assert len(told) == 1
    assert sentence in told[0]
    position = advance(start, available, None).position("flights", 0)
    assert (position and position.offset) == goes_on_at
    assert (position.skipped if position else 0) == skipped


def test_the_stream_reports_no_loss_for_a_complete_log() -> None:
    start = offset_of({"flights": {0: 50}})
    assert losses(start, Available(offset_of({"flights": {0: 50, 1: 3}, "trains": {0: 1}}))) == []


def test_a_query_that_has_read_uncommitted_records_waits_for_the_last_stable_offset() -> None:
    start, now = offset_of({"flights": {0: 50, 1: 5}}), Available(offset_of({"flights": {0: 30, 1: 9}}))
    assert losses(start, now) == []
    end = advance(start, now, None)
    assert offsets_in(end) == {"flights": {0: 50, 1: 9}}
    assert end.position("flights", 0) == start.position("flights", 0)
    assert waiting(start, now) == 4


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint is of cluster cluster-1"):
        check_cluster(offset_of({"flights": {0: 1}}), "cluster-2")


@pytest.mark.parametrize("value", [{}, {"flights": {"0": 5}}, {"version": 1, "cluster": "c", "topics": {"flights": 3}}])
def test_a_checkpoint_that_is_none_of_ours_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint is"):
        from_json(value)


def test_a_lower_end_at_a_replaced_leader_is_not_taken_for_a_truncation() -> None:
    start = offset_of({"flights": {0: 50}}, epoch=5)
    replaced = Available(offset_of({"flights": {0: 40}}, epoch=3))
    assert losses(start, replaced) == []
    assert advance(start, replaced, None) == start
    elected = Available(offset_of({"flights": {0: 40}}, epoch=6))
    assert len(losses(start, elected)) == 1
