# SPDX-License-Identifier: Apache-2.0
"""An authority and certificates in a directory, for a laptop or for machines without a certificate manager.

The directory has `ca.crt` and `ca.key`; each certificate NAME has `NAME.crt` and `NAME.key`. Keys are readable by
their owner only. Files are replaced by a rename, so a process that reads them again finds complete files.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidemark.core.security.principals import SCHEME, Role, service_uri
from tidemark.model import invalid_request
from tidemark.rpc.security.paths import TlsFiles

AUTHORITY: Final = "ca"
SERVICES: Final = "services"
"""Common name in the certificates of all services; their identity is the URI name."""
AUTHORITY_DAYS: Final = 3650
DAYS: Final = 365
_BACKDATED: Final = timedelta(minutes=5)
"""Certificates are valid from this time before their creation: clocks of machines differ."""
_NO_END: Final = datetime.max.replace(tzinfo=UTC)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_COMMON_NAME_MAX: Final = 64
_CLUSTER: Final = re.compile(rf"[a-z0-9][a-z0-9.-]{{0,{_COMMON_NAME_MAX - 1}}}")
"""The common name of the authority is the name of the cluster."""


class Authority:
    """An authority whose key and certificate are in a directory.

    Attributes:
        cluster: the cluster's name, which the identities of its services have.
    """

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.cluster = str(common[0].value) if common else ""

    @classmethod
    def create(cls, directory: Path, cluster: str, *, days: int = AUTHORITY_DAYS) -> Authority:
        """Create the authority of a cluster; raises INVALID_REQUEST if the directory has one, or for a wrong name."""
        if not _CLUSTER.fullmatch(cluster):
            wanted = f"at most {_COMMON_NAME_MAX} small letters, digits, '.' and '-'"
            raise invalid_request(f"the cluster's name is {cluster!r}: expected {wanted}")
        if directory.is_file():
            raise invalid_request(f"{directory} cannot hold certificates: it is a file; choose a directory")
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(directory):
            return cls._create_alone(directory, cluster, days)

    @classmethod
    def _create_alone(cls, directory: Path, cluster: str, days: int) -> Authority:
        if (directory / f"{AUTHORITY}.crt").exists():
            raise invalid_request(
                f"{directory} has an authority already; a new one would make all its certificates invalid: choose "
                "another directory, or remove this one first"
            )
        interrupted = (directory / f"{AUTHORITY}.key").exists()  # a command ended between the two files
        key = _load_key(directory) if interrupted else ec.generate_private_key(ec.SECP256R1())
        # Two authorities with the same name could not be distinguished in a bundle.
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, cluster),
                x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(8)),
            ]
        )
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            _builder(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        made = cls(directory, builder.sign(key, hashes.SHA256()), key)
        made._write(AUTHORITY, key, made._certificate)
        return made

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Read the authority; raises INVALID_REQUEST if there is none."""
        with _reading(directory, f"`tidemark certs init --directory {directory}` makes an authority"):
            certificate = x509.load_pem_x509_certificate((directory / f"{AUTHORITY}.crt").read_bytes())
        return cls(directory, certificate, _load_key(directory))

    def issue_service(self, role: Role, name: str, hosts: Sequence[str], *, days: int = DAYS) -> TlsFiles:
        """Issue the certificate of a service, for a server at `hosts` (names and addresses) and for its own calls."""
        uri = _uri(self.cluster, role, name)
        stem = role.value if role is Role.ADMIN and name == role.value else f"{role}-{name}"
        # ZooKeeper's ACLs name the whole subject: a znode of one service must be open to the others.
        common = [(NameOID.ORGANIZATION_NAME, self.cluster), (NameOID.COMMON_NAME, SERVICES)]
        with _alone(self._directory):
            return self._issue(stem, uri, hosts, days, x509.Name([x509.NameAttribute(*part) for part in common]))

    def issue_zookeeper(self, name: str, hosts: Sequence[str], *, days: int = DAYS) -> TlsFiles:
        """Issue the certificate of a ZooKeeper server at `hosts`; `zookeeper-NAME.pem` has certificate and key."""
        if not _NAME.fullmatch(name):
            raise invalid_request(
                f"the server's name is {name!r}: expected at most 200 letters, digits, '.', '_' and '-'"
            )
        with _alone(self._directory):
            files = self._issue(f"zookeeper-{name}", f"{SCHEME}://{self.cluster}/zookeeper/{name}", hosts, days)
            both = Path(files.certificate).read_bytes() + Path(files.key).read_bytes()
            _replace(self._directory / f"zookeeper-{name}.pem", both, 0o600)
        return files

    def issue_client(self, name: str, *, days: int = DAYS) -> TlsFiles:
        """Issue the certificate of the user `name`, whose identity is `tidemark://CLUSTER/user/NAME`."""
        if not _NAME.fullmatch(name):
            raise invalid_request(
                f"the client's name is {name!r}: expected at most 200 letters, digits, '.', '_' and '-'"
            )
        with _alone(self._directory):
            return self._issue(f"client-{name}", f"{SCHEME}://{self.cluster}/user/{name}", (), days)

    def _issue(
        self, stem: str, uri: str, hosts: Sequence[str], days: int, subject: x509.Name | None = None
    ) -> TlsFiles:
        last = self._certificate.not_valid_after_utc
        if last < datetime.now(UTC):
            raise invalid_request(
                f"{self._directory / AUTHORITY}.crt expired on {last:%Y-%m-%d}: no process accepts its certificates; "
                "`tidemark certs init` makes another one in a new directory"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, stem[:_COMMON_NAME_MAX])])
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        names = [x509.UniformResourceIdentifier(uri), *map(_host_name, hosts)]
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), days, last)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return self._write(stem, key, certificate)

    def _write(self, stem: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> TlsFiles:
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _replace(self._directory / f"{stem}.key", private, 0o600)
        _replace(self._directory / f"{stem}.crt", certificate.public_bytes(Encoding.PEM), 0o644)
        return self.files(stem)

    def files(self, stem: str) -> TlsFiles:
        """Paths of the certificate `stem`, issued or not."""
        ca, certificate, key = (self._directory / name for name in (f"{AUTHORITY}.crt", f"{stem}.crt", f"{stem}.key"))
        return TlsFiles(str(ca), str(certificate), str(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, last: datetime = _NO_END
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(min(now + timedelta(days=days), last))
    )


def _load_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    with _reading(directory, "put the key of the authority back: only it can sign"):
        key = load_pem_private_key((directory / f"{AUTHORITY}.key").read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise invalid_request(f"{directory}: the authority was not made by `tidemark certs init`")
    return key


@contextlib.contextmanager
def _reading(directory: Path, next_step: str) -> Iterator[None]:
    """Refuse files of an authority that are missing or wrong."""
    try:
        yield
    except OSError as error:
        raise invalid_request(f"{error.filename}: {error.strerror}; {next_step}") from None
    except (ValueError, TypeError):  # TypeError: a key with a password
        raise invalid_request(f"{directory}: ca.crt or ca.key is not a valid PEM file") from None


def _uri(cluster: str, role: Role, name: str) -> str:
    try:
        return service_uri(cluster, role, name)
    except ValueError as error:
        raise invalid_request(str(error)) from None


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):  # no caller would accept the certificate
        raise invalid_request(f"{host!r} is not a name or address of a host; repeat --host for several")
    return x509.DNSName(host)


def _replace(path: Path, content: bytes, mode: int) -> None:
    new = path.with_suffix(path.suffix + ".new")
    with _writing(new):
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait for another command in this directory: a key of one and a certificate of the other would not fit."""
    with _writing(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks of directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Refuse a path that cannot be written."""
    try:
        yield
    except OSError as error:
        raise invalid_request(f"{path}: {error.strerror}") from None
