# SPDX-License-Identifier: Apache-2.0
"""Access rules <-> messages; words are checked when they are decoded."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, Resource, ResourceType, check_acl, option
from tidemark.v1 import admin_acls_pb2 as pb

MATCH: Final = "MATCH"
"""Pattern of a filter: the rules that cover the resource of that name."""


class AclFilter(NamedTuple):
    """Rules to select; "" selects every value. Words are those of `Acl`; `pattern` may be MATCH."""

    resource_type: str = ""
    pattern: str = ""
    name: str = ""
    principal: str = ""
    host: str = ""
    operation: str = ""
    permission: str = ""

    def selects(self, acl: Acl) -> bool:
        """Whether the filter selects the rule."""
        wanted = self
        if self.pattern == MATCH:
            kind = ResourceType(self.resource_type) if self.resource_type else acl.resource_type
            if self.name and not acl.matches(Resource(kind, self.name)):
                return False
            wanted = self._replace(pattern="", name="")
        return all(not want or want == found for want, found in zip(wanted, acl, strict=True))


def acl_to_proto(acl: Acl) -> pb.Acl:
    """Encode a rule."""
    return pb.Acl(**acl._asdict())


def acl_from_proto(message: pb.Acl) -> Acl:
    """Decode a rule; raises INVALID_REQUEST."""
    return check_acl(
        Acl(
            option(ResourceType, message.resource_type),
            option(Pattern, message.pattern),
            message.name,
            message.principal,
            message.host,
            option(Operation, message.operation),
            option(Permission, message.permission),
        )
    )


def filter_to_proto(wanted: AclFilter) -> pb.AclFilter:
    """Encode a filter of rules."""
    return pb.AclFilter(**wanted._asdict())


def filter_from_proto(message: pb.AclFilter) -> AclFilter:
    """The filter of a message; raises INVALID_REQUEST for an unknown word."""
    return AclFilter(
        resource_type=option(ResourceType, message.resource_type) if message.resource_type else "",
        pattern=message.pattern if message.pattern in ("", MATCH) else option(Pattern, message.pattern),
        name=message.name,
        principal=message.principal,
        host=message.host,
        operation=option(Operation, message.operation) if message.operation else "",
        permission=option(Permission, message.permission) if message.permission else "",
    )
