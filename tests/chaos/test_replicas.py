"""The comparison of replicas against doctored ones: what lacks and what differs is named."""

from __future__ import annotations

from tidemark.model import TopicPartition

from tests.chaos.replicas import Batches, compare

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


def test_one_other_byte_is_found() -> None:
    assert found(GOOD, GOOD, {**GOOD, 3: (5, b"dE")}) == [f"{WHERE}: brokers 0 and 2 differ at 3"]


def test_other_borders_of_batches_are_found() -> None:
    assert found(GOOD, {0: (5, b"abcde")}) == [f"{WHERE}: brokers 0 and 1 differ at 0"]
