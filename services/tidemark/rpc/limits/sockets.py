# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of this process's ports, found among its open files.

gRPC for Python has no hook for a new connection, reports no bytes of a connection, and cannot close a connection. The
kernel reports addresses and byte counts of every open file that is a socket, and `shutdown` ends a connection that gRPC
owns. Linux only: on other systems no connection is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from tidemark.runtime.slices import Pace

_OPEN_FILES: Final = "/proc/self/fd"
_INFO_BYTES: Final = 136
_COUNTS_AT: Final = 120
"""Offset in Linux's `struct tcp_info` of the counts of acknowledged and of received bytes, since version 4.1."""
_FLOOD: Final = 300
"""Number of new files since the last check that counts as a flood."""
_MAPPED: Final = "::ffff:"


class Peer(NamedTuple):
    """A connection: this process's port, and the address and port of the other end."""

    port: int
    host: str
    number: int


class Found(NamedTuple):
    """A connection and its counts since its start.

    Attributes:
        peer: the other end.
        file: its descriptor.
        inode: identity of the socket: another connection may get the same addresses and descriptor later.
        acked_bytes: that the peer acknowledged.
        received_bytes: that the kernel received.
    """

    peer: Peer
    file: int
    inode: int
    acked_bytes: int
    received_bytes: int


@contextlib.contextmanager
def _socket(file: int) -> Iterator[socket.socket]:
    """The socket of a descriptor that gRPC owns: this code never closes it."""
    one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=file)
    try:
        yield one
    finally:
        one.detach()


class Sockets:
    """Finds the connections of some ports.

    Args:
        ports: the numbers of the ports; asked at each check.
    """

    def __init__(self, ports: Callable[[], frozenset[int]]) -> None:
        self._ports = ports
        self._known: dict[int, tuple[int, Peer | None]] = {}
        self._lowest_free = 0
        self._listening: dict[int, int] | None = None
        """Listening sockets of the last check; None after files were opened or closed."""

    async def look(self, pace: Pace) -> AsyncIterator[Found]:
        """All connections, first the connections that the previous check found. Other tasks run between slices."""
        ports = self._ports()
        new = await self._new_files(pace)
        if len(new) >= _FLOOD:
            pace.hurry()
        for file, (inode, peer) in list(self._known.items()):
            if pace.is_due:
                await pace.give_way()
            if peer is not None and _inode(file) == inode and (found := _counted(file, inode, peer)) is not None:
                yield found
        for file in new:
            if pace.is_due:
                await pace.give_way()
            if (found := self._meet(file, ports)) is not None:
                yield found

    def opened(self) -> int:
        """Upper bound of files opened since the last check or quick check, at the cost of two system calls."""
        return _lowest_free() - self._lowest_free

    async def glance(self, pace: Pace) -> AsyncIterator[Found]:
        """The connections among the files that `opened` counts. Other tasks run between slices."""
        ports, lowest = self._ports(), _lowest_free()
        new = [file for file in range(self._lowest_free, lowest) if file not in self._known]
        self._lowest_free = lowest
        for file in new:
            if pace.is_due:
                await pace.give_way()
            if (found := self._meet(file, ports)) is not None:
                yield found

    def _meet(self, file: int, ports: frozenset[int]) -> Found | None:
        """Note a new file, and the connection if the file is one."""
        now = _inode(file)
        if now is None:
            return None
        other = _peer(file, ports) if now else None
        self._known[file] = now, other
        if other is None:
            self._listening = None
        return None if other is None else _counted(file, now, other)

    async def _new_files(self, pace: Pace) -> list[int]:
        """The open files except known files; forgets closed files."""
        self._lowest_free = _lowest_free()
        before, self._known, new = self._known, {}, []
        for file in _open_files():
            if pace.is_due:
                await pace.give_way()
            seen, inode = before.get(file), _inode(file)
            if inode is not None and seen is not None and seen[0] == inode:
                self._known[file] = seen
            elif inode is not None:
                new.append(file)
        if len(self._known) < len(before):
            self._listening = None
        return new

    def listening(self) -> dict[int, int]:
        """The listening sockets that the last check found: their ports by descriptor."""
        if not self._listening:
            ports = self._ports()
            others = [file for file, (inode, peer) in self._known.items() if inode and peer is None]
            self._listening = {file: port for file in others if (port := _listens_on(file)) in ports}
        return self._listening

    def find(self, peer: Peer) -> Found | None:
        """The connection of a peer among all open files, some microseconds for each; None if it has ended."""
        ports = frozenset({peer.port})
        for file in _open_files():
            if (inode := _inode(file)) and _peer(file, ports) == peer:
                return _counted(file, inode, peer)
        return None

    def end(self, file: int, peer: Peer) -> bool:
        """End a connection in both directions; False if the descriptor is no longer that connection's."""
        if _peer(file, frozenset({peer.port})) != peer:
            return False
        try:
            with _socket(file) as one:
                one.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def _open_files() -> Iterator[int]:
    try:
        entries = os.scandir(_OPEN_FILES)
    except OSError:
        return
    with entries:
        for entry in entries:
            yield int(entry.name)


def _lowest_free() -> int:
    """The descriptor that the next file will have: the kernel assigns the lowest free number."""
    try:
        file = os.open(os.devnull, os.O_RDONLY)
    except OSError:  # all descriptors are used
        return 0
    os.close(file)
    return file


def _inode(file: int) -> int | None:
    """The identity of an open socket; 0 for another file, None for a closed one."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else 0


def _peer(file: int, ports: frozenset[int]) -> Peer | None:
    """The other end of a connection to one of the ports; None for any other socket."""
    try:
        with _socket(file) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) not in (socket.AF_INET, socket.AF_INET6):
                return None
            here = one.getsockname()[1]
            if here not in ports:
                return None
            host, number = one.getpeername()[:2]
    except OSError:
        return None
    return Peer(here, plain_host(host), number)


def _listens_on(file: int) -> int | None:
    try:
        with _socket(file) as one:
            is_tcp = one.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) in (socket.AF_INET, socket.AF_INET6)
            listens = is_tcp and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return int(one.getsockname()[1]) if listens else None
    except OSError:
        return None


def plain_host(host: str) -> str:
    """The address without a zone; an IPv4 address in its own form, even at a port for both versions."""
    host = host.partition("%")[0]
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def _counted(file: int, inode: int, peer: Peer) -> Found | None:
    try:
        with _socket(file) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _INFO_BYTES:  # an old kernel, or a stand-in for Linux: connections are counted, bytes are not
        return Found(peer, file, inode, 0, 0)
    return Found(peer, file, inode, *struct.unpack_from("QQ", info, _COUNTS_AT))
