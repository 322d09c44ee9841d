# SPDX-License-Identifier: Apache-2.0
"""Network addresses in settings and on command lines."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

from tidemark.core.security.listeners import NAMES, Listener
from tidemark.model import host_port, number_up_to


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
        made = super().__new__(cls, host_port(host, port))
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
        number = number_up_to(65535, port)
        if not colon or not host or number is None:
            raise ValueError("expected host:port with a port of 0 to 65535")
        return cls(host, number)


class Listeners(HostPort):
    """Addresses by the listener's name: `HOST:PORT`, or `NAME://HOST:PORT` separated by commas.

    `host` and `port` are those of `main`. The text of the value is the text that was parsed.

    Attributes:
        by_name: the addresses; a single address has the name "".
        main: the address that services use: the single address, or the first of `internal` and `plain`, or the first
            address.
    """

    __slots__ = ("by_name", "main")

    by_name: Mapping[str, HostPort]
    main: HostPort

    @classmethod
    def of(cls, by_name: Mapping[str, HostPort]) -> Listeners:
        """Make the value of addresses by name."""
        made = str.__new__(cls, ",".join(f"{name}://{one}" if name else str(one) for name, one in by_name.items()))
        made.by_name = dict(by_name)
        of_services = [one for name, one in by_name.items() if name in (Listener.INTERNAL, Listener.PLAIN)]
        made.main = next(iter(of_services or by_name.values()))
        made.host, made.port = made.main.host, made.main.port
        return made

    def __reduce__(self) -> tuple[Any, Any]:
        return Listeners.of, (self.by_name,)

    @property
    def several(self) -> bool:
        """Whether the listeners have names."""
        return "" not in self.by_name

    @classmethod
    def parse(cls, text: str) -> Listeners:
        """Parse `text`; ValueError for another form, an unknown name or a repeated name."""
        by_name: dict[str, HostPort] = {}
        for part in text.split(","):
            name, scheme, address = part.strip().rpartition("://")
            if scheme and name not in NAMES:
                raise ValueError(f"{name!r} is not a listener: expected {', '.join(NAMES)}")
            if name in by_name:
                raise ValueError("expected one host:port, or several NAME://host:port with different names")
            by_name[name] = HostPort.parse(address)
        if "" in by_name and len(by_name) > 1:
            raise ValueError("several listeners need names: NAME://host:port for each")
        return cls.of(by_name)


_ANY: Final = ("0.0.0.0", "::")


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens there; raises OSError.

    At 0.0.0.0 or [::] the socket takes connections of IPv4 and IPv6 where the system has both, as the ports of gRPC do.
    """
    if host in _ANY and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(where[:2], family=family, backlog=backlog)


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
