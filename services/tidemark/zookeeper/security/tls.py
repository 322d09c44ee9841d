# SPDX-License-Identifier: Apache-2.0
"""TLS to ZooKeeper: the files of a session, the connections of kazoo, and reasons for failed connections.

kazoo's own TLS does not suffice. kazoo's TLS trusts the authorities of the operating system, and checks no host name.
kazoo also selects on the socket although TLS has already decrypted the next answer.
"""

from __future__ import annotations

import logging
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from tidemark.model import TidemarkError, host_port
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import SETTINGS, Names, TlsFiles, wrong_file
from tidemark.zookeeper.kazoo_handler import PollHandler, ReadAheadSocket

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ServiceSettings

_log = logging.getLogger(__name__)

NAMES: Final[Names] = ("zookeeper.tls.ca.file", "zookeeper.tls.certificate.file", "zookeeper.tls.key.file")
"""Names of the settings."""

_OTHER_NAME: Final = (62, 64)
"""OpenSSL's verify codes for a certificate of another host name or address."""

_ENDED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The end of a connection during the handshake; the error depends on the versions of Python and OpenSSL."""


def tls_of(settings: ServiceSettings) -> ZooKeeperTls | None:
    """TLS of a service's sessions; None: plain text.

    Raises:
        TidemarkError: INVALID_CONFIG: a file is missing, cannot be read, or does not fit the other files.
    """
    own = TlsFiles(
        settings.zookeeper_tls_ca_file, settings.zookeeper_tls_certificate_file, settings.zookeeper_tls_key_file
    )
    if not own.is_set:
        return None
    if own.certificate or own.key:
        return ZooKeeperTls(own)
    service = TlsFiles(own.ca, settings.tls_certificate_file, settings.tls_key_file)
    return ZooKeeperTls(service, (NAMES[0], *SETTINGS[1:]) if service.certificate else NAMES)


class ZooKeeperTls:
    """The files of the sessions of one process.

    Args:
        files: the paths; all three are needed.
        names: names of their settings, for errors.

    Attributes:
        failure: why the last attempt to connect failed; "" if the reason is not TLS.

    Raises:
        TidemarkError: INVALID_CONFIG: a file is missing, cannot be read, or does not fit the other files.
    """

    def __init__(self, files: TlsFiles, names: Names = NAMES) -> None:
        self._identity = TlsIdentity(files, names=names)
        if not files.certificate:
            raise wrong_file(f"{names[1]} is not set: a session needs a certificate", names[1])
        self._files = files
        self._names = names
        self._fingerprint = ""
        self._context: ssl.SSLContext | None = None
        self.failure = ""

    def not_after_s(self) -> float:
        """End of the certificate's validity, in seconds since 1970."""
        return self._identity.current().not_after_s

    def handler(self) -> TlsHandler:
        """The handler of a new kazoo client."""
        return TlsHandler(self)

    def context(self) -> ssl.SSLContext:
        """The context with the newest files that fit together; raises OSError if no files have fitted so far."""
        fingerprint = self._identity.current().fingerprint
        if self._context is None or fingerprint != self._fingerprint:
            try:
                self._context = _context_of(self._files)
                self._fingerprint = fingerprint
            except OSError as error:  # the files are just being changed
                if self._context is None:
                    raise
                _log.warning("the changed TLS files are not used for ZooKeeper yet: %s", error)
        return self._context

    def connect(self, address: tuple[str, int], host: str, timeout_s: float) -> TlsSocket:
        """A connection to the server `host` at `address`; raises OSError."""
        context = self.context()
        plain = socket.create_connection(address, timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made = context.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            if not isinstance(error, TimeoutError):  # a slow attempt does not change the reason
                self.failure = self._reason(error, host_port(host, address[1]))
            raise
        assert isinstance(made, TlsSocket)
        made.tls, made.server = self, host_port(host, address[1])
        return made

    def refused(self, error: OSError | None, server: str) -> None:
        """Note that a server closed a connection before its first answer."""
        if isinstance(error, ssl.SSLError):
            self.failure = self._reason(error, server)
        else:
            self.failure = f"{server} closed the connection; {self._refusal()}, or the server is not ready"

    def _refusal(self) -> str:
        return f"the server may not accept {self._names[1]} ({self._files.certificate}), see the server's log"

    def _reason(self, error: OSError, server: str) -> str:
        """A sentence for an error of the handshake."""
        if isinstance(error, ssl.SSLCertVerificationError):
            if error.verify_code in _OTHER_NAME:
                return (
                    f"the certificate of {server} has another name: zookeeper.connect must have a name of the "
                    f"certificate ({error.verify_message})"
                )
            return f"{self._names[0]} ({self._files.ca}) does not accept {server}: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            reason = error.reason or ""
            if "ALERT" in reason:
                return f"{server} refused the connection with {reason}; {self._refusal()}"
            if isinstance(error, _ENDED) or reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                return _no_tls(server)
            return f"TLS with {server} failed: {reason or error}"
        return _no_tls(server) if isinstance(error, ConnectionResetError) else ""


def _no_tls(server: str) -> str:
    return f"{server} does not speak TLS: zookeeper.connect must have ZooKeeper's secureClientPort"


def _context_of(files: TlsFiles) -> ssl.SSLContext:
    """Trusts the given authorities only, and checks the names of servers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key, password="")
    context.sslsocket_class = TlsSocket
    return context


class TlsSocket(ReadAheadSocket, ssl.SSLSocket):
    """A connection that knows if decrypted bytes are left.

    Attributes:
        tls: is notified of a refusal.
        server: host:port.
    """

    tls: ZooKeeperTls | None = None
    server = ""
    _answered = False

    def fill(self) -> bool:
        """Take the bytes that have arrived, and note that the server has answered, or has refused the connection."""
        holds = super().fill()
        if holds and not self._answered and self.tls is not None:
            if self.pending():
                self._answered = True
                self.tls.failure = ""
            else:
                self.tls.refused(self._error, self.server)
        return holds


class TlsHandler(PollHandler):
    """kazoo's handler, with connections for TLS.

    kazoo selects before it reads an answer. With TLS alone, the first read of a record with several answers decrypts
    all of them. Then `select` does not report the socket, and later answers wait for the next ping, for seconds.
    """

    def __init__(self, tls: ZooKeeperTls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_: Any
    ) -> ReadAheadSocket:
        """A connection with TLS; raises OSError."""
        try:
            return self._tls.connect(address, hostname, timeout)
        except TidemarkError as error:
            raise OSError(error.message) from error
