# SPDX-License-Identifier: Apache-2.0
"""The access rules of a secure round: each user has the rights that its clients need, and no super user is a client."""

from __future__ import annotations

from typing import Final

from tidemark.client.acls import CLUSTER, Operation, allow_rule, group, topic, transactional_id

from tests.chaos.loads import LOADS

OPERATOR: Final = "operator"
"""A super user, which only creates the access rules."""
_CONNECTION_AGE_MS: Final = 15_000
CLIENT: Final = "dev"
"""The user of the clients, by certificate."""
TOKEN_NAMES: Final = (CLIENT, "dev-1", "dev-2")
"""Users of the clients with tokens. While an old and a new token are both accepted, they have different names."""
_WITH_CERTIFICATE: Final = f"User:tidemark://local/user/{CLIENT}"

RULES: Final = [
    *(
        allow_rule(_WITH_CERTIFICATE, Operation.ALL, resource)
        for resource in (topic("*"), group("*"), transactional_id("*"), CLUSTER)
    ),
    *(
        allow_rule(f"User:token:{name}", operation, topic(load.topic))
        for name in TOKEN_NAMES
        for load in LOADS
        for operation in (Operation.READ, Operation.WRITE)
    ),
    *(allow_rule(f"User:token:{name}", Operation.READ, group("*")) for name in TOKEN_NAMES),
]


def settings(slowness: float) -> dict[str, str]:
    """Settings of brokers and the admin service.

    On a slow machine connections live longer, so that handshakes per request stay equal.
    """
    return {
        "authorization.enabled": "true",
        "super.users": f"User:tidemark://local/user/{OPERATOR}",
        "connections.max.age.ms": str(round(_CONNECTION_AGE_MS * slowness)),
    }
