# SPDX-License-Identifier: Apache-2.0
"""The ports of a service: an address, its TLS files, and the way to authenticate, for each listener."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import grpc

from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import principal_of
from tidemark.rpc.security.callers import Authentication, CallerCheck, TokenVerifier
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.runtime.host_port import HostPort, Listeners


class ListenerPort(NamedTuple):
    """One port.

    Attributes:
        listener: its name.
        address: to listen on; port 0: the system chooses.
        identity: the TLS files; None: plain text.
        tokens: on the listener for tokens.
    """

    listener: Listener
    address: HostPort
    identity: TlsIdentity | None = None
    tokens: TokenVerifier | None = None

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """The interceptors that look at each call first."""
        known = Authentication(self.listener, plain=self.identity is None, tokens=self.tokens)
        if self.identity is None or self.listener not in (Listener.ONLY, Listener.INTERNAL):
            return [known]
        return [known, CallerCheck(principal_of(self.identity.current().uris).cluster)]

    def bind(self, server: grpc.aio.Server) -> int:
        """Open the port; returns its number."""
        if self.identity is None:
            return server.add_insecure_port(str(self.address))
        asks = self.listener is not Listener.TOKEN
        return server.add_secure_port(str(self.address), self.identity.server_credentials(ask_certificate=asks))


@runtime_checkable
class ClientTlsSettings(Protocol):
    """The settings of the TLS files that clients meet."""

    @property
    def clients_tls_ca_file(self) -> str:
        """Path; "": that of the service."""

    @property
    def clients_tls_certificate_file(self) -> str:
        """Path; "": that of the service."""

    @property
    def clients_tls_key_file(self) -> str:
        """Path; "": that of the service."""


def client_files(settings: ClientTlsSettings, own: TlsFiles) -> TlsFiles:
    """The TLS files of the listeners for clients: the service's own ones where no others are set."""
    given = TlsFiles(settings.clients_tls_ca_file, settings.clients_tls_certificate_file, settings.clients_tls_key_file)
    pair = given if given.certificate or given.key else own
    return TlsFiles(given.ca or own.ca, pair.certificate, pair.key)


def listener_ports(
    listeners: Listeners,
    identity: TlsIdentity | None,
    clients: ClientTlsSettings | None = None,
    tokens: TokenVerifier | None = None,
) -> list[ListenerPort]:
    """The ports of a service, the one that services use first.

    Args:
        listeners: the setting.
        identity: the TLS files of the service; listeners with names need them.
        clients: settings with the files of the listeners for clients, if the service can have any.
        tokens: verifies tokens; without it no token is accepted.

    Raises:
        TidemarkError: INVALID_CONFIG: the files for clients do not fit together.
    """
    if not listeners.several or identity is None:
        return [ListenerPort(Listener.ONLY, listeners.main, identity)]
    shown = identity
    if clients is not None:
        files = client_files(clients, identity.files)
        files.check()
        shown = identity if files == identity.files else TlsIdentity(files)
    ports = []
    for name, address in listeners.by_name.items():
        listener = Listener(name)
        own = identity if listener is Listener.INTERNAL else shown
        ports.append(ListenerPort(listener, address, own, tokens if listener is Listener.TOKEN else None))
    return sorted(ports, key=lambda port: port.address is not listeners.main)
