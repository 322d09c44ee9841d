# SPDX-License-Identifier: Apache-2.0
"""Network addresses in settings and on command lines."""

from __future__ import annotations

from typing import Final


class HostPort(str):
    """An address `host:port` ([v6]:port for IPv6): a string with its two parts as attributes.

    Attributes:
        host: name or address, without brackets.
        port: 0-65535; for a listener, 0 lets the system choose the port.
    """

    __slots__ = ("host", "port")

    host: str
    port: int

    def __new__(cls, host: str, port: int) -> HostPort:
        """Create an address from its parts."""
        made = super().__new__(cls, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        made.host = host
        made.port = port
        return made

    def __reduce__(self) -> tuple[type[HostPort], tuple[str, int]]:
        return HostPort, (self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Parse `text`; ValueError unless it is a host:port."""
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError("want host:port with a port of 0 to 65535")
        return cls(host, int(port))


_ZOOKEEPER_PORT: Final = 2181


def zookeeper_hosts(connect: str) -> list[HostPort]:
    """Servers in `zookeeper.connect`, host[:port][,host[:port]...][/chroot]; ValueError for any other text."""
    hosts = []
    for server in connect.partition("/")[0].split(","):
        bare = server.strip()
        if not bare:
            raise ValueError("a server has no name")
        if ":" not in bare or bare.endswith("]"):
            bare = f"{bare}:{_ZOOKEEPER_PORT}"
        hosts.append(HostPort.parse(bare))
    return hosts
