# SPDX-License-Identifier: Apache-2.0
"""Recursive watches over a connection whose bytes arrive as the test decides."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.connection import WATCH_XID
from tidemark.zookeeper.kazoo_handler import PollHandler, ReadAheadSocket
from tidemark.zookeeper.mirror.recursive_watches import RecursiveWatches

CHANGED = 3


class Link:
    """A client of kazoo with a connection, as far as the watches use them, and the server's end of the connection."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.socket, self.server = ReadAheadSocket.of(near), far
        self.one_shot: list[str] = []
        self.client: Any = SimpleNamespace(
            chroot="/root",
            unchroot=lambda path: path.removeprefix("/root"),
            _data_watchers=defaultdict(set),
            _child_watchers=defaultdict(set),
            _connection=SimpleNamespace(_socket=self.socket, _read_watch_event=self._take),
        )

    def _take(self, buffer: bytes, offset: int) -> None:
        (length,) = struct.unpack_from(">i", buffer, offset + 8)
        self.one_shot.append(buffer[offset + 12 : offset + 12 + length].decode())

    def read_message(self) -> None:
        """Read one message as kazoo does, which must be an event."""
        assert PollHandler().select([self.socket], [], [], 5.0)[0]
        (length,) = struct.unpack(">i", self.socket.recv(4))
        self.client._connection._read_watch_event(self.socket.recv(length), 16)


@pytest.fixture
def link() -> Iterator[Link]:
    near, far = socket.socketpair()
    made = Link(near, far)
    with made.socket, far:
        yield made


def message(path: str, xid: int = WATCH_XID) -> bytes:
    body = struct.pack(">iqi", xid, 0, 0) + struct.pack(">iii", CHANGED, 3, len(path)) + path.encode()
    return struct.pack(">i", len(body)) + body


def test_a_change_reports_the_events_that_have_arrived_with_it_and_leaves_the_answer_after_them(link: Link) -> None:
    seen: list[str] = []
    watches = RecursiveWatches(link.client)
    watches.add("/topics", seen.append)
    answer = message("/answer", xid=7)
    link.server.sendall(b"".join(message(f"/root/topics/{number}") for number in range(3)) + answer)
    link.read_message()
    assert seen == ["/topics/0", "/topics/1", "/topics/2"]
    assert link.socket.recv(1 << 16) == answer


def test_a_part_of_an_event_waits_for_its_rest(link: Link) -> None:
    seen: list[str] = []
    RecursiveWatches(link.client).add("/topics", seen.append)
    whole = message("/root/topics/1")
    link.server.sendall(message("/root/topics/0") + whole[:20])
    link.read_message()
    assert seen == ["/topics/0"]
    assert link.socket.recv(1 << 16) == whole[:20]


def test_watches_of_one_znode_fire_too(link: Link) -> None:
    seen: list[str] = []
    watches = RecursiveWatches(link.client)
    watches.add("/topics", seen.append)
    link.client._data_watchers["/root/topics/b"].add(print)
    link.server.sendall(b"".join(message(f"/root/{path}") for path in ("topics/a", "topics/b", "topicsc", "topics")))
    link.read_message()
    assert seen == ["/topics/a", "/topics/b", "/topics"]
    assert link.one_shot == ["/root/topics/b"]
