# SPDX-License-Identifier: Apache-2.0
"""The ports of a service: an address, TLS files, and the authentication of callers, for each listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import principal_of
from tidemark.core.security.subject_mapping import SubjectMapping
from tidemark.model import invalid_config
from tidemark.rpc.security.callers import Authentication, CallerCheck, TokenVerifier
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.tokens import StaticTokens, Tokens
from tidemark.runtime.configuration.key import UNLIMITED
from tidemark.runtime.host_port import HostPort, Listeners

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ClientFacingSettings

_GRACE_MS: Final = 30_000
"""Time for the calls of a connection that has reached its age: new ones go to a new connection."""


class ListenerPort(NamedTuple):
    """One port of a service.

    Attributes:
        listener: its name.
        address: address to listen on; port 0: the system chooses.
        identity: the TLS files; None: plain text.
        tokens: verifier of tokens on the listener for tokens; None on other listeners.
        on_refused: called with the reason of each refused token.
        max_age_ms: age at which a connection with TLS is closed; -1: no limit.
        subjects: names users by the subjects of their certificates.
    """

    listener: Listener
    address: HostPort
    identity: TlsIdentity | None = None
    tokens: TokenVerifier | None = None
    on_refused: Callable[[str], None] = lambda _: None
    max_age_ms: int = UNLIMITED
    subjects: SubjectMapping | None = None

    def options(self) -> list[tuple[str, int]]:
        """Options of gRPC for this port."""
        if self.identity is None or self.max_age_ms == UNLIMITED:
            return []
        grace_ms = min(self.max_age_ms, _GRACE_MS)
        return [("grpc.max_connection_age_ms", self.max_age_ms), ("grpc.max_connection_age_grace_ms", grace_ms)]

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """The interceptors that check each call first."""
        plain = self.identity is None
        known = Authentication(
            self.listener, plain=plain, tokens=self.tokens, on_refused=self.on_refused, subjects=self.subjects
        )
        if self.identity is None or self.listener not in (Listener.ONLY, Listener.INTERNAL):
            return [known]
        return [known, CallerCheck(principal_of(self.identity.current().uris).cluster)]

    def bind(self, server: grpc.aio.Server) -> int:
        """Open the port; returns its number."""
        if self.identity is None:
            return server.add_insecure_port(str(self.address))
        asks = self.listener is not Listener.TOKEN
        return server.add_secure_port(str(self.address), self.identity.server_credentials(ask_certificate=asks))


def identity_in(ports: Sequence[ListenerPort]) -> TlsIdentity | None:
    """The TLS files of a service with these ports; None if each has plain text."""
    return next((one.identity for one in ports if one.identity is not None), None)


def client_files(settings: ClientFacingSettings, own: TlsFiles) -> TlsFiles:
    """The TLS files of the listeners for clients: the service's own files if no others are set."""
    given = TlsFiles(settings.clients_tls_ca_file, settings.clients_tls_certificate_file, settings.clients_tls_key_file)
    pair = given if given.certificate or given.key else own
    return TlsFiles(given.ca or own.ca, pair.certificate, pair.key)


def _tokens(settings: ClientFacingSettings) -> TokenVerifier:
    issuers = None
    if settings.tokens_issuers_file:
        from tidemark.rpc.security.jwts import IssuersFile  # PyJWT, for services that accept JWT

        issuers = IssuersFile(settings.tokens_issuers_file, settings.tokens_clock_skew_ms / 1000)
    return Tokens(StaticTokens(settings.tokens_file) if settings.tokens_file else None, issuers)


def _subjects(clients: ClientFacingSettings | None) -> SubjectMapping | None:
    if clients is None or not clients.tls_principal_mapping_rules:
        return None
    name = "tls.principal.mapping.rules"
    try:
        return SubjectMapping(clients.tls_principal_mapping_rules)
    except ValueError as error:
        raise invalid_config(name, f"{name}: {error}") from None


def listener_ports(
    listeners: Listeners,
    identity: TlsIdentity | None,
    clients: ClientFacingSettings | None = None,
    on_refused: Callable[[str], None] = lambda _: None,
    max_age_ms: int = UNLIMITED,
) -> list[ListenerPort]:
    """The ports of a service; the port that services use is the first.

    Args:
        listeners: the setting.
        identity: the TLS files of the service; listeners with names need them.
        clients: settings of the listeners for clients, if the service can have any.
        on_refused: called with the reason of each refused token.
        max_age_ms: see `ListenerPort`.

    Raises:
        TidemarkError: INVALID_CONFIG: the files for clients do not fit together, or cannot be read; or the rules for
            subjects have another form.
    """
    subjects = _subjects(clients)
    if not listeners.several or identity is None:
        return [ListenerPort(Listener.ONLY, listeners.main, identity, None, on_refused, max_age_ms, subjects)]
    shown, tokens = identity, None
    if clients is not None:
        files = client_files(clients, identity.files)
        files.check()
        shown = identity if files == identity.files else TlsIdentity(files)
        tokens = _tokens(clients) if Listener.TOKEN in listeners.by_name else None
    ports = []
    for name, address in listeners.by_name.items():
        listener = Listener(name)
        own = {Listener.INTERNAL: identity, Listener.PLAIN: None}.get(listener, shown)
        verifier = tokens if listener is Listener.TOKEN else None
        of_subjects = subjects if listener is Listener.MTLS else None
        ports.append(ListenerPort(listener, address, own, verifier, on_refused, max_age_ms, of_subjects))
    return sorted(ports, key=lambda port: port.address is not listeners.main)
