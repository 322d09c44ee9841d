# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's persistent recursive watches, which kazoo lacks: one watch reports every change below a znode.

A watch of kazoo covers one znode and fires once: 10,000 partitions would need 10,000 requests after each lost
connection. These watches need ZooKeeper 3.6 or newer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.protocol.connection import WATCH_XID
from kazoo.protocol.serialization import Watch, int_struct, write_string

_ADD_WATCH: Final = 106
_PERSISTENT_RECURSIVE: Final = 1
_HEADER: Final = struct.Struct(">iiqi")
"""Length of the rest, xid, zxid and error of an answer or event."""

Fire = Callable[[str], None]
"""Receives the path of a changed znode, on the thread of kazoo's connection; never blocks."""


@dataclass(frozen=True, slots=True)
class AddWatch:
    """A request for kazoo's connection; `path` is absolute and includes the chroot."""

    type: ClassVar[int] = _ADD_WATCH

    path: str

    def serialize(self) -> bytes:
        """The request's body."""
        return bytes(write_string(self.path) + int_struct.pack(_PERSISTENT_RECURSIVE))

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> None:
        """Discard the answer, whose content does not matter."""


class RecursiveWatches:
    """The recursive watches of one kazoo client. `add` is called on the event loop; all other methods run on kazoo's
    thread.

    The server forgets the watches when the connection ends; then they must be requested again.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._fires: tuple[tuple[str, str, Fire], ...] = ()
        self._one_shot: Callable[[Any, int], None] = client._connection._read_watch_event
        client._connection._read_watch_event = self._on_event

    def add(self, path: str, fire: Fire) -> AddWatch:
        """Report changes of `path` and below to `fire`; returns the request to send."""
        root = self._client.chroot + path
        kept = [one for one in self._fires if one[0] != root]
        self._fires = (*kept, (root, root + "/", fire))  # a new tuple, because kazoo's thread reads the old one
        return AddWatch(root)

    def _on_event(self, buffer: Any, offset: int) -> None:
        """Handle an event, and the events after it that have arrived too. kazoo takes 36 µs to read the next event."""
        self._handle(buffer, offset)
        ahead = self._client._connection._socket
        held, at = ahead.ahead()
        while at + _HEADER.size <= len(held):
            length, xid, _, _ = _HEADER.unpack_from(held, at)
            start, at = at + _HEADER.size, at + int_struct.size + length
            if xid != WATCH_XID or at > len(held):
                return
            ahead.skip(at)
            self._handle(held, start)

    def _handle(self, buffer: Any, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        path = event.path
        for root, below, fire in self._fires:
            if path.startswith(below) or path == root:
                fire(self._client.unchroot(path))
        if path in self._client._data_watchers or path in self._client._child_watchers:
            self._one_shot(buffer, offset)
