# SPDX-License-Identifier: Apache-2.0
"""Keys of other types than bytes, with the partition that the key chooses; no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.producer import Producer
from tidemark.client.producing.accumulator import Accumulator
from tidemark.client.producing.partitioner import partition_of

PARTITIONS = 16


@pytest.fixture
def producer() -> Producer:
    """A producer whose topic has no schema, and that sends nothing."""
    made = Producer("127.0.0.1:1")
    gathering = Accumulator(batch_bytes=1 << 20, buffer_bytes=1 << 20, delivery_timeout_s=60, wake=lambda: None)
    made._sender = cast(Any, SimpleNamespace(accumulator=gathering))
    made._formats = cast(Any, SimpleNamespace(now=lambda _: None, current=lambda *_: None))
    made.cluster.topic_now = lambda _: cast(  # type: ignore[method-assign]
        Any, SimpleNamespace(topic="t", count=PARTITIONS, partitions=[0], schema_version=0, topic_id="i")
    )
    return made


@pytest.mark.parametrize("key", [b"alice", bytearray(b"alice"), memoryview(b"alice")])
def test_bytes_like_keys_choose_the_partition_of_their_bytes(producer: Producer, key: Any) -> None:
    handles = [
        producer.send_now("t", b"v", key, None, None, None),
        producer.add("t", b"v", PARTITIONS, key, None, None, None),
    ]
    chosen = partition_of(b"alice", PARTITIONS)
    assert [handle is not None and handle._batch.partition.partition for handle in handles] == [chosen, chosen]


@pytest.mark.parametrize(
    ("key", "sentence"), [("alice", "key is of type str, not bytes: encode it"), (5, "key is of type int, not bytes")]
)
def test_keys_of_other_types_are_refused_by_their_name(producer: Producer, key: Any, sentence: str) -> None:
    for partition in (None, 3):
        with pytest.raises(TypeError, match=sentence):
            producer.send_now("t", b"v", key, None, None, partition)
        with pytest.raises(TypeError, match=sentence):
            producer.add("t", b"v", PARTITIONS, key, None, None, partition)


@pytest.mark.parametrize("headers", ["ab", [b"abc"], [("name", b"1", b"2")]])
def test_headers_without_pairs_are_refused(producer: Producer, headers: Any) -> None:
    with pytest.raises(TypeError, match="headers are pairs of name and value, or a mapping"):
        producer.send_now("t", b"v", None, headers, None, None)


def test_headers_are_those_at_the_time_of_the_send(producer: Producer) -> None:
    """An application may use one dict for all records."""
    headers: dict[str, bytes | None] = {}
    pairs: Any = [["trace", b"a"]]
    sent: list[Any] = []
    for number in (b"0", b"1"):
        headers["number"] = number
        for given in (headers, headers.items(), (pair for pair in headers.items()), pairs):
            producer.send_now("t", b"v", None, given, None, 0)
        sent += [[("number", number)]] * 3 + [[("trace", b"a" if number == b"0" else b"b")]]
        pairs[0][1] = b"b"
    (batch,) = producer.sender.accumulator.take_closed(lambda _: True)
    assert batch.take_rows().column("headers").to_pylist() == sent
