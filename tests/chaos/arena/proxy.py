# SPDX-License-Identifier: Apache-2.0
"""TCP proxies on loopback that inject network faults: each proxy knows the caller of every connection.

The proxy finds the caller by its socket in /proc. So one pair of processes can be disconnected while other pairs
communicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"
ANY_CALLER = "*"
_CHUNK_BYTES = 64 << 10
_CALL_S = 300.0
"""Time for a call on a busy machine, where this thread carries all messages of the processes."""


@dataclass(slots=True)
class Trouble:
    """A fault of the bytes between two processes: `silent` holds the bytes back, `refuse` breaks connections."""

    silent: bool = False
    refuse: bool = False
    delay_s: float = 0.0


CALM = Trouble()


class Ends(NamedTuple):
    """The ports of a connection on loopback. Linux gives one local port to connections to several proxies."""

    caller_port: int
    proxy_port: int


@dataclass(slots=True, eq=False)
class _Link:
    """A connection; during a fault the proxy holds the first bytes back until the caller is known."""

    writers: list[asyncio.StreamWriter]
    caller: str = ANY_CALLER
    identified: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """One listening address in front of one process; its methods may be called from any thread.

    Args:
        target: where the process listens; called at the first connection, because the port may be chosen after the
            proxy was made.
    """

    def __init__(self, network: Network, name: str, target: Callable[[], int]) -> None:
        self.name = name
        self.port = 0
        self._network = network
        self._target = target
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the listener and break all connections."""
        if self._server is not None:
            self._server.close()
        self.break_links(lambda caller: True)

    def break_links(self, whose: Callable[[str], bool]) -> None:
        """Reset the connections of these callers; on the network's loop."""
        for link in list(self._links):
            if whose(link.caller):
                link.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link([writer])
        self._links.add(link)
        tasks: set[asyncio.Task[None]] = set()
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target())
            link.writers.append(far_writer)
            identifying = asyncio.create_task(self._identify(link, writer.get_extra_info("peername")[1]))
            there = asyncio.create_task(self._pump(link, reader, far_writer, lambda: (link.caller, self.name)))
            back = asyncio.create_task(self._pump(link, far_reader, writer, lambda: (self.name, link.caller)))
            tasks = {identifying, there, back}
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            return  # the target is not there now, or the network ends
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._links.discard(link)
            link.abort()

    async def _identify(self, link: _Link, port: int) -> None:
        try:
            link.caller = await self._network.caller_of(Ends(port, self.port))
            if self._network.trouble(link.caller, self.name).refuse:
                link.abort()
        finally:
            link.identified.set()

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Callable[[], tuple[str, str]],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self._network.is_troubled:
                    await link.identified.wait()
                trouble = self._network.trouble(*way())
                if trouble.delay_s:
                    await asyncio.sleep(trouble.delay_s)
                while self._network.trouble(*way()).silent:
                    await self._network.change()
                writer.write(data)
                await writer.drain()


class Network:
    """Proxies in front of processes, on a thread of its own, and the faults between named processes.

    `silent` holds bytes back and delivers them when the fault ends, as a short network outage does. `refuse`
    also resets open connections. A fault has one direction, (source, sink); `ANY_CALLER` matches every process there.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self._trouble: dict[tuple[str, str], Trouble] = {}
        self._proxies: list[Proxy] = []
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._asked: dict[Ends, asyncio.Future[str]] = {}
        self._looking = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            self._call(proxy.close())
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target: Callable[[], int]) -> int:
        """A proxy in front of this process; returns its port. A process with several ports has several proxies."""
        proxy = Proxy(self, name, target)
        self._proxies.append(proxy)
        self._call(proxy.open())
        return proxy.port

    def disturb(self, source: str, sink: str, trouble: Trouble) -> None:
        """Begin a fault between two processes, one way."""
        self._call(self._disturb(source, sink, trouble))

    def end(self, source: str, sink: str) -> None:
        """End the fault of this direction."""
        self._call(self._end_one(source, sink))

    def heal(self) -> None:
        """End all faults."""
        self._call(self._heal())

    @property
    def is_troubled(self) -> bool:
        """Whether any fault is active now."""
        return bool(self._trouble)

    def trouble(self, source: str, sink: str) -> Trouble:
        """The fault of this direction now."""
        for way in ((source, sink), (ANY_CALLER, sink), (source, ANY_CALLER)):
            if way in self._trouble:
                return self._trouble[way]
        return CALM

    async def change(self) -> None:
        """Wait until a fault begins or ends."""
        await self._changed.wait()

    async def caller_of(self, ends: Ends) -> str:
        """The name of the process that has this connection to a proxy; ANY_CALLER for an unknown caller (a client)."""
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[ends] = asked
        if not self._looking:
            self._looking = True
            try:
                while self._asked:
                    waiting, self._asked = self._asked, {}
                    callers: Mapping[Ends, str] = {}
                    try:
                        callers = await asyncio.to_thread(_callers, set(waiting), self._pids())
                    finally:
                        for one, future in waiting.items():
                            if not future.done():
                                future.set_result(callers.get(one, ANY_CALLER))
            finally:
                self._looking = False
        return await asked

    async def _disturb(self, source: str, sink: str, trouble: Trouble) -> None:
        self._trouble[source, sink] = trouble
        if trouble.refuse:
            self._break(source, sink)
        self._tell()

    async def _end_one(self, source: str, sink: str) -> None:
        self._trouble.pop((source, sink), None)
        self._tell()

    async def _heal(self) -> None:
        self._trouble.clear()
        self._tell()

    def _break(self, source: str, sink: str) -> None:
        for proxy in self._proxies:
            if sink in (proxy.name, ANY_CALLER):
                proxy.break_links(lambda caller: source in (ANY_CALLER, caller))
            if proxy.name == source:
                proxy.break_links(lambda caller: sink in (ANY_CALLER, caller))

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _stop(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)


def _callers(connections: set[Ends], pids: Mapping[str, int]) -> dict[Ends, str]:
    """The process of each of these connections, from one read of /proc for all of them."""
    inodes = inodes_of(connections)
    found: dict[Ends, str] = {}
    for name, pid in pids.items():
        if len(found) == len(inodes):
            break
        for inode in _sockets_of(pid):
            if inode in inodes:
                found[inodes[inode]] = name
    return found


def inodes_of(connections: set[Ends]) -> dict[str, Ends]:
    """The open sockets of the callers of these connections."""
    found: dict[str, Ends] = {}
    for table, host in (("tcp", "0100007F"), ("tcp6", "0000000000000000FFFF00000100007F")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            (address, _, port), (_, _, far_port) = fields[1].partition(":"), fields[2].partition(":")
            ends = Ends(int(port, 16), int(far_port, 16))
            if address == host and fields[9] != "0" and ends in connections:
                found[fields[9]] = ends
    return found


def _sockets_of(pid: int) -> list[str]:
    """Inodes of the sockets that a process has open."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
                if match:
                    found.append(match.group(1))
    return found
