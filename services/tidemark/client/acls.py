# SPDX-License-Identifier: Apache-2.0
"""Names for the access-rule methods of `AdminClient`: rules, their parts, and filters."""

from tidemark.core.security.acls import (
    CLUSTER,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourceType,
    allow_rule,
    group,
    topic,
    transactional_id,
)
from tidemark.rpc.codecs.acl import AclFilter

__all__ = [
    "CLUSTER",
    "Acl",
    "AclFilter",
    "Operation",
    "Pattern",
    "Permission",
    "Resource",
    "ResourceType",
    "allow_rule",
    "group",
    "topic",
    "transactional_id",
]
