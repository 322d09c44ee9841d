# SPDX-License-Identifier: Apache-2.0
"""Fetch responses have protobuf's bytes, in both directions."""

from __future__ import annotations

import contextlib
import random

import pytest
from google.protobuf.message import DecodeError
from tidemark.rpc.codecs import fetch as fetch_codec
from tidemark.rpc.codecs import wire
from tidemark.rpc.codecs.fetch import SMALL_BYTES, Fetched, Results
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import record_pb2

SIZES = (0, 1, 1_000, SMALL_BYTES, SMALL_BYTES + 1, 3_000_000)


def some_results(rng: random.Random) -> Results:
    """Results of a few partitions; any of them may be refused, empty, small or large."""
    results = Results()
    results.throttle_time_ms = rng.choice((0, 1, 30_000))
    for partition in range(rng.randrange(5)):
        facts = pb.PartitionFetchResult(topic="t" * rng.randrange(200), partition=partition, high_watermark=-1)
        facts.log_start_offset, facts.log_end_offset = rng.randrange(1 << 62), rng.randrange(1 << 62)
        if rng.random() < 0.3:
            facts.error.CopyFrom(record_pb2.Error(code="NOT_LEADER", message="x" * rng.choice((10, 20_000))))
        if rng.random() < 0.3:
            facts.preferred_read_replica = rng.randrange(5)
        if rng.random() < 0.3:
            facts.heard_high_watermark = rng.randrange(1 << 40)
        results.append(Fetched(facts, rng.randbytes(rng.choice(SIZES))))
    return results


def as_message(results: Results) -> pb.FetchResponse:
    response = pb.FetchResponse(throttle_time_ms=results.throttle_time_ms)
    for facts, batches in results:
        response.partitions.add().CopyFrom(facts)
        response.partitions[-1].batches = bytes(batches)
    return response


@pytest.mark.parametrize("seed", range(40))
def test_a_response_reads_as_with_protobuf_in_both_directions(seed: int) -> None:
    results = some_results(random.Random(seed))
    response = as_message(results)
    assert pb.FetchResponse.FromString(fetch_codec.encode(results)) == response
    for data in (fetch_codec.encode(results), response.SerializeToString()):
        assert as_message(fetch_codec.decode(data)) == response


def test_fields_of_a_later_version_are_skipped() -> None:
    unknown = b"\xf8\x07\x05" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x02ab"
    facts, batches = pb.PartitionFetchResult(topic="t", partition=7), bytes(range(256)) * 100
    partition = [unknown, *wire.message(facts, wire.nested(5, (batches,))), unknown]
    [(read, found)] = fetch_codec.decode(b"".join([unknown, *wire.nested(1, partition), unknown]))
    assert (read.topic, read.partition, found) == ("t", 7, batches)


@pytest.mark.parametrize("kept_bytes", [SMALL_BYTES + 1, 2 * SMALL_BYTES])
def test_a_truncated_message_is_refused(kept_bytes: int) -> None:
    data = fetch_codec.encode(Results([Fetched(pb.PartitionFetchResult(topic="t"), bytes(2 * SMALL_BYTES))]))
    with pytest.raises(ValueError, match="a field ends at byte"):
        fetch_codec.decode(data[:kept_bytes])


@pytest.mark.parametrize("bit", range(12 * 8))
def test_a_damaged_message_is_refused_or_read_within_its_bounds(bit: int) -> None:
    data = bytearray(fetch_codec.encode(Results([Fetched(pb.PartitionFetchResult(topic="t"), bytes(2 * SMALL_BYTES))])))
    data[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(ValueError, DecodeError):
        assert sum(len(result.batches) for result in fetch_codec.decode(bytes(data))) <= len(data)


@pytest.mark.parametrize("data", [b"\x0b", b"\x0f", b"\x80", b"\x08" + b"\x80" * 11, b"\x09" + bytes(7), b"\x0a\x02a"])
def test_other_bytes_have_no_fields(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a (field|number) "):
        list(wire.fields(memoryview(data)))
