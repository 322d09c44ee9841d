# SPDX-License-Identifier: Apache-2.0
"""The section `acls` of the file of `tidemark apply`, and the step that makes the cluster's rules match it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemark.core.security.acls import (
    ANY,
    CLUSTER_NAME,
    Acl,
    Operation,
    Pattern,
    Permission,
    ResourceType,
    check_acl,
    option,
)
from tidemark.model import invalid_request
from tidemark.runtime.configuration.entries import ConfigChange

if TYPE_CHECKING:
    from tidemark.client import AdminClient

RESOURCES: Final[Mapping[str, tuple[ResourceType, Pattern]]] = {
    "topic": (ResourceType.TOPIC, Pattern.LITERAL),
    "topic_prefix": (ResourceType.TOPIC, Pattern.PREFIXED),
    "group": (ResourceType.GROUP, Pattern.LITERAL),
    "group_prefix": (ResourceType.GROUP, Pattern.PREFIXED),
    "transactional_id": (ResourceType.TRANSACTIONAL_ID, Pattern.LITERAL),
    "transactional_id_prefix": (ResourceType.TRANSACTIONAL_ID, Pattern.PREFIXED),
    "user": (ResourceType.USER, Pattern.LITERAL),
    "cluster": (ResourceType.CLUSTER, Pattern.LITERAL),
}
PERMISSIONS: Final = {"allow": Permission.ALLOW, "deny": Permission.DENY}
KEYS: Final = (*PERMISSIONS, "host", *RESOURCES)
"""Keys of one entry of a principal; each has one value or a list."""


@dataclass(frozen=True, slots=True)
class WantedAcls:
    """All rules of one principal; other rules of this principal are removed."""

    principal: str
    line: int
    acls: frozenset[Acl]


def rules_of(principal: str, entry: Mapping[str, Sequence[str]]) -> Iterator[Acl]:
    """Every combination of the values of an entry.

    Raises:
        TidemarkError: INVALID_REQUEST for an unknown word, or a rule that could never match.
    """
    named = [(*RESOURCES[key], name) for key, names in entry.items() if key in RESOURCES for name in names]
    for key, permission in PERMISSIONS.items():
        for word in entry.get(key, ()):
            for host in entry.get("host", (ANY,)):
                for kind, pattern, text in named:
                    name = _cluster(text) if kind is ResourceType.CLUSTER else text
                    operation = option(Operation, word)
                    yield check_acl(Acl(kind, pattern, name, principal, host, operation, permission))


def _cluster(flag: str) -> str:
    if flag != "true":
        raise invalid_request(f"cluster is {flag!r}: write cluster: true, or remove the line")
    return CLUSTER_NAME


class AclChange:
    """The changes that turn the cluster's access rules into the rules of the file, made in one write."""

    def __init__(self, wanted: Iterable[WantedAcls], found: Iterable[Acl]) -> None:
        of_file = {acl for one in wanted for acl in one.acls}
        principals = {one.principal for one in wanted}
        of_cluster = {acl for acl in found if acl.principal in principals}
        self.add = sorted(of_file - of_cluster)
        self.remove = sorted(of_cluster - of_file)

    def __bool__(self) -> bool:
        """Whether a rule has to be added or removed."""
        return bool(self.add or self.remove)

    @property
    def summary(self) -> str:
        """The numbers of rules."""
        return f"{len(self.add)} to add, {len(self.remove)} to remove"

    @property
    def changes(self) -> tuple[ConfigChange, ...]:
        """A line for each rule to add or remove."""
        removed = [ConfigChange(acl.principal, str(acl), None) for acl in self.remove]
        return (*removed, *(ConfigChange(acl.principal, None, str(acl)) for acl in self.add))

    def run(self, client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        """Make the change; a repeated change has no effect, so the request id is not needed."""
        client.alter_acls(add=self.add, remove=self.remove, validate_only=validate_only)
        return ()
