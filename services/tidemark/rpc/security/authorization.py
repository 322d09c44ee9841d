# SPDX-License-Identifier: Apache-2.0
"""Authorization of one process, from its settings."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemark.core.security.authorizer import Authorizer
from tidemark.core.security.principals import principal_of
from tidemark.rpc.security.access import Accesses
from tidemark.rpc.security.audit import DENIALS
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.gate import Gate


class AuthorizationSettings(Protocol):
    """The settings of a service that concern authorization."""

    @property
    def authorization_enabled(self) -> bool:
        """Whether every call is checked."""

    @property
    def super_users(self) -> tuple[str, ...]:
        """Principals that are allowed everything."""


class Authorization(NamedTuple):
    """Attributes:
    authorizer: decides; None: authorization is off.
    accesses: the rights of callers; None: authorization is off.
    gate: checks every call of a server; None: authorization is off.
    """

    authorizer: Authorizer | None = None
    accesses: Accesses | None = None
    gate: Gate | None = None


def cluster_in(identity: TlsIdentity | None) -> str:
    """The cluster's name in the certificate of this process; "" for plain text."""
    return "" if identity is None else principal_of(identity.current().uris).cluster


def make_authorization(settings: AuthorizationSettings, identity: TlsIdentity | None) -> Authorization:
    """The parts; without rules until a feed gives them.

    Args:
        identity: the TLS files of this process, whose certificate names the cluster; None: plain text.
    """
    if not settings.authorization_enabled:
        return Authorization()
    authorizer = Authorizer(settings.super_users)
    accesses = Accesses(authorizer, DENIALS, cluster_in(identity))
    return Authorization(authorizer, accesses, Gate(accesses))
