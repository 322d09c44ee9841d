# SPDX-License-Identifier: Apache-2.0
"""protobuf reads the messages of hand-written code like its own."""

from __future__ import annotations

import random

import pytest
from tidemark.rpc.codecs import wire
from tidemark.v1 import broker_service_pb2 as pb


@pytest.mark.parametrize("size_bytes", [0, 1, 127, 128, 16_383, 16_384, 70_000, 2_100_000])
def test_a_message_around_batches_reads_as_if_protobuf_had_written_it(size_bytes: int) -> None:
    rng = random.Random(size_bytes)
    batches = [rng.randbytes(size_bytes), b"", rng.randbytes(size_bytes // 2)]
    partition = pb.PartitionProduce(topic="t", partition=3, current_leader_epoch=-1, topic_id="id")
    request = pb.ProduceRequest(correlation_id=1 << 40, acks=-1, timeout_ms=30_000)
    pieces = [wire.nested(4, wire.message(partition, *(wire.nested(4, (batch,)) for batch in batches)))] * 2
    sent = pb.ProduceRequest.FromString(b"".join(wire.message(request, *pieces)))
    partition.batches.extend(batches)
    request.partitions.extend([partition, partition])
    assert sent == request


def test_batches_one_after_another_are_one_field() -> None:
    pieces = wire.nested(pb.PartitionFetchResult.BATCHES_FIELD_NUMBER, (b"ab", b"", b"cd"))
    assert pb.PartitionFetchResult.FromString(b"".join(pieces)).batches == b"abcd"
