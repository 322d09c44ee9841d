# SPDX-License-Identifier: Apache-2.0
"""The certificate of the console: each handshake uses the newest files that fit together."""

from __future__ import annotations

import logging
import ssl
import time
from typing import Final

from tidemark.rpc.security.changed_file import signature

_CHECK_S: Final = 0.5
"""Interval at which a handshake checks whether the files changed."""

_log = logging.getLogger(__name__)


class HttpsCertificate:
    """Certificate and key, read again when the files change; if new files do not fit, the former files stay in use.

    Args:
        certificate_file: PEM, with the intermediate certificates.
        key_file: PEM.

    Raises:
        OSError: a file cannot be read, or the files do not fit (`ssl.SSLError`).
    """

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self._files = (certificate_file, key_file)
        self._seen = self._signatures()
        self._newest = self._read()
        self._refused = ""
        self._checked_s = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """The context of a listening socket."""
        made = self._read()
        made.sni_callback = self._choose
        return made

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this at each handshake, also of clients that state no host name."""
        if time.monotonic() - self._checked_s >= _CHECK_S:
            self._checked_s = time.monotonic()
            self._look()
        connection.context = self._newest

    def _look(self) -> None:
        seen = self._signatures()
        if seen == self._seen:
            return
        try:
            self._newest = self._read()
        except OSError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("the changed https.certificate.file and https.key.file are not used: %s", error)
            return
        self._seen, self._refused = seen, ""
        _log.info("the certificate of the console changed")

    def _signatures(self) -> tuple[object, ...]:
        return tuple(signature(path) for path in self._files)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        return context
