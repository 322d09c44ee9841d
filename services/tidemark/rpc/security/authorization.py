# SPDX-License-Identifier: Apache-2.0
"""Authorization of one process, from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemark.core.security.authorizer import Authorizer
from tidemark.core.security.principals import principal_of
from tidemark.rpc.security.access import Accesses
from tidemark.rpc.security.audit import DENIALS
from tidemark.rpc.security.gate import Gate
from tidemark.rpc.security.listeners import ListenerPort, identity_in

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ClientFacingSettings


class Authorization(NamedTuple):
    """The parts of a service that authorize calls.

    Attributes:
        authorizer: decides; None: authorization is off.
        accesses: the rights of callers; None: authorization is off.
        gate: checks every call of a server; None: authorization is off.
    """

    authorizer: Authorizer | None = None
    accesses: Accesses | None = None
    gate: Gate | None = None


def cluster_in(ports: Sequence[ListenerPort]) -> str:
    """The cluster's name in the certificate of this process; "" if every port has plain text."""
    identity = identity_in(ports)
    return "" if identity is None else principal_of(identity.current().uris).cluster


def make_authorization(settings: ClientFacingSettings, ports: Sequence[ListenerPort]) -> Authorization:
    """The parts; there are no rules until a feed sets them.

    Args:
        ports: ports of this process; the certificate of a TLS port names the cluster.
    """
    if not settings.authorization_enabled:
        return Authorization()
    authorizer = Authorizer(settings.super_users)
    accesses = Accesses(authorizer, DENIALS, cluster_in(ports))
    return Authorization(authorizer, accesses, Gate(accesses))
