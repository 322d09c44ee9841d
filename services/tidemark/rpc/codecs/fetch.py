# SPDX-License-Identifier: Apache-2.0
"""Fetch responses on the wire, without copying batches into messages or out of them (FetchResponse of `proto/`).

protobuf copies a bytes field when it is set, at every access, and twice more before it is sent. For 1 MiB that takes
longer than reading the bytes from the page cache and sending them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemark.rpc.codecs import wire
from tidemark.v1 import broker_service_pb2 as pb

SMALL_BYTES: Final = 16 << 10
"""Largest size at which protobuf's copies are faster than the code here."""
_PARTITIONS: Final = pb.FetchResponse.PARTITIONS_FIELD_NUMBER
_BATCHES: Final = pb.PartitionFetchResult.BATCHES_FIELD_NUMBER


class Fetched(NamedTuple):
    """The fetched data of one partition.

    Attributes:
        facts: the message without the batches.
        batches: whole batches, one after another; a view of the response that they came with.
    """

    facts: pb.PartitionFetchResult
    batches: bytes | memoryview = b""


class Results(list[Fetched]):
    """The fetched partitions of a response.

    Attributes:
        throttle_time_ms: time for which the client must send no other fetch to this broker.
    """

    throttle_time_ms = 0


def encode(results: Results) -> bytes:
    """The bytes of a FetchResponse; large batches are not copied into messages."""
    pieces: list[bytes] = []
    small = pb.FetchResponse(throttle_time_ms=results.throttle_time_ms)
    for facts, batches in results:
        if len(batches) <= SMALL_BYTES:
            small.partitions.append(facts)
            if batches:
                small.partitions[-1].batches = bytes(batches)
            continue
        pieces += (small.SerializeToString(), *wire.nested(_PARTITIONS, _partition(facts, bytes(batches))))
        small.Clear()
    return b"".join((*pieces, small.SerializeToString()))


def _partition(facts: pb.PartitionFetchResult, batches: bytes) -> list[bytes]:
    return wire.message(facts, wire.nested(_BATCHES, (batches,)))


def decode(data: bytes) -> Results:
    """A FetchResponse of any sender; raises ValueError or DecodeError for other bytes."""
    if len(data) <= SMALL_BYTES:
        response = pb.FetchResponse.FromString(data)
        results = Results(Fetched(result, result.batches) for result in response.partitions)
        results.throttle_time_ms = response.throttle_time_ms
        return results
    view = memoryview(data)
    results = Results(
        _fetched(view[field.start : field.end]) for field in wire.fields(view) if field.holds(_PARTITIONS)
    )
    facts = pb.FetchResponse.FromString(b"".join(_others(view, _PARTITIONS)))
    results.throttle_time_ms = facts.throttle_time_ms
    return results


def _fetched(view: memoryview) -> Fetched:
    if len(view) <= SMALL_BYTES:
        result = pb.PartitionFetchResult.FromString(bytes(view))
        return Fetched(result, result.batches)
    batches, others = memoryview(b""), list(_others(view, _BATCHES))
    for field in wire.fields(view):
        if field.holds(_BATCHES):
            batches = view[field.start : field.end]
    return Fetched(pb.PartitionFetchResult.FromString(b"".join(others)), batches)


def _others(view: memoryview, number: int) -> Iterator[memoryview]:
    """The bytes of all fields except those with that number."""
    begin = 0
    for field in wire.fields(view):
        if not field.holds(number):
            yield view[begin : field.end]
        begin = field.end
