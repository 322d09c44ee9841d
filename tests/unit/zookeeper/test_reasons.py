# SPDX-License-Identifier: Apache-2.0
"""The reason for an unreadable node is a sentence for an operator, never the message of a codec or of Python."""

from __future__ import annotations

import json

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper import codecs

from tests.refusals import raises_code

PATH = "/brokers/topics/t/0/leaderAndISR"
WHOLE = {"leader": 0, "leader_epoch": 1, "isr": [[0, 0]]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"garbage", "its content is not JSON"),
        (b"\xff\xfe\x00\x00garbage!", "its content is not JSON"),
        (b"{\xc3}", "its content is not JSON"),
        (b"[" * 100_000, "its content is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "'leader' is missing"),
        (json.dumps({**WHOLE, "isr": 5}).encode(), "a field has a wrong type or value"),
        (json.dumps({**WHOLE, "isr": [[1]]}).encode(), "a field has a wrong type or value"),
        (json.dumps({**WHOLE, "leader": "x"}).encode(), "'x' is not a whole number"),
        # a broker that leads asserts that it is in sync: its process would end
        (json.dumps({**WHOLE, "isr": [[1, 0]]}).encode(), "its leader 0 is not in its isr"),
        (json.dumps({**WHOLE, "isr": [[0, 0], [0, 1]]}).encode(), "it names a broker twice"),
        # the next leader epoch would fit into no message: the term of each controller would end
        (json.dumps({**WHOLE, "leader_epoch": 2**31 - 1}).encode(), "2147483647 is not between 0 and 1073741823"),
        (json.dumps({**WHOLE, "lineage": 2**62}).encode(), f"{2**62} is not between 0 and {2**62 - 1}"),
    ],
)
def test_the_reason_names_the_node_and_the_field(data: bytes, why: str) -> None:
    with raises_code(ErrorCode.INTERNAL) as refused:
        codecs.decode_state(PATH, data)
    assert refused.value.message == f"the ZooKeeper node {PATH} cannot be understood: {why}"


def test_each_unreadable_node_is_named_however_often_its_content_occurs() -> None:
    for path in (PATH, PATH.replace("/0/", "/1/")):
        with pytest.raises(TidemarkError, match=f"the ZooKeeper node {path} cannot") as refused:
            codecs.decode_state(path, b"{}")
        assert refused.value.metadata == {"path": path}


def test_nodes_with_the_same_content_share_one_state() -> None:
    data = json.dumps(WHOLE).encode()
    first, second = (codecs.decode_state(path, bytes(bytearray(data))) for path in (PATH, PATH.replace("/0/", "/1/")))
    assert first is second
    assert codecs.decode_state(PATH, codecs.encode_state(first)) == first


def test_no_bytes_are_blamed_on_a_codec() -> None:
    for first in range(256):
        with pytest.raises(TidemarkError) as refused:
            codecs.decode_topic("/brokers/topics/t", bytes([first, 0, 255, first]), "t")
        assert "codec" not in refused.value.message
        assert "utf" not in refused.value.message


@pytest.mark.parametrize("kind", ["adding", "removing", "original"])
def test_a_topic_with_a_reassignment_of_a_partition_that_it_lacks_is_unreadable(kind: str) -> None:
    """An error of the controller would end its term, and the term of each next controller."""
    topic = {"topic_id": "id", "partitions": {"0": [1, 2]}, "incarnations": {"0": "i"}, kind: {"3": [1]}}
    with raises_code(ErrorCode.INTERNAL) as refused:
        codecs.decode_topic("/brokers/topics/t", json.dumps(topic).encode(), "t")
    assert "a reassignment of partition 3, which it does not have" in refused.value.message
