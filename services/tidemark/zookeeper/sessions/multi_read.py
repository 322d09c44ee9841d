# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's multi-read, which kazoo lacks: the data of many znodes in one request.

A newly elected controller reads 500 znodes with one request instead of 500.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, multiheader_struct, read_buffer, stat_struct
from kazoo.protocol.states import ZnodeStat

_MULTI_READ = 22
_ERROR = -1


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request for kazoo's connection; `paths` are absolute and include the chroot.

    The answer lists (data, ZnodeStat) in the same order, or an error code for a znode that could not be read.
    """

    type: ClassVar[int] = _MULTI_READ

    paths: Sequence[str]

    def serialize(self) -> bytearray:
        """The request's body."""
        body = bytearray()
        for path in self.paths:
            body += MultiHeader(GetData.type, False, -1).serialize()
            body += GetData(path, None).serialize()
        body += multiheader_struct.pack(-1, True, -1)
        return body

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[tuple[bytes, Any] | int]:
        """Decode the answers, one for each path."""
        answers: list[tuple[bytes, Any] | int] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == _ERROR:
                answers.append(int_struct.unpack_from(data, offset)[0])
                offset += int_struct.size
            else:
                value, offset = read_buffer(data, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                offset += stat_struct.size
                answers.append((value or b"", stat))
            header, offset = MultiHeader.deserialize(data, offset)
        return answers
