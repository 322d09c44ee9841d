# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's multi, encoded while its operations are added.

kazoo normalizes each path, and copies each operation three times: 40 calls for an operation. A restart of a broker with
6,667 replicas writes as many sets, and checks as many nodes.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    SetData,
    Transaction,
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE

_ERROR: Final = -1
_EPHEMERAL: Final = 1
_PATH: Final = Struct(multiheader_struct.format + "i")
"""The header of an operation, and the length of its path."""
_END: Final[bytes] = multiheader_struct.pack(-1, True, -1)


class MultiWrite:
    """A request for kazoo's connection; paths are absolute and normalized, without the chroot.

    Args:
        acl: of created znodes; None: open.
    """

    type: ClassVar[int] = Transaction.type

    def __init__(self, chroot: str, acl: list[ACL] | None) -> None:
        self._chroot = chroot
        self._acl = acl or OPEN_ACL_UNSAFE
        self._body = bytearray()
        self.creates: list[Create] = []
        """The znodes that the multi creates."""

    def check(self, path: str, version: int) -> None:
        """Check that a znode exists at this version; -1: at any."""
        self._begin(CheckVersion.type, path)
        self._body += int_struct.pack(version)

    def set_data(self, path: str, value: bytes, version: int) -> None:
        """Set the data of a znode that exists at this version."""
        self._begin(SetData.type, path)
        self._body += int_struct.pack(len(value))
        self._body += value
        self._body += int_struct.pack(version)

    def delete(self, path: str, version: int) -> None:
        """Delete a znode at this version; -1: at any."""
        self._begin(Delete.type, path)
        self._body += int_struct.pack(version)

    def create(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        """Create a znode."""
        operation = Create(self._chroot + path, value, self._acl, _EPHEMERAL if ephemeral else 0)
        self.creates.append(operation)
        self._body += multiheader_struct.pack(Create.type, False, -1)
        self._body += operation.serialize()

    def _begin(self, operation: int, path: str) -> None:
        name = (self._chroot + path).encode()
        self._body += _PATH.pack(operation, False, -1, len(name))
        self._body += name

    def serialize(self) -> bytearray:
        """The request's body."""
        return self._body + _END

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """Decode the results in order: path, ZnodeStat or True, by the operation; an error as an exception."""
        results: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if done:
                return results
            if kind == SetData.type:
                results.append(ZnodeStat._make(stat_struct.unpack_from(data, offset)))
                offset += stat_struct.size
            elif kind == Create.type:
                path, offset = read_string(data, offset)
                results.append(path)
            elif kind == _ERROR:
                results.append(EXCEPTIONS[int_struct.unpack_from(data, offset)[0]]())
                offset += int_struct.size
            else:
                results.append(True)
