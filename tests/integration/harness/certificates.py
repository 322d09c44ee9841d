# SPDX-License-Identifier: Apache-2.0
"""Certificates with one error each; and files that are replaced as a certificate manager does."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tidemark.rpc.security.paths import TlsFiles

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def signed_by(
    authority: Path,
    into: Path,
    *,
    uris: Sequence[str] = (),
    hosts: Sequence[str] = ("127.0.0.1",),
    dns: Sequence[str] = (),
    valid_days: tuple[float, float] = (-1, 1),
    purposes: Sequence[x509.ObjectIdentifier] = BOTH,
) -> TlsFiles:
    """A certificate of the authority in a directory, with the names, dates and purposes that a test wants."""
    ca = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    signer = load_pem_private_key((authority / "ca.key").read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names += [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
    names += [x509.DNSName(name) for name in dns]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "by hand")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=valid_days[0]))
        .not_valid_after(now + timedelta(days=valid_days[1]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(signer, hashes.SHA256())
    )
    into.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(str(authority / "ca.crt"), str(into / "tls.crt"), str(into / "tls.key"))
    Path(files.certificate).write_bytes(certificate.public_bytes(Encoding.PEM))
    Path(files.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def replace(path: str | Path, content: bytes) -> None:
    """Replace a file in one step."""
    new = Path(f"{path}.new")
    new.write_bytes(content)
    os.replace(new, path)
