# SPDX-License-Identifier: Apache-2.0
"""The certificate of the console: each handshake uses the newest files that fit together."""

from __future__ import annotations

import ssl

from tidemark.rpc.security.changed_file import ChangedFile
from tidemark.runtime.configuration.file_content import check_file


class HttpsCertificate:
    """Certificate and key, read again when the files change; if new files do not fit, the former files stay in use.

    Args:
        certificate_file: PEM, with the intermediate certificates.
        key_file: PEM.

    Raises:
        OSError: a file cannot be read, or the files do not fit (`ssl.SSLError`).
    """

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self._newest = ChangedFile(_context, certificate_file, key_file)

    def context(self) -> ssl.SSLContext:
        """The context of a listening socket."""
        made = self._newest.current()
        made.sni_callback = self._choose
        return made

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this at each handshake, also of clients that state no host name."""
        connection.context = self._newest.current()


def _context(certificate_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    check_file(certificate_file)
    check_file(key_file)
    context.load_cert_chain(certificate_file, key_file)
    return context
