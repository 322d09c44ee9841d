# SPDX-License-Identifier: Apache-2.0
"""Lists, changes and tries out access rules, directly in ZooKeeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeVar

from tidemark.core.security.acls import ANY, APPLICABLE, Acl, Operation, Resource, check_topic_of, normal_host
from tidemark.core.security.authorizer import SUPER_USER, Decision
from tidemark.core.security.principals import can_be_a_user
from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.rpc.codecs.acl import AclFilter
from tidemark.zookeeper.store import MetadataStore

CHANGES_MAX: Final = 10_000
"""Largest number of rules that one request may add and remove."""
Changed = TypeVar("Changed")
_RACES_MAX: Final = 100


class ChangedAcls(NamedTuple):
    """The difference that a change made, and the version of the rules after it."""

    added: tuple[Acl, ...]
    removed: tuple[Acl, ...]
    generation: int


class AclAdministration:
    """Lists, checks and changes the access rules.

    Args:
        store: started.
        super_users: principals that have all rights.
    """

    def __init__(self, store: MetadataStore, super_users: Collection[str]) -> None:
        self._store = store
        self._super_users = frozenset(super_users)

    async def list_acls(self, wanted: AclFilter) -> tuple[list[Acl], int]:
        """The selected rules, sorted, and the version of all rules."""
        rules = await self._store.acls()
        return [acl for acl in rules.acls if wanted.selects(acl)], rules.generation

    async def alter(self, add: Sequence[Acl], remove: Sequence[Acl], *, validate_only: bool) -> ChangedAcls:
        """Add rules that do not exist and remove rules that exist, in one write; all other rules are skipped.

        Raises:
            TidemarkError: INVALID_REQUEST for a rule in both lists, an impossible user or topic, or too many rules.
                REQUEST_TIMED_OUT if other requests kept changing the rules; nothing was changed.
        """
        wanted, unwanted = set(add), set(remove)
        if len(add) + len(remove) > CHANGES_MAX:
            raise invalid_request(f"a request changes at most {CHANGES_MAX} rules")
        for acl in wanted:
            check_topic_of(acl)
            if not can_be_a_user(acl.principal):
                raise TidemarkError(
                    ErrorCode.INVALID_REQUEST,
                    f"no caller is {acl.principal}: give User: and the URI name of a certificate, User:token:NAME, "
                    "User:oidc:ALIAS:SUBJECT, User:system:serviceaccount:NAMESPACE:NAME, User:CN=NAME, User:ANONYMOUS "
                    "or User:*",
                    {"acl": "principal"},
                )
        if both := wanted & unwanted:
            raise invalid_request(f"this rule is to be added and removed: {min(both)}")

        async def attempt() -> ChangedAcls | None:
            rules = await self._store.acls()
            now = set(rules.acls)
            changed = ChangedAcls(tuple(sorted(wanted - now)), tuple(sorted(unwanted & now)), rules.generation)
            if not (changed.added or changed.removed):
                return changed
            after = (now | wanted) - unwanted
            written = await self._store.write_acls(after, version=rules.generation, validate_only=validate_only)
            return changed._replace(generation=rules.generation + (not validate_only)) if written else None

        return await compare_and_set(attempt, "access rules")

    async def check(self, principal: str, host: str, operation: Operation, resource: Resource) -> tuple[Decision, int]:
        """The decision on one operation, and the version of the rules that it follows.

        Raises:
            TidemarkError: INVALID_REQUEST for an operation that does not exist for this type of resource.
        """
        if operation is Operation.ALL or operation not in APPLICABLE[resource.type]:
            known = ", ".join(sorted(APPLICABLE[resource.type] - {Operation.ALL}))
            raise invalid_request(f"{operation} does not apply to a {resource.type}: give one of {known}")
        rules = await self._store.acls()
        if principal in self._super_users:
            return SUPER_USER, rules.generation
        return rules.decide(principal, normal_host(host) if host else ANY, operation, resource), rules.generation


async def compare_and_set(attempt: Callable[[], Awaitable[Changed | None]], node: str) -> Changed:
    """Return the first result of `attempt` that is not None; None means that the node changed after it was read.

    Args:
        attempt: reads, and writes with the version that it read.
        node: the content in plain words, for the error.

    Raises:
        TidemarkError: REQUEST_TIMED_OUT if other requests kept changing the node; else the error of an attempt.
    """
    for _ in range(_RACES_MAX):
        changed = await attempt()
        if changed is not None:
            return changed
    sentence = f"other requests kept changing the {node}; nothing was changed: retry"
    raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
