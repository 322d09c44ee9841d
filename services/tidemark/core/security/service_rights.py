# SPDX-License-Identifier: Apache-2.0
"""The calls that only services of the same cluster may make, and the check of their callers.

A controller proves itself by identity and epoch: the epoch alone could be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemark.core.security.principals import Principal, Role
from tidemark.core.security.rights import RIGHTS
from tidemark.errors import ErrorCode, TidemarkError

INTERNAL: Final[Mapping[str, frozenset[Role]]] = {path: right.roles for path, right in RIGHTS.items() if right.internal}
"""Roles that may make a call, by its path; `rights.RIGHTS` has the rights of all other calls."""


def check_caller(path: str, caller: Principal, cluster: str) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED if the call is internal and the caller is not one of its services in
    `cluster`.
    """
    roles = INTERNAL.get(path)
    if roles is None or (caller.role in roles and caller.cluster == cluster):
        return
    wanted = " or ".join(sorted(f"a {role}" if role is not Role.ADMIN else "an admin service" for role in roles))
    raise denied(caller, f"may not call {path}: only {wanted} of cluster {cluster!r} may")


def check_service_id(caller: Principal, service_id: int) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED if the caller claims the id of another service."""
    if caller.service != str(service_id):
        raise denied(caller, f"may not act as {caller.role or 'service'} {service_id}")


def denied(caller: Principal, sentence: str) -> TidemarkError:
    """The error CLUSTER_AUTHORIZATION_FAILED, with the name of the caller in the sentence."""
    return TidemarkError(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{caller.name} {sentence}", {"principal": caller.name}
    )
