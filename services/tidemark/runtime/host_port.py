# SPDX-License-Identifier: Apache-2.0
"""An address as settings and people write it."""

from __future__ import annotations

from typing import Final


class HostPort(str):
    """An address `host:port` ([v6]:port for IPv6): a string that gives its halves.

    Attributes:
        host: name or address, without brackets.
        port: 0-65535; 0 lets the system choose where something listens.
    """

    __slots__ = ("host", "port")

    host: str
    port: int

    def __new__(cls, host: str, port: int) -> HostPort:
        """Put together from its halves."""
        made = super().__new__(cls, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        made.host = host
        made.port = port
        return made

    def __reduce__(self) -> tuple[type[HostPort], tuple[str, int]]:
        return HostPort, (self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Take `text` apart; ValueError where it is no host:port."""
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError("want host:port with a port of 0 to 65535")
        return cls(host, int(port))


_ZOOKEEPER_PORT: Final = 2181


def zookeeper_hosts(connect: str) -> list[HostPort]:
    """The servers that `zookeeper.connect` names: host[:port][,host[:port]...][/chroot]; ValueError where it is no such
    thing."""
    hosts = []
    for server in connect.partition("/")[0].split(","):
        bare = server.strip()
        if not bare:
            raise ValueError("a server has no name")
        if ":" not in bare or bare.endswith("]"):
            bare = f"{bare}:{_ZOOKEEPER_PORT}"
        hosts.append(HostPort.parse(bare))
    return hosts
