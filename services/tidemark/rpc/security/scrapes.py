# SPDX-License-Identifier: Apache-2.0
"""The port of /metrics: in plain text, or with the TLS files of the service."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING, Final

from tidemark.model import invalid_config
from tidemark.rpc.security.files import Material, TlsIdentity
from tidemark.runtime.metrics import MetricsServer, start_metrics_server

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ServiceSettings

PLAIN, SERVER, MUTUAL = "none", "server", "mutual"
_NAME: Final = "metrics.tls"


def serve_metrics(settings: ServiceSettings, identity: TlsIdentity | None) -> MetricsServer:
    """Serve /metrics as the settings state.

    Raises:
        TidemarkError: INVALID_CONFIG: the address cannot be used, or TLS is wanted without TLS files.
    """
    at = settings.metrics_listeners
    if settings.metrics_tls == PLAIN:
        return start_metrics_server(at.host, at.port)
    if identity is None:
        raise invalid_config(
            _NAME,
            f"{_NAME} is {settings.metrics_tls}, and this service has no TLS files: set tls.certificate.file, or "
            f"{_NAME} to {PLAIN}",
        )
    secured = SecuredScrapes(identity, asks_certificate=settings.metrics_tls == MUTUAL)
    return start_metrics_server(at.host, at.port, secure=secured)


class SecuredScrapes:
    """Makes connections of scrapers TLS connections; each handshake uses the newest files.

    Args:
        identity: the TLS files.
        asks_certificate: whether a scraper needs a certificate of the authority.
    """

    def __init__(self, identity: TlsIdentity, *, asks_certificate: bool) -> None:
        self._identity = identity
        self._asks_certificate = asks_certificate
        self._made = self._make(identity.current())

    def __call__(self, connection: socket.socket) -> ssl.SSLSocket:
        """The TLS connection over a connection, which keeps its own descriptor; raises OSError."""
        material = self._identity.current()
        fingerprint, context = self._made
        if fingerprint != material.fingerprint:
            fingerprint, context = self._made = self._make(material)
        twin = connection.dup()
        twin.settimeout(connection.gettimeout())
        try:
            return context.wrap_socket(twin, server_side=True)
        except BaseException:
            twin.close()
            raise

    def _make(self, material: Material) -> tuple[str, ssl.SSLContext]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._asks_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=material.ca.decode())
        # The library accepts only a path, and the named files may be partly replaced at this time.
        descriptor, path = tempfile.mkstemp()
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(material.key + b"\n" + material.certificate)
            context.load_cert_chain(path)
        finally:
            os.unlink(path)
        return material.fingerprint, context
