# SPDX-License-Identifier: Apache-2.0
"""Identities: of the cluster's services, and of users; from the one URI name of a certificate, or from a token.

A service has `tidemark://CLUSTER/broker/3`, `tidemark://CLUSTER/controller/100` or `tidemark://CLUSTER/admin/NAME`.
CLUSTER is a name that all certificates of one cluster share. Any other URI names a user. DNS names and addresses are
never an identity. The subject is an identity only where `subject_mapping` applies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

SCHEME: Final = "tidemark"
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+")
"""A URI with an authority. Other characters could imitate another kind of identity, such as `token:alice`."""
_SERVICE: Final = re.compile(rf"{SCHEME}://(?P<cluster>[a-z0-9][a-z0-9.-]*)/(?P<role>[a-z]+)/(?P<name>[A-Za-z0-9._-]+)")


ALIAS: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""Form of an issuer's alias. The alias has no colon, so alias and subject cannot be mistaken."""
_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:[a-z0-9-]{1,63}:[a-z0-9.-]{1,253}")
_SUBJECT_LENGTH_MAX: Final = 255


class Role(StrEnum):
    """The part of a service in the cluster."""

    BROKER = "broker"
    CONTROLLER = "controller"
    ADMIN = "admin"


_ROLES: Final = {role.value: role for role in Role}


class Principal(NamedTuple):
    """The identity of a caller.

    Attributes:
        name: text in logs and errors: "User:" and the URI, or the URI of a service.
        cluster: the cluster of a service; "" for a user.
        role: the role of a service; None for a user.
        service: id of a broker or controller, name of an admin service; "" for a user.
    """

    name: str
    cluster: str = ""
    role: Role | None = None
    service: str = ""


ANONYMOUS: Final = Principal("User:ANONYMOUS")
"""A caller without an identity, as every caller of a plain-text port."""


_USER: Final = re.compile(
    rf"User:(\*|ANONYMOUS|{_URI.pattern}|CN=.+|token:.+|oidc:[^:]+:.+|{_SERVICE_ACCOUNT.pattern})", re.DOTALL
)


def can_be_a_user(name: str) -> bool:
    """Whether a caller can have this identity, or the name is "User:*", which is every caller."""
    return _USER.fullmatch(name) is not None


def service_uri(cluster: str, role: Role, name: str) -> str:
    """The URI of a service; raises ValueError for an invalid name."""
    uri = f"{SCHEME}://{cluster}/{role}/{name}"
    if principal_of([uri]).role is None:
        raise ValueError(
            f"{uri!r} is not a name of a service: expected small letters, digits, '.' and '-' in {cluster!r}"
        )
    return uri


def principal_of(uris: Sequence[str]) -> Principal:
    """The identity of a certificate with these URI names.

    Two URI names are refused as ambiguous: the caller is ANONYMOUS, as without a URI name. A URI without "://" is also
    invalid.
    """
    if len(uris) != 1:
        return ANONYMOUS
    (uri,) = uris
    if not _URI.fullmatch(uri):
        return ANONYMOUS
    found = _SERVICE.fullmatch(uri)
    if found is None or found["role"] not in _ROLES:
        return Principal(f"User:{uri}")
    return Principal(uri, found["cluster"], _ROLES[found["role"]], found["name"])


def token_principal(name: str) -> Principal:
    """The user of a static token."""
    return Principal(f"User:token:{name}")


def issuer_principal(alias: str, subject: str) -> Principal:
    """The user of a token of the issuer; ValueError for a subject that is not a readable name."""
    if not isinstance(subject, str) or not subject or len(subject) > _SUBJECT_LENGTH_MAX or not subject.isprintable():
        raise ValueError("expected a printable subject")
    return Principal(f"User:oidc:{alias}:{subject}")


def service_account_principal(subject: str) -> Principal:
    """The user of a token of Kubernetes; ValueError unless the subject is a service account."""
    if not isinstance(subject, str) or not _SERVICE_ACCOUNT.fullmatch(subject):
        raise ValueError("expected a service account")
    return Principal(f"User:{subject}")
