# SPDX-License-Identifier: Apache-2.0
"""Certificate, key and CA of a process: read from files, checked, and read again when the files change.

A set of files that do not fit together never replaces a valid set. Half-written files, or a certificate whose key was
not renamed yet, keep the previous set in use until the files fit.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from tidemark.core.security.principals import principal_of
from tidemark.model import TidemarkError
from tidemark.rpc.security.changed_file import signature
from tidemark.rpc.security.paths import SETTINGS, Names, TlsFiles, wrong_file
from tidemark.rpc.security.token_source import TokenSource
from tidemark.runtime.configuration.file_content import read_content

_log = logging.getLogger(__name__)

_CHECK_S: Final = 0.5
"""Interval at which a use of the files checks them for changes."""
_SETTLE_S: Final = 0.3
"""Time for which a start waits for files that do not fit together: they may be just being replaced."""
_CLOCKS_S: Final = 300.0
"""Difference of clocks for which a start takes a certificate that is not valid yet: the server's clock decides."""
_MISREAD: Final = re.compile(r'[\\,+"<>;#=]')
"""A value with one of these characters could be read as several values, or as another value."""
_SUBJECT_CHARACTERS_MAX: Final = 1024
_SUBJECT_PARTS_MAX: Final = 20
"""Parts of a subject at most: with more, a usual rule, with three times `.*?,.*`, takes a second of the event loop."""
_BEGIN, _END = b"-----BEGIN ", b"-----END "


class Material(NamedTuple):
    """The contents of a set of files that fit together.

    Attributes:
        ca, certificate, key: PEM texts; empty without a certificate. `ca` lacks authorities that have expired.
        fingerprint: differs for other contents.
        uris: URI names (SAN) of the certificate.
        not_after_s: end of the validity of the certificate or its authority, the earlier one, in seconds since 1970; of
            the CA, without a certificate.
    """

    ca: bytes
    certificate: bytes
    key: bytes
    fingerprint: str
    uris: tuple[str, ...]
    not_after_s: float


class TlsIdentity:
    """The files of one process or client. Safe for several threads.

    Args:
        files: the paths.
        names: names of their settings, for errors.
        token: the token of a client, which its channels send.

    Attributes:
        failures: times that changed files were refused.

    Raises:
        TidemarkError: INVALID_CONFIG: a file is missing, is not a PEM file, or does not fit the other files.
    """

    def __init__(self, files: TlsFiles, token: TokenSource | None = None, *, names: Names = SETTINGS) -> None:
        files.check(names)
        self.token = token
        self.files = files
        self._names = names
        self.failures = 0
        self._lock = threading.Lock()
        self._seen, self._material = _load_first(files, names)
        self._refused: tuple[object, ...] | None = None
        self._checked_s = time.monotonic()

    def current(self) -> Material:
        """The newest contents that fit together. Reads the files at most every half second, and never waits for
        another thread that does."""
        if time.monotonic() - self._checked_s < _CHECK_S or not self._lock.acquire(blocking=False):
            return self._material
        try:
            self._checked_s = time.monotonic()
            self._read_again()
        finally:
            self._lock.release()
        return self._material

    def server_credentials(self, *, ask_certificate: bool = True) -> grpc.ServerCredentials:
        """Credentials of a server that requires client certificates, unless `ask_certificate` is false; each handshake
        uses the newest files."""
        given = self.current()

        def configuration(material: Material) -> grpc.ServerCertificateConfiguration:
            pair = (material.key, material.certificate)
            authorities = material.ca if ask_certificate else None
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

        def changed() -> Any:
            nonlocal given
            now = self.current()
            if now.fingerprint == given.fingerprint:
                return None
            given = now
            return configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            configuration(given), changed, require_client_authentication=ask_certificate
        )

    def _read_again(self) -> None:
        if _signatures(self.files) == self._seen:
            return
        try:
            seen, material = _load(self.files, self._names)
            self._check_same_service(material)
            self._seen = seen
        except TidemarkError as error:
            self._refuse(error)
            return
        if material.fingerprint != self._material.fingerprint:
            self._material = material
            _log.info("the TLS files changed", extra={"uris": material.uris, "not_after": _date(material.not_after_s)})
        self._refused = None

    def _check_same_service(self, material: Material) -> None:
        """A service keeps its identity: its process has registered under the id that its certificate proved."""
        before, after = principal_of(self._material.uris), principal_of(material.uris)
        if before.role is not None and after != before:
            sentence = f"the new certificate is of {after.name}, and this service is {before.name}"
            raise wrong_file(sentence, self._names[1])

    def _refuse(self, error: TidemarkError) -> None:
        """Keep the previous contents; count and log each state of the files once."""
        state = (error.message,)
        if state != self._refused:
            self._refused = state
            self.failures += 1
            _log.warning("the changed TLS files are not used: %s", error.message)


def _load_first(files: TlsFiles, names: Names) -> tuple[tuple[object, ...], Material]:
    """Like `_load`, without former contents that could stay in use while the files are being replaced."""
    until_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            return _load(files, names, clocks_s=_CLOCKS_S)
        except TidemarkError:
            if time.monotonic() > until_s:
                raise
        time.sleep(_SETTLE_S / 10)


