# SPDX-License-Identifier: Apache-2.0
"""The connections of a server, and the rules that end some of them.

Bytes in flight of a connection are held for its peer. These are the bytes of messages that have not arrived completely,
and of answers that the peer has not received. Answers are counted when they are made. gRPC reports no message before
its end. Arriving bytes are therefore the bytes that the kernel received, less the complete messages among them. Each
call holds one unfinished message at most.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidemark.rpc.channel import MESSAGE_BYTES_MAX, WINDOW
from tidemark.rpc.limits.rates import Rate
from tidemark.rpc.limits.sockets import Found, Peer
from tidemark.runtime.configuration.key import UNLIMITED
from tidemark.runtime.configuration.settings import ServiceSettings
from tidemark.runtime.slices import Pace

_FRAMING: Final = 32
"""One in this number of bytes may be framing of TLS and HTTP/2, or an acknowledgement of bytes that the server sent."""
CALL_BYTES: Final = 20_000
"""Memory of a call that runs: of gRPC, and of Python's task (measured)."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""Bytes that are allowed in addition to each message: its frames, and updates of windows."""

_CALL_ARRIVING_BYTES_MAX: Final = MESSAGE_BYTES_MAX + dict(WINDOW)["grpc.http2.lookahead_bytes"]
"""Limit of the arriving bytes of one call: an unfinished message, and the bytes that its peer may send ahead."""
_HEADERS_BYTES_MAX: Final = 64 << 10
"""A connection that holds more may be one whose headers never end: no call bounds them."""
REFUSALS_PER_S: Final = 1.0
"""Requests of one address that are refused for their size or items: gRPC has assembled each of them before."""
ABANDONED_PER_S: Final = 100.0
ABANDONED_AT_ONCE: Final = 1_000
"""Limit of the calls of one address that the client ends before the answer. Timeouts and ends of clients are fewer."""
ENDED_PER_S: Final = 10.0
ENDED_AT_ONCE: Final = 50
"""Number of ended connections of one address above which the kernel drops attempts of the address."""
DROPPED_S: Final = 5.0
"""Time for which attempts of an address are dropped after very many of its connections ended, or at its limit."""
_ENDED_OF_A_SLICE: Final = 8
_ENDED_OF_A_LOOK: Final = 500
"""Largest number of connections that a check ends: gRPC works 0.1 ms to end a connection, which delays calls."""
SOUGHT_OF_A_LOOK: Final = 4
"""Largest number of connections that are sought between checks: each search delays calls by 10 us for each open file.
"""

ADDRESS: Final = "connections_per_address"
CONNECTION: Final = "bytes_per_connection"
ALL: Final = "bytes"
ABANDONED: Final = "abandoned_calls"
REASONS: Final = (ADDRESS, CONNECTION, ALL, ABANDONED)

Address = tuple[int, str]
"""A port, and the address of a peer."""


class ConnectionLimits(NamedTuple):
    """Limits of one server, over all its ports; -1: no limit.

    Attributes:
        connections: at a time; 0: as of `runtime.limits.connections_max`.
        per_address: connections of one address to one port, at a time.
        creation_rate: new connections of one address to one port, per second, and for a burst.
        streams: calls at a time on a connection; more wait at the client.
        idle_ms: time without a call after which a connection is closed.
        connection_bytes: bytes in flight of one connection.
        bytes: bytes in flight of all connections.
    """

    connections: int = 0
    per_address: int = 1_000
    streams: int = 100
    idle_ms: int = 600_000
    connection_bytes: int = 128 << 20
    bytes: int = 512 << 20
    creation_rate: int = 200


DEFAULT_LIMITS: Final = ConnectionLimits()


def limits_of(settings: ServiceSettings) -> ConnectionLimits:
    """The limits that the settings name."""
    return ConnectionLimits(
        settings.max_connections,
        settings.max_connections_per_ip,
        settings.max_streams_per_connection,
        settings.connections_max_idle_ms,
        settings.max_in_flight_bytes_per_connection,
        settings.max_in_flight_bytes,
        settings.max_connection_creation_rate_per_ip,
    )


