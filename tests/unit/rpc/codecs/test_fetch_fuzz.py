# SPDX-License-Identifier: Apache-2.0
"""Random bytes as a FetchResponse: the codec reads the same as protobuf, or refuses the bytes.

The messages have random fields in a random order: some twice, some unknown, some of the wrong wire type, with numbers
longer than necessary. Then they are truncated and damaged.
"""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from tidemark.rpc.codecs import fetch as fetch_codec
from tidemark.rpc.codecs.fetch import SMALL_BYTES
from tidemark.v1 import broker_service_pb2 as pb

EDGES = (0, 1, 127, 128, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
DAMAGES = 12
MESSAGES = 12


def varint(number: int, longer: int = 0) -> bytes:
    """`longer`: number of octets more than necessary."""
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    for _ in range(longer):
        octets[-1] |= 0x80
        octets.append(0)
    return bytes(octets)


def tag(rng: random.Random, number: int, kind: int) -> bytes:
    return varint(number << 3 | kind, rng.choices((0, 1, 3, 6), (90, 5, 5, 1))[0])


def some_number(rng: random.Random) -> int:
    return rng.choice((rng.choice(EDGES), rng.randrange(1 << 64), rng.randrange(100)))


def some_content(rng: random.Random, number: int) -> bytes:
    """The content of one field, of any wire type."""
    kind = rng.choice((0, 0, 1, 2, 2, 5))
    head = tag(rng, number, kind)
    if kind == 0:
        return head + varint(some_number(rng), rng.choice((0, 0, 1)))
    if kind == 2:
        content = rng.choice((b"", b"t", bytes(3), rng.randbytes(9), varint(some_number(rng))))
        return head + varint(len(content), rng.choices((0, 2, 5, 9), (90, 9, 1, 1))[0]) + content
    return head + rng.randbytes(8 if kind == 1 else 4)


def some_partition(rng: random.Random, *, big: bool) -> bytes:
    known = [field.number for field in pb.PartitionFetchResult.DESCRIPTOR.fields]
    proper = pb.PartitionFetchResult(topic="topic", partition=rng.choice((-1, 0, 7)), high_watermark=-1)
    proper.log_end_offset = rng.randrange(1 << 62)
    if rng.random() < 0.5:
        proper.error.code = "NOT_LEADER"
    pieces = [proper.SerializeToString()]
    batches_tag = tag(rng, pb.PartitionFetchResult.BATCHES_FIELD_NUMBER, 2)
    for size in rng.choices((0, 5, SMALL_BYTES + 100), k=rng.randrange(3)) + ([SMALL_BYTES + 1] if big else []):
        pieces.append(batches_tag + varint(size) + rng.randbytes(size))
    pieces += [some_content(rng, rng.choice((*known, 99, 1 << 28))) for _ in range(rng.randrange(4))]
    rng.shuffle(pieces)
    return b"".join(pieces)


def some_response(rng: random.Random) -> bytes:
    pieces = []
    for index in range(rng.randrange(1, 4)):
        partition = some_partition(rng, big=index == 0)
        pieces.append(tag(rng, 1, 2) + varint(len(partition), rng.choice((0, 0, 1))) + partition)
    pieces += [some_content(rng, rng.choice((1, 2, 99))) for _ in range(rng.randrange(3))]
    rng.shuffle(pieces)
    return b"".join(pieces)


def by_hand(data: bytes) -> list[pb.PartitionFetchResult] | None:
    """The decoded results; None if the data is refused."""
    try:
        results = fetch_codec.decode(data)
    except (ValueError, DecodeError):
        return None
    read = []
    for facts, batches in results:
        read.append(pb.PartitionFetchResult())
        read[-1].CopyFrom(facts)
        read[-1].batches = bytes(batches)
    return read


def by_protobuf(data: bytes) -> list[pb.PartitionFetchResult] | None:
    try:
        return list(pb.FetchResponse.FromString(data).partitions)
    except DecodeError:
        return None


def meaning(results: list[pb.PartitionFetchResult]) -> list[bytes]:
    """The messages without their unknown fields."""
    for one in results:
        one.DiscardUnknownFields()
    return [one.SerializeToString(deterministic=True) for one in results]


def assert_the_same(data: bytes) -> bool:
    hand, protobuf = by_hand(data), by_protobuf(data)
    if hand is not None:
        assert protobuf is not None, "bytes that protobuf refuses are refused"
        assert meaning(hand) == meaning(protobuf)
    return hand is not None


@pytest.mark.parametrize("seed", range(60))
def test_the_codec_reads_the_same_as_protobuf(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(MESSAGES):
        data = some_response(rng)
        assert by_protobuf(data) is None or assert_the_same(data), "bytes that protobuf reads are not refused"


@pytest.mark.parametrize("seed", range(60))
def test_truncated_or_damaged_bytes_are_read_as_by_protobuf_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    data = some_response(rng)
    for _ in range(DAMAGES):
        assert_the_same(data[: rng.randrange(len(data))])
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.choice((rng.randrange(len(data)), rng.randrange(40)))] = rng.randrange(256)
        assert_the_same(bytes(damaged))
