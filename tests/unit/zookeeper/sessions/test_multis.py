# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of multis equal those that kazoo encodes and decodes."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import (
    Create,
    GetData,
    MultiHeader,
    SetData,
    Transaction,
    int_struct,
    multiheader_struct,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat
from tidemark.zookeeper.sessions.multi_read import MultiRead
from tidemark.zookeeper.sessions.multi_write import MultiWrite

STAT = ZnodeStat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
END = multiheader_struct.pack(-1, True, -1)


def failed(code: int) -> bytes:
    return multiheader_struct.pack(-1, False, code) + int_struct.pack(code)


@pytest.mark.parametrize("chroot", ["", "/shop"])
def test_a_multi_is_encoded_as_by_kazoo(chroot: str) -> None:
    known, multi = KazooClient(f"zookeeper:1{chroot}").transaction(), MultiWrite(chroot, None)
    for each in (known, multi):
        each.check("/controller", 3)
        each.set_data("/topics/straße/0/state", b"data", 7)
        each.set_data("/topics", b"", -1)
        each.create("/brokers/ids/1", b"here", ephemeral=True)
        each.create("/brokers/epochs")
        each.delete("/topics/old", -1)
    assert multi.serialize() == Transaction(known.operations).serialize()
    assert [one.path for one in multi.creates] == [f"{chroot}/brokers/ids/1", f"{chroot}/brokers/epochs"]


def test_the_results_of_a_multi_are_decoded_as_by_kazoo() -> None:
    answer = b"".join(
        [
            multiheader_struct.pack(13, False, -1),
            multiheader_struct.pack(SetData.type, False, -1) + stat_struct.pack(*STAT),
            multiheader_struct.pack(Create.type, False, -1) + write_string("/brokers/ids/1"),
            multiheader_struct.pack(2, False, -1),
            END,
        ]
    )
    assert (
        MultiWrite.deserialize(answer, 0) == Transaction.deserialize(answer, 0) == [True, STAT, "/brokers/ids/1", True]
    )


def test_the_errors_of_a_multi_are_exceptions() -> None:
    answer = failed(0) + failed(BadVersionError.code) + failed(RuntimeInconsistency.code) + END
    kinds = [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert [type(one) for one in MultiWrite.deserialize(answer, 0)] == kinds
    assert [type(one) for one in Transaction.deserialize(answer, 0)] == kinds


def test_a_read_of_many_znodes_is_encoded_as_single_reads() -> None:
    expected = bytearray()
    for path in ("/topics/straße", "/controller"):
        expected += MultiHeader(GetData.type, False, -1).serialize() + GetData(path, None).serialize()
    assert MultiRead(["/topics/straße", "/controller"]).serialize() == expected + END