def _load(files: TlsFiles, names: Names, *, clocks_s: float = 0.0) -> tuple[tuple[object, ...], Material]:
    """The contents, and the state of the files at the time of the read.

    Args:
        files: the paths.
        names: names of their settings, for errors.
        clocks_s: time before the start of the certificate's validity from which on the certificate is used.
    """
    seen = _signatures(files)
    ca, certificate, key = (_read(name, path) for name, path in zip(names, files, strict=True))
    if _signatures(files) != seen:
        raise wrong_file("the TLS files are being changed", names[0])
    try:
        return seen, _material(files, names, ca, certificate, key, clocks_s)
    except _UNREADABLE as error:
        raise wrong_file(f"the TLS files {', '.join(filter(None, files))} cannot be used: {error}", names[0]) from error


_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion)
"""Errors of the library for damaged contents; some come only when a part is used."""


def _material(files: TlsFiles, names: Names, ca: bytes, certificate: bytes, key: bytes, clocks_s: float) -> Material:
    authorities = _certificates(names[0], files.ca, ca)
    chain = _certificates(names[1], files.certificate, certificate) if certificate else []
    if chain:
        _check_pair(files, names, chain[0], key)
        _check_validity(files, names, chain[0], clocks_s)
    fingerprint = hashlib.sha256(b"\0".join((ca, certificate, key))).hexdigest()
    uris = _uris(chain[0]) if chain else ()
    return Material(_usable(ca, authorities), certificate, key, fingerprint, uris, _not_after_s(chain, authorities))


def _usable(ca: bytes, authorities: Sequence[x509.Certificate]) -> bytes:
    """The authorities that have not expired, the one with the latest end first.

    gRPC takes the first authority of a name, also if it has expired and is there again, renewed with the same name.
    """
    now = datetime.now(UTC)
    live = [one for one in authorities if one.not_valid_after_utc >= now]
    if len(authorities) < 2 or not live:
        return ca
    live.sort(key=lambda one: (one.not_valid_before_utc <= now, one.not_valid_after_utc), reverse=True)
    return b"".join(one.public_bytes(Encoding.PEM) for one in live)


def _not_after_s(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> float:
    issuers = [one for one in authorities if not chain or _is_issuer(one, chain[-1])]
    ends = [one.not_valid_after_utc for one in chain]
    if issuers:
        ends.append(max(one.not_valid_after_utc for one in issuers))
    return min(ends).timestamp()


def _is_issuer(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _signatures(files: TlsFiles) -> tuple[object, ...]:
    """A value that changes with the files, even if a symbolic link replaces another one."""
    return tuple(signature(path) for path in files if path)


def _read(name: str, path: str) -> bytes:
    if not path:
        return b""
    try:
        content = read_content(path)
    except OSError as error:
        raise wrong_file(f"{name} is {path}, which cannot be read: {error.strerror}", name) from error
    if not content.count(_BEGIN) or content.count(_BEGIN) != content.count(_END):
        raise wrong_file(f"{name} is {path}, which is not a whole PEM file", name)
    return content


def _certificates(name: str, path: str, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion):
        raise wrong_file(f"{name} is {path}, which has no valid certificate", name) from None


def _check_pair(files: TlsFiles, names: Names, certificate: x509.Certificate, key: bytes) -> None:
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        sentence = f"{names[2]} is {files.key}, which has no valid private key without a password"
        raise wrong_file(sentence, names[2]) from None
    public = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*public) != certificate.public_key().public_bytes(*public):
        raise wrong_file(f"{names[2]} is {files.key}, which is not the key of {files.certificate}", names[2])


def _check_validity(files: TlsFiles, names: Names, certificate: x509.Certificate, clocks_s: float) -> None:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if last < now:
        sentence = f"{names[1]} is {files.certificate}, which expired on {_date(last.timestamp())}"
        raise wrong_file(sentence, names[1])
    if first > now + timedelta(seconds=clocks_s):
        sentence = f"{names[1]} is {files.certificate}, which is not valid before {_date(first.timestamp())}"
        raise wrong_file(f"{sentence}: wait, or correct the clock of this machine", names[1])


def _uris(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


@functools.lru_cache(maxsize=4096)
def uris_in(pem: bytes) -> tuple[str, ...]:
    """The URI names of a caller's certificate; empty if the certificate cannot be read."""
    try:
        return _uris(x509.load_pem_x509_certificate(pem))
    except _UNREADABLE:
        return ()


@functools.lru_cache(maxsize=4096)
def subject_in(pem: bytes) -> str:
    """The subject of a caller's certificate, as RFC 4514 writes it; "" for an ambiguous subject.

    A value with a comma, for example, could look like two values. So some subjects name no user: subjects with a
    special character, with several values in one part, or with very many parts. The same holds for subjects without
    exactly one common name, and for a certificate whose other names cannot be read.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        subject, text, uris = certificate.subject, certificate.subject.rfc4514_string(), _uris(certificate)
    except _UNREADABLE:
        return ""
    if uris or len(text) > _SUBJECT_CHARACTERS_MAX or not text.isprintable() or "\\" in text:
        return ""
    if (
        len(subject.rdns) > _SUBJECT_PARTS_MAX
        or any(len(list(part)) != 1 for part in subject.rdns)
        or any(_MISREAD.search(str(one.value)) for one in subject)
    ):
        return ""
    return text if len(subject.get_attributes_for_oid(NameOID.COMMON_NAME)) == 1 else ""


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
