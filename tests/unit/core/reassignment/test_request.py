# SPDX-License-Identifier: Apache-2.0
"""The JSON of reassignments and its checks: refusals, their codes, and the other entries."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.reassignment.request import check_reassignments, format_reassignments, parse_reassignments
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicDescription, TopicPartition

EXAMPLE = """
{
"version": 1,
"partitions": [
{
"topic": "test",
"partition": 2,
"replicas": [
2,
1
],
"log_dirs": [
"any",
"any"
]
}
]
}
"""
"""A reassignment of one partition, as an operator would write it."""


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


def move(
    topic: str = "orders", partition: int = 0, replicas: tuple[int, ...] = (1, 2), **fields: object
) -> PartitionReassignment:
    return PartitionReassignment(TopicPartition(topic, partition), ids(*replicas), **fields)  # type: ignore[arg-type]


def document(*entries: object, **fields: object) -> str:
    return json.dumps({"version": 1, "partitions": entries, **fields})


def entry(**fields: object) -> dict[str, object]:
    return {"topic": "orders", "partition": 0, "replicas": [1, 2], **fields}


ORDERS = TopicDescription(
    topic="orders",
    topic_id="a" * 32,
    partitions={0: ids(1, 2), 1: ids(2, 1)},
    incarnations={0: "b" * 32, 1: "c" * 32},
)


def codes(
    *moves: PartitionReassignment, live: tuple[int, ...] = (1, 2, 3), running: tuple[int, ...] = ()
) -> dict[str, ErrorCode]:
    errors = check_reassignments(
        moves, {"orders": ORDERS}, set(ids(*live)), {TopicPartition("orders", index) for index in running}
    )
    return {str(partition): error.code for partition, error in errors.items()}


def test_a_document_of_reassignments_is_parsed() -> None:
    assert parse_reassignments(EXAMPLE) == ((move("test", 2, (2, 1), log_dirs=("any", "any")),), ())
    assert parse_reassignments(EXAMPLE.encode()) == parse_reassignments(EXAMPLE)


def test_own_fields_are_parsed_from_the_same_entry() -> None:
    text = document(entry(throttle_bytes_per_s=5, cancel=True, request_id="r" * 128, comment="ignored"))
    assert parse_reassignments(text) == ((move(throttle_bytes_per_s=5, cancel=True, request_id="r" * 128),), ())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("{", ErrorCode.INVALID_REQUEST),
        (b"\xff\xfe\xff", ErrorCode.INVALID_REQUEST),
        ("[" * 200_000, ErrorCode.INVALID_REQUEST),
        ('{"version": ' + "9" * 5_000 + "}", ErrorCode.INVALID_REQUEST),
        ("[]", ErrorCode.INVALID_REQUEST),
        ('{"version": 1}', ErrorCode.INVALID_REQUEST),
        ('{"version": 1, "partitions": {}}', ErrorCode.INVALID_REQUEST),
        ('{"partitions": []}', ErrorCode.UNSUPPORTED_VERSION),
        ('{"version": 2, "partitions": []}', ErrorCode.UNSUPPORTED_VERSION),
        ('{"version": true, "partitions": []}', ErrorCode.UNSUPPORTED_VERSION),
        ('{"version": "1", "partitions": []}', ErrorCode.UNSUPPORTED_VERSION),
        ('{"version": 1.0, "partitions": []}', ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=range(13),
)
def test_a_document_that_does_not_parse_gives_one_error(text: str | bytes, code: ErrorCode) -> None:
    moves, errors = parse_reassignments(text)
    assert moves == ()
    assert [(error.code, "entry" in error.metadata) for error in errors] == [(code, False)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (7, ErrorCode.INVALID_REQUEST),
        ({}, ErrorCode.INVALID_REQUEST),
        (entry(topic=None), ErrorCode.INVALID_REQUEST),
        (entry(topic=".."), ErrorCode.INVALID_TOPIC_NAME),
        (entry(topic="a/b"), ErrorCode.INVALID_TOPIC_NAME),
        (entry(topic="a" * 250), ErrorCode.INVALID_TOPIC_NAME),
        (entry(partition=-1), ErrorCode.INVALID_REQUEST),
        (entry(partition="0"), ErrorCode.INVALID_REQUEST),
        (entry(partition=True), ErrorCode.INVALID_REQUEST),
        (entry(partition=2**31), ErrorCode.INVALID_REQUEST),
        (entry(replicas=None), ErrorCode.INVALID_REQUEST),
        (entry(replicas="12"), ErrorCode.INVALID_REQUEST),
        (entry(replicas=[-1]), ErrorCode.INVALID_REQUEST),
        (entry(replicas=[1.0]), ErrorCode.INVALID_REQUEST),
        (entry(log_dirs=None), ErrorCode.INVALID_REQUEST),
        (entry(log_dirs=[1, 2]), ErrorCode.INVALID_REQUEST),
        (entry(log_dirs=["any", "\ud800"]), ErrorCode.INVALID_REQUEST),
        (entry(log_dirs=[]), ErrorCode.LOG_DIRS_MISMATCH),
        (entry(throttle_bytes_per_s=-1), ErrorCode.INVALID_REQUEST),
        (entry(throttle_bytes_per_s=2**63), ErrorCode.INVALID_REQUEST),
        (entry(cancel=1), ErrorCode.INVALID_REQUEST),
        (entry(request_id=5), ErrorCode.INVALID_REQUEST),
        (entry(request_id="\ud800"), ErrorCode.INVALID_REQUEST),
        (entry(request_id="r" * 129), ErrorCode.INVALID_REQUEST),
    ],
    ids=range(24),
)
def test_a_malformed_entry_is_named_and_does_not_hide_the_good_ones(bad: object, code: ErrorCode) -> None:
    moves, errors = parse_reassignments(document(entry(partition=3), bad, entry(partition=4)))
    assert [one.partition.partition for one in moves] == [3, 4]
    assert [(error.code, error.metadata["entry"]) for error in errors] == [(code, "1")]
    assert errors[0].message.startswith("entry 1: ")
    assert len(errors[0].message) < 400


def test_an_error_names_its_partition_if_that_parses() -> None:
    _, (first, second) = parse_reassignments(document(entry(replicas=None), entry(topic="a/b", partition=9)))
    assert first.metadata == {"entry": "0", "topic": "orders", "partition": "0"}
    assert second.metadata == {"entry": "1", "partition": "9"}


def test_the_first_of_several_entries_for_a_partition_counts() -> None:
    moves, errors = parse_reassignments(document(entry(), entry(replicas=[3]), entry()))
    assert moves == (move(),)
    assert [error.code for error in errors] == [ErrorCode.DUPLICATE_PARTITION] * 2


MOVES = st.lists(
    st.builds(
        PartitionReassignment,
        partition=st.builds(
            TopicPartition, st.text("aZ9._-", min_size=1, max_size=4).map("a".__add__), st.integers(0, 2**31 - 1)
        ),
        replicas=st.lists(st.integers(0, 2**31 - 1).map(BrokerId), min_size=1, max_size=4).map(tuple),
        log_dirs=st.lists(st.text(max_size=4), max_size=4).map(tuple),
        throttle_bytes_per_s=st.integers(0, 2**63 - 1),
        cancel=st.booleans(),
        request_id=st.text(max_size=4) | st.just("r" * 128),
    ),
    unique_by=lambda one: one.partition,
)


@given(MOVES, st.randoms())
def test_formatted_entries_parse_again_in_any_order(moves: list[PartitionReassignment], random: object) -> None:
    text = format_reassignments(moves)
    assert parse_reassignments(text) == (tuple(sorted(moves, key=lambda one: one.partition)), ())
    assert parse_reassignments(text.encode()) == parse_reassignments(text)
    random.shuffle(moves)  # type: ignore[attr-defined]
    assert format_reassignments(moves) == text


def test_the_formatted_document_has_one_entry_a_line() -> None:
    assert format_reassignments([move(partition=10), move(partition=9, log_dirs=("any", "any"))]) == (
        '{\n  "version": 1,\n  "partitions": [\n'
        '    {"topic": "orders", "partition": 9, "replicas": [1, 2], "log_dirs": ["any", "any"]},\n'
        '    {"topic": "orders", "partition": 10, "replicas": [1, 2]}\n'
        "  ]\n}\n"
    )


KEYS = st.sampled_from(["topic", "partition", "replicas", "log_dirs", "cancel", "version", "partitions"])
KEYS |= st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_any_json_entry_is_a_reassignment_or_an_error(anything: object) -> None:
    for text in (json.dumps(anything), json.dumps({"version": 1, "partitions": [anything, anything]})):
        moves, errors = parse_reassignments(text)
        assert moves or errors
        assert all(isinstance(error, TidemarkError) for error in errors)


def test_a_possible_reassignment_is_not_refused() -> None:
    assert codes(move(replicas=(2, 3)), move(partition=1, log_dirs=("any", "/data/1"))) == {}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (move(log_dirs=("any",)), ErrorCode.LOG_DIRS_MISMATCH),
        (move(replicas=(), log_dirs=("any",)), ErrorCode.LOG_DIRS_MISMATCH),
        (move(replicas=()), ErrorCode.EMPTY_REPLICAS),
        (move(replicas=(1, 2, 1)), ErrorCode.DUPLICATE_REPLICA),
        (move(log_dirs=("any", " ")), ErrorCode.LOG_DIR_NOT_FOUND),
        (move(topic="payments"), ErrorCode.UNKNOWN_TOPIC),
        (move(partition=2), ErrorCode.UNKNOWN_PARTITION),
        (move(replicas=(1, 8, 9)), ErrorCode.BROKER_NOT_AVAILABLE),
        (move(cancel=True, replicas=()), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
    ids=lambda value: str(value) if isinstance(value, ErrorCode) else "",
)
def test_each_mistake_has_its_code(wanted: PartitionReassignment, code: ErrorCode) -> None:
    good = move(partition=1)
    assert codes(wanted, good) == {str(wanted.partition): code}


def test_a_partition_named_twice_is_refused_and_the_others_are_not() -> None:
    assert codes(move(), move(partition=1), move(replicas=(3,))) == {"orders-0": ErrorCode.DUPLICATE_PARTITION}


def test_during_a_reassignment_another_is_refused_and_a_cancel_is_not() -> None:
    assert codes(move(), running=(0,)) == {"orders-0": ErrorCode.REASSIGNMENT_IN_PROGRESS}
    assert codes(move(cancel=True, replicas=(9,)), running=(0,)) == {}


def test_brokers_that_are_missing_are_named() -> None:
    (error,) = check_reassignments([move(replicas=(1, 8, 9))], {"orders": ORDERS}, ids(1, 2), ()).values()
    assert error.metadata == {"topic": "orders", "partition": "0", "brokers": "8, 9"}
    assert "8, 9" in error.message