class Connection:
    """The bytes that the server holds for one peer.

    Attributes:
        peer: the other end.
        file: the descriptor; -1 before the first check that finds the connection.
        inode: identity of the socket; 0 before that check.
        arriving_bytes: estimate of the received bytes of unfinished messages.
        sending_bytes: answers that gRPC has not sent yet, and `CALL_BYTES` for each call.
        calls: that run now.
        ended: whether a limit ended the connection.
        look: number of the last check that found the peer, or of the next check if none can have found it; 0: none.
        sought: number of the last check before the connection was sought: a gone one is sought once between checks.
    """

    __slots__ = (
        "_acked_bytes", "_allowed_bytes", "_had_calls", "_received_bytes", "arriving_bytes", "calls", "ended", "file",
        "inode", "look", "peer", "sending_bytes", "sought",
    )  # fmt: skip

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.file = -1
        self.inode = 0
        self.look = 0
        self.sought = -1
        self.arriving_bytes = 0
        self.sending_bytes = 0
        self.calls = 0
        self.ended = False
        self._had_calls = False
        self._received_bytes = self._acked_bytes = self._allowed_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of requests and responses in flight."""
        return self.arriving_bytes + self.sending_bytes

    def call_is_over(self) -> None:
        """Count the end of a call."""
        self.calls -= 1
        self._had_calls = True

    def took(self, size_bytes: int) -> None:
        """Count a whole message, or the headers of a call, that arrived."""
        self._allowed_bytes += size_bytes + size_bytes // _FRAMING + MESSAGE_OVERHEAD_BYTES

    def seen(self, found: Found) -> None:
        """Estimate again. Bytes that cannot be in flight are never a credit for later bytes."""
        self.file, self.inode = found.file, found.inode
        grown_bytes = found.received_bytes - self._received_bytes
        allowed_bytes = self._allowed_bytes + (found.acked_bytes - self._acked_bytes) // _FRAMING
        self.arriving_bytes = max(0, self.arriving_bytes + grown_bytes - allowed_bytes)
        if self.calls or self._had_calls:  # a call that ended has dropped its unfinished message
            self.arriving_bytes = min(self.arriving_bytes, self.calls * _CALL_ARRIVING_BYTES_MAX)
        self._had_calls = False
        self._received_bytes, self._acked_bytes, self._allowed_bytes = found.received_bytes, found.acked_bytes, 0


class Connections:
    """All connections of a server, kept within its limits.

    Attributes:
        can_exceed: whether bytes may exceed the limits before a late check. Many calls run, a client ended a call, or
            bytes came without a call.

    Args:
        limits: see `ConnectionLimits`.
        find: the connection of a peer, which takes long; None if it has ended.
        end: ends a connection; False if it has ended.
        refused: called with one of `REASONS` for each connection that was ended.
        drop: called with addresses whose attempts are to be dropped, and the seconds for which.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        find: Callable[[Peer], Found | None],
        end: Callable[[int, Peer], bool],
        refused: Callable[[str, Peer], None],
        drop: Callable[[dict[Address, float]], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._bytes_max = _number(limits.bytes)
        self._connection_bytes_max = _number(limits.connection_bytes)
        self._find = find
        self._end = end
        self._refused = refused
        self._all: dict[Peer, Connection] = {}
        self._sending_bytes = 0
        self._arriving_bytes = 0
        self._looks = 0
        self._searches = 0
        self._calls = 0
        self.can_exceed = False
        self._endings = Rate(ENDED_PER_S, ENDED_AT_ONCE)
        rate = limits.creation_rate
        self._creations = None if rate == UNLIMITED else Rate(rate, rate)
        self._too_fast_s: dict[Address, float] = {}
        self._drop = drop
        self._full: set[Address] = set()
        self._refusals = Rate(REFUSALS_PER_S)
        self._abandonments = Rate(ABANDONED_PER_S, ABANDONED_AT_ONCE)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes(self) -> int:
        """Bytes in flight of all connections."""
        return self._sending_bytes + self._arriving_bytes

    def of(self, peer: Peer) -> Connection:
        """The connection of a peer, known or new."""
        found = self._all.get(peer)
        if found is None:
            found = self._all[peer] = Connection(peer)
            found.look = self._looks + 1  # a running check cannot find this connection, and must not drop its messages
        return found

    def call_began(self, connection: Connection, header_bytes: int) -> None:
        """Count a call whose headers arrived."""
        connection.calls += 1
        self._calls += 1
        connection.took(header_bytes)
        self.sends(connection, CALL_BYTES)
        self.can_exceed = self.can_exceed or self._calls_can_exceed(connection)

    def call_is_over(self, connection: Connection) -> None:
        """Count the end of a call."""
        self._calls -= 1
        connection.call_is_over()
        self.sends(connection, -CALL_BYTES)

    def sends(self, connection: Connection, more_bytes: int) -> None:
        """Count bytes that are held to be sent, or that were sent (negative); ends connections at the limits."""
        connection.sending_bytes += more_bytes
        self._sending_bytes += more_bytes
        if more_bytes > 0 and (
            connection.arriving_bytes + connection.sending_bytes > self._connection_bytes_max
            or self._arriving_bytes + self._sending_bytes > self._bytes_max
        ):
            self._keep_to_bytes(connection)

    def refusal_early_s(self, connection: Connection) -> float:
        """Note a refused request; returns the seconds by which its answer is delayed, so that repeats stay rare."""
        return self._refusals.early_s(connection.peer.host, time.monotonic())

    def abandoned(self, connection: Connection) -> None:
        """Note that the client ended a call before the answer; ends the connection if its address has too many of
        these.
        """
        self.can_exceed = True  # only a check separates the bytes of its request from the bytes of running calls
        if self._abandonments.early_s(connection.peer.host, time.monotonic()):
            self._end_for(ABANDONED, connection)

    def is_full(self, address: Address) -> bool:
        """Whether the address has the largest allowed number of connections, as of the last check."""
        return address in self._full

    async def glance_is_over(self, found: Iterable[Found], pace: Pace) -> None:
        """Add the connections that were opened since the last check or quick check. Other tasks run between slices."""
        for one in found:
            if pace.is_due:
                await pace.give_way()
            self._seen(one)
        self._drop_the_too_fast()

    async def look_is_over(self, found: Iterable[Found], pace: Pace) -> None:
        """Update the connections from a check, and end the connections above the limits. Other tasks run between
        slices.

        Args:
            found: connections of the previous check first, so that `_all` has the oldest first.
            pace: pace of the check.
        """
        self._looks += 1
        self._searches = 0
        self.can_exceed = False
        now_s = time.monotonic()
        self._refusals.forget(now_s)
        self._abandonments.forget(now_s)
        self._endings.forget(now_s)
        if self._creations is not None:
            self._creations.forget(now_s)
        await self.glance_is_over(found, pace)
        for connection in list(self._all.values()):
            if pace.is_due:
                await pace.give_way()
            self._forget_if_gone(connection)
        await self._keep_to_addresses(pace)
        for connection in list(self._all.values()):
            if pace.is_due:
                await pace.give_way()
            if _above(connection.bytes, self._limits.connection_bytes):
                self._end_for(CONNECTION, connection)
            holds = connection.arriving_bytes > _HEADERS_BYTES_MAX
            self.can_exceed = self.can_exceed or holds or self._calls_can_exceed(connection)
        if _above(self.bytes, self._limits.bytes):
            self._keep_to_all_bytes()

    def _calls_can_exceed(self, connection: Connection) -> bool:
        """Whether the calls of this connection, or all calls, can exceed the limits before the next check."""
        limits = self._limits
        return _above(connection.calls * _CALL_ARRIVING_BYTES_MAX, limits.connection_bytes) or _above(
            self._calls * _CALL_ARRIVING_BYTES_MAX, limits.bytes
        )

    def _seen(self, found: Found) -> None:
        connection = self._all.get(found.peer)
        if connection is not None and connection.inode not in (0, found.inode):
            self._arriving_bytes -= self._all.pop(found.peer).arriving_bytes
            connection = None
        if connection is None:
            connection = self._all[found.peer] = Connection(found.peer)
        if not connection.inode:
            self._created(connection)
        before_bytes = connection.arriving_bytes
        connection.seen(found)
        connection.look = self._looks
        self._arriving_bytes += connection.arriving_bytes - before_bytes

    def _created(self, connection: Connection) -> None:
        address = connection.peer[:2]
        if self._creations is not None and (early_s := self._creations.early_s(address, time.monotonic())):
            self._too_fast_s[address] = early_s

    def _drop_the_too_fast(self) -> None:
        if self._too_fast_s:
            self._drop(self._too_fast_s)
            self._too_fast_s = {}

    def _forget_if_gone(self, connection: Connection) -> None:
        if connection.look >= self._looks or self._all.get(connection.peer) is not connection:
            return
        connection.file = -1
        self._arriving_bytes -= connection.arriving_bytes
        connection.arriving_bytes = 0
        if not connection.calls:
            del self._all[connection.peer]

    async def _keep_to_addresses(self, pace: Pace) -> None:
        limit, here, beyond = self._limits.per_address, Counter[Address](), list[Connection]()
        for connection in list(self._all.values()):
            if pace.is_due:
                await pace.give_way()
            if connection.ended:
                continue
            address = connection.peer[:2]
            here[address] += 1
            if _above(here[address], limit):
                beyond.append(connection)
        self._full = {address for address, count in here.items() if count >= limit != UNLIMITED}
        self._drop({one: DROPPED_S for one in self._full if here[one] >= limit + ENDED_AT_ONCE})
        for place, connection in enumerate(beyond[:_ENDED_OF_A_LOOK]):
            if place % _ENDED_OF_A_SLICE == 0 or pace.is_due:
                await pace.give_way()
            self._end_for(ADDRESS, connection)

    def _keep_to_bytes(self, connection: Connection) -> None:
        if _above(connection.bytes, self._limits.connection_bytes):
            self._end_for(CONNECTION, connection)
        if _above(self.bytes, self._limits.bytes):
            self._keep_to_all_bytes()

    def _keep_to_all_bytes(self) -> None:
        """End the connection with the most bytes, of the address with the most bytes, until all others fit."""
        rest = [one for one in self._all.values() if not one.ended and one.bytes]
        held_bytes = sum(one.bytes for one in rest)
        by_host = Counter[str]()
        for one in rest:
            by_host[one.peer.host] += one.bytes
        while _above(held_bytes, self._limits.bytes):
            most = by_host.most_common(1)[0][0]
            largest = max((one for one in rest if one.peer.host == most), key=lambda one: one.bytes)
            rest.remove(largest)
            held_bytes -= largest.bytes
            by_host[most] -= largest.bytes
            self._end_for(ALL, largest)

    def _end_for(self, reason: str, connection: Connection) -> None:
        if connection.ended:
            return
        if connection.file < 0 and reason in (CONNECTION, ALL):  # many connections may be beyond the other limits
            self._seek(connection)
        if connection.file >= 0 and self._end(connection.file, connection.peer):
            connection.ended = True
            address = connection.peer[:2]
            if self._endings.early_s(address, time.monotonic()):
                self._drop({address: DROPPED_S})
            self._refused(reason, connection.peer)

    def _seek(self, connection: Connection) -> None:
        """Find a connection that no check has found yet: the connection must not exceed its limit until the next."""
        if connection.sought == self._looks:
            return
        if self._searches >= SOUGHT_OF_A_LOOK:
            self.can_exceed = True  # so the next check is early
            return
        self._searches += 1
        connection.sought = self._looks
        if (found := self._find(connection.peer)) is not None:
            self._seen(found)
            connection.look = self._looks + 1


def _number(limit: int) -> float:
    return math.inf if limit == UNLIMITED else limit


def _above(count: int, limit: int) -> bool:
    return count > limit != UNLIMITED
