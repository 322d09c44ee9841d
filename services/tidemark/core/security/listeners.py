# SPDX-License-Identifier: Apache-2.0
"""The listeners of a service, and the addresses that each listener sends to its callers. Pure.

A service has one listener without a name, which serves all calls, or several listeners with names. Each listener
authenticates callers in one way, since gRPC in Python has no optional client certificates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.core.cluster_view import ClusterView
from tidemark.core.security.service_rights import INTERNAL
from tidemark.model import BrokerId, BrokerRegistration, host_port


class Listener(StrEnum):
    """A listener by its name."""

    ONLY = ""  # the one listener without a name
    INTERNAL = "internal"  # the services of the cluster: certificates; the only listener for calls between services
    MTLS = "clients.mtls"  # clients with certificates
    TOKEN = "clients.token"  # clients with tokens, over TLS
    PLAIN = "plain"  # all calls, in plain text, while a cluster moves to TLS


NAMES: Final = tuple(listener.value for listener in Listener if listener.value)
INTERNAL_SERVICES: Final = frozenset(path.split("/")[1] for path in INTERNAL)
"""Services that exist on the internal listener only, once a service has several."""


class Endpoint(NamedTuple):
    """An advertised address of one listener."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `NAME://HOST:PORT` or `HOST:PORT`; ValueError for other text."""
        name, scheme, address = text.rpartition("://")
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if (scheme and not name) or not colon or not host or not (port.isascii() and port.isdigit()):
            raise ValueError(f"{text!r} is not NAME://HOST:PORT")
        if int(port) > 65535:
            raise ValueError(f"{text!r} has no port of 0 to 65535")
        return cls(name, host, int(port))

    def __str__(self) -> str:
        address = host_port(self.host, self.port)
        return f"{self.name}://{address}" if self.name else address


def endpoint_of(broker: BrokerRegistration, listener: Listener) -> Endpoint | None:
    """The address of a broker for callers of a listener; None: this broker does not have that listener.

    A broker that registered one address has it for the callers of every listener, as a broker of an earlier version.
    """
    if listener is Listener.ONLY or not broker.endpoints:
        return Endpoint(listener, broker.host, broker.port)
    return next((found for found in map(Endpoint.parse, broker.endpoints) if found.name == listener), None)


def for_services_of(listener: Listener, broker: BrokerRegistration) -> BrokerRegistration:
    """The registration with the address at which services of this listener call the broker.

    While a cluster moves to TLS, some services call in plain text and others with TLS; brokers have both listeners.
    """
    found = endpoint_of(broker, listener)
    if found is None or (found.host, found.port) == (broker.host, broker.port):
        return broker
    return replace(broker, host=found.host, port=found.port)


def address_in(addresses: str, listener: Listener) -> str:
    """The address of a listener in a setting or node: the only address, or the first one if no address has the
    listener's name.
    """
    found = [Endpoint.parse(one) for one in addresses.split(",")] if "://" in addresses else []
    named = [one for one in found if one.name == listener] or found[:1]
    return str(named[0]._replace(name="")) if named else addresses


class ListenerViews:
    """Views of the cluster with the addresses of one listener.

    Args:
        admin: addresses of the admin service by listener; the addresses of `Listener.ONLY` are used for listeners
            without addresses.
    """

    def __init__(self, admin: Mapping[str, str]) -> None:
        self._admin = admin
        self._known: dict[Listener, tuple[object, Mapping[BrokerId, BrokerRegistration]]] = {}
        """Brokers of the last view by listener, as callers of the listener receive them. Views share these objects."""

    def of(self, view: ClusterView, listener: Listener) -> ClusterView:
        """The view for a caller of this listener: brokers without this listener are omitted."""
        admin = self._admin.get(listener) or self._admin.get(Listener.ONLY, "")
        known = self._known.get(listener)
        if known is None or known[0] is not view.brokers:
            known = self._known[listener] = view.brokers, _told(view.brokers, listener)
        if known[1] is view.brokers and admin == view.admin_address:
            return view
        return replace(view, brokers=known[1], admin_address=admin)


def _told(brokers: Mapping[BrokerId, BrokerRegistration], listener: Listener) -> Mapping[BrokerId, BrokerRegistration]:
    if not any(broker.endpoints for broker in brokers.values()):
        return brokers
    told = {}
    for broker_id, broker in brokers.items():
        found = endpoint_of(broker, listener)
        if found is not None:
            told[broker_id] = replace(broker, host=found.host, port=found.port, endpoints=())
    return told
