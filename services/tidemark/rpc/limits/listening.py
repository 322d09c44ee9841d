# SPDX-License-Identifier: Apache-2.0
"""Reports attempts to connect at the listening sockets, and lets the kernel drop the attempts of some addresses.

gRPC spends 0.1 ms on a connection that it accepts, although a limit ends it soon. A socket filter drops the SYN segment
instead, and the peer's kernel tries again after a second or more. Linux only; on other systems no attempt is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_ADDRESSES_MAX: Final = 128
"""Their filter has 16 kB, and the kernel allows a socket 20 kB or more (`net.core.optmem_max`)."""
_LOAD_BYTE, _LOAD_WORD, _AND, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
"""Instructions of classic BPF. A filter of a TCP socket sees the segment from its TCP header on."""
_IP_HEADER: Final = -0x10_0000
"""SKF_NET_OFF: added to an offset in the IP header."""
_FLAGS_AT, _SYN, _SYN_ACK = 13, 0x02, 0x12
_SOURCE_V4_AT, _SOURCE_V6_AT = 12, 8
_VERSION_4, _VERSION_6 = 0x40, 0x60
_PASS: Final = 0xFFFF_FFFF


class Attempts:
    """Reports the next attempt to connect to any of the listening sockets.

    Args:
        tell: called on the event loop for each attempt.

    Attributes:
        came: whether there was an attempt since `await_one`.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._files: list[int] = []
        self._ended = False
        self.came = False

    def await_one(self, files: Iterable[int]) -> None:
        """Await an attempt at these sockets. The sockets stay readable until gRPC accepts, so each attempt is
        reported once.
        """
        self.came = False
        wanted = [] if self._ended else list(files)
        if wanted == self._files:
            return
        self._forget()
        loop = asyncio.get_running_loop()
        for file in wanted:
            # gRPC has closed the socket, and asyncio may use the number now
            with contextlib.suppress(OSError, RuntimeError):
                loop.add_reader(file, self._come)
                self._files.append(file)

    def end(self) -> None:
        """Await no attempt any more: the sockets are going to be closed."""
        self._ended = True
        self._forget()

    def _forget(self) -> None:
        loop = asyncio.get_running_loop()
        for file in self._files:
            with contextlib.suppress(RuntimeError):
                loop.remove_reader(file)
        self._files.clear()

    def _come(self) -> None:
        self.came = True
        self._forget()
        self._tell()


def drop_attempts(file: int, hosts: Iterable[str]) -> bool:
    """Drop connection attempts at a listening socket from exactly these addresses.

    Args:
        file: its descriptor.
        hosts: at most 128 are dropped.

    Returns:
        False if the kernel refuses.
    """
    program = _program(list(hosts)[:_ADDRESSES_MAX])
    code = ctypes.create_string_buffer(b"".join(program))
    value = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    one = socket.socket(fileno=file)
    try:
        one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
    except OSError:
        return False
    finally:
        one.detach()  # gRPC owns the socket
    return True


def _program(hosts: list[str]) -> list[bytes]:
    """Pass all but SYN segments of the addresses. A block for each address: jumps reach 255 instructions only."""
    addresses = [ipaddress.ip_address(host) for host in hosts]
    blocks = [_drop_if(one) for one in addresses]
    return [
        _step(_LOAD_BYTE, _FLAGS_AT),
        _step(_AND, _SYN_ACK),
        _step(_IF_EQUAL, _SYN, yes=1),
        _step(_RETURN, _PASS),
        *(step for block in blocks for step in block),
        _step(_RETURN, _PASS),
    ]


def _drop_if(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[bytes]:
    first, at = (_VERSION_4, _SOURCE_V4_AT) if address.version == 4 else (_VERSION_6, _SOURCE_V6_AT)
    words = enumerate(word for (word,) in struct.iter_unpack(">I", address.packed))
    checks = [(_LOAD_BYTE, 0, 0xF0, first), *((_LOAD_WORD, at + 4 * place, _PASS, word) for place, word in words)]
    steps = []
    for after, (load, offset, mask, wanted) in zip(reversed(range(len(checks))), checks, strict=True):
        otherwise = 3 * after + 1
        steps += [_step(load, _IP_HEADER + offset), _step(_AND, mask), _step(_IF_EQUAL, wanted, no=otherwise)]
    return [*steps, _step(_RETURN, 0)]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One `struct sock_filter`: the jumps count instructions to skip."""
    return struct.pack("HBBI", code, yes, no, value & 0xFFFF_FFFF)
