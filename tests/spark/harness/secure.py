# SPDX-License-Identifier: Apache-2.0
"""The Spark tests have a secure cluster: its settings and rules, and the options of a source or sink with a token."""

from __future__ import annotations

from typing import Final

from tidemark.client import AdminClient
from tidemark.client.acls import Operation, allow_rule, group, topic
from tidemark.local.cluster import LocalCluster

USER: Final = "User:tidemark://local/user/dev"
"""The user of the environment's certificate: tests of this process, and jobs without options for a token."""
WITH_TOKEN: Final = "User:token:dev"
GROUP: Final = "spark-queries"
AUTHORIZATION: Final = {"authorization.enabled": "true", "super.users": USER}


def let_the_token_in(cluster: LocalCluster) -> None:
    """The user with the token may read and write every topic, commit to the group `GROUP`, and no more."""
    rules = [allow_rule(WITH_TOKEN, one, topic("*")) for one in (Operation.READ, Operation.WRITE)]
    with AdminClient(cluster.admin_address, tls=cluster.client_files) as admin:
        admin.alter_acls(add=[*rules, allow_rule(WITH_TOKEN, Operation.READ, group(GROUP))])


def with_token(cluster: LocalCluster) -> dict[str, str]:
    """Options of a read or write with a token: paths only."""
    return {
        "tidemark.bootstrap": cluster.token_bootstrap,
        "tidemark.tls.ca.file": cluster.client_files.ca,
        "tidemark.token.file": str(cluster.token_file),
    }


def secrets_of(cluster: LocalCluster) -> tuple[str, ...]:
    """Texts that no plan, page or file of Spark may have."""
    assert cluster.token_file is not None
    with open(cluster.client_files.key, encoding="ascii") as file:
        key = file.read().splitlines()[1]
    return cluster.token_file.read_text(encoding="ascii").strip(), key
