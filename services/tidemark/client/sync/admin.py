# SPDX-License-Identifier: Apache-2.0
"""The sync AdminClient. This module does not import modules that only records need."""

from __future__ import annotations

from tidemark.client.aio.admin.client import AdminClient as AsyncAdminClient
from tidemark.client.aio.admin.connection import TIMEOUT_S
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.sync.forwarding import SyncClient, blocking, iterating
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven


class AdminClient(SyncClient[AsyncAdminClient]):
    """`tidemark.client.aio.AdminClient` for threads: its methods block.

    with AdminClient("127.0.0.1:9192") as admin:
        admin.create_topic("greetings", partitions=3)

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, which know the admin service, or a list of such texts. The
            address of the admin service is accepted too. None: TIDEMARK_BOOTSTRAP.
        admin: host:port of the admin service; None: found with `bootstrap`.
        timeout_s: timeout of each call, and of the wait for each update of a stream.
        tls: the TLS files; None: those that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        client_id: a name of this client, for quotas.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        admin: str | None = None,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        client_id: str = "",
    ) -> None:
        super().__init__(
            AsyncAdminClient(
                bootstrap, admin=admin, timeout_s=timeout_s, tls=tls, token_file=token_file, client_id=client_id
            )
        )

    create_topic = blocking(AsyncAdminClient.create_topic)
    delete_topic = blocking(AsyncAdminClient.delete_topic)
    list_topics = blocking(AsyncAdminClient.list_topics)
    describe_topics = blocking(AsyncAdminClient.describe_topics)
    create_partitions = blocking(AsyncAdminClient.create_partitions)
    delete_partitions = blocking(AsyncAdminClient.delete_partitions)
    delete_records = blocking(AsyncAdminClient.delete_records)
    alter_configs = blocking(AsyncAdminClient.alter_configs)
    describe_configs = blocking(AsyncAdminClient.describe_configs)
    describe_cluster = blocking(AsyncAdminClient.describe_cluster)
    elect_leaders = blocking(AsyncAdminClient.elect_leaders)
    list_unclean_elections = blocking(AsyncAdminClient.list_unclean_elections)
    alter_partition_reassignments = blocking(AsyncAdminClient.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdminClient.list_partition_reassignments)
    watch_partition_reassignments = iterating(AsyncAdminClient.watch_partition_reassignments)
    describe_log_dirs = blocking(AsyncAdminClient.describe_log_dirs)
    alter_replica_log_dirs = blocking(AsyncAdminClient.alter_replica_log_dirs)
    plan_brokers = blocking(AsyncAdminClient.plan_brokers)
    add_brokers = blocking(AsyncAdminClient.add_brokers)
    remove_brokers = iterating(AsyncAdminClient.remove_brokers)
    obstacles_to_restart = blocking(AsyncAdminClient.obstacles_to_restart)
    list_acls = blocking(AsyncAdminClient.list_acls)
    alter_acls = blocking(AsyncAdminClient.alter_acls)
    check_access = blocking(AsyncAdminClient.check_access)
    list_audit_lines = blocking(AsyncAdminClient.list_audit_lines)
    describe_client_quotas = blocking(AsyncAdminClient.describe_client_quotas)
    alter_client_quotas = blocking(AsyncAdminClient.alter_client_quotas)
    alter_topic_schema = blocking(AsyncAdminClient.alter_topic_schema)
    describe_topic_schemas = blocking(AsyncAdminClient.describe_topic_schemas)
