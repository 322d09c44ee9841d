# SPDX-License-Identifier: Apache-2.0
"""The methods of the async AdminClient for access rules and the audit log; `tidemark.client.acls` has the names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.client.argument_types import flag, instance, instances, int32, text
from tidemark.core.security.acls import Acl, Operation, Resource
from tidemark.core.security.audit_lines import AuditFilter, ServiceAudit
from tidemark.rpc.codecs.acl import AclFilter, acl_from_proto, acl_to_proto, filter_to_proto
from tidemark.rpc.codecs.audit import filter_to_proto as audit_filter_to_proto
from tidemark.rpc.codecs.audit import response_from_proto
from tidemark.v1 import admin_acls_pb2 as pb
from tidemark.v1.audit_pb2 import ListAuditLinesRequest


class AlteredAcls(NamedTuple):
    """Result of `alter_acls`.

    Attributes:
        added: rules that did not exist before.
        removed: rules that existed before.
        generation: version of all rules after the change.
    """

    added: tuple[Acl, ...]
    removed: tuple[Acl, ...]
    generation: int


class AccessCheck(NamedTuple):
    """Result of `check_access`.

    Attributes:
        allowed: whether the operation is allowed.
        rule: the rule that decided; None: no rule did.
        reason: "super user", "no rule allows it", "a rule denies it" or "a rule allows it".
        generation: version of all rules; -1: there are none.
    """

    allowed: bool
    rule: Acl | None
    reason: str
    generation: int


class AclCalls:
    """Access rules and the audit log. A part of `AdminClient`, which has its methods."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def list_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """List access rules, sorted.

        Args:
            wanted: rules to select; None: all.

        Example: `await admin.list_acls(AclFilter(principal="User:token:alice"))`
        """
        selected = AclFilter() if wanted is None else instance("wanted", wanted, AclFilter)
        request = pb.ListAclsRequest(filter=filter_to_proto(selected))
        response = await self._connection.call(lambda stub: stub.ListAcls, request)
        return [acl_from_proto(acl) for acl in response.acls]

    async def alter_acls(
        self, *, add: Sequence[Acl] = (), remove: Sequence[Acl] = (), validate_only: bool = False
    ) -> AlteredAcls:
        """Add and remove access rules, all of them or none; they take effect together, within a second.

        Args:
            add: rules to add; those that exist stay.
            remove: rules to remove; rules that do not exist are ignored.
            validate_only: check the request and compute the result, change nothing.

        Raises:
            TidemarkError: INVALID_REQUEST for a rule that could never match.

        Example: `await admin.alter_acls(add=[allow_rule("User:token:alice", Operation.READ, topic("orders"))])`
        """
        request = pb.AlterAclsRequest(
            add=[acl_to_proto(acl) for acl in instances("add", add, Acl)],
            remove=[acl_to_proto(acl) for acl in instances("remove", remove, Acl)],
            validate_only=flag("validate_only", validate_only),
        )
        response = await self._connection.call(lambda stub: stub.AlterAcls, request)
        added, removed = (tuple(map(acl_from_proto, acls)) for acls in (response.added, response.removed))
        return AlteredAcls(added, removed, response.generation)

    async def check_access(
        self, principal: str, operation: Operation, resource: Resource, *, host: str = ""
    ) -> AccessCheck:
        """Return whether an operation would be allowed, and which rule decides.

        Args:
            principal: "User:NAME".
            operation: the operation; not ALL.
            resource: the resource to check.
            host: IP address of the caller; "": an address that no rule names.

        Example: `await admin.check_access("User:token:alice", Operation.READ, topic("orders"))`
        """
        request = pb.CheckAccessRequest(
            principal=text("principal", principal),
            host=text("host", host),
            operation=text("operation", operation),
            resource_type=instance("resource", resource, Resource).type,
            name=resource.name,
        )
        response = await self._connection.call(lambda stub: stub.CheckAccess, request)
        rule = acl_from_proto(response.rule) if response.HasField("rule") else None
        return AccessCheck(response.allowed, rule, response.reason, response.generation)

    async def list_audit_lines(
        self, *, principal: str = "", resource: str = "", outcome: str = "", limit: int = 0
    ) -> list[ServiceAudit]:
        """List lines of the audit log that the admin service and the brokers have in memory since their start.

        Args:
            principal: text that the principal contains, in any case.
            resource: text that the resource, the event or a fact contains, in any case.
            outcome: "OK", "DENIED", "FAILED" (every other outcome) or an error code; "": all.
            limit: the most lines of each service, the newest ones; 0: no limit.

        Returns:
            The lines of each service, the newest first; a service that does not answer has `error` set.

        Raises:
            TidemarkError: INVALID_REQUEST for an unknown outcome.

        Example: `await admin.list_audit_lines(outcome="DENIED")`
        """
        wanted = AuditFilter(
            text("principal", principal), text("resource", resource), text("outcome", outcome), int32("limit", limit)
        )
        request = ListAuditLinesRequest(filter=audit_filter_to_proto(wanted))
        return [
            response_from_proto(one) async for one in self._connection.stream(lambda stub: stub.ListAuditLines, request)
        ]
