# SPDX-License-Identifier: Apache-2.0
"""The comparison of replicas names each missing and each different record of a changed replica."""

from __future__ import annotations

from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns

from tests.chaos.checks.replicas import Batches, compare, compare_records

WHERE = TopicPartition("round", 0)
GOOD: Batches = {0: (3, b"abc"), 3: (5, b"de")}


def found(*replicas: Batches) -> list[str]:
    return compare({broker: {WHERE: replica} for broker, replica in enumerate(replicas)}, {WHERE: 5})


def test_equal_replicas_pass() -> None:
    assert found(GOOD, dict(GOOD), dict(GOOD)) == []


def test_a_replica_that_ends_too_early_is_named() -> None:
    assert f"{WHERE}: broker 2 ends at 3, below 5" in found(GOOD, GOOD, {0: (3, b"abc")})


def test_a_replica_that_is_not_there_is_named() -> None:
    assert f"{WHERE}: broker 1 ends at 0, below 5" in compare({0: {WHERE: GOOD}, 1: {}}, {WHERE: 5})


def test_the_check_finds_one_different_byte() -> None:
    assert found(GOOD, GOOD, {**GOOD, 3: (5, b"dE")}) == [f"{WHERE}: brokers 0 and 2 differ at 3"]


def test_other_borders_of_batches_are_found() -> None:
    assert found(GOOD, {0: (5, b"abcde")}) == [f"{WHERE}: brokers 0 and 1 differ at 0"]


def test_below_where_a_replica_starts_nothing_is_compared() -> None:
    assert found(GOOD, {3: (5, b"de")}) == []
    assert found(GOOD, {3: (5, b"dE")}) == [f"{WHERE}: brokers 0 and 1 differ at 3"]


def keyed(base: int, *records: tuple[str, str]) -> tuple[int, tuple[int, bytes]]:
    rows = from_columns(
        [key.encode() for key, _ in records], [value.encode() for _, value in records], [0] * len(records)
    )
    data = bytes(build_batch(rows))
    data = bytes(stamped(Batch(parse_envelope(data), data), base_offset=base, leader_epoch=0).data)
    return base, (base + len(records), data)


def compacted(*replicas: Batches) -> list[str]:
    return compare_records({broker: {WHERE: replica} for broker, replica in enumerate(replicas)}, {WHERE: 4})


FIRST, SECOND = keyed(0, ("k", "old"), ("l", "only")), keyed(2, ("k", "new"), ("m", "only"))
WHOLE, CLEANED = dict([FIRST, SECOND]), dict([keyed(1, ("l", "only")), SECOND])


def test_compacted_replicas_may_lack_records_that_a_later_one_covers() -> None:
    assert compacted(WHOLE, CLEANED, WHOLE) == []


def test_a_compacted_replica_that_lacks_the_latest_record_of_a_key_is_named() -> None:
    assert compacted(WHOLE, dict([FIRST])) == [f"{WHERE}: broker 1 lacks the latest records of keys at [2, 3]"]


def test_compacted_replicas_that_differ_are_named() -> None:
    other = dict([FIRST, keyed(2, ("k", "newer"), ("m", "only"))])
    assert compacted(WHOLE, other) == [f"{WHERE}: brokers 0 and 1 differ at 2"]
