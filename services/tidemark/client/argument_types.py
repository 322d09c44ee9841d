# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments at the call: TypeError for a wrong type, INVALID_REQUEST for a wrong value, by argument name."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from threading import TIMEOUT_MAX
from typing import Any, SupportsFloat, TypeVar

from tidemark.client.suggestions import nearest
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.model import PartitionReassignment, TopicPartition, invalid_request

T = TypeVar("T")


def integer(name: str, given: Any) -> int:
    """Convert an integer of any type, such as one of numpy; raises TypeError for other types, such as a float or a
    text.
    """
    try:
        return operator.index(given)
    except TypeError:
        raise _wrong(name, given, "an integer") from None


def int32(name: str, given: Any) -> int:
    """Return an integer; raises TypeError for another type, and INVALID_REQUEST outside 32 bits."""
    return _within(name, integer(name, given), -1 << 31, (1 << 31) - 1)


def int64(name: str, given: Any) -> int:
    """Return an integer; raises TypeError for another type, and INVALID_REQUEST outside 64 bits."""
    return _within(name, integer(name, given), -1 << 63, (1 << 63) - 1)


def _within(name: str, number: int, smallest: int, largest: int) -> int:
    if not smallest <= number <= largest:
        raise invalid_request(f"{name} is {number}: expected {smallest} to {largest}")
    return number


def key_and_value(record: Any) -> tuple[Any, Any]:
    """Return the two elements of a record; raises TypeError unless the record is a pair."""
    return pair(record, "records are pairs of key and value")


def pair(given: Any, wanted: str) -> tuple[Any, Any]:
    """Return the two elements of a pair; raises TypeError, which begins with `wanted`, unless there are two."""
    try:
        first, second = given
    except (TypeError, ValueError):
        raise TypeError(f"{wanted}, not {given!r}") from None
    return first, second


def positive(name: str, given: Any) -> int:
    """Return an integer; raises TypeError for another type, and INVALID_REQUEST below 1."""
    found = integer(name, given)
    if found < 1:
        raise invalid_request(f"{name} is {given}: give 1 or more")
    return found


def number(name: str, given: Any) -> float:
    """Return an int or a float; raises TypeError for another type, and INVALID_REQUEST for NaN."""
    if isinstance(given, int | float):
        found = given
    elif isinstance(given, SupportsFloat):
        found = float(given)
    else:
        raise _wrong(name, given, "a number")
    if math.isnan(found):
        raise invalid_request(f"{name} is NaN: give a number")
    return found


def seconds(name: str, given: Any) -> float:
    """Return a time in seconds; raises TypeError for another type, and INVALID_REQUEST below 0."""
    found = number(name, given)
    if found < 0:
        raise invalid_request(f"{name} is {given}: give 0 or more seconds")
    return min(found, TIMEOUT_MAX)


def text(name: str, given: Any) -> str:
    """Return a text; raises TypeError for another type."""
    if not isinstance(given, str):
        raise _wrong(name, given, "a text")
    return given


def flag(name: str, given: Any) -> bool:
    """Return a boolean; raises TypeError for another type, since a text such as "False" would count as true."""
    if not isinstance(given, bool):
        raise _wrong(name, given, "True or False")
    return given


def texts(name: str, given: Any) -> list[str]:
    """Return a list of texts; raises TypeError for another type, and for one text, whose letters would be the items."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _wrong(name, given, "a list of texts")
    return [text(f"an item of {name}", one) for one in given]


def integers(name: str, given: Any) -> list[int]:
    """Return a list of integers; raises TypeError for another type."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _wrong(name, given, "a list of integers")
    return [integer(f"an item of {name}", one) for one in given]


def int32s(name: str, given: Any) -> list[int]:
    """Return a list of integers; raises TypeError for another type, and INVALID_REQUEST outside 32 bits."""
    return [int32(f"an item of {name}", one) for one in integers(name, given)]


def instance(name: str, given: Any, kind: type[T]) -> T:
    """Return an object of a class; raises TypeError for another."""
    if not isinstance(given, kind):
        raise _wrong(name, given, f"a {kind.__name__}")
    return given


def instances(name: str, given: Any, kind: type[T]) -> list[T]:
    """Return a list of objects of a class; raises TypeError for another type."""
    if isinstance(given, str | bytes | kind) or not isinstance(given, Iterable):
        raise _wrong(name, given, f"a list of {kind.__name__}")
    return [instance(f"an item of {name}", one, kind) for one in given]


def partition_of(name: str, given: Any) -> TopicPartition:
    """Convert a (topic, index) pair; raises TypeError for another type, and INVALID_REQUEST for an impossible index."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        index = f"the partition of {name}"
        return TopicPartition(given[0], _within(index, integer(index, given[1]), 0, (1 << 31) - 1))
    raise _wrong(name, given, "a TopicPartition or a pair of topic and partition")


def partitions_of(name: str, given: Any) -> list[TopicPartition]:
    """Convert (topic, index) pairs; raises the errors of `partition_of`."""
    if isinstance(given, str | bytes | TopicPartition) or not isinstance(given, Iterable):
        raise _wrong(name, given, "a list of TopicPartition or of pairs of topic and partition")
    return [partition_of(f"an item of {name}", one) for one in given]


def moves_of(name: str, given: Any) -> list[PartitionReassignment]:
    """Return a list of reassignments; raises TypeError for another type, and INVALID_REQUEST outside 32 bits."""
    found = instances(name, given, PartitionReassignment)
    for one in found:
        partition_of(f"an item of {name}", one.partition)
        int32s(f"the replicas of an item of {name}", one.replicas)
    return found


def replicas_of(name: str, given: Any) -> list[ReplicaLogDir]:
    """Return a list of replicas with directories; raises TypeError, and INVALID_REQUEST outside 32 bits."""
    found = instances(name, given, ReplicaLogDir)
    for one in found:
        partition_of(f"an item of {name}", one.partition)
        int32(f"the broker of an item of {name}", one.broker_id)
    return found


def offsets_of(name: str, given: Any) -> dict[TopicPartition, int]:
    """Convert a mapping of (topic, index) pairs to offsets; raises TypeError, and INVALID_REQUEST below 0."""
    if not isinstance(given, Mapping):
        raise _wrong(name, given, "a mapping of partitions and offsets")
    found = {}
    for where, value in given.items():
        offset = integer(f"an offset of {name}", value)
        if not 0 <= offset < 1 << 63:
            raise invalid_request(f"{name}: {offset} is not an offset: expected 0 to {(1 << 63) - 1}")
        found[partition_of(f"a partition of {name}", where)] = offset
    return found


def versions(name: str, given: Any) -> dict[str, int]:
    """Convert a mapping of topics to versions; raises TypeError, and INVALID_REQUEST below 1."""
    if not isinstance(given, Mapping):
        raise _wrong(name, given, "a mapping of topics and versions")
    return {text(f"a topic of {name}", topic): positive(f"a version of {name}", one) for topic, one in given.items()}


def check_names(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for the name of an argument that `owner` does not have, with the nearest valid name."""
    for name in given:
        if name not in known:
            similar = nearest(name, known)
            hint = f"did you mean {similar}?" if similar else f"its arguments are {', '.join(sorted(known))}"
            raise TypeError(f"{owner} has no argument {name!r}: {hint}")


def _wrong(name: str, given: Any, wanted: str) -> TypeError:
    shown = repr(given)
    return TypeError(
        f"{name} is {shown if len(shown) <= 60 else shown[:60] + '...'}, a {type(given).__name__}, not {wanted}"
    )
