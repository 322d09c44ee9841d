# SPDX-License-Identifier: Apache-2.0
"""The access rules of a secure round: each user has the rights that its clients need, and no super user is a client."""

from __future__ import annotations

from typing import Final

from tidemark.client.acls import CLUSTER, Operation, allow_rule, group, topic, transactional_id

from tests.chaos.loads import LOADS

OPERATOR: Final = "operator"
"""A super user, which makes the rules and is not used for anything else."""
_CONNECTION_AGE_MS: Final = 15_000
CLIENT: Final = "dev"
"""The user of the clients, by certificate."""
TOKEN_NAMES: Final = (CLIENT, "dev-1", "dev-2")
"""Users of the clients with tokens: a new token has another name than the old one, as long as both are accepted."""
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
    """Settings of brokers and the admin service; a slow machine has as many handshakes for each request."""
    return {
        "authorization.enabled": "true",
        "super.users": f"User:tidemark://local/user/{OPERATOR}",
        "connections.max.age.ms": str(round(_CONNECTION_AGE_MS * slowness)),
    }
