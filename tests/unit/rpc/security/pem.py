# SPDX-License-Identifier: Apache-2.0
"""Certificates with given URI names, as gRPC hands them to a server."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

_NO_NAME = x509.Name([])


@functools.cache
def certificate_with(*uris: str, dns: tuple[str, ...] = (), subject: x509.Name = _NO_NAME) -> bytes:
    """PEM of a self-signed certificate with URI and DNS names."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names += [x509.DNSName(name) for name in dns]
    extended = builder.add_extension(x509.SubjectAlternativeName(names), critical=False) if names else builder
    return extended.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def facts_of(*uris: str, dns: tuple[str, ...] = (), subject: x509.Name = _NO_NAME) -> dict[str, list[bytes]]:
    """The facts that gRPC states of a caller with this certificate. In `peer_uri` a NUL ends a name."""
    return {
        "transport_security_type": [b"ssl"],
        "x509_pem_cert": [certificate_with(*uris, dns=dns, subject=subject)],
        "peer_uri": [uri.partition("\0")[0].encode() for uri in uris],
    }
