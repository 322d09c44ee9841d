# SPDX-License-Identifier: Apache-2.0
"""The sync Groups client."""

from __future__ import annotations

from tidemark.client.aio.coordinator_admin import TIMEOUT_S
from tidemark.client.aio.groups import Groups as AsyncGroups
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.sync.forwarding import SyncClient, blocking
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven


class Groups(SyncClient[AsyncGroups]):
    """`tidemark.client.aio.Groups` for threads: its methods block.

    with Groups("127.0.0.1:9192") as groups:
        for group in groups.describe_groups(["readers"]):
            ...

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        timeout_s: timeout of each call.
        tls: the TLS files; None: those that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
    ) -> None:
        super().__init__(AsyncGroups(bootstrap, timeout_s=timeout_s, tls=tls, token_file=token_file))

    list_groups = blocking(AsyncGroups.list_groups)
    describe_groups = blocking(AsyncGroups.describe_groups)
    set_offsets = blocking(AsyncGroups.set_offsets)
    plan_reset = blocking(AsyncGroups.plan_reset)
    delete = blocking(AsyncGroups.delete)
    delete_offsets = blocking(AsyncGroups.delete_offsets)
